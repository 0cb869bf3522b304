"""Waits of synthetic processes get their cause and blocking process from the diagnosis, or are no hang.

One wait has the verdict `unknown`. Two further tests are about lock files of other jobs and the role of a helper.
"""

import dataclasses
import sys

import pytest

from diagnostics import safe_io
from diagnostics.hang.collect import discovery, peers, proc
from diagnostics.hang.diagnosis import diagnose
from diagnostics.hang.known_issues import stack_fix
from diagnostics.hang.snapshot import Descriptor, Lock, Process, Snapshot, Socket, StackFrame
from tests.diagnostics.hang.processes import (
    ACCEPT,
    AT_FUTEX,
    C10D,
    COMPUTES,
    EVENT_LOOP,
    NO_PERMISSION,
    PYTHON,
    QUEUE_GET,
    RECEIVES,
    WAIT,
    connection,
    in_all_gather,
    rank,
    running,
    sleeping,
    verdict_of,
    with_threads,
)

MAIN = StackFrame("/job/main.py", "main", 9)
READS = {"syscall": "read", "waits_fds": (0,)}
WAITS_FOR_CHILD = {"syscall": "wait4"}
CHILD = StackFrame(f"{PYTHON}/subprocess.py", "wait", 1264)
RECV = StackFrame(f"{PYTHON}/socket.py", "readinto", 706)


# Healthy jobs.


@pytest.mark.parametrize(("moves", "outcome"), [(True, "progress"), (False, "hang")])
def test_writer_to_a_slow_reader_makes_progress_only_while_bytes_move(moves, outcome):
    asleep_s = 0.1 if moves else 400.0
    write = {"syscall": "write", "waits_fds": (1,), "asleep_s": asleep_s}
    writer = sleeping(7, 1, MAIN, thread=write, fds=(Descriptor(1, "pipe", 5, "w"),), io_moved=moves)
    naps = {"syscall": "clock_nanosleep", "asleep_s": asleep_s}
    reader = sleeping(8, 1, MAIN, thread=naps, fds=(Descriptor(0, "pipe", 5, "r"),), io_moved=moves)
    assert verdict_of(writer, reader).outcome == outcome


@pytest.mark.parametrize(
    ("sent_s", "age_s", "moved", "outcome"),
    [
        (450.0, 0.2, 150_000, "progress"),
        (0.3, 0.2, 150_000, "waiting"),
        (450.0, 0.2, 300, "waiting"),
        (450.0, 400.0, 0, "hang"),
    ],
    ids=["download", "poll", "heartbeat", "nothing moves"],
)
def test_download_makes_progress_only_while_data_arrives(sent_s, age_s, moved, outcome):
    """A server that sleeps between parts of a download makes progress; polls and heartbeats are waits."""
    fds = (Descriptor(3, "tcp", 30),)
    client = sleeping(7, 1, RECV, MAIN, thread=RECEIVES | {"asleep_s": age_s}, fds=fds)
    sends = {"syscall": "clock_nanosleep", "asleep_s": age_s}
    server = sleeping(8, 2, MAIN, thread=sends, fds=(Descriptor(4, "tcp", 31),))
    ends = connection(30, sent_s=sent_s, received_s=age_s, moved=moved)
    assert verdict_of(client, server, sockets=ends).outcome == outcome


@pytest.mark.parametrize(
    ("caller", "timed", "outcome"),
    [("/job/main.py", True, "waiting"), ("/job/main.py", False, "hang"), ("torch/data.py", True, "hang")],
)
def test_wait_with_a_time_limit_of_the_program_is_undecided(caller, timed, outcome):
    """A library may wait in parts for as long as it takes."""
    frames = WAIT, QUEUE_GET, StackFrame(caller, "take", 3), MAIN
    verdict = verdict_of(sleeping(7, 1, *frames, thread=AT_FUTEX | {"timed": timed}))
    assert (verdict.outcome, "the wait has a time limit" in verdict.sentence) == (
        outcome,
        outcome == "waiting",
    )


