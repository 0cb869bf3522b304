"""Attempts run in processes of a worker: hangs, crashes and failed imports become outcomes, and leave no process."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from repro import processes, runner
from repro.drivers import hangs
from repro.registry import AttemptOutcome

COMMAND = "import sys; from repro.__main__ import main; sys.exit(main(sys.argv[1:], registry='toys'))"


@pytest.fixture
def fifo(tmp_path, monkeypatch):
    """Return a FIFO that the toys keep open for writing until their processes end."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    monkeypatch.setenv("TOY_FIFO", str(path))
    return path


def run(toys, code, *plan, limit_s=500, **options):
    """Run the planned attempts of one code; return them and the progress lines."""
    lines = []
    repros = {code: toys.REPROS[code]}
    results = runner.run(repros, {code: plan}, limit_s=limit_s, report_line=lines.append, **options)
    return results[code], lines


def test_hang_is_a_timeout_and_the_run_continues(toys):
    attempts, lines = run(toys, "TOY001", ("hang", None), ("silent", None), limit_s=4.0)
    assert [attempt.outcome for attempt in attempts] == [AttemptOutcome.TIMEOUT, AttemptOutcome.REPRODUCED]
    assert attempts[0].detail == "no answer within 4 s"
    assert lines == ["TOY001 hang: timeout", "TOY001 silent: reproduced"]


def test_program_that_ended_is_no_hang():
    """A program that ends after its reports gives RuntimeError; it does not count as a hang."""
    reading, writing = os.pipe()
    os.write(writing, b"ready 1 the trainer\n")
    os.close(writing)
    with pytest.raises(RuntimeError, match="the program ended; done: no wait"):
        hangs._read_reports(reading, ["the trainer"])
    os.close(reading)


def test_crash_is_an_error_with_its_signal(toys):
    """A crash and an exit without a result are errors, and the worker runs the remaining attempts."""
    attempts, _ = run(toys, "TOY001", ("crash", None), ("leave", "helps"), ("silent", "helps"))
    assert [attempt.outcome.name for attempt in attempts] == ["ERROR", "ERROR", "MITIGATED"]
    assert attempts[0].detail == "its process ended with signal SIGSEGV, without an answer"
    assert attempts[1].detail == "its process ended with exit code 5, without an answer"
    assert attempts[1].mitigation == "helps"


@pytest.mark.parametrize(
    ("code", "outcome", "message"),
    [
        ("TOY002", AttemptOutcome.ERROR, "importing no_such_module failed"),
        ("TOY003", AttemptOutcome.TIMEOUT, "the worker did not import what the attempts need within 1 s"),
        ("TOY004", AttemptOutcome.ERROR, "the worker ended with signal SIGSEGV"),
    ],
)
def test_failed_import_is_reported_by_every_attempt(toys, code, outcome, message):
    """If an import fails, hangs or crashes, every attempt of the code reports it."""
    limit_s = 1.0 if outcome is AttemptOutcome.TIMEOUT else 500
    attempts, _ = run(toys, code, ("silent", None), ("silent", "helps"), import_limit_s=limit_s)
    assert [attempt.outcome for attempt in attempts] == [outcome, outcome]
    assert all(message in attempt.detail for attempt in attempts)


def test_inapplicable_code_starts_no_worker(toys, monkeypatch):
    """Every attempt of an inapplicable code has the reason, and no worker is started."""
    monkeypatch.setattr(runner, "_run_worker", None)
    attempts, _ = run(toys, "TOY005", ("silent", None), ("silent", "helps"))
    assert [attempt.outcome for attempt in attempts] == [AttemptOutcome.INAPPLICABLE] * 2
    assert {attempt.detail for attempt in attempts} == {"the code is not there"}


