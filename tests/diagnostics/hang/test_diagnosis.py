"""Snapshots of real hangs and healthy jobs, and small ones made here, get the right verdict."""

import dataclasses
import json
from pathlib import Path

import pytest

from diagnostics.catalog import load
from diagnostics.hang.diagnosis import Patience, diagnose
from diagnostics.hang.job_index import split_jobs
from diagnostics.hang.known_issues import finding_of, issue_document, stack_fix, with_issue
from diagnostics.hang.parsers.files import read_files
from diagnostics.hang.snapshot import (
    Collective,
    Descriptor,
    Process,
    Snapshot,
    SnapshotError,
    Socket,
    StackFrame,
    Thread,
)
from diagnostics.hang.wait_kinds import CAUSES
from evaluation.hang import bench, bench_repros

KEPT = Path(__file__).parent / "snapshots"
CASES = {case.name: case for case in (*bench.cases(), *bench_repros.cases())}
C10D = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def rank(number, *frames, pid=None, world=3, **more):
    """A rank whose main thread has these frames, and sleeps."""
    pid = pid or 100 + number
    thread = Thread(
        pid,
        "MainThread",
        frames,
        runnable=0.0,
        asleep_s=400.0,
        state="S",
        syscall="futex",
        futex="0x1",
    )
    thread = dataclasses.replace(thread, **more.pop("thread", {}))
    values = {"role": "trainer", "rank": number, "world": world, "job": "127.0.0.1:1", "state": "S"} | more
    return Process(pid, 1, threads=(thread,), **values)


def gathers(number, line=10, **more):
    return rank(number, StackFrame(C10D, "all_gather", 1), StackFrame("/job/train.py", "step", line), **more)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_snapshot_gets_its_verdict(path):
    """A stored hang gets its blocking process and cause class; a healthy job gets no finding; no victim is blamed."""
    case = CASES[path.stem]
    names = {name: set(pids) for name, pids in json.loads(path.with_suffix(".names").read_text()).items()}
    row = bench.score(case, read_files([str(path)]), names)
    assert (row["right_process"], row["right_cause"], row["victim_named"]) == (True, True, False), row


def test_who_ended_while_it_was_looked_at_is_no_dead_process():
    """The job makes progress: the parent is about to read its exit code."""
    sentence = diagnose(read_files([str(KEPT / "healthy_imports.json")])).verdict.sentence
    assert "has just ended" in sentence
    assert "is dead" not in sentence


def test_there_are_kept_snapshots_of_both_kinds():
    """So that the test above does not pass on nothing."""
    cases = [CASES[path.stem] for path in KEPT.glob("*.json")]
    assert sum(not case.healthy for case in cases) >= 20
    assert sum(case.healthy for case in cases) >= 8


def test_a_launcher_is_not_said_to_be_in_a_collective():
    """It waits for its ranks; the sentence names the other ranks' collective."""
    snapshot = read_files([str(KEPT / "HNG001-gather_skipped-0.json")])
    sentence = diagnose(snapshot, bench.PATIENCE).verdict.sentence
    assert "is in barrier" in sentence
    assert "while the others are in all_gather" in sentence


@pytest.mark.parametrize("guilty", [0, 1, 2, 3])
def test_who_is_not_in_the_collective_is_named_whichever_rank_it_is(guilty):
    """And the majority never."""
    ranks = [gathers(n, world=4) for n in range(4)]
    ranks[guilty] = rank(
        guilty,
        StackFrame("/job/train.py", "evaluate", 3),
        world=4,
        thread={"syscall": "clock_nanosleep", "futex": ""},
    )
    verdict = diagnose(Snapshot(tuple(ranks))).verdict
    assert (verdict.outcome, verdict.cause) == ("hang", "absent")
    assert verdict.culprits == (ranks[guilty].key,)
    assert len(verdict.victims) == 3


def test_of_two_ranks_in_different_collectives_both_are_named():
    """There is no majority between them."""
    reducing, gathering = (
        gathers(0, world=2),
        rank(1, StackFrame(C10D, "barrier"), StackFrame("/job/train.py", "save", 9), world=2),
    )
    verdict = diagnose(Snapshot((reducing, gathering))).verdict
    assert (verdict.cause, set(verdict.culprits)) == ("mismatch", {reducing.key, gathering.key})