@pytest.mark.skipif(bool(NO_PERMISSION), reason=NO_PERMISSION)
@pytest.mark.parametrize("limit", ["500", ""])
@pytest.mark.parametrize("call", ["select.poll().poll({})", "threading.Event().wait({})"])
def test_time_limit_of_a_system_call_is_read(call, limit):
    program = f"import select, threading; print(flush=True); {call.format(limit)}"
    with running(sys.executable, "-c", program) as process:
        while (found := proc.system_call(process.pid, process.pid))["syscall"] not in ("poll", "futex"):
            pass
        assert found["timed"] == bool(limit)


def test_file_lock_that_was_taken_meanwhile_is_progress():
    waits, naps = {"syscall": "flock", "waits_fds": (3,)}, {"syscall": "clock_nanosleep", "asleep_s": 0.5}
    waiter = sleeping(9, 1, MAIN, thread=waits, fds=(Descriptor(3, "file", 50),))
    holder = sleeping(8, 1, MAIN, thread=naps)
    for taken, outcome in ((True, "progress"), (False, "waiting")):
        assert verdict_of(waiter, holder, locks=(Lock(50, 8, "FLOCK", taken=taken),)).outcome == outcome


def prompting(kind, pid=7, **values):
    """Return a process that waits in `input()` for an answer on standard input."""
    frame = StackFrame("/job/main.py", "main", 9, "input")
    return sleeping(pid, 1, frame, thread=READS, fds=(Descriptor(0, kind, 3),), **values)


def test_program_that_asks_its_user_at_a_terminal_is_no_hang():
    """At a pipe from outside of the job it is undecided; it hangs at one from a launcher that waits for it."""
    verdict = verdict_of(prompting("tty"))
    assert verdict.outcome == "idle"
    assert "pid 7" in verdict.sentence
    assert "at its terminal" in verdict.sentence
    verdict = verdict_of(prompting("pipe"))
    assert verdict.outcome == "unknown"
    assert "outside of the job" in verdict.sentence
    end = (Descriptor(5, "pipe", 3, "w"),)
    launcher = sleeping(1, 0, CHILD, thread=WAITS_FOR_CHILD, fds=end)
    assert verdict_of(launcher, prompting("pipe")).outcome == "hang"
    shell = sleeping(1, 0, thread={"syscall": "clock_nanosleep"}, fds=end, python=False)
    verdict = verdict_of(shell, prompting("pipe"))
    assert (verdict.outcome, "pid 1 may still write" in verdict.sentence) == ("unknown", True)


def test_rank_that_asks_its_user_at_a_terminal_blocks_the_others():
    asks = prompting("tty", 100, role="trainer", rank=0, world=2, job="127.0.0.1:1")
    verdict = verdict_of(asks, in_all_gather(1, world=2))
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "input", ("/100",))


def test_reader_of_standard_input_makes_progress_while_its_writer_computes():
    reader = sleeping(8, 7, MAIN, thread=READS, fds=(Descriptor(0, "pipe", 3, "r"),))
    writer = sleeping(7, 1, MAIN, thread=COMPUTES, fds=(Descriptor(5, "pipe", 3, "w"),))
    assert verdict_of(writer, reader).outcome == "progress"


@pytest.mark.parametrize(
    ("ages", "sent", "outcome"),
    [
        ((300.0, 300.0), None, "idle"),
        ((300.0, 300.0), 0, "idle"),
        ((300.0, 300.0), 8, "hang"),
        ((300.0, 400.0), None, "hang"),
    ],
    ids=["equal ages", "nothing sent", "sent at once", "sent later"],
)
def test_client_waits_for_a_response_only_if_it_sent_a_request(ages, sent, outcome):
    """Equal ages of a connection mean that nothing was sent, unless the number of sent bytes shows a request."""
    waits = RECEIVES | {"asleep_s": 300.0}
    client = sleeping(7, 1, RECV, MAIN, thread=waits, fds=(Descriptor(3, "tcp", 30),))
    accepts = {"syscall": "accept4", "waits_fds": (5,)}
    fds = (Descriptor(4, "tcp", 31), Descriptor(5, "tcp", 50))
    server = sleeping(8, 2, ACCEPT, MAIN, thread=accepts, fds=fds)
    traffic = {"bytes_sent": sent, "bytes_received": None if sent is None else 0}
    ends = connection(30, sent_s=ages[0], received_s=ages[1], **traffic)
    listening = Socket(50, "tcp", "127.0.0.1:8001", "0.0.0.0:0", "LISTEN")
    verdict = verdict_of(client, server, sockets=(*ends, listening))
    assert verdict.outcome == outcome
    if outcome == "hang":
        assert (verdict.cause, verdict.culprits, verdict.victims) == ("lost_answer", ("/8",), ("/7",))


