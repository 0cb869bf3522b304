"""The hang diagnosis names the blocking process and cause, in stored snapshots of real jobs and in synthetic ones.

Healthy jobs and too little evidence are no hang. Large snapshots are diagnosed in limited time. Further tests check
known issues, fixes, the tables of waits, and that a snapshot is unchanged by a trip through JSON.
"""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from diagnostics.catalog import load
from diagnostics.hang import wait_kinds
from diagnostics.hang.diagnosis import Patience, diagnose
from diagnostics.hang.job_index import split_jobs
from diagnostics.hang.known_issues import finding_of, issue_document, stack_fix, with_issue
from diagnostics.hang.parsers import ParseError, bundle
from diagnostics.hang.parsers.dump_files import read_files
from diagnostics.hang.snapshot import Descriptor, Lock, Process, Snapshot, Socket, StackFrame, Thread
from evaluation.hang import bench, bench_repros
from tests.case_files import each_case, read_cases
from tests.diagnostics.hang.processes import (
    ACCEPT,
    AT_FUTEX,
    C10D,
    COMPUTES,
    EVENT_LOOP,
    PYTHON,
    WAIT,
    connection,
    in_all_gather,
    rank,
    sleeping,
    verdict_of,
    with_threads,
)
from tests.limits import cpu_and_memory_limits

RANKS = read_cases(__file__, "rank_states.yaml")

STORED = Path(__file__).parent / "snapshots"
CASES = {case.name: case for case in (*bench.cases(), *bench_repros.cases())}
ASLEEP = {"syscall": "clock_nanosleep", "futex": ""}


def load_stored(name):
    return read_files([str(STORED / f"{name}.json")])


@pytest.mark.parametrize("path", sorted(STORED.glob("*.json")), ids=lambda path: path.stem)
def test_stored_snapshot_gets_its_verdict(path):
    """A stored hang gets its blocking process and cause, a healthy job is no hang, and no victim is blamed."""
    names = {name: set(pids) for name, pids in json.loads(path.with_suffix(".names").read_text()).items()}
    row = bench.score(CASES[path.stem], read_files([str(path)]), names)
    assert (row["right_process"], row["right_cause"], row["victim_named"]) == (True, True, False), row


@pytest.mark.parametrize("path", sorted(STORED.glob("jobs/*.json")), ids=lambda path: path.stem)
def test_stored_job_gets_its_verdict(path):
    """A stored job, whose cause was labelled before it was observed, is hung, idle or undecided as expected."""
    verdict = diagnose(read_files([str(path)]), Patience(15.0)).verdict
    reported = {"outcome": verdict.outcome, "cause": verdict.cause, "culprits": list(verdict.culprits)}
    assert reported == json.loads(path.with_suffix(".expected").read_text()), verdict.sentence


def test_stopped_vllm_worker_is_blamed_through_the_engine():
    """The stopped worker is blamed: the program waits for the engine core, which waits for the worker.

    The snapshot is of vLLM 0.31.0 on a CPU, with ZMQ and shared memory between the processes.
    """
    verdict = diagnose(load_stored("vllm/worker_stopped")).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "stopped", ("/2736",))
    assert [edge.target for edge in verdict.chain] == ["/2379", "/2736"]
    assert any("/dev/shm/psm" in line for line in verdict.chain[-1].evidence)


def test_idle_vllm_engine_is_not_blamed():
    """The program, which waits for its standard input, is blamed, and the engine without a request is idle."""
    diagnosis = diagnose(load_stored("vllm/idle"))
    assert (diagnosis.verdict.cause, diagnosis.verdict.culprits) == ("input", ("/723",))
    engines = [s for s in diagnosis.index.states.values() if s.process.role.startswith("engine")]
    assert {state.kind for state in engines} == {"idle"}


