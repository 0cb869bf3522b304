"""`audit --watch`: lines as they come, a document at the end, exit codes; and a server that is asked now and then."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import pytest

from diagnostics.__main__ import main
from diagnostics.audit.errors import AuditError, NotAskedError
from diagnostics.audit.model import CLEAN
from diagnostics.audit.running import probing
from diagnostics.audit.running.probing import Probe
from diagnostics.audit.running.watcher import FOUND, GONE
from diagnostics.audit.running.watching import Watch, Watched
from tests.diagnostics.audit_running.lines import healthy, written

WRONG = {"grad_norm": 0.0}


def told(capsys, *words):
    code = main(["audit", "--watch", *map(str, words), "--idle", "0"])
    return code, capsys.readouterr()


def test_nothing_wrong_is_clean(tmp_path, capsys):
    """Exit code 0."""
    path = tmp_path / "metrics.jsonl"
    written(path, map(healthy, range(1, 31)))
    code, said = told(capsys, path)
    assert code == 0
    assert said.out.startswith("audit: clean as far as asked")
    assert "30 looks" in said.err


def test_a_fault_is_a_line_and_then_the_document(tmp_path, capsys):
    """With the step, the code and the line of the file; exit code 1."""
    path = tmp_path / "metrics.jsonl"
    written(path, (healthy(step) | WRONG for step in range(1, 31)))
    code, said = told(capsys, path)
    assert code == 1
    assert said.out.splitlines()[0].startswith("step 4: FAULT NUM046: rewards differ")
    assert said.out.splitlines()[0].endswith("# metrics.jsonl:1")
    code, said = told(capsys, path, "--format", "json")
    made = json.loads(said.out)
    assert (code, made["source"], made["outcome"]) == (1, "running", "fault")
    code, said = told(capsys, path, "--format", "jsonl")
    kinds = [json.loads(line)["type"] for line in said.out.splitlines()]
    assert kinds[:2] == ["change", "audit"]
    assert set(kinds[2:]) == {"answer"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--watch", "{folder}", "--idle", "0"], 2, "expected a file"),
        (["--watch", "{folder}/none", "--idle", "0"], 3, "no line of metrics"),
        (["{folder}", "--watch", "{folder}/none"], 2, "one thing at a time"),
        (["{folder}", "--idle", "1"], 2, "of --watch alone"),
        (["--watch", "x", "--server", "http://127.0.0.1:9"], 2, "expected --checkpoint"),
    ],
)
def test_what_cannot_be_watched_is_said(tmp_path, capsys, words, code, said):
    """In one line."""
    assert main(["audit", *(word.format(folder=tmp_path) for word in words)]) == code
    assert said in capsys.readouterr().err


def test_it_ends_by_ctrl_c_with_what_it_found(tmp_path):
    """While lines come, and one is half written."""
    path = tmp_path / "metrics.jsonl"
    changes, notes, rounds = [], [], [0]

    def sleep(_):
        rounds[0] += 1
        if rounds[0] > 20:
            raise KeyboardInterrupt
        written(path, [healthy(rounds[0]) | WRONG])
        with path.open("a") as file:
            file.write('{"step": ')
        if rounds[0] % 5 == 0:  # rotated, with half a line at its end
            path.rename(tmp_path / f"old-{rounds[0]}")
        else:
            path.write_text(path.read_text().removesuffix('{"step": '))

    found = Watch(Watched((path,)), changes.append, notes.append).run(sleep=sleep, clock=lambda: 0.0)
    assert {change.answer.family for change in changes if change.what == FOUND} == {"metrics/no_gradient"}
    assert found.outcome == "fault"
    assert notes[0].endswith("not there yet")
    assert notes[-1] == "20 looks"


def _document(outcome, family):
    answer = {
        "family": family, "outcome": outcome, "probe": "P5", "code": "NUM002",
        "values": {"value": 0.6, "expected": 1.0},
        "estimates": [{"name": "temperature", "value": 0.6, "low": 0.5, "high": 0.7, "expected": 1.0}], "residual": 0.1,
        "floor": 0.1, "alarm": 0.2, "runner_up": {"name": "x", "residual": 1.0}, "count": 5, "tokens": 7, "facts": [],
        "wanted": [{"name": "more_tokens", "values": {"tokens": 5}, "place": "", "text": ""}], "by": "",
        "decisive": False,
    }  # fmt: skip
    return {"answers": [answer], "tokens": 7, "requests": 2}


def test_a_server_is_asked_every_so_many_steps(tmp_path, monkeypatch):
    """One look at it is enough to say so; a clean one thrice takes it back; what it cost is counted."""
    path = tmp_path / "metrics.jsonl"
    written(path, map(healthy, range(1, 101)))
    (tmp_path / "checkpoint-20").mkdir()
    (tmp_path / "checkpoint-20" / "config.json").write_text("{}")
    (tmp_path / "checkpoint-100").mkdir()  # not whole yet
    asked = []

    def started(command, **_):
        asked.append(command)
        wrong = len(asked) < 3
        made = _document("fault", "sampling/temperature") if wrong else _document(CLEAN, "sampling")
        return SimpleNamespace(returncode=0, stdout=json.dumps(made), stderr="")

    monkeypatch.setattr(probing.subprocess, "run", started)
    monkeypatch.setattr(Probe.asked, "__defaults__", (started,))
    probe = Probe("http://127.0.0.1:9", tmp_path)
    changes, notes = [], []
    found = Watch(Watched((path,), 0.0, probe, 10), changes.append, notes.append).run()
    assert len(asked) == 10
    assert f"--checkpoint={tmp_path / 'checkpoint-20'}" in asked[0]
    assert [(change.step, change.what) for change in changes] == [(10, FOUND), (50, GONE)]
    assert (found.tokens, found.requests) == (70, 20)


def test_a_server_that_does_not_answer_is_said(tmp_path):
    """And nothing else happens."""
    (tmp_path / "config.json").write_text("{}")

    def late(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    def refused(*_, **__):
        return SimpleNamespace(
            returncode=2, stdout="", stderr="x\ndiagnostics: audit: nobody listens there\n"
        )

    with pytest.raises(NotAskedError, match="timed out"):
        Probe("http://127.0.0.1:9", tmp_path).asked(late)
    with pytest.raises(NotAskedError, match="nobody listens"):
        Probe("http://127.0.0.1:9", tmp_path).asked(refused)
    with pytest.raises(AuditError, match="no checkpoint yet"):
        Probe("http://127.0.0.1:9", tmp_path / "none").asked(refused)
