"""`hang` diagnoses real processes of this machine, saves bundles, and names a missing permission or wrong usage.

Further tests cover source lines, masking, processes of other users, the process limit, ranks in the process table, and
`--watch`: stalls, exit codes and signals, and that the command and its output go on whatever happens to `hang`.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diagnostics import UserError
from diagnostics.__main__ import main
from diagnostics.cpu_limit import CpuLimitError
from diagnostics.findings import FINDINGS
from diagnostics.hang import watch
from diagnostics.hang.collect import discovery, proc, stacks
from diagnostics.hang.collect.discovery import ProcessEntry
from diagnostics.hang.collect.snapshot import NoProcessError, Selection, take_snapshot
from diagnostics.hang.diagnosis import Patience, diagnose
from diagnostics.hang.parsers import bundle
from diagnostics.hang.snapshot import SCHEMA, StackFrame
from diagnostics.hang.watch import StallClock
from evaluation.hang import bench
from tests.diagnostics.hang.processes import NO_PERMISSION, running
from tests.processes import wait_until

CASES = {case.name: case for case in bench.cases()}
HOST = str(bench.HERE / "host.py")
JOBS = ("pipe_of_dead_child", "filelock_library", "servers_crossed", "asyncio_lost", "healthy_slow_handler")
pytestmark = pytest.mark.skipif(bool(NO_PERMISSION), reason=NO_PERMISSION)


@pytest.mark.slow
def test_real_jobs_get_correct_verdicts(monkeypatch):
    """Real jobs, which run at the same time to save waiting, get their process and cause, and no victim is blamed."""
    monkeypatch.setattr(bench, "SETTLE_S", 2.0)
    names = (*JOBS, "other_branch-1of3") if importlib.util.find_spec("torch") else JOBS
    with ThreadPoolExecutor(len(names)) as pool:
        rows = list(pool.map(lambda name: bench.score(CASES[name], *bench.observe(CASES[name])), names))
    checked = [(row["right_process"], row["right_cause"], row["victim_named"]) for row in rows]
    assert checked == [(True, True, False)] * len(names), rows


@pytest.mark.parametrize(("call", "held"), [("lock.acquire()", True), ("0", False)])
def test_holder_of_a_lock_between_processes_is_found_in_memory(call, held):
    program = f"import multiprocessing as m; lock = m.Lock(); {call}; print(1, flush=True); input()"
    with running(sys.executable, "-c", program) as process:
        [(_, _, inode)] = proc.shared_memory(process.pid)[1]
        assert proc.holds_semaphore(process.pid, inode) is held


@pytest.mark.parametrize(
    ("call", "name", "value"), [("signal.sigwait([10])", "signals", (10,)), ("os.read(0, 7)", "read_size", 7)]
)
def test_arguments_of_a_system_call_are_read(call, name, value):
    with running(sys.executable, "-c", f"import os, signal; print(1, flush=True); {call}") as process:
        wait_until(lambda: proc.system_call(process.pid, process.pid).get(name) == value)


def syscalls_below(pid):
    """Return the system calls of the main threads of a process and its descendants, sorted."""
    pids = discovery.descendants(discovery.process_table(), [pid])
    return sorted(proc.system_call(pid, pid)["syscall"] for pid in pids)


FIFO = """
import os, sys, tempfile
path = os.path.join(tempfile.mkdtemp(), "weights")
os.mkfifo(path)
print("up", flush=True)
open(path, "rb").read()
"""


def test_opening_a_named_pipe_is_a_hang():
    """The cause is a lost message, and the sentence names the system call and the pipe."""
    with running(sys.executable, "-c", FIFO) as process:
        wait_until(lambda: syscalls_below(process.pid) == ["openat"])
        verdict = diagnose(take_snapshot(Selection((process.pid,), seconds=0.2)), Patience(0.01)).verdict
    assert (verdict.outcome, verdict.cause) == ("hang", "lost_message")
    assert "openat of " in verdict.sentence
    assert "a named pipe" in verdict.sentence


def test_deadlock_over_pipes_is_found_without_py_spy(monkeypatch):
    """The verdict names the extra that installs py-spy; the snapshot lists processes beyond the limit as missing."""
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    with running(sys.executable, HOST, "pipes_crossed") as process:
        wait_until(lambda: syscalls_below(process.pid) in (["read", "read"], ["recvfrom", "recvfrom"]))
        diagnosis = diagnose(take_snapshot(Selection((process.pid,), seconds=0.2)), Patience(0.01))
        monkeypatch.setattr(discovery, "MAX_PROCESSES", 1)
        limited = take_snapshot(Selection((process.pid,), seconds=0.2))
    assert diagnosis.verdict.cause == "deadlock"
    assert "pip install py-spy" in diagnosis.verdict.unseen[0]
    assert any("of 2 processes" in text for text in limited.missing)


@pytest.fixture(scope="module")
def deadlocked_pid():
    """Yield the id of a process with two threads that wait for each other's locks, for all tests of this module."""
    with running(sys.executable, HOST, "two_locks") as process:
        wait_until(lambda: "futex" in proc.system_call(process.pid, process.pid)["syscall"])
        yield process.pid


