"""`hang` inspects real processes of other Python releases, namespaces and users, and processes that change meanwhile.

It also ends a py-spy that does not answer or takes 1 GiB. Two tests select from a synthetic process table. Tests are
skipped without the programs or rights that they need.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.hang.collect import discovery, stacks
from diagnostics.hang.collect.snapshot import Selection, take_snapshot
from diagnostics.hang.diagnosis import Patience, diagnose
from diagnostics.hang.known_issues import with_issue
from tests.diagnostics.hang.processes import NO_PERMISSION, running
from tests.processes import run_text

ROOT = Path(__file__).resolve().parents[3]
LOCKS = """
import threading
def lock(first, second):
    with first:
        ready.wait()
        print("stuck", flush=True)
        second.acquire()
a, b, ready = threading.Lock(), threading.Lock(), threading.Barrier(2)
threading.Thread(target=lock, args=(a, b)).start()
lock(b, a)
"""
GREEDY = "import time\ntime.sleep(0.2)\nbytearray(1 << 30)\n"
PROGRAM = """
import os, sys, threading
print("stuck", flush=True)
sys.stdin.readline()
if sys.argv[1] == "exec":
    os.execv("/bin/sh", ["sh", "-c", "echo moved; read line"])
if sys.argv[1] == "fork" and os.fork() == 0:
    threading.Event().wait()
if sys.argv[1] == "thread":
    threading.Thread(target=sys.stdin.readline).start()
if sys.argv[1] != "end":
    print("moved", flush=True)
    sys.stdin.readline()
"""
pytestmark = pytest.mark.skipif(bool(NO_PERMISSION), reason=NO_PERMISSION)


def observe(pid, **options):
    """Take a snapshot of a process; return the snapshot and the verdict."""
    snapshot = take_snapshot(Selection(pids=(pid,), seconds=0.2), **options)
    return snapshot, with_issue(diagnose(snapshot, Patience(0.0, 0.0))).verdict


def observe_isolated(program, *options):
    """Run a program in new namespaces; return its snapshot and verdict, or skip the test where none may be made."""
    unshare = shutil.which("unshare") or pytest.skip("there is no unshare here")
    isolated = [unshare, *options, "--fork", "--kill-child"]
    if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace may be made here")
    with running(*isolated, sys.executable, "-c", *program) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8")
        return observe(int(children))


def find_python(minor):
    """Return the path of an installed Python 3.`minor`, or None."""
    program = shutil.which(f"python3.{minor}")
    # The shim of a version manager may refuse to start.
    if program and subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
        return program
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python"))
    return str(installed[-1]) if installed else None


@pytest.mark.parametrize("minor", [10, 11, 12, 13, 14])
def test_deadlock_is_found_in_each_python_release(minor):
    """A deadlock is found in Python 3.10 to 3.14, although releases before 3.11 store no native thread ids."""
    python = find_python(minor) or pytest.skip(f"there is no Python 3.{minor} here")
    with running(python, "-c", LOCKS) as process:
        snapshot, verdict = observe(process.pid)
    assert (verdict.code, verdict.culprits) == ("HNG006", (f"/{process.pid}",))
    assert [bool(thread.syscall) for thread in snapshot.processes[0].threads] == [True, True]


def test_deadlock_is_found_in_another_pid_namespace():
    """A deadlock is found although py-spy reports the thread ids of another namespace."""
    snapshot, verdict = observe_isolated([LOCKS], "--pid", "--mount", "--mount-proc")
    assert verdict.code == "HNG006"
    assert len(snapshot.processes[0].threads) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs two users")
def test_root_inspects_another_users_process_and_others_get_the_reason():
    """Root finds the deadlock; another user gets the reason.

    If Python may not read the project, that user gets "Permission denied".
    """
    setpriv = shutil.which("setpriv") or pytest.skip("there is no setpriv here")
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("there is no Python that every user may start")
    nobody = [setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if subprocess.run([*nobody, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root may not become another user here")
    with running(*nobody, "/usr/bin/python3", "-c", LOCKS) as process:
        assert observe(process.pid)[1].code == "HNG006"
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from diagnostics.hang.collect import stacks; "
    with running(sys.executable, "-c", LOCKS) as process:
        program += f"print(stacks.unreadable_processes({{{process.pid}}}))"
        done = run_text([*nobody, "/usr/bin/python3", "-c", program])
    assert f"{{{process.pid}: " in done.stdout or "Permission denied" in done.stderr, done


def test_process_of_another_user_does_not_join_a_job_by_its_environment(monkeypatch):
    """Ranks of one job have the same owner; the address of the job in the environment does not suffice."""
    job = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    monkeypatch.setattr(discovery.proc, "environment", lambda _pid: job)
    users = {501: 1000, 502: 1000, 503: 1001}
    processes = {pid: discovery.ProcessEntry(pid, 1, uid, "python train.py") for pid, uid in users.items()}
    assert discovery.select_processes(processes, [501], "", own_pid=1) == {501, 502}


@pytest.mark.parametrize("change", ["exec", "fork", "thread", "end"])
def test_process_that_changes_while_observed_is_no_deadlock(change):
    """A process that execs, forks, starts a thread or exits between two samples is no deadlock, spinning or stopped.

    A hang is reported only if it is dead or waits for input.
    """
    with running(sys.executable, "-c", PROGRAM, change) as process:
        replies = []

        def trigger_change(_):
            if not replies:
                process.stdin.write("\n")
                process.stdin.flush()
                replies.append(process.stdout.readline())

        _, verdict = observe(process.pid, sleep=trigger_change)
    assert replies == ["" if change == "end" else "moved\n"]
    assert verdict.cause not in {"deadlock", "locks", "spin_python", "spin_native", "stopped"}
    assert verdict.outcome != "hang" or verdict.cause in {"dead", "input"}, verdict.sentence


@pytest.mark.parametrize(
    ("script", "limit_s", "reason"),
    [
        ("/bin/sh\nexec sleep 600\n", 0.2, "did not answer within"),
        (f"{sys.executable}\n{GREEDY}", stacks.TIMEOUT_S, "stack: py-spy: "),
    ],
    ids=["hangs", "takes 1 GiB"],
)
def test_py_spy_beyond_its_limits_is_ended(tmp_path, monkeypatch, script, limit_s, reason):
    """Without the stacks, the verdict is unknown."""
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!{script}")
    tool.chmod(0o755)
    monkeypatch.setattr(stacks, "find_py_spy", lambda: str(tool))
    monkeypatch.setattr(stacks, "TIMEOUT_S", limit_s)
    with running(sys.executable, "-c", LOCKS) as process:
        snapshot, verdict = observe(process.pid)
    assert (verdict.outcome, verdict.code) == ("unknown", "")
    assert reason in " ".join(snapshot.blind)


def test_sockets_of_another_network_namespace_are_not_checked():
    snapshot, _ = observe_isolated([PROGRAM, "end"], "--net")
    assert "the sockets of " in snapshot.missing[0]
    assert "network namespace" in snapshot.blind[-1]
