"""`hang` parses dumps of py-spy, pystack, gdb, Ray, faulthandler, NCCL and PyTorch's flight recorder, and bundles.

A traceback counts as a stack if it ends in KeyboardInterrupt. Interleaved lines are separated by rank. Files without a
dump are named. Bundles, which `hang --save` writes, are redacted. Hostile pickles and other files are refused. Hostile
dumps are parsed in limited time. Processes and threads beyond limits are reported, and the graph of waiting ranks has a
limited number of edges.
"""

import contextlib
import io
import json
import math
import pickle
import time

import pytest

from diagnostics.__main__ import main
from diagnostics.cpu_limit import CpuLimitError
from diagnostics.hang import collectives
from diagnostics.hang.diagnosis import diagnose
from diagnostics.hang.known_issues import finding_of, with_issue
from diagnostics.hang.parsers import ParseError, bundle, dump_files, flight_recorder
from diagnostics.hang.parsers.dump_files import parse_dump, read_files
from diagnostics.hang.snapshot import SCHEMA, Process, Snapshot, Socket, StackFrame, Thread
from diagnostics.output import sanitize
from tests.case_files import read_cases
from tests.diagnostics.hang.processes import C10D, in_all_gather, rank
from tests.processes import run_python

DUMPS = read_cases(__file__, "dumps.yaml")
RANK = DUMPS["py_spy_rank"]
IN_GATHER = {"operation": "all_gather", "caller": "gather_rewards"}
PYSPY = (
    "Three ranks of my job, py-spy dump of each:\n\n"
    + RANK.format(pid=101, **IN_GATHER)
    + RANK.format(pid=102, operation="broadcast", caller="log_samples")
    + RANK.format(pid=103, **IN_GATHER)
)


def parse_text(tmp_path, text, name="dump.txt"):
    """Write the dump to a file; return its snapshot."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_files([str(path)])


def test_py_spy_text_is_parsed_among_other_text(tmp_path):
    verdict = diagnose(parse_text(tmp_path, PYSPY)).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "mismatch", ("/102",))


def test_evidence_of_several_blocking_processes_has_the_place_of_none(tmp_path):
    text = RANK.format(pid=101, **IN_GATHER) + RANK.format(
        pid=102, operation="broadcast", caller="log_samples"
    )
    evidence = finding_of(with_issue(diagnose(parse_text(tmp_path, text)))).evidence
    assert evidence[0].place == "py-spy text"


def test_engine_core_that_is_not_in_the_dump_is_asked_for(tmp_path):
    """An engine actor that waits for EngineCore is one end of a weight transfer; no advice is about rewards."""
    engine = """Process 102: ray::LLMRayActor.update_weight
Python v3.10.12 (/usr/bin/python3.10)

Thread 102 (idle): "MainThread"
    wait (threading.py:320)
    result (concurrent/futures/_base.py:453)
    collective_rpc (vllm/v1/engine/core_client.py:601)
    update_weight (openrlhf/trainer/ray/vllm_engine.py:88)