def options(pid, form="json", seconds="0.6"):
    """Return the arguments of a short `hang` on a process."""
    return ["hang", "--pid", str(pid), "--patience", "0.5", "--seconds", seconds, "--format", form]


def test_saved_bundle_gives_the_same_verdict(deadlocked_pid, tmp_path, capsys):
    """A saved bundle gives the sentence of the live diagnosis, and the document is valid against the schema."""
    bundle = tmp_path / "b.json"
    assert main([*options(deadlocked_pid), "--save", str(bundle)]) == 1
    document = json.loads(capsys.readouterr().out)
    schema = json.loads((Path(__file__).parents[3] / "docs" / "hang-v1.schema.json").read_text())
    pytest.importorskip("jsonschema").validate(document, schema)
    assert (document["cause"], document["code"]) == ("locks", "HNG006")
    assert main(["hang", "--from", str(bundle), "--patience", "0.5", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["sentence"] == document["sentence"]


def test_bundle_has_no_local_variables_and_no_unlisted_environment_variables(tmp_path, capsys):
    local, variable = "kept-in-a-local-4711", "kept-in-the-environment-4711"
    program = f"def f():\n    mine = '{local[::-1]}'[::-1]\n    print(1, flush=True)\n    input()\nf()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"RANK": "0", "NCCL_MINE": variable, "MY_KEY": variable},
    )
    bundle = tmp_path / "b.json"
    with process:
        process.stdout.readline()
        main([*options(process.pid, seconds="0.2"), "--save", str(bundle)])
        process.communicate(b"\n")
    output = bundle.read_text() + "".join(capsys.readouterr())
    assert f'"pid": {process.pid}' in output
    assert variable not in output
    assert local not in output


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_terminal_and_markdown_have_the_verdict_and_stacks(deadlocked_pid, form, capsys):
    assert main([*options(deadlocked_pid, form), "--verbose"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "2 threads that wait for each other" in text
    assert "Stacks, innermost frame first" in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--pid", "4194304"], 2), (["--match", "("], 2), (["--match", "no such command line anywhere"], 3),
        (["--watch"], 2), (["--from", "x", "--pid", "1"], 2), (["word"], 2), (["--watch", "--", "/no/such/program"], 2),
        (["--watch", "--save", "/no/such/folder/x", "--", "true"], 2), (["--watch", "--save", "/dev", "--", "true"], 2),
    ],
)  # fmt: skip
def test_wrong_usage_or_no_match_is_a_one_line_error(words, code, capsys):
    """Wrong usage exits with 2, and a pattern that matches no process with 3; stderr has one line."""
    assert main(["hang", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_missing_ptrace_permission_leaves_the_verdict_unknown(deadlocked_pid, monkeypatch, capsys):
    refused = "this process lacks CAP_SYS_PTRACE over it"
    monkeypatch.setattr(stacks, "unreadable_processes", lambda pids: dict.fromkeys(pids, refused))
    assert main(options(deadlocked_pid, seconds="0.1")) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"] == "unknown"
    assert "CAP_SYS_PTRACE" in document["unseen"][0]


def test_frame_source_is_read_only_from_regular_files(tmp_path):
    """Source is read only from regular files, because a frame can name a pipe or /dev/zero."""
    os.mkfifo(tmp_path / "pipe.py")
    reader = stacks.SourceReader()
    for path in (str(tmp_path / "pipe.py"), "/dev/zero", "/proc/self/environ"):
        frames = (StackFrame(path, "f", 1),)
        assert reader.with_call(os.getpid(), frames) == frames
    (tmp_path / "a.py").write_text("lock.acquire()\n")
    (frame,) = reader.with_call(os.getpid(), (StackFrame(str(tmp_path / "a.py"), "f", 1),))
    assert frame.calls == "acquire"


def test_source_with_many_paths_is_stored_once(tmp_path, monkeypatch):
    """A file that frames name by 10 paths is stored once, and the amount of source that is read is limited.

    Without this, 100 paths of one 4 MB file needed 3.3 GB.
    """
    monkeypatch.setattr(stacks, "MAX_SOURCE_TOTAL", 8 * stacks.MAX_SOURCE_FILE)
    (tmp_path / "a.py").write_text("lock.acquire()\n" + "\n" * (stacks.MAX_SOURCE_FILE - 20))
    reader = stacks.SourceReader()
    for number in range(10):
        path = f"{tmp_path}{'/.' * number}/a.py"
        (frame,) = reader.with_call(os.getpid(), (StackFrame(path, "f", 1),))
        assert frame.calls == "acquire"
    assert reader._unread > stacks.MAX_SOURCE_TOTAL - 2 * stacks.MAX_SOURCE_FILE
    assert list(reader._calls.values()) == ["acquire"]
    for line in range(2, 20):
        reader.with_call(os.getpid(), (StackFrame(str(tmp_path / "a.py"), "f", line),))
    assert -stacks.MAX_SOURCE_FILE < reader._unread <= 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the processes of other users")
def test_process_of_another_user_is_not_inspected():
    """A stranger's process that connects to the job is listed, but py-spy does not attach to it, even as root."""
    listen = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    )
    connect = "import os, socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
    wait = "os.setuid(65534); print('up', flush=True); s.recv(1)"
    job = subprocess.Popen(
        [sys.executable, "-c", f"{listen}; c = s.accept()[0]; c.recv(1)"], stdout=subprocess.PIPE
    )
    with job:
        port = job.stdout.readline().decode().strip()
        with running(sys.executable, "-c", f"{connect}; {wait}", port) as stranger:
            snapshot = take_snapshot(Selection((job.pid,), seconds=0.2))
    (found,) = (process for process in snapshot.processes if process.pid == stranger.pid)
    assert "belongs to uid 65534" in found.unseen[0]
    assert not any(thread.frames or thread.syscall for thread in found.threads)


def test_names_are_masked_before_they_are_cut(tmp_path):
    """A key that a cut divides is masked in names of threads, functions and files, and in texts of a bundle."""
    secret = "0123456789abcdef0123456789abcdef01234567"
    short, long = (f"{'x ' * (cut // 2 - 20)}-{secret}" for cut in (80, 1000))
    frame = {"filename": long.replace(" ", "/"), "name": long.replace(" ", "-"), "line": 1}
    dump = [{"pid": 1, "os_thread_id": 1, "thread_name": short.replace(" ", "-"), "frames": [frame]}]
    saved = {"schema": SCHEMA, "processes": [{"pid": 1, "title": long.replace(" ", "-")}]}
    output = f"{stacks.parse_pyspy_json(dump)} {bundle.load(saved, 'b.json')}"
    assert secret[:12] not in output


def process_table_of(*entries):
    """Return a process table of (pid, parent, title, RANK) entries."""
    return {
        pid: ProcessEntry(pid, ppid, 0, title, {"RANK": rank} if rank else {})
        for pid, ppid, title, rank in entries
    }


def test_own_python_processes_are_named_if_no_job_is_found(monkeypatch):
    """The message names the newest Python processes of the user, and not those of others."""
    titles = {7001: "python train.py", 7002: "python train.py", 7003: "bash"}
    table = process_table_of(*((pid, 1, title, "") for pid, title in titles.items()))
    for pid, entry in table.items():
        entry.uid = os.geteuid() + (pid == 7002)
    monkeypatch.setattr(discovery, "process_table", lambda **_: table)
    with pytest.raises(NoProcessError, match=r"Python processes of yours: 7001$"):
        take_snapshot(Selection())


def test_rank_variable_of_5000_digits_is_ignored():
    processes = process_table_of((7, 1, "python train.py", "9" * 5000))
    assert discovery.role_of(processes, processes[7]) == ("process", None)


def test_shell_wrappers_and_launchers_are_no_ranks():
    """A shell, a launcher of ranks, and a child of a rank have RANK in their environment, too, but are no ranks."""
    processes = process_table_of(
        (1, 0, "bash run.sh", "0"),
        (2, 1, "python train.py", "0"),
        (3, 2, "bash -c nvidia-smi", "0"),
        (4, 3, "python loader.py", "0"),
    )
    assert [discovery.role_of(processes, entry)[1] for entry in processes.values()] == [None, 0, None, None]
    launched = process_table_of(
        (1, 0, "python launch.py", "0"), (2, 1, "python a.py", "0"), (3, 1, "python a.py", "1")
    )
    assert [discovery.role_of(launched, entry)[1] for entry in launched.values()] == [None, 0, 1]


def test_watch_with_end_kills_the_stalled_command(capfd):
    """The exit code is 1; stdout names the blocking process, stderr has the diagnosis and all processes."""
    limits = ["--stall", "0.5", "--seconds", "0.3"]
    words = ["hang", "--watch", *limits, "--end", "--", sys.executable, HOST, "two_locks"]
    assert main(words) == 1
    captured = capfd.readouterr()
    pid = int(re.search(r"culprit (\d+)", captured.out)[1])
    assert "wait for each other" in " ".join(captured.err.split())
    assert "All processes:" in captured.err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_watch_diagnoses_again_until_there_is_a_finding():
    answers = iter([False, False, True])
    program = [sys.executable, HOST, "two_locks"]
    assert watch.watch_command(program, 0.2, lambda _pid, _still_s: next(answers), end=True) == FINDINGS
    assert list(answers) == []


def test_watch_returns_the_commands_exit_code(capfd):
    assert main(["hang", "--watch", "--", sys.executable, "-c", "print('out'); raise SystemExit(7)"]) == 7
    assert capfd.readouterr().out == "out\n"


WAITS = "import sys; print('up', flush=True); open(sys.argv[1]).read(); print('x' * 200_000); sys.exit(7)"


@pytest.mark.parametrize("error", [UserError("no"), OSError(28, "full"), MemoryError(), CpuLimitError("no")])
def test_watched_command_goes_on_after_an_error_of_the_diagnosis(error, tmp_path, capfd):
    """The command waits until it is diagnosed; its output is whole, and the error is reported in one line."""
    os.mkfifo(tmp_path / "fifo")

    def fail(_pid, _still_s):
        (tmp_path / "fifo").open("w").close()
        raise error

    assert watch.watch_command([sys.executable, "-c", WAITS, tmp_path / "fifo"], 0.2, fail, end=True) == 7
    captured = capfd.readouterr()
    assert captured.out == "up\n" + "x" * 200_000 + "\n"
    assert len(captured.err.splitlines()) == 1


def watching(folder, *command, streams=""):
    """Return a command for `hang --watch --save` with shell redirections; make a named pipe in the folder."""
    os.mkfifo(folder / "fifo")
    options = ["--stall", "0.2", "--seconds", "0.1", "--save", folder / "saved"]
    watch_words = [sys.executable, "-m", "diagnostics", "hang", "--watch", *options, "--", *command]
    return ["sh", "-c", f'exec "$@" {streams}', "sh", *map(str, watch_words), str(folder / "fifo")]


@pytest.mark.parametrize("streams", ["2>/dev/full", ">/dev/full", ">&-", "<&- >&- 2>&-"])
def test_watched_command_goes_on_without_the_output_of_hang(streams, tmp_path):
    """It is diagnosed, writes more than a pipe holds, and its exit code is returned."""
    with subprocess.Popen(watching(tmp_path, sys.executable, "-c", WAITS, streams=streams)) as hang:
        wait_until((tmp_path / "saved").exists)
        (tmp_path / "fifo").open("w").close()
        assert hang.wait(500) == 7


@pytest.mark.parametrize("kills", [True, False])
def test_output_is_copied_after_hang_has_ended(kills, tmp_path):
    """Both the output of a command whose `hang` was killed, and of a process that a finished command has left."""
    left = ["sh", "-c", "(cat $0; echo late) & echo up"]
    command = watching(tmp_path, *([sys.executable, "-c", WAITS] if kills else left))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as hang:
        assert hang.stdout.readline() == "up\n"
        if kills:
            hang.kill()
        assert hang.wait(500) == (-signal.SIGKILL if kills else 0)
        (tmp_path / "fifo").open("w").close()
        assert hang.stdout.read() == ("x" * 200_000 if kills else "late") + "\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_sighup_is_forwarded_to_the_watched_command_unless_it_is_ignored(ignored):
    """Under nohup, SIGHUP is ignored by this process and all that it starts; the command handles it again."""
    handler = "lambda *_: sys.exit(9)"
    child = f"import signal, sys; signal.signal(1, {handler}); print('up', flush=True); input()"
    program = (
        f"import signal, sys; signal.signal(1, signal.{'SIG_IGN' if ignored else 'SIG_DFL'}); "
        "from diagnostics.__main__ import main; "
        f"sys.exit(main(['hang', '--watch', '--', sys.executable, '-c', {child!r}]))"
    )
    with running(sys.executable, "-c", program) as process:
        os.kill(process.pid, signal.SIGHUP)
        if ignored:
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(timeout=300) == (0 if ignored else 9)


def test_stall_begins_when_cpu_time_io_and_output_stop():
    """A little CPU time or I/O is no progress; a byte of output is."""
    clock = StallClock(0.0, 0.0)
    assert clock.update(10.0, 5.0, 0, 0)
    assert not clock.update(20.0, 5.001, 100, 0)
    assert clock.last_progress == 10.0
    assert clock.update(30.0, 5.001, 100, 1)
    assert not clock.update(40.0, 5.001, 100, 1)
    assert clock.last_progress == 30.0
