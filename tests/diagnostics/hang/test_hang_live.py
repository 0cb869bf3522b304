"""Real processes, looked at as a user would: a few of the bench's programs, the command's exit codes, its limits."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnostics.__main__ import main
from diagnostics.hang import watch
from diagnostics.hang.look import proc, rights, stacks, take
from diagnostics.hang.snapshot import StackFrame, Thread
from diagnostics.hang.watch import Motion, Stall
from diagnostics.output.findings import FINDINGS, FINE, INCOMPLETE
from tests.diagnostics import report_schema
from tests.diagnostics.hang import bench
from tests.diagnostics.hang.sight import BLIND

CASES = {case.name: case for case in bench.cases()}
HOST = str(bench.HERE / "host.py")
pytestmark = pytest.mark.skipif(bool(BLIND), reason=BLIND)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "two_locks",
        "pipe_of_dead_child",
        "file_lock",
        "servers_crossed",
        "asyncio_lost",
        "healthy_slow_handler",
    ],
)
def test_a_real_job(name):
    """The culprit and the class, of a hang; no hang, of a healthy one."""
    case = CASES[name]
    row = bench.score(case, *bench.observe(case))
    assert (row["right_process"], row["right_cause"], row["victim_named"]) == (True, True, False), row


@pytest.mark.slow
def test_real_ranks_over_gloo():
    """The rank in another collective is named, of three that PyTorch joined."""
    pytest.importorskip("torch")
    case = CASES["other_branch-1of3"]
    row = bench.score(case, *bench.observe(case))
    assert (row["right_process"], row["right_cause"]) == (True, True), row


@pytest.fixture
def stuck():
    """A process with two threads that wait for each other's locks."""
    process = subprocess.Popen(
        [sys.executable, HOST, "two_locks"], stdout=subprocess.PIPE, start_new_session=True
    )
    process.stdout.readline()
    while "futex" not in proc.system_call(process.pid, process.pid).name:
        time.sleep(0.01)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_the_command_says_it_and_keeps_it(stuck, tmp_path, capsys):
    """Exit code 1; the document is as published; the bundle gives the same verdict elsewhere."""
    kept = tmp_path / "b.json"
    look = ["hang", "--pid", str(stuck.pid), "--patience", "0.5", "--seconds", "0.6", "--format", "json"]
    assert main([*look, "--save", str(kept)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert problems(found) == []
    assert (found["cause"], found["code"]) == ("locks", "HNG006")
    assert main(["hang", "--from", str(kept), "--patience", "0.5", "--format", "json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert again["sentence"] == found["sentence"]


def test_no_locals_and_no_environment_but_named_keys_are_kept(tmp_path, capsys):
    """What a process holds in its variables, of either kind, is nobody's but its owner's."""
    held, told = "kept-in-a-local-4711", "kept-in-the-environment-4711"
    program = f"def f():\n    mine = '{held[::-1]}'[::-1]\n    print(1, flush=True)\n    input()\nf()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"RANK": "0", "NCCL_MINE": told, "MY_KEY": told},
    )  # fmt: skip
    with process:
        process.stdout.readline()
        kept = tmp_path / "b.json"
        look = [
            "hang",
            "--pid",
            str(process.pid),
            "--patience",
            "0.2",
            "--seconds",
            "0.2",
            "--format",
            "json",
        ]
        main([*look, "--save", str(kept)])
        process.communicate(b"\n")
    said = kept.read_text() + "".join(capsys.readouterr())
    assert f'"pid": {process.pid}' in said
    assert told not in said
    assert held not in said


def problems(found):
    """What a document has against the published schema."""
    schema = json.loads((Path(__file__).parents[3] / "docs" / "hang-v1.schema.json").read_text())
    before, report_schema.SCHEMA = report_schema.SCHEMA, schema
    try:
        return list(report_schema._check(found, schema, "hang"))
    finally:
        report_schema.SCHEMA = before


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_every_form_says_the_sentence(stuck, form, capsys):
    """And nothing of what is not ASCII breaks it; the page refers to nothing outside of it."""
    assert (
        main(
            [
                "hang",
                "--pid",
                str(stuck.pid),
                "--patience",
                "0.5",
                "--seconds",
                "0.6",
                "--format",
                form,
                "--stacks",
            ]
        )
        == 1
    )
    text = capsys.readouterr().out
    assert "2 threads that wait for each other" in " ".join(re.sub(r"<[^>]*>", "", text).split()).replace(
        "&#x27;", "'"
    )
    assert not re.search(r"""(?:src|href)=['"]""", text)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--pid", "4194304"], 2),
        (["--match", "("], 2),
        (["--match", "no such command line anywhere"], 3),
        (["--watch"], 2),
        (["--from", "x", "--pid", "1"], 2),
        (["word"], 2),
        (["--samples", "0"], 2),
        (["--watch", "--", "/no/such/program"], 2),
    ],
)
def test_wrong_usage_is_one_line(words, code, capsys):
    """On standard error, and nothing on standard output."""
    assert main(["hang", *words]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1


def test_without_rights_nothing_is_guessed(stuck, monkeypatch, capsys):
    """Exit code 3, and what would allow it."""
    monkeypatch.setattr(
        rights, "refusals", lambda pids: dict.fromkeys(pids, "this process lacks CAP_SYS_PTRACE over it")
    )
    assert main(["hang", "--pid", str(stuck.pid), "--seconds", "0.1", "--format", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "unknown"
    assert "CAP_SYS_PTRACE" in found["unseen"][0]


def test_without_py_spy_it_says_what_to_install(stuck, monkeypatch, capsys):
    """What /proc tells is still told; a hang is not claimed without a stack."""
    monkeypatch.setattr(stacks, "tool", lambda: None)
    assert main(["hang", "--pid", str(stuck.pid), "--seconds", "0.1", "--format", "json"]) == 3
    assert "grpo-doctor[hang]" in json.loads(capsys.readouterr().out)["unseen"][0]


def test_a_stopped_process_needs_no_py_spy(stuck, monkeypatch, capsys):
    """Its state tells."""
    monkeypatch.setattr(stacks, "tool", lambda: None)
    os.kill(stuck.pid, signal.SIGSTOP)
    while proc.stat(stuck.pid)[0] != "T":
        time.sleep(0.01)
    assert main(["hang", "--pid", str(stuck.pid), "--seconds", "0.1", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["cause"] == "stopped"


def test_py_spy_that_hangs_is_given_up(monkeypatch, tmp_path):
    """After its limit, with a word."""
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "LIMIT_S", 0.2)
    assert "no answer within" in stacks.take(str(program), [os.getpid()])[os.getpid()]


def test_a_process_that_ends_while_it_is_looked_at(stuck):
    """It is told as gone, and nothing breaks."""

    def end(_seconds):
        stuck.kill()
        stuck.wait()

    snapshot = take.take(take.Wanted((stuck.pid,)), sleep=end)
    assert [process.state for process in snapshot.processes] == ["X"]


def test_threads_of_samples_are_merged():
    """What stood still is the stem; a loop that only waits again is steady although its lines move."""

    def sample(*names):
        return Thread(1, frames=tuple(StackFrame("/a.py", name, 3) for name in names), active=False)

    same = stacks.merged([sample("wait", "run"), sample("wait", "run")])
    assert (same.steady, same.stem, same.samples) == (True, 2, 2)
    other = stacks.merged([sample("f", "run"), sample("g", "run")])
    assert (other.steady, other.stem) == (False, 1)


def test_watch_ends_what_it_started(capfd):
    """By choice, with exit code 1; what the command wrote is passed on, the verdict goes to standard error."""
    words = [
        "hang",
        "--watch",
        "--stall",
        "0.5",
        "--seconds",
        "0.3",
        "--end",
        "--",
        sys.executable,
        HOST,
        "two_locks",
    ]
    assert main(words) == 1
    told = capfd.readouterr()
    pid = int(re.search(r"culprit (\d+)", told.out)[1])
    assert "wait for each other" in " ".join(told.err.split())
    # All of it: it is gone, and can't be asked again.
    assert "All processes:" in told.err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_watch_looks_again_where_it_could_not_tell():
    """A first answer that is none ends nothing; a later one of the same stall does."""
    answers = iter([FINE, INCOMPLETE, FINDINGS])
    asked = []

    def answer(snapshot, options):
        asked.append(snapshot)
        return next(answers)

    options = SimpleNamespace(stall=0.2, seconds=0.1, samples=2, patience=60.0, end=True)
    assert watch.run([sys.executable, HOST, "two_locks"], options, answer) == FINDINGS
    assert len(asked) == 3


def test_a_thread_is_held_against_the_clock_of_its_own_processor(monkeypatch):
    """The scheduler's clocks are apart: by 3 s here, where the thread last ran 2 s ago on the slower one."""
    now, here = 100.0, []
    clocks = {0: 50_000.0, 1: 47_000.0}

    def read(pid, name):
        if name.endswith("stat"):
            return f"{pid} (python) S " + " ".join(["0"] * 35) + " 1 0"
        own = pid == os.getpid()
        return f"se.exec_start : {clocks[min(here[-1])] if own else clocks[1] - 2000.0}"

    monkeypatch.setattr(proc, "read", read)
    monkeypatch.setattr(proc.time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, to: here.append(to))
    assert proc.Clocks().asleep_s(1, 1) == pytest.approx(2.0)
    assert here == [{1}, {0, 1}]


def test_a_thread_of_a_processor_that_is_forbidden_has_no_known_sleep(monkeypatch):
    """As in a container with processors of its own."""

    def refuse(_, to):
        raise OSError(22, "Invalid argument", str(to))

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert proc.Clocks().asleep_s(os.getpid(), os.getpid()) is None


@pytest.mark.parametrize("processor", sorted(os.sched_getaffinity(0))[:8])
def test_nobody_sleeps_longer_than_he_lives(processor):
    """On each processor, whichever the look itself runs on; what we may run on is as it was."""
    allowed, began = os.sched_getaffinity(0), time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, {processor}),  # noqa: PLW1509
    )  # fmt: skip
    try:
        child.stdout.readline()
        asleep = proc.Clocks().asleep_s(child.pid, child.pid)
        assert asleep is None or 0 <= asleep <= time.monotonic() - began
    finally:
        child.communicate()
    assert os.sched_getaffinity(0) == allowed


def test_watch_gives_the_commands_own_exit_code(capfd):
    """Of one that ends by itself."""
    assert main(["hang", "--watch", "--", sys.executable, "-c", "print('out'); raise SystemExit(7)"]) == 7
    assert capfd.readouterr().out == "out\n"


def test_a_stall_is_when_nothing_moved():
    """Output, processor time or bytes begin the wait anew; the clock is given."""
    stall = Stall(0.0, Motion(0, 0, 0), 0.0)
    assert stall.moved(10.0, Motion(5_000_000_000, 0, 0))
    assert not stall.moved(20.0, Motion(5_001_000_000, 100, 0))
    assert stall.since == 10.0
    assert stall.moved(30.0, Motion(5_001_000_000, 100, 1))
    assert not stall.moved(40.0, Motion(5_001_000_000, 100, 1))
    assert stall.since == 30.0


@pytest.mark.parametrize(
    ("owner", "me", "scope", "word"),
    [
        (1001, 1000, "", "belongs to uid 1001"),
        (1000, 1000, "1", "ptrace_scope is 1"),
        (1000, 1000, "1", "look as root"),
        (0, 0, "3", "nobody may look"),
        (1000, 1000, "", "CAP_SYS_PTRACE"),
    ],
)
def test_why_a_process_may_not_be_read(monkeypatch, owner, me, scope, word):
    """Each reason with what would allow it."""
    monkeypatch.setattr(rights, "os", SimpleNamespace(geteuid=lambda: me, getpid=os.getpid))
    monkeypatch.setattr(rights.proc, "uid", lambda _: owner)
    monkeypatch.setattr(rights, "_effective", lambda: 0)
    monkeypatch.setattr(rights, "_scope", lambda: scope)
    assert word in rights._why(7)