def test_a_rank_without_a_process_is_missing():
    """If the store runs on this host, all ranks do, so a rank without a process is missing."""
    verdict = diagnose(Snapshot((gathers(0), gathers(2)))).verdict
    assert (verdict.cause, verdict.culprits) == ("missing", ("rank 1",))
    assert "has no process among those observed" in verdict.sentence


def test_a_rank_that_computes_is_no_hang_however_the_others_wait():
    """Until it has gone on for very long."""
    busy = rank(
        1,
        StackFrame("/job/train.py", "reward", 7),
        thread={"runnable": 0.99, "syscall": "running", "asleep_s": None},
    )
    short = [gathers(0, thread={"asleep_s": 30.0}), busy, gathers(2, thread={"asleep_s": 30.0})]
    assert diagnose(Snapshot(tuple(short))).verdict.outcome == "progress"
    verdict = diagnose(Snapshot((gathers(0, thread={"asleep_s": 900.0}), busy, gathers(2)))).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "spin_native", (busy.key,))


def test_a_process_that_computes_without_a_stack_is_no_hang():
    """A process that computes without a stack, such as one that is exiting, is no hang for those that wait for it."""
    ranks = [gathers(0), gathers(1), rank(2, thread={"runnable": 0.98, "syscall": "running", "futex": ""})]
    verdict = diagnose(Snapshot(tuple(ranks))).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("progress", "busy", ("/102",))


def test_a_wait_that_is_young_is_no_hang_yet():
    """The report names the wait and what it would become."""
    young = {"asleep_s": 5.0}
    ranks = (
        gathers(0, thread=young),
        gathers(2, thread=young),
        rank(1, StackFrame("/job/x.py", "f", 1), thread=young | {"syscall": "clock_nanosleep", "futex": ""}),
    )
    verdict = diagnose(Snapshot(ranks), Patience(60.0)).verdict
    assert verdict.outcome == "waiting"


def test_all_ranks_in_one_collective_is_not_known():
    """No rank is named: Python stacks do not show which one is missing."""
    verdict = diagnose(Snapshot(tuple(gathers(n) for n in range(3)))).verdict
    assert (verdict.outcome, verdict.culprits) == ("unknown", ())
    assert any("flight recorder" in line for line in verdict.next)


def test_recorders_tell_who_lags_where_stacks_do_not():
    """The rank that began fewer collectives."""
    collectives = tuple(Collective(n, "", 3 if n == 2 else 4, -1, "gloo:all_reduce") for n in range(3))
    verdict = diagnose(
        Snapshot(tuple(gathers(n) for n in range(3)), collectives=collectives, source="flight recorder")
    ).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "absent", ("/102",))


def test_who_could_not_be_seen_is_not_guessed_at():
    """A process without stack and state makes the verdict unknown, not fine."""
    blind = Process(9, 1, role="trainer", rank=0, world=1, unseen=("no rights",))
    verdict = diagnose(Snapshot((blind,), blind=("pid 9 could not be looked into: …",))).verdict
    assert verdict.outcome == "unknown"
    assert verdict.unseen


def test_nothing_at_all_is_not_fine():
    """An empty snapshot is unknown."""
    assert diagnose(Snapshot()).verdict.outcome == "unknown"


def test_codes_of_the_catalogue_name_causes_that_there_are():
    """Every shape of every entry; and each entry of the family is reached by some cause."""
    issues = load()
    for issue in issues.values():
        for shape in issue.hang:
            assert set(shape.causes) <= set(CAUSES), issue.code
    assert {code for code in issues if code.startswith("HNG")} == {c for c, i in issues.items() if i.hang}


def test_the_code_with_the_frames_goes_before_the_one_without():
    """A rendezvous that a rank does not come to is HNG015, not any rank that is elsewhere."""
    meets = StackFrame(
        "/opt/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py", "_create_c10d_store", 5
    )
    ranks = (
        rank(0, meets),
        rank(2, meets),
        rank(1, StackFrame("/job/x.py", "f", 1), thread={"syscall": "clock_nanosleep", "futex": ""}),
    )
    assert with_issue(diagnose(Snapshot(ranks))).verdict.code == "HNG015"
    assert issue_document(with_issue(diagnose(Snapshot(ranks))))["mitigations"]


