"""Dumps that others took: each kind is read, and what is none is refused in one line."""

import io
import json
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from diagnostics.__main__ import main
from diagnostics.hang.judge.decide import judge
from diagnostics.hang.link import collectives
from diagnostics.hang.read import ReadError, bundle, files, pickled, tracebacks
from diagnostics.hang.snapshot import Process, Snapshot, Socket, StackFrame, Thread
from tests.diagnostics.test_sanitize import active as acting

SPIED = """
Three ranks of my job, py-spy dump of each:

Process 101: python train.py
Python v3.12.4 (/usr/bin/python3.12)

Thread 101 (idle): "MainThread"
    all_gather (torch/distributed/distributed_c10d.py:3710)
    wrapper (torch/distributed/c10d_logger.py:81)
    gather_rewards (train.py:40)
    <module> (train.py:90)
Process 102: python train.py
Python v3.12.4 (/usr/bin/python3.12)

Thread 102 (idle): "MainThread"
    broadcast (torch/distributed/distributed_c10d.py:2421)
    wrapper (torch/distributed/c10d_logger.py:81)
    log_samples (train.py:52)
    <module> (train.py:90)
Thread 0x7F32 (idle): "Thread-1"
    wait (threading.py:359)
Process 103: python train.py
Python v3.12.4 (/usr/bin/python3.12)

Thread 103 (idle): "MainThread"
    all_gather (torch/distributed/distributed_c10d.py:3710)
    wrapper (torch/distributed/c10d_logger.py:81)
    gather_rewards (train.py:40)
    <module> (train.py:90)
"""
QUOTED = "".join(f"> {line}\n" for line in SPIED.splitlines())


def read(tmp_path, text, name="dump.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return files.read([str(path)])


@pytest.mark.parametrize("text", [SPIED, QUOTED], ids=["pasted", "quoted"])
def test_py_spys_text_with_words_around_it(tmp_path, text):
    """The minority's process is named."""
    verdict = judge(read(tmp_path, text)).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "mismatch", ("/102",))


def test_py_spys_json(tmp_path):
    """As `py-spy dump --json` writes it."""
    frames = [{"name": "Lock.f", "filename": "/job/a.py", "line": 3, "module": None}]
    items = [
        {
            "pid": 7,
            "thread_id": 9,
            "os_thread_id": 7,
            "thread_name": "MainThread",
            "active": False,
            "owns_gil": False,
            "frames": frames,
        }
    ]
    snapshot = read(tmp_path, json.dumps(items))
    assert snapshot.processes[0].threads[0].frames[0].function == "f"


FAULT = """Timeout (0:05:00)!
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/usr/lib/python3.11/site-packages/tqdm/_monitor.py", line 60 in run

Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/getpass.py", line 77 in unix_getpass
  File "/opt/env/lib/python3.11/site-packages/wandb/sdk/lib/apikey.py", line 110 in prompt_api_key
  File "/job/train.py", line 12 in main
  File "/job/train.py", line 80 in <module>
"""
PYSTACK = """Traceback for thread 12 (python) [] (most recent call last):
    (C) File "???", line 0, in _start (python3.11)
    (Python) File "/job/train.py", line 80, in <module>
        main()
    (Python) File "/job/train.py", line 12, in main
        dist.barrier()
    (Python) File "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4000, in barrier
        work.wait()
"""
GDB = """Thread 1 (Thread 0x7f00 (LWP 55) "python"):
#0  0x00007f1 in pthread_cond_wait@@GLIBC_2.3.2 () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f2 in gloo::transport::tcp::UnboundBuffer::waitRecv(int*) () from /opt/env/lib/libtorch_cpu.so
#2  0x00007f3 in c10d::ProcessGroupGloo::runLoop (this=0x1) at ProcessGroupGloo.cpp:10
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [(FAULT, "input"), (PYSTACK, "collective"), (GDB, "collective")],
    ids=["faulthandler", "pystack", "gdb"],
)
def test_other_tools_stacks(tmp_path, text, kind):
    """What the main thread is in."""
    judged = judge(read(tmp_path, text))
    assert [stand.kind for stand in judged.index.stands.values()] == [kind]


def test_faulthandlers_own_words(tmp_path):
    """What this Python's faulthandler really writes."""
    program = (
        "import faulthandler, os, sys, threading\n"
        "timer = threading.Timer(500, print)\n"
        "timer.start()\n"
        "while sys._current_frames()[timer.ident].f_code.co_name != 'wait': pass\n"
        "faulthandler.dump_traceback()\n"
        "os._exit(0)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True
    )
    snapshot = read(tmp_path, told.stderr)
    assert {frame.function for thread in snapshot.processes[0].threads for frame in thread.frames} >= {
        "<module>",
        "wait",
    }


