"""Files of a process whose memory is locked block neither `hang` nor `doctor`, and do not count as read.

A call that does not end in time gives its default. Only a few modules name files that can block.
"""

import os
import re
import threading

import pytest

from diagnostics.collect import blocking_reads, ray_traces
from diagnostics.doctor.probe.child_processes import ChildProcesses
from diagnostics.hang.collect import discovery, proc, sockets
from diagnostics.hang.collect.snapshot import Selection, take_snapshot
from diagnostics.output.redact import mask
from tests.cells import ROOT
from tests.diagnostics.hang.processes import running


@pytest.fixture
def locked(monkeypatch):
    """Yield the id of a process that seems stuck with the lock of its memory: reading some of its files blocks."""
    released, read = threading.Event(), blocking_reads.read_kernel_file
    with running("sh", "-c", "echo; read line") as process:
        files = {f"/proc/{process.pid}/{name}" for name in ("cmdline", "environ", "fdinfo/0", "io", "maps")}
        block = dict.fromkeys(files, lambda _: released.wait(60))
        monkeypatch.setattr(blocking_reads, "read_kernel_file", lambda path: block.get(path, read)(path))
        monkeypatch.setattr(blocking_reads, "LIMIT_S", 0.5)
        yield process.pid
        released.set()
    blocking_reads.UNANSWERED.clear()


def test_hang_names_a_locked_process_without_its_command_line(locked):
    snapshot = take_snapshot(Selection(pids=(locked,), seconds=0.1))
    assert snapshot.processes[0].title == "sh"
    assert f"pid {locked} did not answer in time: its memory was not read" in snapshot.blind


def test_doctor_does_not_wait_for_a_locked_process(locked, tmp_path):
    """Its command line could be that of a Ray cluster, so `running` is unknown; the search for probes ends, too."""
    (tmp_path / "ray").mkdir()
    (known,) = ray_traces.collect({"RAY_TMPDIR": str(tmp_path)})
    assert (locked in known.unanswered, known.running == ()) == (True, False)
    ChildProcesses(ROOT, {})._end_strays()


@pytest.mark.parametrize(("module", "name"), [(proc, "MAX_DESCRIPTORS"), (sockets, "MAX_SOCKETS")])
def test_more_than_hang_examines_counts_as_missing(monkeypatch, module, name):
    """Another user may have any number of open files and sockets; what is over a limit is named as not read."""
    monkeypatch.setattr(module, name, 1)
    with running("sh", "-c", "echo; read line") as process:
        snapshot = take_snapshot(Selection(pids=(process.pid,), seconds=0.1))
    assert "open files or sockets of other processes" in snapshot.missing
    assert len(snapshot.processes[0].fds) == (1 if module is proc else 3)


def test_titles_of_processes_have_a_limit_of_time(monkeypatch):
    """A title of megabytes is masked in part, without a divided word; after the limit no command line is read."""
    monkeypatch.setattr(
        proc, "read_process_file", lambda _pid, _name: "python\0--key=" + "Zq8w7Rk " * 250_000
    )
    masked = []
    monkeypatch.setattr(proc, "truncate", lambda text, _length: masked.append(text) or text)
    assert (len(proc.command_line(7)) <= 4096, set(masked[0].split()[2:-1])) == (True, {"Zq8w7Rk"})
    assert masked[0].endswith(" Zq8w7Rk'")
    monkeypatch.undo()
    monkeypatch.setattr(discovery, "SURVEY_S", -1.0)
    assert discovery.process_table().keys() <= blocking_reads.UNANSWERED
    blocking_reads.UNANSWERED.clear()


def test_call_that_raises_or_does_not_end_gives_the_default(locked):
    assert blocking_reads.call_in_child(lambda: 1 / 0, b"none") == b"none"
    assert blocking_reads.call_in_child(threading.Event().wait, "default", locked) == "default"
    assert list(blocking_reads.UNANSWERED) == [locked]


def test_files_of_processes_that_can_block_are_named_in_few_modules():
    """Those open /proc/PID/mem in a child process, or write the name in a message; others use `read_process_file`."""
    pattern = re.compile(r'(?:/proc/\{[^"]*|/ ")(?:cmdline|environ|mem|s?maps|auxv|syscall|io)"')
    found = {path.name for path in (ROOT / "diagnostics").rglob("*.py") if pattern.search(path.read_text())}
    assert found == {"proc.py", "stacks.py", "wait_graph.py"}


def test_file_system_that_does_not_answer_is_waited_for_once(monkeypatch, locked):
    """Further threads of the process that open a path there cost no time; its memory is still read."""
    monkeypatch.setattr(proc, "read_memory", lambda *_: b"/dead/file\0")
    monkeypatch.setattr(os, "stat", lambda _path: threading.Event().wait(60))
    started = []
    monkeypatch.setattr(os, "fork", lambda fork=os.fork: started.append(1) or fork())
    assert [proc._opened_path(locked, 0) for _ in range(3)] == ["/dead/file"] * 3
    assert (len(started), proc.UNANSWERED_PATHS, blocking_reads.UNANSWERED) == (1, {locked}, set())
    proc.UNANSWERED_PATHS.clear()


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["python", "a.py", "--db_password", "Maple4 Osprey8 Quartz5"], "python a.py --db_password <secret>"),
        (["python", "a.py", "--db_password=Maple4 Osprey8", "x=[1]"], "python a.py --db_password=<secret> x=[1]"),
        (["sh", "-c", "a  b\n'c'"], """sh -c 'a b '"'"'c'"'"''"""),
        (["VLLM: Engine Core", "", ""], "VLLM: Engine Core"),
    ],
)  # fmt: skip
def test_words_with_blanks_are_quoted_in_a_command_line(monkeypatch, words, title):
    monkeypatch.setattr(proc, "read_process_file", lambda _pid, _name: "\0".join(words) + "\0")
    assert mask(proc.command_line(7)).replace("'<secret>'", "<secret>") == title