def test_a_snapshot_survives_json():
    """And something else is refused in a line."""
    snapshot = Snapshot((gathers(0),), blind=("x",), seconds=1.5)
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot
    for bad in (
        {},
        [],
        {"schema": "x"},
        snapshot.to_json() | {"processes": 3},
        snapshot.to_json() | {"more": 1},
    ):
        with pytest.raises(SnapshotError):
            Snapshot.from_json(bad)


def test_a_backward_pass_is_looked_for_in_its_own_thread():
    """The main thread waits for the engine's, which is in a collective."""
    autograd = StackFrame("/opt/env/lib/python3.11/site-packages/torch/autograd/__init__.py", "backward", 266)
    main = Thread(100, "MainThread", (autograd, StackFrame("/job/train.py", "step", 4)))
    backward = Thread(200, "", (StackFrame(C10D, "all_gather_into_tensor", 9),))
    stands = diagnose(Snapshot((Process(100, threads=(main, backward)),), source="py-spy text")).index.states
    assert [stand.kind for stand in stands.values()] == ["collective"]


def test_a_child_that_has_just_died_is_no_hang():
    """Its parent waits for its exit; the snapshot was taken in between."""
    waits = Thread(
        1,
        "MainThread",
        (StackFrame("/usr/local/lib/python3.11/subprocess.py", "_wait"), StackFrame("/job/a.py", "f", 1)),
        state="S",
        syscall="wait4",
        asleep_s=400.0,
        runnable=0.0,
    )
    verdict = diagnose(
        Snapshot((Process(1, 0, threads=(waits,), state="S"), Process(2, 1, state="Z")))
    ).verdict
    assert verdict.outcome != "hang"


def test_a_main_thread_that_rests_beside_a_server_is_no_hang():
    """Its other thread waits for requests, and none is open."""
    event = Thread(
        1,
        "MainThread",
        (StackFrame("/usr/local/lib/python3.11/threading.py", "wait"), StackFrame("/job/a.py", "serve", 1)),
        state="S",
        syscall="futex",
        futex="0x1",
        asleep_s=400.0,
        runnable=0.0,
    )
    loop = Thread(
        2,
        "loop",
        (
            StackFrame("/usr/local/lib/python3.11/selectors.py", "select"),
            StackFrame("/usr/local/lib/python3.11/asyncio/base_events.py", "_run_once"),
        ),
        state="S",
        syscall="epoll_wait",
        runnable=0.0,
    )
    assert diagnose(Snapshot((Process(1, 0, threads=(event, loop), state="S"),))).verdict.outcome == "idle"


def test_a_stopped_worker_of_vllm_is_found_through_the_engine():
    """Kept from vLLM 0.31.0 on a CPU: the program waits for the core by ZMQ, the core for its worker by a ring."""
    verdict = diagnose(read_files([str(KEPT / "vllm" / "worker_stopped.json")])).verdict
    assert (verdict.outcome, verdict.cause) == ("hang", "stopped")
    assert verdict.culprits == ("/2736",)
    assert [edge.target for edge in verdict.chain] == ["/2379", "/2736"]
    assert any("/dev/shm/psm" in line for line in verdict.chain[-1].evidence)


def test_an_idle_engine_is_not_what_holds_a_program_up():
    """A snapshot before any request: the program reads its standard input, and the engine is idle."""
    diagnosis = diagnose(read_files([str(KEPT / "vllm" / "idle.json")]))
    assert (diagnosis.verdict.cause, diagnosis.verdict.culprits) == ("input", ("/723",))
    assert {s.kind for s in diagnosis.index.states.values() if s.process.role.startswith("engine")} == {
        "idle"
    }


def sleeper(pid, parent, *frames, **more):
    """A process whose main thread sleeps in these frames."""
    values = {"state": "S", "runnable": 0.0, "asleep_s": 400.0} | more.pop("thread", {})
    thread = Thread(pid, "MainThread", frames, **values)
    return Process(pid, parent, threads=(thread,), state="S", **more)


QUEUE_GET = StackFrame("/usr/lib/python3.11/multiprocessing/queues.py", "get", 103)
WORKER = StackFrame("/job/rewards.py", "worker", 8)