# Ranks of a distributed job.


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (StackFrame(C10D, "broadcast", 1), StackFrame(C10D, "broadcast", 1)),
        (StackFrame(C10D, "all_reduce", 1), StackFrame("[native]", "ncclAllReduce", 0)),
    ],
)
def test_same_operation_from_other_lines_or_under_nccls_name_is_no_mismatch(first, second):
    verdict = verdict_of(
        rank(0, first, StackFrame("/job/train.py", "send", 10), world=2),
        rank(1, second, StackFrame("/job/train.py", "receive", 20), world=2),
    )
    assert verdict.outcome == "unknown"


def test_rank_without_a_process_is_missing():
    """A rank without a process is missing, because a local rendezvous store means that all ranks run on this host."""
    verdict = verdict_of(in_all_gather(0), in_all_gather(2))
    assert (verdict.cause, verdict.culprits) == ("missing", ("rank 1",))
    assert "has no process among those observed" in verdict.sentence


def test_computing_rank_is_a_hang_only_after_the_busy_patience():
    """A rank that computes while others wait for 30 s makes progress; after 900 s, more than the patience, it hangs."""
    busy = rank(1, StackFrame("/job/train.py", "reward", 7), thread=COMPUTES | {"state": "S"})
    short, long = {"asleep_s": 30.0}, {"asleep_s": 900.0}
    assert (
        verdict_of(in_all_gather(0, thread=short), busy, in_all_gather(2, thread=short)).outcome == "progress"
    )
    verdict = verdict_of(in_all_gather(0, thread=long), busy, in_all_gather(2))
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "spin_native", (busy.key,))


def test_computing_rank_without_a_stack_is_no_hang():
    """A computing rank without a stack, which may be exiting, counts as progress."""
    busy = rank(2, thread=COMPUTES | {"futex": ""})
    verdict = verdict_of(in_all_gather(0), in_all_gather(1), busy)
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("progress", "busy", ("/102",))


def test_all_ranks_in_one_collective_is_an_unknown_cause():
    """The verdict `unknown` blames no rank, says that all are in the collective, and suggests the flight recorder."""
    verdict = verdict_of(*map(in_all_gather, range(3)))
    assert (verdict.outcome, verdict.culprits) == ("unknown", ())
    assert "are all in all_gather" in verdict.sentence
    assert any("flight recorder" in line for line in verdict.next)


@each_case(RANKS["states"])
def test_rank_outside_the_collective_is_named_with_its_state(thread, text):
    """The sentence names the rank and a rank that waits for it, and the system call if it opens or stats a file."""
    away = rank(1, StackFrame("/job/train.py", "load", 3), thread={"futex": ""} | thread)
    verdict = verdict_of(in_all_gather(0), away, in_all_gather(2))
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "absent", (away.key,))
    assert text in verdict.sentence
    assert "rank 1 (trainer, pid 101)" in verdict.sentence.lower()
    assert "rank 0 (pid 100)" in verdict.sentence


def test_rank_does_not_wait_for_a_launcher_in_waitpid():
    launcher = sleeping(
        50, 1, StackFrame("/job/launch.py", "main", 5, "waitpid"), thread={"syscall": "wait4"}, role="process"
    )
    ranks = tuple(
        dataclasses.replace(in_all_gather(n), ppid=50, role="process", rank=None, job="") for n in range(2)
    )
    edges = diagnose(Snapshot((launcher, *ranks))).graph
    assert all(edge.target != launcher.key for edge in edges[ranks[0].key])


def test_backward_pass_is_in_the_collective_of_the_autograd_thread():
    """A rank whose main thread waits for autograd's thread is in the collective of that thread."""
    autograd = StackFrame("/opt/env/lib/python3.11/site-packages/torch/autograd/__init__.py", "backward", 266)
    main = Thread(100, "MainThread", (autograd, StackFrame("/job/train.py", "step", 4)))
    backward = Thread(200, "", (StackFrame(C10D, "all_gather_into_tensor", 9),))
    snapshot = Snapshot((Process(100, threads=(main, backward)),), source="py-spy text")
    assert [state.kind for state in diagnose(snapshot).index.states.values()] == ["collective"]


# Too little evidence.