@pytest.mark.parametrize(
    ("wait", "outcome"),
    [({"endless": False}, "idle"), ({"endless": True}, "hang"), ({"asleep_s": 0.3}, "idle")],
    ids=["time limit", "endless", "in turn"],
)
def test_parent_of_an_idle_child_is_idle_if_its_waits_end(wait, outcome):
    """The third one is a supervisor that checks its children in turn."""
    parent = sleeping(7, 1, WAIT, MAIN, thread=AT_FUTEX | {"asleep_s": 300.0} | wait)
    worker = sleeping(8, 7, ACCEPT, MAIN, thread={"syscall": "accept4", "waits_fds": (5,)})
    assert verdict_of(parent, worker).outcome == outcome


def test_short_wait_for_a_disk_is_no_hang():
    """After 90 s the cause is `kernel`; a rank that writes and syncs in turn makes progress."""
    thread = {"state": "D", "wchan": "submit_bio_wait", "syscall": "fsync", "asleep_s": 0.01}
    assert verdict_of(sleeping(7, 1, MAIN, thread=thread)).outcome == "waiting"
    assert verdict_of(sleeping(7, 1, MAIN, thread=thread | {"asleep_s": 90.0})).cause == "kernel"
    writer = rank(0, MAIN, world=2, thread=thread, io_moved=True)
    assert verdict_of(writer, in_all_gather(1, world=2)).outcome == "progress"


# Stuck jobs.


def event_loop(**thread):
    """Return a process whose event loop has only its own wake-up connection, and its two sockets."""
    runs_forever = StackFrame(f"{PYTHON}/asyncio/base_events.py", "run_forever", 607)
    thread = {"syscall": "epoll_wait", "waits_fds": (4,), "endless": True} | thread
    fds = (Descriptor(4, "unix", 40), Descriptor(5, "unix", 50))
    sockets = (Socket(40, "unix", peer=50), Socket(50, "unix", peer=40))
    return sleeping(7, 1, *EVENT_LOOP, runs_forever, MAIN, thread=thread, fds=fds), sockets


def test_event_loop_that_nothing_can_wake_is_a_hang():
    """An event loop with only its own wake-up connection hangs, but not with a timer or a computing child."""
    process, sockets = event_loop()
    verdict = verdict_of(process, sockets=sockets)
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "lost_message", ("/7",))
    with_timer, sockets = event_loop(endless=False)
    assert verdict_of(with_timer, sockets=sockets).outcome == "idle"
    child = sleeping(8, 7, MAIN, thread=COMPUTES)
    assert verdict_of(process, child, sockets=sockets).outcome != "hang"


def test_ranks_that_all_receive_wait_for_each_other():
    verdict = verdict_of(*(rank(n, StackFrame(C10D, "recv", 1), MAIN, world=2) for n in range(2)))
    assert (verdict.outcome, verdict.cause, set(verdict.culprits)) == ("hang", "deadlock", {"/100", "/101"})


def test_same_collective_in_different_functions_is_unknown():
    """The verdict is unknown, and its sentence names both functions."""
    calls = [StackFrame("/job/train.py", name, 3) for name in ("sync_actor", "sync_critic")]
    ranks = [rank(n, StackFrame(C10D, "all_reduce", 1), call, world=2) for n, call in enumerate(calls)]
    launcher = sleeping(1, 0, CHILD, MAIN, thread=WAITS_FOR_CHILD)
    verdict = verdict_of(launcher, *ranks)
    assert (verdict.outcome, set(verdict.victims)) == ("unknown", {"/100", "/101"})
    assert "sync_actor" in verdict.sentence
    assert "sync_critic" in verdict.sentence


