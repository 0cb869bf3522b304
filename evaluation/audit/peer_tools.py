"""Report the faults that rldoctor, rlprobe and rlwatch find in a run's metrics: `python peer_tools.py HISTORY.jsonl`.

Each line of HISTORY.jsonl is an entry of TRL's log history. Each tool gets the metrics as from its own TRL callback;
rldoctor reads the file. Prints a JSON object: the names of the detectors that triggered, by tool.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path


def detect_with_rldoctor(path, entries):
    """Return the names of the detectors of rldoctor 0.2.0 that report a finding for a metrics file."""
    del entries
    from rl_doctor.cli import main

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        report_path = Path(folder) / "report.json"
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


def detect_with_rlprobe(path, entries):
    """Return the ids of the diagnoses of rlprobe 0.1.0, for metrics that its recorder wrote."""
    del path
    import types

    # The mapping of TRL's metric names is in a module that imports transformers for a base class.
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


def detect_with_rlwatch(path, entries):
    """Return the names of the detectors of rlwatch 0.5.1 that send an alert for the metrics."""
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


TOOLS = {"rldoctor": detect_with_rldoctor, "rlprobe": detect_with_rlprobe, "rlwatch": detect_with_rlwatch}


def main():
    """Print the findings of the three tools as JSON; a tool that fails is reported with its error."""
    path = Path(sys.argv[1])
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    detected = {}
    for tool, detect in TOOLS.items():
        try:
            detected[tool] = detect(path, entries)
        except Exception as error:  # noqa: BLE001 - a failure of one tool; run the others
            detected[tool] = [f"error: {type(error).__name__}: {error}"]
    print(json.dumps(detected))


if __name__ == "__main__":
    main()