def test_repros_with_the_same_modules_share_a_worker(toys, monkeypatch):
    """Repros that import the same modules run in one worker; a repro with other modules has its own."""
    started, run_worker = [], runner._run_worker

    def counted(attempts, *limits):
        started.append([repro.code for repro, *_ in attempts])
        return run_worker(attempts, *limits)

    monkeypatch.setattr(runner, "_run_worker", counted)
    codes = ["TOY001", "TOY002", "TOY006"]
    plans = {code: [("silent", None)] for code in codes}
    results = runner.run(toys.REPROS, plans, limit_s=500, report_line=lambda _: None)
    assert started == [["TOY001", "TOY006"], ["TOY002"]]
    outcomes = [results[code][0].outcome.name for code in codes]
    assert outcomes == ["REPRODUCED", "ERROR", "REPRODUCED"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_run_leaves_no_process(toys, fifo, number):
    """Ctrl-C, SIGTERM and SIGKILL end the hanging attempt and the process it started.

    Both processes keep the FIFO open for writing, so reading it ends when both have ended.
    """
    command = [sys.executable, "-c", COMMAND, "run", "TOY001", "--trigger", "hang", "--mitigation", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with fifo.open() as reader:
            assert reader.readline() == "hanging\n"
            process.send_signal(number)
            assert reader.read() == ""
        output, errors = process.communicate(timeout=500)
    assert output == ""
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines()[-1] == "repro: interrupted; the processes it started are gone"
    else:
        assert process.returncode == -number


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")
@pytest.mark.parametrize("interrupted", [True, False])
def test_process_in_another_session_is_ended(toys, fifo, monkeypatch, interrupted):
    """After Ctrl-C, or if the attempt exits, its process in another session is ended and its folder removed."""
    monkeypatch.setenv("TOY_RETURNS", "" if interrupted else "1")
    command = [sys.executable, "-c", COMMAND, "run", "TOY001", "--trigger", "escape", "--mitigation", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        with fifo.open() as reader:
            folder = Path(reader.readline().strip())
            if interrupted:
                assert folder.is_dir()
                process.send_signal(signal.SIGINT)
            assert reader.read() == ""
        process.communicate(timeout=500)
    assert process.returncode == (130 if interrupted else 3)
    assert not folder.exists()


def test_timeout_ends_the_process_group(toys, fifo):
    command = [sys.executable, "-c", COMMAND, "run", "TOY001", "--trigger", "hang", "--mitigation", "none"]
    for limit_s in ("2", "20", "200"):  # on busy cores a short limit may end the attempt before it hangs
        with os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)) as reader:
            done = subprocess.run([*command, "--timeout", limit_s], capture_output=True, check=False)
            assert done.returncode == 3
            os.set_blocking(reader.fileno(), True)
            if reader.read() == "hanging\n":
                return
    pytest.fail("it never hung")


def test_missing_requirement_makes_attempts_inapplicable(toys):
    """Attempts of a trigger with a missing requirement are inapplicable, and come after those of other triggers."""
    toy = toys.REPROS["TOY001"]
    first, *rest = toy.triggers
    missing = replace(first, missing_requirement=lambda: "no engine here")
    plan = [(first.name, None), (first.name, "helps"), ("silent", "helps")]
    repros = {"TOY001": replace(toy, triggers=(missing, *rest))}
    result = runner.run(repros, {"TOY001": plan}, limit_s=500, report_line=lambda _: None)["TOY001"]
    assert [(sample.trigger, sample.mitigation) for sample in result] == [plan[2], plan[0], plan[1]]
    assert result[0].outcome is not AttemptOutcome.INAPPLICABLE
    assert [(sample.outcome, sample.detail) for sample in result[1:]] == [
        (AttemptOutcome.INAPPLICABLE, "no engine here")
    ] * 2


def test_isolated_work_leaves_other_child_processes_alone():
    """Another child process goes on, and the handler of SIGTERM is restored."""
    handler, pipe = signal.getsignal(signal.SIGTERM), subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe) as cat:
        assert processes.run_isolated(lambda: "result") == "result"
        assert cat.communicate(b"alive") == (b"alive", None)
    assert signal.getsignal(signal.SIGTERM) == handler