def test_rank_in_a_backward_pass_is_in_a_collective():
    backward = StackFrame(
        "/env/lib/python3.11/site-packages/torch/autograd/graph.py", "_engine_run_backward", 8
    )
    save = rank(1, StackFrame(C10D, "barrier", 1), StackFrame("/job/train.py", "save", 3), world=2)
    verdict = verdict_of(rank(0, backward, MAIN, world=2), save)
    assert (verdict.cause, set(verdict.culprits)) == ("mismatch", {"/100", "/101"})


def test_rank_alone_in_a_collective_and_those_that_wait_for_a_store_key_are_a_deadlock():
    fds = (Descriptor(3, "tcp", 30),)
    waits = rank(1, MAIN, world=2, job="127.0.0.1:8000", thread=RECEIVES, fds=fds)
    peer = in_all_gather(0, world=2, job="127.0.0.1:8000", fds=(Descriptor(4, "tcp", 31),))
    verdict = verdict_of(waits, peer, sockets=connection(30, sent_s=90.0, received_s=95.0))
    assert (verdict.outcome, verdict.cause, set(verdict.culprits)) == ("hang", "deadlock", {"/100", "/101"})
    assert "key of the store that may be set by rank 0" in verdict.sentence


def test_idle_child_of_a_rank_blocks_the_others():
    """The same child of a launcher without ranks is idle."""
    waits = rank(1, CHILD, MAIN, world=2, thread=WAITS_FOR_CHILD)
    child = sleeping(7, 101, MAIN, thread={"syscall": "pause"})
    verdict = verdict_of(in_all_gather(0, world=2), waits, child)
    assert (verdict.outcome, verdict.culprits) == ("hang", ("/7",))
    launcher = sleeping(1, 0, CHILD, MAIN, thread=WAITS_FOR_CHILD)
    assert verdict_of(launcher, dataclasses.replace(child, ppid=1)).outcome == "idle"


def test_descendant_that_keeps_the_pipe_of_an_ended_child_is_blamed():
    reads = {"syscall": "read", "waits_fds": (4,)}
    communicate = StackFrame(f"{PYTHON}/subprocess.py", "communicate", 1207)
    driver = sleeping(7, 1, communicate, MAIN, thread=reads, fds=(Descriptor(4, "pipe", 5, "r"),))
    ended = dataclasses.replace(sleeping(8, 7), state="Z")
    helper = sleeping(9, 1, MAIN, thread={"syscall": "pause"}, fds=(Descriptor(1, "pipe", 5, "w"),))
    reader = sleeping(7, 1, MAIN, thread=reads, fds=driver.fds)
    for process in (driver, reader):
        diagnosis = diagnose(Snapshot((process, ended, helper), seconds=65.0))
        verdict = diagnosis.verdict
        assert (verdict.outcome, verdict.culprits, verdict.victims) == ("hang", ("/9",), ("/7",))
        assert "keeps pipe:[5] open" in verdict.sentence
        assert stack_fix(diagnosis).name == "pipe_kept_open"


def test_file_lock_that_the_process_holds_by_another_descriptor_is_its_own():
    files = Descriptor(3, "file", 50), Descriptor(4, "file", 50)
    process = sleeping(9, 1, MAIN, thread={"syscall": "flock", "waits_fds": (4,)}, fds=files)
    diagnosis = diagnose(Snapshot((process,), locks=(Lock(50, 9, "FLOCK"),), seconds=65.0))
    assert "another descriptor (3): it waits for itself" in diagnosis.verdict.sentence
    assert stack_fix(diagnosis).name == "own_file_lock"