def test_uninspectable_process_leaves_the_verdict_unknown():
    """A snapshot without processes is unknown, too."""
    blind = Process(9, 1, role="trainer", rank=0, world=1, unseen=("no rights",))
    verdict = verdict_of(blind, blind=("pid 9 could not be inspected",))
    assert (verdict.outcome, bool(verdict.unseen)) == ("unknown", True)
    assert verdict_of().outcome == "unknown"


def test_zombie_child_whose_parent_waits_is_no_hang():
    """A zombie whose parent waits for it is no hang, because the parent is about to read the exit code."""
    frames = (StackFrame(f"{PYTHON}/subprocess.py", "_wait"), StackFrame("/job/a.py", "f", 1))
    parent = sleeping(1, 0, *frames, thread={"syscall": "wait4"})
    assert verdict_of(parent, Process(2, 1, state="Z")).outcome != "hang"


# Idle processes.


def test_main_thread_waiting_beside_an_event_loop_is_idle():
    process = sleeping(1, 0, WAIT, StackFrame("/job/a.py", "serve", 1), thread=AT_FUTEX)
    loop = {"syscall": "epoll_wait", "futex": "", "asleep_s": None}
    assert verdict_of(with_threads(process, EVENT_LOOP, name="loop", **loop)).outcome == "idle"


GET = StackFrame(f"{PYTHON}/multiprocessing/queues.py", "get", 103)
WORKER = StackFrame("/job/rewards.py", "worker", 8)


def driver_with_consumers(*frames, **thread):
    """Return a driver and three idle workers of a queue: one reads with the queue's lock, two wait for the lock."""
    shared = ("/dev/shm/sem.x#90",)
    driver = sleeping(10, 1, *frames, thread=thread, fds=(Descriptor(5, "pipe", 70, "w"),), shared=shared)
    reader = sleeping(
        11,
        10,
        StackFrame(f"{PYTHON}/multiprocessing/connection.py", "_recv", 383),
        GET,
        WORKER,
        thread={"syscall": "read", "waits_fds": (3,)},
        fds=(Descriptor(3, "pipe", 70, "r"), Descriptor(4, "pipe", 70, "w")),
        shared=shared,
    )
    enters = (StackFrame(f"{PYTHON}/multiprocessing/synchronize.py", "__enter__", 95), GET, WORKER)
    at_lock = {"syscall": "futex", "futex": "sem:90"}
    return (driver, reader, *(sleeping(pid, 10, *enters, thread=at_lock, shared=shared) for pid in (12, 13)))


@pytest.mark.parametrize(
    ("frame", "syscall"),
    [
        (ACCEPT, "accept4"),
        (StackFrame("/job/driver.py", "poll", 3, "sleep"), "clock_nanosleep"),
        (WAIT, "futex"),
    ],
    ids=["in accept", "polling", "waiting for its end"],
)
def test_idle_consumers_of_a_queue_are_no_hang(frame, syscall):
    processes = driver_with_consumers(frame, StackFrame("/job/driver.py", "main", 9), syscall=syscall)
    assert verdict_of(*processes, seconds=90.0).outcome == "idle"


@pytest.mark.parametrize(("asleep_s", "outcome"), [(0.2, "progress"), (40.0, "waiting"), (70.0, "hang")])
def test_wait_of_a_rank_that_computed_first_counts_from_its_sleep(asleep_s, outcome):
    """It ran 40 % of the time, then opened a named pipe: first it progresses, then waits, then hangs."""
    opens, thread = (
        StackFrame("/job/train.py", "run", 18),
        {"syscall": "openat", "opens": "/job/fifo (a named pipe)"},
    )
    missing = rank(1, opens, thread=thread | {"futex": "", "runnable": 0.4, "asleep_s": asleep_s})
    waiting = [in_all_gather(number, thread={"asleep_s": asleep_s}) for number in (0, 2)]
    verdict = verdict_of(waiting[0], missing, waiting[1], seconds=100.0)
    assert (verdict.outcome, verdict.culprits) == (outcome, ("/101",))