"""
    text = RANK.format(pid=101, operation="broadcast", caller="_broadcast_param") + engine
    finding = finding_of(with_issue(diagnose(parse_text(tmp_path, text))))
    assert "Dump the vLLM processes EngineCore" in finding.remedy.actions[0].text


def test_ray_stack_text_is_parsed(tmp_path):
    heading = "Stack dump for ray 4711 0.0 0.1 100 200 ? S 10:00 0:01 ray::Scorer.score\n"
    stack = RANK.format(pid=1, **IN_GATHER).partition("\n\n")[2]
    (process,) = parse_text(tmp_path, heading + stack).processes
    assert (process.pid, process.role) == (4711, "Ray actor")


def test_driver_of_ray_alone_is_unknown(tmp_path):
    """Each driver waits for Ray; with an idle actor in the dump, nothing runs that it waits for."""
    driver = DUMPS["ray_driver"]
    verdict = diagnose(parse_text(tmp_path, driver)).verdict
    assert (verdict.outcome, verdict.certainty) == ("unknown", "hypothesis")
    assert "does not show what the task does" in verdict.sentence
    assert diagnose(parse_text(tmp_path, driver + DUMPS["ray_actor"])).verdict.outcome == "hang"


def test_local_variables_are_no_frames(tmp_path):
    """py-spy --locals prints a tuple as `name: (value)`, which has the form of a frame."""
    variables = '        Arguments:\n            account: ("ada", "Tulip9Kestrel")\n    '
    text = PYSPY.replace("\n    ", f"\n    step (a.py:3)\n{variables}", 1)
    assert "step" in str(parse_text(tmp_path, text))
    assert "Tulip9" not in str(parse_text(tmp_path, text))


def test_py_spy_json_is_parsed(tmp_path):
    frame = {"name": "Lock.f", "filename": "/job/a.py", "line": 3, "module": None}
    names = {"pid": 7, "thread_id": 9, "os_thread_id": 7, "thread_name": "MainThread"}
    thread = names | {"active": False, "frames": [frame]}
    assert parse_text(tmp_path, json.dumps([thread])).processes[0].threads[0].frames[0].function == "f"


@pytest.mark.parametrize("tool", ["pystack", "gdb"])
def test_stacks_of_pystack_and_gdb_are_parsed(tmp_path, tool):
    states = diagnose(parse_text(tmp_path, DUMPS[tool])).index.states
    assert [state.kind for state in states.values()] == ["collective"]


def test_output_of_the_real_faulthandler_is_parsed(tmp_path):
    program = (
        "import faulthandler, os, sys, threading\n"
        "timer = threading.Timer(500, print)\n"
        "timer.start()\n"
        "while sys._current_frames()[timer.ident].f_code.co_name != 'wait': pass\n"
        "faulthandler.dump_traceback()\n"
        "os._exit(0)\n"
    )
    done = run_python("-c", program, check=True)
    (process,) = parse_text(tmp_path, done.stderr).processes
    assert process.main.frames[-1].function == "<module>"
    assert "wait" in {frame.function for thread in process.threads for frame in thread.frames}


INTERRUPTED = DUMPS["interrupted"]


def test_traceback_is_a_stack_only_if_it_ends_in_keyboard_interrupt(tmp_path):
    (process,) = parse_text(tmp_path, INTERRUPTED.format(error="KeyboardInterrupt")).processes
    assert [frame.function for frame in process.threads[0].frames] == ["get", "<module>"]
    with pytest.raises(ParseError):
        parse_text(tmp_path, INTERRUPTED.format(error="ValueError: x"))


def test_interleaved_lines_are_separated_by_rank_prefix(tmp_path):
    stack = INTERRUPTED.format(error="KeyboardInterrupt").splitlines()
    lines = [f"[rank{rank}]: {line}" for line in stack for rank in range(2)]
    assert [process.rank for process in parse_text(tmp_path, "\n".join(lines)).processes] == [0, 1]


TIMEOUT = DUMPS["watchdog_timeout"]


@pytest.mark.parametrize(
    ("text", "cause", "culprits"),
    [
        (
            TIMEOUT.format(0, "ALLREDUCE") + TIMEOUT.format(1, "BROADCAST") + TIMEOUT.format(2, "ALLREDUCE"),
            "mismatch", ("/2",),
        ),
        (TIMEOUT.format(0, "ALLREDUCE") + DUMPS["watchdog_counts"].format(1, 6), "absent", ("/2",)),
        (TIMEOUT.format(0, "ALLREDUCE") + TIMEOUT.format(1, "ALLREDUCE"), "absent", ()),
    ],
    ids=["other collective", "started fewer", "nobody is named"],
)  # fmt: skip
def test_nccl_watchdog_lines_show_the_absent_or_mismatched_rank(tmp_path, text, cause, culprits):
    """If the lines do not show which rank is absent, no rank is blamed."""
    verdict = diagnose(parse_text(tmp_path, text)).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", cause, culprits)
    assert "pid" not in verdict.sentence


def test_other_collective_among_some_ranks_is_not_established(tmp_path):
    text = TIMEOUT.format(0, "ALLREDUCE") + TIMEOUT.format(3, "BROADCAST") + TIMEOUT.format(5, "BROADCAST")
    assert diagnose(parse_text(tmp_path, text)).verdict.certainty == "supported"


@pytest.mark.parametrize(
    ("names", "expected", "next_words"),
    [
        (
            "weight_sender weight_waiter",
            ("hang", "elsewhere", ("engine",)),
            "add a dump of the process there",
        ),
        ("weight_sender weight_waiter weight_server", ("hang", "absent", ("/13",)), ""),
        ("engine_client", ("unknown", "elsewhere", ("/1",)), "add a dump of the process there"),
        ("idle_actor", ("unknown", "", ()), "dump the other processes, too"),
    ],
)
def test_dump_without_the_other_end_names_it_or_what_to_dump(tmp_path, names, expected, next_words):
    """A rank that sends weights waits for the engine, and the other ranks wait for it; no client blames itself."""
    verdict = diagnose(parse_text(tmp_path, "\n".join(map(DUMPS.get, names.split())))).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == expected
    assert next_words in "".join(verdict.next)


def recorder(started, operation, frames=()):
    """Return a flight recorder dump as PyTorch writes it for gloo."""
    entry = {
        "profiling_name": operation, "state": "scheduled", "collective_seq_id": started, "input_sizes": [[4]],
        "frames": list(frames), "process_group": ("0", "default_pg"),
    }  # fmt: skip
    counts = {
        "last_enqueued_collective": started, "last_started_collective": -1, "last_completed_collective": -1,
    }  # fmt: skip
    config = {"": {"ranks": "[0, 1, 2]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {"0": counts}, "entries": [entry]}


def test_flight_recorder_dumps_show_the_rank_that_started_fewer_collectives(tmp_path):
    names = []
    for number in range(3):
        path = tmp_path / f"trace_rank_{number}"
        path.write_bytes(pickle.dumps(recorder(3 if number == 1 else 4, "gloo:all_reduce")))
        names.append(str(path))
    verdict = diagnose(read_files(names)).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "absent", ("/2",))


def test_unreadable_file_is_skipped_and_named(tmp_path):
    """Files without a dump are named, also two of the same name, and the other files are diagnosed."""
    good, *bad = files = [tmp_path / name for name in ("good.txt", "a/bad.txt", "b/bad.txt")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(PYSPY if file == good else "no dump at all")
    verdict = diagnose(read_files([*map(str, files)])).verdict
    assert (verdict.cause, verdict.culprits) == ("mismatch", ("/102",))
    assert all(any(str(file) in text for text in verdict.unseen) for file in bad)


def test_pickle_with_a_callable_is_refused_and_not_executed(tmp_path):
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return open, (str(mark), "w")

    with pytest.raises(ParseError, match="nothing of it was run"):
        parse_text(tmp_path, pickle.dumps({"entries": [Evil()]}), "trace_rank_0")
    assert not mark.exists()


def test_pickles_of_protocols_2_to_5_are_read():
    frames = [{"filename": "a.py", "name": "train", "line": n} for n in (1, 300, 70_000, -5, 1 << 62)]
    entry = {"frames": frames, "again": frames, "of": (), "four": (1, 2.5, None, True), "text": "ä" * 300}
    document = {"entries": [entry, entry], "": [[]]}
    for protocol in range(2, 6):
        assert flight_recorder.load_pickle(pickle.dumps(document, protocol=protocol), "x") == document


DOUBLED: list = []
for _ in range(60):
    DOUBLED = [DOUBLED, DOUBLED]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pickle.dumps({"entries": DOUBLED}), "more items"),
        (pickle.dumps({"entries": [{"process_group": DOUBLED}]}), "more items"),
        (b"\x80\x02]q\0h\0a.", "more items"),  # a list that contains itself
        (b"\x80\x02}(X\x07\0\0\0entries])" + b"2\x86" * 60 + b"K\x01u.", "opcode 50"),
        (b"\x80\x04\x8e" + (8 << 30).to_bytes(8, "little") + b"aa.", "opcode 142"),
        (b"\x80\x02}]K\1s.", "a key"),
        (b"\x80\x02" + b"(" * 50 + b".", "empty list"),
        (b"\x80\x02" + b"}]" * 501 + b".", "more than 1000 lists, tuples, dicts and marks"),
        (b"\x80\x02" + b"(" * 1001 + b".", "more than 1000 lists, tuples, dicts and marks"),
        (b"\x80\x02N" + b"\x85" * 1001 + b".", "more than 1000 lists, tuples, dicts and marks"),
    ],
)
def test_pickle_bombs_are_refused(monkeypatch, data, reason):
    monkeypatch.setattr(flight_recorder, "MAX_ITEMS", 1000)
    with pytest.raises(ParseError, match=reason):
        parse_dump("trace_rank_0", data)


SHARED = [["x" * 10_000] * 100] * 100
LONG_ENTRIES = [
    *({name: SHARED} for name in ("input_sizes", "process_group", "profiling_name", "state")),
    {"frames": [{"name": "f", "filename": SHARED}]},
    {"input_sizes": [{"x" * 10_000: 1}] * 10_000},
    {"input_sizes": [1 << 2000] * 10_000},
]


@pytest.mark.parametrize("entry", LONG_ENTRIES)
def test_pickle_whose_values_would_be_a_long_text_is_refused(entry):
    """Shared values repeat in the text, so that a pickle of 10 KB can become hundreds of megabytes of text."""
    with pytest.raises(ParseError, match=r"more text than a recorder writes|number that is too large"):
        parse_dump("trace_rank_0", pickle.dumps({"entries": [entry]}, protocol=4))


@pytest.mark.parametrize(
    "document",
    [
        {"entries": [], "rank": 10**4299},
        {"communicators": [{"ranks": [{"rank": 10**4299}]}]},
        {"schema": SCHEMA, "seconds": math.nan},
        {"schema": SCHEMA, "sockets": [{"inode": 1, "kind": "tcp", "received_s": math.inf}]},
    ],
)
def test_numbers_that_no_tool_writes_are_refused(document):
    """NaN and numbers of thousands of digits were internal errors; one host's lost the answers of the others."""
    with pytest.raises(ParseError, match="a number that is too large, or none"):
        parse_dump("trace_rank_0", json.dumps(document).encode())


