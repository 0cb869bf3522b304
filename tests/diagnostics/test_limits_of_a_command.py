"""Ctrl-C ends a command whatever it does, and its memory is limited, but not that of programs that it starts."""

import os
import resource
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from diagnostics import cli, memory_limit, process, supervisor
from diagnostics.__main__ import UNSUPERVISED
from diagnostics.collect import gpus
from diagnostics.collect.processors_and_memory import Memory
from diagnostics.memory_limit import limit_memory

STUCK = """
import os, signal
from diagnostics import supervisor
supervisor._GRACE_S = 0.1
def work():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    signal.pause()
raise SystemExit(supervisor.run_supervised(work))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a parent process supervises the command only on Linux")
def test_interrupt_ends_a_command_that_does_not_react():
    """The command ignores the signal, as during a long call of C. In use, the parent waits for less than 10 s."""
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGINT)
        assert parent.wait(500) == 130
    assert supervisor._GRACE_S < 10
    assert select.select([child], [], [], 500)[0] == [child]
    os.close(child)


LEFT = """
import ctypes, sys, threading
from diagnostics import supervisor
supervisor._GRACE_S = 0.1
def work():
    ctypes.CDLL(None).prctl(supervisor._PR_SET_PDEATHSIG, 0)
    threading.Thread(target=sys.stdin.read).start()
    print("text")
    return 3
raise SystemExit(supervisor.run_supervised(work))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a parent process supervises the command only on Linux")
def test_process_that_is_left_behind_does_not_keep_the_output_open():
    """It does not end because of a thread, as one that waits in the kernel; a reader of the output sees its end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LEFT], **pipes) as parent:
        assert parent.stdout.readline() == b"text\n"
        assert parent.wait(500) == 3
        assert select.select([parent.stdout], [], [], 60)[0]
        assert parent.stdout.read(1) == b""


def test_the_programs_of_the_command_line_are_not_supervised():
    """They react to Ctrl-C themselves, and may need longer than the supervisor waits."""
    assert cli.PROGRAMS.keys() == UNSUPERVISED


@pytest.mark.parametrize(("group_gb", "used_gb"), [(None, None), (0.5, 0.2)])
def test_memory_is_limited_for_the_command_alone(monkeypatch, group_gb, used_gb):
    """With 0.3 GB of free memory, 0.1 GB can be allocated and 4 GB cannot, whatever other tests free meanwhile."""
    available = 0.3 if group_gb is None else 100.0
    monkeypatch.setattr(memory_limit, "collect_memory", lambda: Memory(100.0, available, group_gb, used_gb))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limit_memory():
        bytearray(100_000_000)
        with pytest.raises(MemoryError):
            bytearray(4_000_000_000)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_programs_are_started_with_the_limits_of_the_shell(monkeypatch):
    """The limit is lifted before the start: a change after it misses what the program starts first. Two start at once.

    A soft limit of the user's stays.
    """
    limits, barrier = [], threading.Barrier(2)
    before = resource.getrlimit(resource.RLIMIT_DATA)

    def popen(*_arguments, **_options):
        barrier.wait(500)
        limits.append(resource.getrlimit(resource.RLIMIT_DATA))
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "Popen", popen)
    resource.setrlimit(resource.RLIMIT_DATA, own := (1 << 45, before[1]))
    try:
        with limit_memory(), ThreadPoolExecutor(2) as pool:
            limited = resource.getrlimit(resource.RLIMIT_DATA)
            started = pool.submit(process.run, ["x"], timeout_s=1)
            assert gpus.collect(program="x").state != "ok"
            assert isinstance(started.exception(500), FileNotFoundError)
            assert resource.getrlimit(resource.RLIMIT_DATA) == limited < own
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert limits == [own, own]


FILLS_MEMORY = """
import resource, click
from diagnostics import cli
@click.command()
def work():
    resource.setrlimit(resource.RLIMIT_DATA, (60_000_000, resource.RLIM_INFINITY))
    texts = []
    while True:
        texts.append("x" * len(texts))
@click.command()
def fail():
    raise OSError(12, "Cannot allocate memory")
raise SystemExit([cli.run_command(command, [], "x") for command in (work, fail)] != [3, 3])
"""


def test_out_of_memory_is_incomplete_with_one_sentence():
    """No memory is left for the patterns of masking while the error is handled."""
    result = subprocess.run([sys.executable, "-c", FILLS_MEMORY], capture_output=True, text=True, check=False)
    assert (
        result.stderr.splitlines()
        == ["grpo-doctor: not checked: three quarters of the memory that was available are not enough"] * 2
    )
    assert (result.returncode, result.stdout) == (0, "")