def test_feeder_thread_of_an_empty_queue_is_idle():
    """The feeder thread of an empty queue waits for the next item, so it is idle."""
    driver, *workers = driver_with_consumers(WAIT, StackFrame("/job/driver.py", "main", 9), **AT_FUTEX)
    feeds = WAIT, StackFrame(f"{PYTHON}/multiprocessing/queues.py", "_feed", 231)
    driver = with_threads(driver, feeds, name="QueueFeederThread")
    assert verdict_of(driver, *workers, seconds=90.0).outcome == "idle"


def test_driver_joining_workers_that_wait_at_the_queue_is_a_hang():
    joins = StackFrame(f"{PYTHON}/multiprocessing/popen_fork.py", "poll", 27)
    processes = driver_with_consumers(joins, StackFrame("/job/driver.py", "main", 9), syscall="wait4")
    assert verdict_of(*processes, seconds=90.0).outcome == "hang"


def test_listening_socket_has_no_peer():
    serves, thread = StackFrame("/job/server.py", "serve", 3), {"syscall": "poll", "waits_fds": (3,)}
    listener = sleeping(7, 1, serves, thread=thread, fds=(Descriptor(3, "tcp", 50),))
    socket = Socket(50, "tcp", "0.0.0.0:8000", "0.0.0.0:0", "LISTEN")
    assert not any(diagnose(Snapshot((listener,), (socket,), seconds=90.0)).graph.values())


def test_tail_f_and_its_reader_are_idle():
    """Without `tail -f`, the reader hangs in its input."""
    read, output = {"syscall": "read", "waits_fds": (0,)}, Descriptor(1, "pipe", 4, "w")
    fds = (Descriptor(0, "pipe", 3, "r"), output)
    tail = sleeping(9, 1, thread=read, title="tail -f train.log", python=False, fds=fds)
    main, fds = StackFrame("/job/a.py", "main", 3), (Descriptor(0, "pipe", 4, "r"),)
    reader = sleeping(8, 1, main, thread=read, fds=fds)
    assert verdict_of(tail, seconds=90.0).outcome == "idle"
    assert verdict_of(tail, reader, seconds=90.0).outcome == "idle"
    assert verdict_of(reader, seconds=90.0).cause == "input"


POLLS = {"syscall": "clock_nanosleep", "asleep_s": 0.1}


def test_reader_of_a_polling_child_is_no_hang():
    reads, polls = StackFrame("/job/run.py", "main", 3), StackFrame("/job/monitor.py", "main", 3, "sleep")
    thread = {"syscall": "read", "waits_fds": (3,)}
    reader = sleeping(7, 1, reads, thread=thread, fds=(Descriptor(3, "pipe", 5, "r"),))
    child = sleeping(8, 7, polls, fds=(Descriptor(1, "pipe", 5, "w"),), thread=POLLS)
    assert verdict_of(reader, child, seconds=1.5).outcome == "waiting"


def test_polling_loop_suggests_a_longer_observation_with_the_same_selection():
    """After 1.5 s the loop waits, and the next command observes 65 s; then only a poll for a lock is a hang."""
    poll, lock = (
        sleeping(7, 1, StackFrame("/job/wait.py", name, 3, "sleep"), thread=POLLS, io_moved=False)
        for name in ("poll", "take_lock")
    )
    verdict = diagnose(Snapshot((poll,), seconds=1.5), selection=("--match", "wait me")).verdict
    assert verdict.outcome == "waiting"
    assert verdict.next == ("python -m diagnostics hang --match 'wait me' --seconds 65",)
    assert verdict_of(poll, seconds=65.0).outcome == "waiting"
    verdict = verdict_of(lock, seconds=65.0)
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "file_lock", "hypothesis")


def test_unrelated_processes_are_separate_jobs():
    reader = sleeping(
        900, 2, StackFrame("/job/wait.py", "main", 3, "input"), thread={"syscall": "read", "waits_fds": (0,)}
    )
    jobs = split_jobs(Snapshot((*map(in_all_gather, range(3)), reader)))
    assert sorted(len(job.processes) for job in jobs) == [1, 3]


