"""Report the faults that three tools find in a run's metrics: `python peer_tools.py HISTORY.jsonl`.

Prints JSON: by tool, the names of what it found. Each is given the lines as a TRL callback of its own would be.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path


def rldoctor(path, entries):
    """rldoctor 0.2.0, on the file."""
    del entries
    from rl_doctor.cli import main

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        report_path = Path(folder) / "told.json"
        with contextlib.suppress(SystemExit):
            main(["diagnose", str(path), "--format", "json", "--output", str(report_path)])
        document = json.loads(report_path.read_text())
    reported_severities = ("info", "warning", "critical")
    return sorted(
        {
            finding["detector"]
            for finding in document["findings"]
            if finding["severity"].lower() in reported_severities
        }
    )


def rlprobe(path, entries):
    """rlprobe 0.1.0, by its recorder, with its own mapping of TRL's names."""
    del path
    import types

    # Its mapping is in a module that imports transformers for a base class.
    sys.modules.setdefault("transformers", types.SimpleNamespace(TrainerCallback=object))
    from rlprobe.doctor import engine
    from rlprobe.integrations import trl
    from rlprobe.recorder import Recorder

    with tempfile.TemporaryDirectory() as folder:
        record = Recorder(folder, algorithm="grpo", capture_env=False, install_handlers=False)
        for entry in entries:
            record.log_step(entry["step"], **trl._map_logs(entry))
        record.close()
        return sorted(
            {
                str(getattr(diagnosis, "signature_id", None) or diagnosis.id)
                for diagnosis in engine.diagnose(folder)
            }
        )


def rlwatch(path, entries):
    """rlwatch 0.5.1, by what its own callback gives to log_step."""
    del path
    import rlwatch as watch

    names = {"entropy": "entropy", "kl": "kl_divergence", "reward": "reward_mean", "reward_std": "reward_std",
             "loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm"}  # fmt: skip
    detected = set()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        monitor = watch.attach(framework="manual", run_id="x")
        monitor.alert_manager.send = lambda alert, *_, **__: detected.add(alert.detector)
        for entry in entries:
            monitor.log_step(
                entry["step"], **{names[key]: value for key, value in entry.items() if key in names}
            )
        monitor.stop()
        del folder
    return sorted(detected)


def main():
    path = Path(sys.argv[1])
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    detected = {}
    for tool in (rldoctor, rlprobe, rlwatch):
        try:
            detected[tool.__name__] = tool(path, entries)
        except Exception as error:  # noqa: BLE001 - a failure of one tool; run the others
            detected[tool.__name__] = [f"error: {type(error).__name__}: {error}"]
    print(json.dumps(detected))


if __name__ == "__main__":
    main()