@pytest.mark.parametrize(
    ("event", "cause", "culprits"), [(True, "deadlock", {"/7", "/8"}), (False, "full_pipe", {"/7"})]
)
def test_full_queue_between_processes_names_the_process_that_should_read(event, cause, culprits):
    """The reader waits for the writer's event, or for a child of its own."""
    shared, synchronize = ("/dev/shm/a#5", "/dev/shm/b#6"), f"{PYTHON}/multiprocessing/synchronize.py"
    waits = {"syscall": "futex", "futex": "sem:6"} if event else {"syscall": "pause"}
    frames = [StackFrame(synchronize, "wait")] * 2 if event else []
    reader = sleeping(7, 1, *frames, MAIN, thread=waits, shared=shared)
    put = StackFrame(f"{PYTHON}/multiprocessing/queues.py", "put"), MAIN
    writer = sleeping(8, 7, *put, thread={"syscall": "futex", "futex": "sem:5"}, shared=shared)
    diagnosis = diagnose(Snapshot((reader, writer), locks=(Lock(5, 8, "semaphore"),), seconds=65.0))
    assert (diagnosis.verdict.cause, set(diagnosis.verdict.culprits)) == (cause, culprits)
    assert stack_fix(diagnosis).name == "queue_full"


@pytest.mark.parametrize(("woke", "outcome"), [(0.2, "progress"), (400.0, "waiting")])
def test_slow_reader_of_a_full_queue_between_processes_is_no_hang(woke, outcome):
    """The reader works and sleeps in turn; the writer woke meanwhile, or not yet."""
    shared = ("/dev/shm/a#5",)
    reader = sleeping(7, 1, MAIN, thread={"syscall": "clock_nanosleep", "asleep_s": 0.3}, shared=shared)
    waits = {"syscall": "futex", "futex": "sem:5", "endless": True, "asleep_s": woke}
    put = StackFrame(f"{PYTHON}/multiprocessing/queues.py", "put"), MAIN
    assert verdict_of(reader, sleeping(8, 7, *put, thread=waits, shared=shared)).outcome == outcome


def test_process_that_ended_before_the_barrier_is_named():
    barrier = WAIT, StackFrame(f"{PYTHON}/threading.py", "_wait"), MAIN
    waits = sleeping(8, 7, *barrier, thread={"syscall": "futex", "futex": "sem:5"})
    launcher = sleeping(7, 1, CHILD, MAIN, thread=WAITS_FOR_CHILD)
    verdict = verdict_of(launcher, waits, Process(9, 7, state="Z"))
    assert (verdict.cause, verdict.culprits, set(verdict.victims)) == ("dead", ("/9",), {"/7", "/8"})
    sentence = verdict_of(launcher, waits).sentence
    assert "a process that should reach it may have ended" in sentence
    assert "thread of the process" not in sentence


@pytest.mark.parametrize(("line", "fix"), [(20, "left_loop"), (5, "not_in_collective")])
def test_rank_that_sleeps_after_the_others_collective_has_left_their_loop(line, fix):
    collective = StackFrame(C10D, "all_reduce", 1), StackFrame("/job/a.py", "train", 11)
    away = rank(1, StackFrame("/job/a.py", "train", line), world=2, thread={"syscall": "clock_nanosleep"})
    diagnosis = diagnose(Snapshot((rank(0, *collective, world=2), away), seconds=65.0))
    assert diagnosis.verdict.culprits == ("/101",)
    assert stack_fix(diagnosis).name == fix


def test_lost_notification_and_lost_item_are_explained_beside_idle_threads():
    """A thread waits for items while the main thread waits for a notification, or for task_done()."""
    for frames, words, fix in (
        ((WAIT, MAIN), "came before that wait and was lost", "condition"),
        ((WAIT, StackFrame(QUEUE_GET.path, "join"), MAIN), "before task_done()", "task_not_done"),
    ):
        main = sleeping(7, 1, *frames, thread=AT_FUTEX | {"endless": True})
        diagnosis = diagnose(Snapshot((with_threads(main, (WAIT, QUEUE_GET, MAIN)),), seconds=65.0))
        assert words in diagnosis.verdict.sentence
        assert stack_fix(diagnosis).name == fix


@pytest.mark.parametrize(
    ("calls", "cause", "words"),
    [
        ("multiprocessing/synchronize:wait multiprocessing/queues:join", "lost_message", "task_done()"),
        ("threading:wait threading:wait_for threading:_wait", "lost_message", "at a barrier"),
        ("threading:wait threading:acquire", "lock", "permit of a semaphore"),
    ],
)
def test_wait_for_a_condition_is_named_by_its_caller(calls, cause, words):
    names = (call.split(":") for call in calls.split())
    frames = [StackFrame(f"{PYTHON}/{module}.py", function, 9) for module, function in names]
    verdict = verdict_of(sleeping(7, 1, *frames, MAIN, thread=AT_FUTEX))
    assert (verdict.outcome, verdict.cause) == ("hang", cause)
    assert words in verdict.sentence