def test_saving_a_snapshot_has_a_limit_of_time(monkeypatch, tmp_path):
    monkeypatch.setattr(bundle, "_REDACTING_S", 0.1)
    monkeypatch.setattr(bundle, "redact", lambda _: next(item for item in iter(int, 1) if item))
    with pytest.raises(CpuLimitError):
        bundle.save(Snapshot(notes=("text",)), tmp_path / "saved.json")


SIZE = 1 << 18
HOSTILE = {
    "blank lines": "\n" * SIZE,
    "blank lines with blanks": " \n" * (SIZE // 2),
    "one line of a list": "[" + "1," * (SIZE // 2),
    "parentheses": "(" * SIZE,
    "frames": '  File "a.py", line 1, in x\n' * (SIZE // 32),
    "threads": 'Thread 1 (idle): "x"\n' * (SIZE // 24),
    "processes": 'Process 1: a\nThread 1 (idle): "MainThread"\n  f (a.py:1)\n' * (SIZE // 56),
    "gdb": "#0  0x1 in " + "f(" * 400 + "\n" + "#1 0x2 in g<" * (SIZE // 24),
    "tags": "[rank1]: x\n" * (SIZE // 12),
    "watchdog": "[Rank 1] Watchdog caught " * (SIZE // 26),
    "words": "Process 1 rank " * (SIZE // 16),
    "chained errors": INTERRUPTED.format(error="ValueError: x\n\nDuring handling of the above")
    * (SIZE // 256),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_dumps_are_parsed_in_20_s(name):
    """A hostile dump of 128 to 256 KiB is parsed or refused in 20 s of CPU time; quadratic patterns take minutes."""
    began = time.process_time()
    with contextlib.suppress(ParseError):
        parse_dump("x", HOSTILE[name].encode())
    assert time.process_time() - began < 20


@pytest.mark.parametrize("unit", ["a/", "/", "httpx/", "sympy/", "ncclAll"])
def test_long_paths_and_functions_are_matched_in_20_s(unit):
    """A path or function name of 1 MiB is matched within 20 s; quadratic patterns took 18 s for 40 KiB."""
    text = unit * ((1 << 20) // len(unit))
    frames = [{"name": name, "filename": path, "line": 1} for path, name in ((text, "f"), ("a.py", text))]
    bundled = [StackFrame(path, name, 1) for path, name in ((text, "f"), ("a.py", text))]
    process = Process(1, title=text, threads=(Thread(1, "MainThread", tuple(bundled)),))
    began = time.process_time()
    for document in ([{"pid": 1, "thread_id": 1, "frames": frames}], Snapshot((process,)).to_json()):
        diagnose(parse_dump("x", json.dumps(document).encode()))
    assert time.process_time() - began < 20


def test_nccl_ras_shows_the_rank_that_started_fewer_collectives(tmp_path):
    ranks = [
        {"rank": n, "host": "a", "pid": 10 + n, "collective_counts": {"AllGather": 5 - (n == 2)}}
        for n in range(4)
    ]
    document = {"communicators": [{"hash": "0x1", "ranks": ranks}]}
    assert diagnose(parse_text(tmp_path, json.dumps(document))).verdict.culprits == ("/12",)
    for wrong in ({"pid": "9" * 4000}, {"collective_counts": {"AllGather": "9" * 4000}}):
        changed = {"communicators": [{"hash": "0x1", "ranks": [ranks[0] | wrong, *ranks[1:]]}]}
        with pytest.raises(ParseError):
            parse_text(tmp_path, json.dumps(changed))


@pytest.mark.parametrize(
    "text", ["", "hello", "{}", "[1]", '{"schema": "x"}', b"\x80\x04garbage", b"\x00\xff"]
)
def test_other_files_are_refused_with_a_one_line_error(tmp_path, text, capsys):
    path = tmp_path / "x"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["hang", "--from", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_bundle_is_redacted_and_keeps_both_ends_of_a_connection(tmp_path):
    """A bundle has no user, secret, address of another host, host name of MASTER_ADDR or active control character."""
    sockets = (
        Socket(1, "tcp", "10.1.2.3:5000", "10.1.2.4:80", "ESTABLISHED"),
        Socket(2, "tcp", "10.1.2.4:80", "10.1.2.3:5000", "ESTABLISHED"),
    )
    secret, control = "hf_" + "a" * 20, "a\x9b2J\x1b]52;c;x\x07\u202e\x85##[error]b\U000e0041"
    title = f"python /home/ada/train.py --token {secret} --host gpu-7.corp.example"
    jobs = [
        Process(pid, job="localhost.gpu-node-17:29500", threads=(Thread(pid, control),)) for pid in (1, 2)
    ]
    local = Process(3, title=title, job="localhost:1")
    bundle.save(Snapshot((*jobs, local), sockets), tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text(encoding="utf-8")
    assert not [word for word in ("ada", secret, "10.1.2", "gpu-node") if word in text]
    assert sanitize.escape(text) == text
    loaded = read_files([str(tmp_path / "b.json")])
    first, second = loaded.sockets
    assert (first.local, first.remote) == (second.remote, second.local)
    assert [process.job for process in loaded.processes[1:]] == [loaded.processes[0].job, "localhost:1"]
    assert loaded.processes[0].threads[0].name[-2:] == "b\U000e0041"


def test_missing_ranks_of_a_huge_world_size_are_not_listed():
    ranks = [in_all_gather(number, world=1_000_000) for number in (1, 2)]
    assert collectives.missing_ranks("127.0.0.1:1", ranks) == []


def test_dump_is_read_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PYSPY.encode())))
    assert main(["hang", "--from", "-", "--format", "markdown"]) == 1
    assert "HNG001" in capsys.readouterr().out


def waiting_ranks(count):
    """Return py-spy stacks of ranks that wait in all_reduce, each called from another function."""
    heading = 'Process {0}: python train.py\nThread {0} (idle): "MainThread"\n'
    frames = "    all_reduce (torch/distributed/distributed_c10d.py:300)\n    step_{0} (train.py:{0})\n"
    return "".join((heading + frames).format(number) for number in range(1, count + 1))


def test_processes_and_threads_beyond_the_limits_are_not_checked(monkeypatch, tmp_path):
    """It keeps the main thread and counts processes and threads beyond the limits; the verdict is not idle."""
    monkeypatch.setattr(dump_files, "MAX_PROCESSES", 3)
    monkeypatch.setattr(dump_files, "MAX_THREADS", 2)
    main = 'Thread 4 (idle): "MainThread"\n    wait (threading.py:1)\n'
    threads = "".join(f"Thread {n} (idle)\n    wait (threading.py:1)\n" for n in (1, 2, 3)) + main
    snapshot = parse_text(tmp_path, f"Process 9: python a.py\n{threads}" + waiting_ranks(4))
    assert [len(process.threads) for process in snapshot.processes] == [2, 1, 1]
    assert snapshot.processes[0].threads[0].name == "MainThread"
    assert snapshot.blind == ("2 processes beyond the limit", "2 threads beyond the limit")
    assert diagnose(snapshot).verdict.outcome != "idle"


def test_main_thread_of_a_process_with_too_many_threads_is_looked_up_once(monkeypatch, tmp_path):
    """A look-up for each thread took 8 s for the 11,000 threads in 1 MB."""
    lookups, main = [], Process.main.fget
    monkeypatch.setattr(Process, "main", property(lambda self: lookups.append(self) or main(self)))
    parse_text(
        tmp_path, "Process 9: a.py\n" + "Thread 1 (idle)\n    f (a.py:1)\n" * (dump_files.MAX_THREADS + 9)
    )
    assert len(lookups) == 1


def test_edges_between_many_ranks_are_limited(monkeypatch):
    monkeypatch.setattr(collectives, "MAX_EDGES", 40)
    frames = [StackFrame(C10D, name) for name in ("all_reduce", "broadcast")]
    ranks = [rank(number, frames[number % 2], world=20) for number in range(20)]
    assert sum(map(len, diagnose(Snapshot(tuple(ranks))).graph.values())) <= 40