def test_fully_connected_processes_are_diagnosed_in_20_s():
    """A deadlock of 20 fully connected processes, which have 20! paths, is found in less than 20 s of CPU time."""
    pids = range(10, 30)
    frames = (StackFrame("/opt/env/zmq/sugar/socket.py", "recv", 3), StackFrame("/job/a.py", "main", 1))
    thread, sockets, processes = {"syscall": "poll", "waits_fds": (9,)}, [], []
    for a in pids:
        peers = [b for b in pids if b != a]
        sockets += [Socket(100 * a + b, "unix", state="ESTABLISHED", peer=100 * b + a) for b in peers]
        fds = (Descriptor(9, "other"), *(Descriptor(b, "unix", 100 * a + b) for b in peers))
        processes.append(sleeping(a, 1, *frames, thread=thread, fds=fds))
    began = time.process_time()
    assert verdict_of(*processes, sockets=tuple(sockets), seconds=90.0).cause == "deadlock"
    assert time.process_time() - began < 20


def snapshot_with_many(kind):
    """Return a snapshot with thousands of connections, ends of a pipe, mapped semaphores or locks."""
    loop = StackFrame("/usr/lib/python3.11/asyncio/base_events.py", "_run_once", 1)
    semaphore = StackFrame("/usr/lib/python3.11/multiprocessing/synchronize.py", "__enter__", 1)
    count, pids = 20_000, range(10, 1034)
    if kind == "connections":
        fds = tuple(Descriptor(n, "tcp", n) for n in range(count))
        sockets = tuple(Socket(n, "tcp", "1.1.1.1:1", "1.1.1.2:1", "ESTABLISHED") for n in range(count))
        epoll = {"syscall": "epoll_wait", "waits_fds": (1,)}
        return Snapshot((sleeping(7, 1, loop, thread=epoll, fds=fds),), sockets, seconds=2.0)
    if kind == "ends of a pipe":
        fds = tuple(Descriptor(n, "pipe", 1) for n in range(count))
        frame = StackFrame("/job/a.py", "main", 1, "sleep")
        process = sleeping(7, 1, frame, thread={**ASLEEP, "asleep_s": 0.1}, fds=fds, io_moved=True)
        return Snapshot((process,), seconds=2.0)
    if kind == "semaphores":
        shared = tuple(f"/dev/shm/a{n}#7" for n in range(60))
        waits = [{"syscall": "futex", "futex": f"sem:{pid}"} for pid in pids]
        return Snapshot(
            tuple(
                sleeping(pid, 1, semaphore, thread=wait, shared=shared)
                for pid, wait in zip(pids, waits, strict=True)
            ),
            seconds=2.0,
        )
    frame, fds = StackFrame("/opt/filelock/_api.py", "acquire", 1), (Descriptor(1, "file", 2),)
    flock = {"syscall": "flock", "waits_fds": (1,)}
    locks = tuple(Lock(1, 10, "FLOCK") for _ in range(count))
    return Snapshot(
        tuple(sleeping(pid, 1, frame, thread=flock, fds=fds) for pid in pids), locks=locks, seconds=2.0
    )


@pytest.mark.parametrize("kind", ["connections", "ends of a pipe", "semaphores", "locks"])
def test_snapshot_with_thousands_of_entries_is_diagnosed_within_limits(kind):
    """A snapshot with thousands of entries is diagnosed in 8 s of CPU time with 500 MiB more memory."""
    snapshot = snapshot_with_many(kind)
    with cpu_and_memory_limits(seconds=8, mebibytes=500):
        diagnose(snapshot)


# Known issues and fixes.


def test_wait_tables_and_catalog_use_known_kinds_and_causes():
    """The entries about hangs are those with codes HNG."""
    kinds = {kind for kind, _, _ in wait_kinds._CALLS}
    kinds |= {*wait_kinds.KIND_OF_SYSCALL.values(), *wait_kinds.KIND_OF_SOURCE_CALL.values()}
    assert kinds <= set(wait_kinds.KINDS)
    issues = load()
    causes = {cause for issue in issues.values() for shape in issue.hang for cause in shape.causes}
    assert causes | {kind.cause for kind in wait_kinds.KINDS.values()} <= set(wait_kinds.CAUSES)
    assert {code for code in issues if code.startswith("HNG")} == {c for c, i in issues.items() if i.hang}