def consumers(driver):
    """One worker in `recv` with the queue's read lock, two at the lock, and their driver."""
    pipe, lock = Descriptor(3, "pipe", 70, "r"), ("/dev/shm/sem.x#90",)
    reads = sleeper(
        11, 10, StackFrame("/usr/lib/python3.11/multiprocessing/connection.py", "_recv", 383), QUEUE_GET, WORKER,
        thread={"syscall": "read", "waits_fds": (3,)}, fds=(pipe, Descriptor(4, "pipe", 70, "w")), shared=lock,
    )  # fmt: skip
    enters = StackFrame("/usr/lib/python3.11/multiprocessing/synchronize.py", "__enter__", 95)
    waits = [
        sleeper(
            pid, 10, enters, QUEUE_GET, WORKER, thread={"syscall": "futex", "futex": "sem:90"}, shared=lock
        )
        for pid in (12, 13)
    ]
    return Snapshot((driver, reads, *waits), seconds=90.0)


@pytest.mark.parametrize(
    ("frame", "syscall"),
    [
        (StackFrame("/usr/lib/python3.11/socket.py", "accept", 294), "accept4"),
        (StackFrame("/job/driver.py", "poll", 3, "sleep"), "clock_nanosleep"),
        (StackFrame("/usr/lib/python3.11/threading.py", "wait", 327), "futex"),
    ],
    ids=["in accept", "polling", "waiting for its end"],
)
def test_idle_consumers_of_a_queue_are_no_hang(frame, syscall):
    driver = sleeper(
        10, 1, frame, StackFrame("/job/driver.py", "main", 9), thread={"syscall": syscall},
        fds=(Descriptor(5, "pipe", 70, "w"),), shared=("/dev/shm/sem.x#90",),
    )  # fmt: skip
    assert diagnose(consumers(driver)).verdict.outcome == "idle"


def test_a_driver_that_waits_for_workers_without_a_task_is_a_hang():
    """It forgot to send them their end."""
    joins = sleeper(
        10, 1, StackFrame("/usr/lib/python3.11/multiprocessing/popen_fork.py", "poll", 27),
        StackFrame("/job/driver.py", "main", 9), thread={"syscall": "wait4"}, fds=(Descriptor(5, "pipe", 70, "w"),),
    )  # fmt: skip
    assert diagnose(consumers(joins)).verdict.outcome == "hang"


def test_an_unconnected_socket_has_no_other_end():
    listens = sleeper(
        7, 1, StackFrame("/job/server.py", "serve", 3), thread={"syscall": "poll", "waits_fds": (3,)},
        fds=(Descriptor(3, "tcp", 50),),
    )  # fmt: skip
    socket = Socket(50, "tcp", "0.0.0.0:8000", "0.0.0.0:0", "LISTEN")
    diagnosis = diagnose(Snapshot((listens,), (socket,), seconds=90.0))
    assert [edge for edges in diagnosis.graph.values() for edge in edges] == []


def test_tail_waits_for_input_by_design():
    tail = Process(
        9, 1, title="tail -f train.log", python=False, state="S",
        threads=(Thread(9, state="S", syscall="read", waits_fds=(0,), runnable=0.0, asleep_s=900.0),),
        fds=(Descriptor(0, "pipe", 3, "r"),),
    )  # fmt: skip
    assert diagnose(Snapshot((tail,), seconds=90.0)).verdict.outcome == "idle"


@pytest.mark.parametrize(
    ("thread", "text"),
    [
        (
            {"syscall": "openat", "opens": "/tmp/weights (a named pipe)", "futex": ""},
            "openat of /tmp/weights",
        ),
        (
            {"syscall": "newfstatat", "wchan": "request_wait_answer", "futex": ""},
            "newfstatat in request_wait_answer",
        ),
        ({"syscall": "rt_sigtimedwait", "futex": ""}, "is not in the collective"),
        ({"syscall": "msgrcv", "futex": ""}, "is not in the collective"),
        ({"syscall": "clock_nanosleep", "futex": "", "gil": True}, "sleeps and polls"),
    ],
    ids=["opens a FIFO", "waits on FUSE", "waits for a signal", "sits in native code", "holds the GIL in C"],
)
def test_a_member_elsewhere_is_not_in_the_collective(thread, text):
    """It is named by its rank, with the name of its system call."""
    away = rank(1, StackFrame("/job/train.py", "load", 3), thread=thread)
    verdict = diagnose(Snapshot((gathers(0), away, gathers(2)))).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "absent", (away.key,))
    assert text in verdict.sentence
    assert "rank 1 (trainer, pid 101)" in verdict.sentence.lower()
    assert "rank 0 (pid 100)" in verdict.sentence


