"""Output files of a run: metrics that a resumed run continues, explained names, other tools' formats."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core import run
from grpo_core.config import Config, ConfigError, OutputConfig
from grpo_core.loggers import build_loggers
from grpo_core.metrics import JsonLines, read_metrics

ROOT = Path(__file__).resolve().parents[2]


def entry(step: int, **values) -> dict:
    """A step's metrics: some numbers, and one that is not there."""
    return {"step": step, "reward/mean": step / 10, "loss": -1.5, "sync/moved": None, **values}


def test_lines_go_on_behind_the_bytes_that_are_kept(tmp_path):
    """Later lines and a torn last line are cut off; the bytes before them do not change."""
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.write(entry(1))
    kept_bytes = lines.position()
    assert path.read_bytes() == json.dumps(entry(1)).encode() + b"\n"
    assert kept_bytes == path.stat().st_size
    lines.write(entry(2))
    lines.close()
    with path.open("a") as file:
        file.write('{"step": 3, "rew')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    lines = JsonLines(path, keep_bytes=kept_bytes)
    assert lines.position() == kept_bytes == path.stat().st_size
    lines.write(entry(2, loss=7.0))
    assert lines.position() == path.stat().st_size
    lines.close()
    assert read_metrics(path) == [entry(1), entry(2, loss=7.0)]


def test_lines_start_anew(tmp_path):
    """Without a number of bytes the file is replaced."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("old\n")
    lines = JsonLines(path)
    assert (lines.position(), path.read_text()) == (0, "")
    lines.close()


def test_a_file_shorter_than_what_is_kept_is_refused(tmp_path):
    """Going on would leave a hole; the file stays as it is."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    with pytest.raises(
        ConfigError, match=r"metrics.jsonl: 3 bytes, but the checkpoint was saved when it had 10"
    ):
        JsonLines(path, keep_bytes=10)
    assert path.read_text() == "{}\n"


def test_nothing_is_read_where_there_is_no_file(tmp_path):
    """A run killed before its first step has no metrics file."""
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_every_metric_of_a_run_is_explained(short_run):
    """In docs/metrics.md, by its name or by the pattern that it follows; each once."""
    document = run.train(short_run(**{"loss.kl_coefficient": 0.1}), lambda entry: None)
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `(.+?)` \| .+ \|$", text, re.MULTILINE)
    assert len(set(explained)) == len(explained)
    patterns = [re.compile(re.sub("<.+>", ".+", name)) for name in explained]
    write_entries = {name for line in read_metrics(Path(document["metrics"])) for name in line}
    assert [name for name in write_entries if not any(pattern.fullmatch(name) for pattern in patterns)] == []


def test_nothing_else_is_written_unless_asked_for(tmp_path):
    """The default of both options is off."""
    assert build_loggers(Config(), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "package", "modules"),
    [
        ("tensorboard", "tensorboard", ("torch.utils.tensorboard", "tensorboardX")),
        ("wandb", "wandb", ("wandb",)),
    ],
)
def test_an_absent_package_is_named(tmp_path, monkeypatch, key, package, modules):
    """The error has the setting that needs it, and nothing is written before."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # set by the logger: put back behind the test
    with pytest.raises(ConfigError, match=rf"output.{key} = True: the package {package} is not installed"):
        build_loggers(Config(output=OutputConfig(**{key: True})), tmp_path)
    assert list(tmp_path.iterdir()) == []


def write_entries(folder: Path, entries: list[dict], options: OutputConfig, keep_bytes: int = 0) -> int:
    """Write entries as a run does; return the bytes of metrics.jsonl."""
    lines = JsonLines(folder / "metrics.jsonl", keep_bytes)
    loggers = build_loggers(Config(output=options), folder)
    for item in entries:
        lines.write(item)
        for logger in loggers:
            logger.write(item)
    position = lines.position()
    for file in (lines, *loggers):
        file.close()
    return position


def scalars(events) -> dict[str, list[tuple[int, float]]]:
    """Return TensorBoard's scalars: (step, value) by name."""
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_written(tmp_path):
    """Each number at its step; None is left out."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_entries(tmp_path, [entry(1), entry(2, kl=0.25)], OutputConfig(tensorboard=True))
    curves = scalars(reader.EventAccumulator(str(tmp_path / "tensorboard")))
    assert curves == {
        "reward/mean": [(1, pytest.approx(0.1)), (2, pytest.approx(0.2))],
        "loss": [(1, -1.5), (2, -1.5)],
        "kl": [(2, 0.25)],
    }


def test_a_resumed_run_has_each_step_once_in_tensorboard(tmp_path):
    """The steps kept and the steps made again: in a TensorBoard started later, and in one that looks on."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder, options = str(tmp_path / "tensorboard"), OutputConfig(tensorboard=True)
    position = write_entries(tmp_path, [entry(1), entry(2)], options)
    write_entries(tmp_path, [entry(3), entry(4)], options, keep_bytes=position)
    looks_on = reader.EventAccumulator(folder)
    assert [step for step, _ in scalars(looks_on)["loss"]] == [1, 2, 3, 4]
    write_entries(tmp_path, [entry(3, loss=7.0)], options, keep_bytes=position)
    expected = [(1, -1.5), (2, -1.5), (3, 7.0)]
    assert scalars(reader.EventAccumulator(folder))["loss"] == expected
    assert scalars(looks_on)["loss"] == expected


_WANDB_PROGRAM = """
import sys
from pathlib import Path
from tests.grpo_core.test_loggers import OutputConfig, entry, write_entries
folder, options = Path(sys.argv[1]), OutputConfig(wandb=True)
kept = write_entries(folder, [entry(1), entry(2)], options)
write_entries(folder, [entry(3, loss=7.0)], options, keep_bytes=kept)
"""


def wandb_steps(path: Path) -> list[dict]:
    """The logged steps of an offline run's file: a LevelDB log of wandb's own protocol buffers."""
    from wandb.proto import wandb_internal_pb2

    data, at, steps, payload = path.read_bytes(), 7, [], b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        payload += data[at + 7 : at + 7 + length]
        at += 7 + length
        if 32768 - at % 32768 < 7:  # no room for a header: the block is padded
            at += 32768 - at % 32768
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(payload)
            payload = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                steps.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return steps


@pytest.mark.long
def test_wandb_is_offline_and_a_resumed_run_has_each_step_once(tmp_path):
    """The numbers are in its file; nothing is printed, prompted, or sent to the server or a proxy."""
    pytest.importorskip("wandb")
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
    done = subprocess.run(
        [sys.executable, "-c", _WANDB_PROGRAM, str(tmp_path)],
        env={**os.environ, **proxies, "WANDB_BASE_URL": address, "NO_PROXY": "", "no_proxy": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=500,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    listener.setblocking(False)
    with listener, pytest.raises(BlockingIOError):  # nobody has connected
        listener.accept()
    (path,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    steps = wandb_steps(path)
    assert [(step["_step"], step["loss"]) for step in steps] == [(1, -1.5), (2, -1.5), (3, 7.0)]
    assert steps[0]["reward/mean"] == 0.1
    assert all("sync/moved" not in step for step in steps)