def test_issue_with_matching_frames_is_preferred():
    """A rank absent from the rendezvous is HNG015, not the general issue of a rank absent from a collective."""
    path = "/opt/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py"
    waits = StackFrame(path, "_create_c10d_store", 5)
    away = rank(1, StackFrame("/job/x.py", "f", 1), thread=ASLEEP)
    diagnosis = with_issue(diagnose(Snapshot((rank(0, waits), away, rank(2, waits)))))
    assert diagnosis.verdict.code == "HNG015"
    assert issue_document(diagnosis)["mitigations"]


FORK = StackFrame(f"{PYTHON}/multiprocessing/popen_fork.py", "_launch", 71)
LOCK = StackFrame("/job/worker.py", "run", 5, "acquire")
FEEDS = (
    StackFrame(f"{PYTHON}/multiprocessing/connection.py", "_send", 384),
    StackFrame(f"{PYTHON}/multiprocessing/queues.py", "_feed", 271),
)


@pytest.mark.parametrize(
    ("name", "cause", "frames", "thread"),
    [
        ("fork_with_lock", "lock", (LOCK, FORK), AT_FUTEX),
        ("raised_with_lock", "lock", (LOCK,), AT_FUTEX),
        (
            "import_lock", "lock",
            (StackFrame("<frozen importlib._bootstrap>", "acquire"), StackFrame("/job/a.py", "f", 2)), AT_FUTEX,
        ),
        (
            "semaphore", "lock",
            (StackFrame(f"{PYTHON}/multiprocessing/synchronize.py", "__enter__"), StackFrame("/job/a.py", "f")),
            {"syscall": "futex", "futex": "sem:5"},
        ),
        ("queue_not_drained", "full_pipe", FEEDS, {"syscall": "write", "waits_fds": (4,)}),
        ("backlog", "connect", (StackFrame("/job/client.py", "main", 5, "connect"),), {"syscall": "connect"}),
    ],
)  # fmt: skip
def test_fix_fits_the_stack(name, cause, frames, thread):
    """The stack has its cause and fix, and no finding that advises to take locks in the same order."""
    process = sleeping(7, 1, *frames, thread=thread, fds=(Descriptor(4, "pipe", 70, "w"),))
    diagnosis = with_issue(diagnose(Snapshot((process,), seconds=90.0)))
    assert diagnosis.verdict.cause == cause
    assert stack_fix(diagnosis).name == name
    finding = finding_of(diagnosis)
    assert finding is None or "same order" not in finding.remedy.actions[0].text


@pytest.mark.parametrize(
    ("snapshot", "name"),
    [("two_locks", "two_orders"), ("child_output_unread", "output_not_read"), ("asyncio_lost", "task_lost")],
)
def test_fix_fits_a_stored_hang(snapshot, name):
    assert stack_fix(diagnose(load_stored(snapshot), bench.PATIENCE)).name == name


def test_snapshot_round_trips_through_json_and_other_documents_are_refused():
    snapshot = Snapshot((in_all_gather(0),), blind=("x",), seconds=1.5)
    document = snapshot.to_json()
    assert bundle.load(json.loads(json.dumps(document)), "x") == snapshot
    for invalid in ({}, [], {"schema": "x"}, document | {"processes": 3}):
        with pytest.raises(ParseError):
            bundle.load(invalid, "x")


# Jobs that work while one of their processes waits.


def pool_of(*workers):
    """Return a driver that waits for a pool's result, and its workers."""
    gets = StackFrame(f"{PYTHON}/multiprocessing/pool.py", "get")
    return (sleeping(7, 1, WAIT, gets, StackFrame("/job/a.py", "main", 9), thread=AT_FUTEX), *workers)