def test_a_launcher_is_no_member_of_the_group():
    """Its waitpid is not a collective."""
    launcher = sleeper(
        50, 1, StackFrame("/job/launch.py", "main", 5, "waitpid"), thread={"syscall": "wait4"}, role="process"
    )
    ranks = tuple(
        dataclasses.replace(gathers(n), ppid=50, role="process", rank=None, job="") for n in range(2)
    )
    edges = diagnose(Snapshot((launcher, *ranks))).graph
    assert all(edge.target != launcher.key for edge in edges[ranks[0].key])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (StackFrame(C10D, "broadcast", 1), StackFrame(C10D, "broadcast", 1)),
        (StackFrame(C10D, "all_reduce", 1), StackFrame("[native]", "ncclAllReduce", 0)),
    ],
)
def test_one_operation_is_one_collective(first, second):
    """Called from different lines, or under NCCL's name."""
    ranks = (
        rank(0, first, StackFrame("/job/train.py", "send", 10), world=2),
        rank(1, second, StackFrame("/job/train.py", "receive", 20), world=2),
    )
    assert diagnose(Snapshot(ranks)).verdict.outcome == "unknown"


def test_a_polling_loop_repeats_the_users_own_selection():
    poll = sleeper(
        7, 1, StackFrame("/job/wait.py", "poll", 3, "sleep"), thread={"syscall": "clock_nanosleep", "asleep_s": 0.1},
        io_moved=False,
    )  # fmt: skip
    verdict = diagnose(Snapshot((poll,), seconds=1.5), selection=("--match", "wait me")).verdict
    assert verdict.outcome == "waiting"
    assert verdict.next == ("python -m diagnostics hang --match 'wait me' --seconds 65",)
    assert diagnose(Snapshot((poll,), seconds=65.0)).verdict.outcome == "hang"


def test_unrelated_processes_are_separate_jobs():
    first_job = tuple(gathers(n) for n in range(3))
    second_job = (
        sleeper(
            900,
            2,
            StackFrame("/job/wait.py", "main", 3, "input"),
            thread={"syscall": "read", "waits_fds": (0,)},
        ),
    )
    jobs = split_jobs(Snapshot(first_job + second_job))
    assert sorted(len(job.processes) for job in jobs) == [1, 3]


FORK = StackFrame("/usr/lib/python3.11/multiprocessing/popen_fork.py", "_launch", 71)
LOCK = StackFrame("/job/worker.py", "run", 5, "acquire")


@pytest.mark.parametrize(
    ("name", "frames", "thread"),
    [
        ("fork_with_lock", (LOCK, FORK), {"syscall": "futex", "futex": "0x1"}),
        (
            "openmp_after_fork",
            (StackFrame("/lib/libgomp.so.1", "gomp_team_end"), StackFrame("/torch/a.py", "f"), FORK),
            {},
        ),
        ("raised_with_lock", (LOCK,), {"syscall": "futex", "futex": "0x1"}),
        (
            "import_lock",
            (StackFrame("<frozen importlib._bootstrap>", "acquire"), StackFrame("/job/a.py", "f", 2)),
            {"syscall": "futex", "futex": "0x1"},
        ),
        (
            "semaphore",
            (
                StackFrame("/usr/lib/python3.11/multiprocessing/synchronize.py", "__enter__"),
                StackFrame("/job/a.py", "f"),
            ),
            {"syscall": "futex", "futex": "sem:5"},
        ),
    ],
)
def test_the_fix_is_that_of_the_stack(name, frames, thread):
    """Two locks in one order is no answer to every lock."""
    diagnosis = with_issue(diagnose(Snapshot((sleeper(7, 1, *frames, thread=thread),), seconds=90.0)))
    assert diagnosis.verdict.cause == "lock"
    assert stack_fix(diagnosis).name == name
    assert "same order" not in finding_of(diagnosis).remedy.actions[0].text