def test_join_of_a_queue_is_blamed_and_not_its_idle_consumer():
    process = sleeping(7, 1, WAIT, StackFrame(f"{PYTHON}/queue.py", "join", 90), MAIN, thread=AT_FUTEX)
    verdict = verdict_of(with_threads(process, (WAIT, QUEUE_GET, StackFrame("/job/main.py", "consume", 3))))
    assert "task_done()" in verdict.sentence


def test_server_that_serves_one_idle_client_at_a_time_waits_for_it():
    handles = StackFrame(f"{PYTHON}/http/server.py", "handle_one_request", 406)
    fds = (Descriptor(3, "tcp", 30), Descriptor(4, "tcp", 41))
    server = sleeping(8, 2, RECV, handles, MAIN, thread={"syscall": "recvfrom", "waits_fds": (4,)}, fds=fds)
    client = sleeping(7, 3, WAIT, MAIN, thread={"syscall": "futex"}, fds=(Descriptor(5, "tcp", 40),))
    begin = StackFrame(f"{PYTHON}/http/client.py", "begin", 318)
    trainer = sleeping(9, 4, RECV, begin, MAIN, thread=RECEIVES, fds=(Descriptor(3, "tcp", 60),))
    sockets = (
        Socket(30, "tcp", "127.0.0.1:8000", "0.0.0.0:0", "LISTEN", unread=1),
        *connection(40, sent_s=95.0, received_s=90.0),
        Socket(60, "tcp", "127.0.0.1:6", "127.0.0.1:8000", "ESTABLISHED", 0, 0, 0, 80.0, 85.0),
    )
    verdict = verdict_of(server, client, trainer, sockets=sockets)
    assert (verdict.outcome, verdict.culprits) == ("hang", ("/7",))
    assert set(verdict.victims) == {"/8", "/9"}


def test_process_that_waits_for_a_lock_file_is_not_its_holder():
    """The cause is a file lock, and the fix is about a stale lock file."""
    baton = StackFrame("/env/lib/python3.11/site-packages/torch/utils/file_baton.py", "wait", 52)
    waits = sleeping(8, 7, baton, MAIN, thread={"syscall": "clock_nanosleep"})
    launcher = sleeping(7, 1, CHILD, MAIN, thread=WAITS_FOR_CHILD)
    diagnosis = diagnose(Snapshot((launcher, waits), seconds=65.0))
    assert diagnosis.verdict.cause == "file_lock"
    assert "holds" not in diagnosis.verdict.sentence
    assert stack_fix(diagnosis).name == "stale_lock_file"


def test_lock_files_of_other_jobs_are_not_considered_while_this_job_holds_one(monkeypatch):
    """If no process of this job holds a lock file, the other job's process is a possible blocker."""
    library = StackFrame("/env/lib/python3.11/site-packages/filelock/_api.py", "acquire", 300)
    waits, holds = sleeping(8, 1, library, MAIN), sleeping(7, 1, MAIN)
    lines = [
        f"{n}: FLOCK ADVISORY WRITE {pid} 00:1:{inode} 0 EOF" for n, pid, inode in ((1, 7, 70), (2, 9, 90))
    ]
    monkeypatch.setattr(safe_io, "read_kernel_file", lambda _path: "\n".join(lines))
    entries = {pid: discovery.ProcessEntry(pid, 1, 0, "python") for pid in (7, 8, 9)}
    files = {pid: (Descriptor(3, "file", inode, "w", "/job/a.lock"),) for pid, inode in ((7, 70), (9, 90))}
    host = peers.Host(entries, files)
    assert peers.possible_blockers(host, [waits, holds]) <= {7}
    assert 9 in peers.possible_blockers(host, [waits])