def recorder(begun, operation, frames=()):
    """A flight recorder's document, as PyTorch writes them for gloo."""
    entry = {
        "profiling_name": operation,
        "state": "scheduled",
        "collective_seq_id": begun,
        "input_sizes": [[4]],
        "frames": list(frames),
        "process_group": ("0", "default_pg"),
    }
    status = {
        "0": {
            "last_enqueued_collective": begun,
            "last_started_collective": -1,
            "last_completed_collective": -1,
        }
    }
    return {
        "version": "2.10",
        "pg_config": {"": {"ranks": "[0, 1, 2]"}},
        "pg_status": status,
        "entries": [entry],
    }


def test_flight_recorders_of_gloo(tmp_path):
    """The rank that began fewer is absent; no analyser of PyTorch is needed."""
    names = []
    for rank in range(3):
        path = tmp_path / f"trace_rank_{rank}"
        path.write_bytes(pickle.dumps(recorder(3 if rank == 1 else 4, "gloo:all_reduce")))
        names.append(str(path))
    verdict = judge(files.read(names)).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "absent", ("/2",))


def test_a_pickle_that_names_something_is_refused_and_not_run(tmp_path):
    """Reading a pickle must not run it."""
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return open, (str(mark), "w")

    with pytest.raises(ReadError, match="nothing of it was run"):
        read(tmp_path, pickle.dumps({"entries": [Evil()]}), "trace_rank_0")
    assert not mark.exists()


def test_what_every_protocol_writes_of_a_recorder_is_read():
    """Texts met again, containers held twice, numbers of any size: as the library's own reader has them."""
    frames = [{"filename": "a.py", "name": "train", "line": n} for n in (1, 300, 70_000, -5, 1 << 62)]
    entry = {
        "frames": frames,
        "again": frames,
        "of": (),
        "one": (1,),
        "four": (1, 2.5, None, True),
        "text": "ä" * 300,
    }
    document = {"entries": [entry, entry], "": [[]]}
    for protocol in range(2, 6):
        assert pickled.load(pickle.dumps(document, protocol=protocol)) == document


TWICE = b"2\x86" * 60  # a tuple of the one before it, twice
FIELD = b"\x80\x02}(X\x07\0\0\0entries]}(X\x0d\0\0\0process_group"
TOLD_AGAIN = b"".join(b"]q%c(h%ch%ce" % (n + 1, n, n) for n in range(60))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}(X\x07\0\0\0entries])" + TWICE + b"K\x01u.",
        b"\x80\x02}(X\x07\0\0\0entries]q\0"
        + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
        + b"K\1u.",
        FIELD + b"]q\0" + TOLD_AGAIN + b"uau.",
        FIELD + b")" + TWICE + b"uau.",
        b"\x80\x04\x8e" + (8 << 30).to_bytes(8, "little") + b"aa.",
        b"\x80\x02]q\0h\0a.",
        b"\x80\x02}]K\1s.",
        b"\x80\x02" + b"(" * 50 + b".",
    ],
    ids=[
        "hashed",
        "hashed by its place",
        "told",
        "told by copies",
        "bytes",
        "itself",
        "key",
        "marks",
    ],
)
def test_a_pickle_that_takes_longer_than_its_length_is_refused(tmp_path, data):
    """140 bytes that the library's reader would hash, or a report tell, until the machine is switched off."""
    with pytest.raises(ReadError):
        read(tmp_path, data, "trace_rank_0")


def calls(does):
    """How many calls of ours it comes to, which load does not change."""
    count = 0

    def seen(_frame, event, _what):
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        does()
    finally:
        sys.setprofile(None)
    return count


def test_errors_behind_one_another_take_as_long_as_they_are():
    """Nine megabytes of them took hours: for each, all before it were asked for their names."""
    one = 'Traceback (most recent call last):\n  File "a.py", line 1, in x\n    y()\nValueError: x\n\n'
    one += "During handling of the above exception, another exception occurred:\n\n"
    few, many = (calls(lambda text=one * count: tracebacks.from_text(text)) for count in (20, 200))
    assert many < 12 * few