def test_pool_with_idle_and_computing_workers_makes_progress():
    """With idle workers only, the cause is a lost message."""
    idle = sleeping(8, 7, StackFrame(f"{PYTHON}/multiprocessing/pool.py", "worker", 114), thread=AT_FUTEX)
    busy = sleeping(9, 7, StackFrame("/job/a.py", "grade", 3), thread=COMPUTES)
    assert verdict_of(*pool_of(idle)).cause == "lost_message"
    verdict = verdict_of(*pool_of(idle, busy))
    assert (verdict.outcome, verdict.culprits) == ("progress", ("/9",))


def at_file_lock(holder, **values):
    """Diagnose a process that waits for a file lock of process 8 for 400 s."""
    waits, thread = StackFrame("/job/a.py", "standby", 7), {"syscall": "flock", "waits_fds": (3,)}
    listens = Descriptor(4, "tcp", 60)
    waiter = sleeping(9, 1, waits, thread=thread, fds=(Descriptor(3, "file", 50), listens))
    locks = (Lock(50, 8, "FLOCK", path="/job/leader.lock"), Lock(50, 9, "FLOCK", waiting=True))
    return verdict_of(dataclasses.replace(holder, fds=(listens,)), waiter, locks=locks, **values)


@pytest.mark.parametrize(
    ("wrote", "seconds", "outcome"),
    [(True, 1.5, "progress"), (False, 1.5, "waiting"), (False, 65.0, "waiting"), (True, 65.0, "progress")],
)
def test_holder_of_a_file_lock_that_writes_between_sleeps_works(wrote, seconds, outcome):
    """A holder with short sleeps is undecided; one that sleeps for long is a hang at once."""
    works = StackFrame("/job/a.py", "lead", 3, "sleep")
    holder = sleeping(8, 1, works, thread=POLLS, wrote=wrote, io_moved=wrote)
    assert at_file_lock(holder, seconds=seconds).outcome == outcome
    assert at_file_lock(sleeping(8, 1, works, thread=ASLEEP), seconds=seconds).outcome == "hang"


@pytest.mark.parametrize(("unread", "outcome"), [(0, "idle"), (1, "hang")])
def test_servers_that_take_turns_in_accept_are_idle_without_clients(unread, outcome):
    accepts = {"syscall": "accept4", "waits_fds": (4,)}
    holder = sleeping(8, 1, ACCEPT, StackFrame("/job/a.py", "serve", 3), thread=accepts)
    listener = Socket(60, "tcp", "0.0.0.0:8000", "0.0.0.0:0", "LISTEN", unread=unread)
    assert at_file_lock(holder, sockets=(listener,)).outcome == outcome


@pytest.mark.parametrize(("endless", "outcome"), [(True, "idle"), (False, "hang")])
def test_waiting_main_thread_with_a_working_signal_handler_is_idle(endless, outcome):
    """A process that writes during a wait without a timeout works in a handler; a wait with a timeout is a hang."""
    waits = WAIT, StackFrame("/job/a.py", "main", 9)
    thread = AT_FUTEX | {"endless": endless, "asleep_s": 3.0}
    assert verdict_of(sleeping(7, 1, *waits, thread=thread, wrote=True)).outcome == outcome


@pytest.mark.parametrize(("moved", "outcome"), [(900, "progress"), (0, "hang")])
def test_receiver_that_got_messages_meanwhile_makes_progress(moved, outcome):
    """Rank 0 sleeps between its sends, and rank 1 waits in recv over gloo."""
    young, connected = {"asleep_s": 3.0}, (Descriptor(5, "tcp", 50),)
    sends = rank(
        0, StackFrame("/job/a.py", "work", 3, "sleep"), world=2, thread=young | ASLEEP, fds=connected
    )
    receives = StackFrame(C10D, "recv", 1), StackFrame("/job/a.py", "work", 9)
    waits = rank(1, *receives, world=2, thread=young, fds=(Descriptor(6, "tcp", 51),))
    assert verdict_of(sends, waits, sockets=connection(50, moved=moved)).outcome == outcome