def test_loky_resource_tracker_is_a_helper():
    title = "python -m joblib.externals.loky.backend.resource_tracker --pipe 5"
    assert discovery.role_of_title(title)[0] == "helper"


LOCK = StackFrame("/job/main.py", "save", 6, "acquire")


@pytest.mark.parametrize(
    ("frames", "thread", "forked", "words", "fix"),
    [
        ((LOCK, MAIN), {"relocks": 1}, True, "this thread took before in main", "lock_taken_twice"),
        ((LOCK, MAIN), {}, True, "fork copied in its locked state", "fork_with_lock"),
        ((LOCK, MAIN), {}, False, "no other thread of the process is left", "raised_with_lock"),
        ((WAIT, MAIN), {"endless": True}, False, "a notification of a condition", "condition"),
        ((WAIT, QUEUE_GET, MAIN), {}, False, "no other thread of the process is left", "thread_ended"),
    ],
)
def test_wait_for_a_thread_that_does_not_exist_is_explained(frames, thread, forked, words, fix):
    diagnosis = diagnose(
        Snapshot((sleeping(7, 1, *frames, thread=AT_FUTEX | thread, forked=forked),), seconds=65.0)
    )
    assert words in diagnosis.verdict.sentence
    assert stack_fix(diagnosis).name == fix


def test_worker_that_inherited_a_listening_socket_serves_no_client():
    """Its parent, which waits for the client's result, does not accept the connection."""
    ends = Descriptor(4, "tcp", 60), Descriptor(5, "pipe", 7, "w")
    takes = StackFrame(f"{PYTHON}/multiprocessing/queues.py", "get"), MAIN
    listening = Socket(60, "tcp", "127.0.0.1:8000", "0.0.0.0:0", "LISTEN", unread=1)
    request = Socket(61, "tcp", "127.0.0.1:9", "127.0.0.1:8000", "ESTABLISHED")
    reads = {"syscall": "read", "waits_fds": (6,)}
    parent = sleeping(7, 1, *takes, thread=reads, fds=(ends[0], Descriptor(6, "pipe", 7, "r")))
    idle = sleeping(8, 7, *takes, thread=AT_FUTEX | {"futex": "sem:5"}, fds=ends)
    client = sleeping(9, 7, MAIN, thread=RECEIVES, fds=(*ends, Descriptor(3, "tcp", 61)))
    verdict = verdict_of(parent, idle, client, sockets=(listening, request))
    assert (verdict.cause, set(verdict.culprits)) == ("deadlock", {"/7", "/9"})


def test_replaced_and_dead_workers_are_named():
    result = StackFrame(f"{PYTHON}/multiprocessing/pool.py", "wait"), MAIN
    starts = StackFrame(f"{PYTHON}/multiprocessing/pool.py", "_handle_workers")
    takes = StackFrame(f"{PYTHON}/multiprocessing/pool.py", "worker"), starts
    worker = sleeping(8, 7, *takes, thread=AT_FUTEX)
    sentence = verdict_of(sleeping(7, 1, WAIT, *result, thread=AT_FUTEX), worker).sentence
    assert "pid 8 replaced a worker" in sentence
    waits = sleeping(7, 1, MAIN, thread={"syscall": "futex", "futex": "sem:5"})
    sentence = verdict_of(waits, Process(9, 1, state="Z"), locks=(Lock(5, 0, "semaphore"),)).sentence
    assert "the one that held it has ended; pid 9 is dead" in sentence


def test_server_that_requests_itself_is_a_deadlock():
    fds = Descriptor(3, "tcp", 50), Descriptor(4, "tcp", 60)
    listening = Socket(60, "tcp", "127.0.0.1:8000", "0.0.0.0:0", "LISTEN", unread=1)
    request = Socket(50, "tcp", "127.0.0.1:9", "127.0.0.1:8000", "ESTABLISHED")
    response = StackFrame(f"{PYTHON}/http/client.py", "getresponse"), MAIN
    verdict = verdict_of(sleeping(7, 1, *response, thread=RECEIVES, fds=fds), sockets=(listening, request))
    assert (verdict.cause, "of its own server" in verdict.sentence) == ("deadlock", True)