def test_a_document_among_blank_lines_is_looked_for_in_its_own_line():
    """From each of a megabyte of blank lines on, all that follow were passed."""
    assert [found.group() for found in files._BEGINS.finditer(" \n" * 9 + "  {")] == ["  "]


def test_ras_tells_who_lags(tmp_path):
    """Counts of operations a rank, and ranks that do not answer."""
    ranks = [
        {"rank": n, "host": "a", "pid": 10 + n, "collective_counts": {"AllGather": 5 - (n == 2)}}
        for n in range(4)
    ]
    verdict = judge(read(tmp_path, json.dumps({"communicators": [{"hash": "0x1", "ranks": ranks}]}))).verdict
    assert verdict.culprits == ("/12",)


@pytest.mark.parametrize(
    "text", ["", "hello", "{}", "[1]", '{"schema": "x"}', b"\x80\x04garbage", b"\x00\xff"]
)
def test_what_is_no_dump_is_refused(tmp_path, text, capsys):
    """Exit code 2, one line, nothing on standard output."""
    path = tmp_path / "x"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["hang", "--from", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1


def test_a_bundle_has_nothing_personal_and_its_ends_still_meet(tmp_path):
    """Addresses become numbers, alike where they were alike; homes, tokens and hosts go."""
    sockets = (
        Socket(1, "tcp", "10.1.2.3:5000", "10.1.2.4:80", "ESTABLISHED"),
        Socket(2, "tcp", "10.1.2.4:80", "10.1.2.3:5000", "ESTABLISHED"),
    )
    secret = "hf_" + "a" * 20
    process = Process(
        1, title=f"python /home/ada/train.py --token {secret} --host gpu-7.corp.example", role="trainer"
    )
    bundle.write(Snapshot((process,), sockets), tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text()
    for word in ("ada", secret, "10.1.2"):
        assert word not in text
    kept = files.read([str(tmp_path / "b.json")])
    assert (kept.sockets[0].local, kept.sockets[0].remote) == (kept.sockets[1].remote, kept.sockets[1].local)


def test_a_bundle_is_read_as_it_is_whatever_it_quotes(tmp_path):
    """What looked like a page's escapes was undone, and it was a document no more."""
    bundle.write(
        Snapshot((Process(1, title='python -c "&lt;&quot;x"', role="trainer"),)), tmp_path / "b.json"
    )
    assert files.read([str(tmp_path / "b.json")]).processes[0].title == 'python -c "&lt;&quot;x"'


def test_a_bundle_holds_nothing_that_acts(tmp_path):
    """It is looked at with `cat`, and uploaded by jobs: what a process calls itself is spelled out in it."""
    called = "a\x9b2J\x1b]52;c;x\x07\u202e\x85##[error]b\U000e0041"
    process = Process(1, title=called, role="trainer", threads=(Thread(1, called),))
    bundle.write(Snapshot((process,)), tmp_path / "b.json")
    assert acting((tmp_path / "b.json").read_text(encoding="utf-8")) == []
    (kept,) = files.read([str(tmp_path / "b.json")]).processes
    assert (kept.title[:1], kept.title[-2:], len(kept.threads)) == ("a", "b\U000e0041", 1)


def test_a_job_that_says_it_has_a_million_ranks_takes_no_time():
    """There is no edge to each of those that nobody saw: two ranks took gigabytes, and minutes."""
    threads = (Thread(7, "MainThread", (StackFrame("torch/distributed/distributed_c10d.py", "barrier", 1),)),)
    ranks = [
        Process(n, 1, threads=threads, role="trainer", rank=n, world=1_000_000, job="127.0.0.1:1", state="S")
        for n in (1, 2)
    ]
    assert collectives.absent("127.0.0.1:1", ranks) == []
    few = [replace(one, world=4) for one in ranks]
    assert collectives.absent("127.0.0.1:1", few) == [0, 3]


def test_standard_input_is_read_too(monkeypatch, capsys):
    """`-` is what is piped in."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SPIED.encode())))
    assert main(["hang", "--from", "-", "--format", "markdown"]) == 1
    assert "HNG001" in capsys.readouterr().out
