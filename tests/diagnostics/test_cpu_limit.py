"""Work on an input ends at its limit of processor time, and the input is reported as not checked.

A single call of C ends at the limit, too. The limit does not replace an interrupt. Threads other than the main one have
no limit.
"""

import contextlib
import io
import itertools
import os
import re
import signal
import sys
import threading
import time

import pytest

from diagnostics.cpu_limit import CpuLimitError, cpu_limit, ends_in_time
from tests.case_files import read_cases
from tests.diagnostics.test_report_options import LOG, SCRIPT

LIMIT_S = 0.1
STACKS = 'Process 7: python train.py\nThread 7 (idle): "MainThread"\n    wait (threading.py:355)\n'


def compute_forever():
    for _ in itertools.count():
        with contextlib.suppress(Exception):
            int("1")


@pytest.mark.parametrize("work", [compute_forever, lambda: re.search(r"(a|aa)+$", "a" * 60 + "b")])
def test_loops_and_regular_expressions_end_at_the_limit(work):
    """Also a loop that catches exceptions ends; afterwards no timer and no handler is left."""
    with (
        pytest.raises(CpuLimitError, match="reading x needed more than 0 s"),
        cpu_limit("reading x", LIMIT_S),
    ):
        work()
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL


def test_inner_limit_leaves_the_outer_one_in_force():
    def work():
        with pytest.raises(CpuLimitError, match="inner"), cpu_limit("inner", LIMIT_S):
            compute_forever()
        with cpu_limit("longer than the outer one", 60):
            compute_forever()

    with pytest.raises(CpuLimitError, match="outer"), cpu_limit("outer", 3 * LIMIT_S):
        work()


def test_error_that_python_drops_is_raised_again(capsys):
    """The limit ends work also if its first signal comes in a finalizer, and Python prints nothing about it."""

    class Slow:
        def __del__(self):
            compute_forever()

    def work():
        Slow()  # the error of its finalizer is dropped
        compute_forever()

    hook = sys.unraisablehook
    with pytest.raises(CpuLimitError), cpu_limit("reading x", LIMIT_S):
        work()
    assert (sys.unraisablehook, *capsys.readouterr()) == (hook, "", "")


def test_other_threads_have_no_limit():
    """`cpu_limit` starts no timer outside of the main thread."""
    states = []

    def work():
        with cpu_limit("a thread", LIMIT_S):
            states.append(signal.getitimer(signal.ITIMER_PROF))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert states == [(0, 0)]


def test_limit_does_not_replace_an_interrupt():
    """Cleaning up after Ctrl-C may exceed the limit: the command still ends with the KeyboardInterrupt."""
    end = time.process_time() + 3 * LIMIT_S

    def work():
        try:
            raise KeyboardInterrupt
        finally:
            while time.process_time() < end:
                pass

    with pytest.raises(KeyboardInterrupt), cpu_limit("reading x", LIMIT_S):
        work()


def test_one_call_of_c_ends_at_the_limit():
    assert ends_in_time(lambda: sum(range(1000)), 60)
    assert not ends_in_time(lambda: sum(range(10**12)), LIMIT_S)


def test_interrupt_ends_the_parser_of_shell_scripts(tmp_path, monkeypatch, run_command):
    """After Ctrl-C during one call of tree-sitter `lint` exits with 130, and its child process is gone."""
    children, fork = [], os.fork

    def fork_and_interrupt():
        if child := fork():
            children.append(child)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        return child

    monkeypatch.setattr("os.fork", fork_and_interrupt)
    monkeypatch.setattr("diagnostics.lint.readers.shell._PARSE_S", 600.0)
    (tmp_path / "run.sh").write_text("<<A " + "$[" * 99_000)
    assert run_command("lint", tmp_path / "run.sh").code == 130
    (child,) = children
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.parametrize(
    ("words", "limit", "slow_function", "expected"),
    read_cases(__file__, "cpu_limits.yaml"),
    ids=lambda value: value.rpartition(".")[2] if "." in value and " " not in value else None,
)  # fmt: skip
def test_commands_report_what_they_did_not_check(
    tmp_path, environment, monkeypatch, rules, run_command, words, limit, slow_function, expected
):
    """Each command exits with 3 and names the work that reached its limit, without a traceback."""
    monkeypatch.chdir(tmp_path)
    environment.add("vllm", "0.7.3")
    (tmp_path / "run").mkdir()
    for name, text in {"a.sh": SCRIPT, "b.sh": SCRIPT, "a.log": LOG, "a.txt": STACKS}.items():
        (tmp_path / name).write_text(text)
    lines = [f'{{"input": "p{n}", "output": "a", "score": {n % 2}.0, "step": 1}}' for n in range(8)]
    (tmp_path / "run" / "1.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SCRIPT.encode())))
    # Compiling the rules takes seconds of processor time.
    monkeypatch.setattr("diagnostics.triage.command.Rules", lambda _issues: rules)
    monkeypatch.setattr("diagnostics.cpu_limit._REPEAT_S", 0.02)
    monkeypatch.setattr(f"diagnostics.{limit}", LIMIT_S)
    monkeypatch.setattr(f"diagnostics.{slow_function}", lambda *_, **__: compute_forever())
    monkeypatch.setattr("sys.argv", words.split())  # lint looks for -- there
    code, out, err = run_command(*words.split())
    assert (code, "Traceback" in err) == (3, False), out + err
    assert re.search(rf"{expected}.* needed more than", " ".join((out + err).split())), out + err
