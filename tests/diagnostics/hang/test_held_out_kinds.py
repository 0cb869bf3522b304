"""Hangs, idle and undecided jobs, of kinds found by an evaluation on held-out jobs, get the right outcome or cause.

One test checks the peer of a real unix socket that is not accepted.
"""

import os
import socket

import pytest

from diagnostics.hang.collect import sockets
from diagnostics.hang.snapshot import Descriptor, Process, Socket, StackFrame
from tests.diagnostics.hang.processes import (
    ACCEPT,
    AT_FUTEX,
    C10D,
    COMPUTES,
    EVENT_LOOP,
    PYTHON,
    QUEUE_GET,
    RECEIVES,
    WAIT,
    connection,
    rank,
    sleeping,
    verdict_of,
    with_threads,
)

MAIN = StackFrame("/job/a.py", "main", 9)
JOIN = StackFrame(f"{PYTHON}/threading.py", "join")
RECV = StackFrame(f"{PYTHON}/multiprocessing/connection.py", "_recv")
REST = {"syscall": "clock_nanosleep"}
NAPS = REST | {"asleep_s": 0.1}
READS = {"syscall": "read", "waits_fds": (3,)}
# A server's socket for new connections, and its descriptors of this socket and of one connection.
LISTENER = Socket(60, "tcp", "127.0.0.1:8000", "0.0.0.0:0", "LISTEN")
SERVER_FDS = Descriptor(4, "tcp", 60), Descriptor(5, "tcp", 51)


def test_threads_that_join_one_another_are_a_hang():
    joins = JOIN, StackFrame("/job/a.py", "close", 3)
    process = sleeping(7, 1, *joins, thread=AT_FUTEX)
    assert verdict_of(with_threads(process, joins, joins)).cause == "joins"
    assert verdict_of(with_threads(process, joins, (WAIT, MAIN))).cause == "lost_message"


def test_main_thread_is_named_beside_the_thread_that_blocks_it():
    joins = JOIN, StackFrame("/job/a.py", "stop", 3)
    refresh = (StackFrame("/job/a.py", "refresh", 5, "acquire"),)
    sentence = verdict_of(with_threads(sleeping(7, 1, *joins, thread=AT_FUTEX), refresh)).sentence
    assert "waits for a lock in refresh" in sentence
    assert "while its main thread waits for another thread in stop" in sentence


def test_dead_child_is_blamed_although_others_inherited_its_socket():
    trainer = sleeping(
        7, 1, MAIN, thread=RECEIVES, fds=(Descriptor(3, "unix", 50), Descriptor(4, "unix", 51))
    )
    heir = sleeping(9, 7, MAIN, thread={"syscall": "pause"}, fds=(Descriptor(4, "unix", 51),))
    dead = Process(8, 7, state="Z")
    verdict = verdict_of(trainer, dead, heir, sockets=connection(50, "unix"))
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "dead", ("/8",))
    assert verdict.certainty == "supported"


def test_two_senders_whose_data_is_not_read_are_a_deadlock():
    """While data moves, the outcome is progress."""
    sends = {"syscall": "sendto", "waits_fds": (3,)}
    ends = [sleeping(7 + n, 1, MAIN, thread=sends, fds=(Descriptor(3, "tcp", 50 + n),)) for n in (0, 1)]
    verdict = verdict_of(*ends, sockets=connection(50))
    assert (verdict.cause, verdict.sentence.count("sends data that is not read by")) == ("deadlock", 2)
    slow = {"asleep_s": 0.1}
    ends = [
        sleeping(7 + n, 1, MAIN, thread=sends | slow, fds=(Descriptor(3, "tcp", 50 + n),)) for n in (0, 1)
    ]
    assert verdict_of(*ends, sockets=connection(50, moved=9000)).outcome == "progress"


@pytest.mark.parametrize(("sent_s", "outcome"), [(400.0, "unknown"), (399.0, "hang"), (401.0, "idle")])
def test_client_of_an_idle_server_is_undecided_if_the_order_of_messages_is_unknown(sent_s, outcome):
    ends = connection(50, sent_s=sent_s, received_s=400.0, bytes_sent=20, bytes_received=20)
    client = sleeping(7, 1, MAIN, thread=RECEIVES, fds=(Descriptor(3, "tcp", 50),))
    server = sleeping(
        8, 1, *EVENT_LOOP, thread={"syscall": "epoll_wait", "waits_fds": (4, 5)}, fds=SERVER_FDS
    )
    verdict = verdict_of(client, server, sockets=(*ends, LISTENER))
    assert (verdict.outcome, verdict.culprits) == (outcome, () if outcome == "idle" else ("/8",))


@pytest.mark.parametrize(("received", "outcome"), [(93, "idle"), (9000, "hang")])
def test_runners_that_only_logged_in_at_a_dispatcher_are_idle(received, outcome):
    """The login of multiprocessing.connection.Client and a name are no request."""
    accepts = ACCEPT, StackFrame(RECV.path, "accept"), MAIN
    server = sleeping(7, 1, *accepts, thread={"syscall": "accept4", "waits_fds": (4,)}, fds=SERVER_FDS)
    feed = WAIT, QUEUE_GET, StackFrame("/job/a.py", "feed", 3)
    runner = sleeping(8, 7, RECV, MAIN, thread=READS, fds=(Descriptor(3, "tcp", 50),))
    ends = connection(50, sent_s=400.0, received_s=401.0, bytes_sent=received, bytes_received=68)
    assert verdict_of(with_threads(server, feed), runner, sockets=(*ends, LISTENER)).outcome == outcome


@pytest.mark.parametrize(
    ("third", "outcome"),
    [(COMPUTES, "progress"), (REST, "waiting"), (NAPS, "waiting"), ({"syscall": "futex"}, "hang")],
)
def test_barrier_waits_for_the_process_that_is_not_at_it(third, outcome):
    """Two processes wait at a barrier; the third one computes, sleeps, polls, or waits for something else."""
    barrier = WAIT, StackFrame(f"{PYTHON}/threading.py", "_wait"), MAIN
    waits = {"syscall": "futex", "futex": "sem:5"}
    first = [sleeping(pid, 1, *barrier, thread=waits, shared=("/dev/shm/a#5",)) for pid in (7, 8)]
    other = sleeping(
        9, 1, StackFrame("/job/a.py", "score", 3), thread=third, shared=("/dev/shm/a#5",), io_moved=False
    )
    verdict = verdict_of(*first, other)
    assert verdict.outcome == outcome
    assert verdict.culprits == ("/9",)


@pytest.mark.parametrize(("path", "outcome"), [(f"{PYTHON}/threading.py", "waiting"), ("/job/a.py", "hang")])
def test_timer_may_end_a_wait_and_a_thread_that_waits_does_not(path, outcome):
    """The main thread waits for an event; the other one is a `threading.Timer`, or a thread of the job's that waits."""
    wait = StackFrame(f"{PYTHON}/threading.py", "wait")
    main = sleeping(7, 1, wait, wait, MAIN, thread={"syscall": "futex"})
    verdict = verdict_of(with_threads(main, (wait, wait, StackFrame(path, "run", 3))))
    assert verdict.outcome == outcome


def test_pipe_is_awaited_from_the_process_that_does_not_await_the_reader():
    """A driver waits for a reply; of two children with the pipe, one waits for the driver's next message."""
    ends = Descriptor(3, "pipe", 5, "r"), Descriptor(4, "pipe", 6, "w")
    driver = sleeping(7, 1, RECV, MAIN, thread=READS, fds=ends)
    ends = Descriptor(3, "pipe", 6, "r"), Descriptor(4, "pipe", 5, "w")
    idle = sleeping(8, 7, RECV, MAIN, thread=READS, fds=ends)
    busy = sleeping(9, 7, WAIT, MAIN, thread=AT_FUTEX, fds=ends[1:])
    assert verdict_of(driver, idle, busy).culprits == ("/9",)


def test_named_pipes_opened_in_opposite_order_are_a_deadlock():
    opens = [{"syscall": "openat", "opens": f"/job/{name} (a named pipe)"} for name in ("in", "out")]
    verdict = verdict_of(*(sleeping(7 + n, 1, MAIN, thread=values) for n, values in enumerate(opens)))
    assert (verdict.cause, verdict.culprits) == ("deadlock", ("/7", "/8"))
    assert verdict_of(sleeping(7, 1, MAIN, thread=opens[0])).cause == "lost_message"


def test_semaphore_shared_with_a_waiting_process_is_no_proof_of_a_cycle():
    """A worker waits for a lock that its parent maps, too, and the parent waits for the worker's pipe.

    If the parent waits for the worker's exit instead, it is a deadlock. A feeder thread at the lock blames its worker.
    """
    parent = sleeping(
        7, 1, RECV, MAIN, thread=READS, fds=(Descriptor(3, "pipe", 5, "r"),), shared=("/dev/shm/a#5",)
    )
    waits = {"syscall": "futex", "futex": "sem:5"}
    writes = (Descriptor(4, "pipe", 5, "w"),)
    worker = sleeping(8, 7, MAIN, thread=waits, fds=writes, shared=("/dev/shm/a#5",))
    verdict = verdict_of(parent, worker)
    assert (verdict.cause, verdict.certainty, verdict.culprits) == ("lock", "hypothesis", ("/8",))
    joins = sleeping(7, 1, MAIN, thread={"syscall": "wait4"}, shared=("/dev/shm/a#5",))
    assert verdict_of(joins, worker).cause == "deadlock"
    # The feeder thread of a queue waits for the queue's lock, whose owner was killed.
    feeds = (StackFrame(f"{PYTHON}/multiprocessing/queues.py", "_feed"),)
    worker = sleeping(
        8, 7, StackFrame("/job/a.py", "main", 9, "sleep"), thread={"syscall": "clock_nanosleep"}, fds=writes
    )
    worker = with_threads(worker, feeds, name="QueueFeederThread", futex="sem:5")
    verdict = verdict_of(parent, worker)
    assert (verdict.cause, verdict.culprits) == ("lock", ("/8",))


def test_event_shared_between_processes_is_no_lock():
    event = StackFrame(f"{PYTHON}/multiprocessing/synchronize.py", "wait")
    verdict = verdict_of(sleeping(7, 1, event, event, MAIN, thread={"syscall": "futex", "futex": "sem:5"}))
    assert verdict.cause == "lost_message"
    assert "waits for an event shared between processes in main" in verdict.sentence


def test_callback_of_a_future_that_waits_for_its_own_pool_is_named():
    frames = (
        WAIT,
        StackFrame(f"{PYTHON}/concurrent/futures/_base.py", "result"),
        StackFrame("/job/a.py", "grade", 3),
    )
    frames = (*frames, StackFrame(f"{PYTHON}/concurrent/futures/_base.py", "_invoke_callbacks"))
    idle = StackFrame(f"{PYTHON}/concurrent/futures/process.py", "_process_worker")
    driver = with_threads(sleeping(7, 1, *frames[:2], MAIN, thread=AT_FUTEX), frames)
    assert verdict_of(driver, sleeping(8, 7, idle, thread=AT_FUTEX)).cause == "pool"


@pytest.mark.parametrize(("asleep_s", "outcome"), [(23.0, "waiting"), (400.0, "hang")])
def test_send_and_recv_that_do_not_match_are_a_hang_only_after_the_patience(asleep_s, outcome):
    frames = [
        (StackFrame(C10D, name, 1), StackFrame("/job/a.py", "work", n))
        for n, name in enumerate(("send", "recv"))
    ]
    pair = [rank(n, *frames[n], world=2, thread={"asleep_s": asleep_s}) for n in (0, 1)]
    verdict = verdict_of(*pair, seconds=1.5)
    assert (verdict.outcome, verdict.cause) == (outcome, "mismatch")
    assert "a send and a recv that do not match" in verdict.sentence


def test_client_that_a_unix_server_has_not_accepted_is_linked_to_its_listener(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client.connect(str(tmp_path / "s"))
        inodes = [os.fstat(item.fileno()).st_ino for item in (client, listener)]
        assert sockets.all_sockets()[inodes[0]].peer == inodes[1]


@pytest.mark.parametrize(("thread", "outcome"), [(COMPUTES, "waiting"), (REST, "waiting"), (NAPS, "hang")])
def test_request_that_a_handler_waits_for_may_come_from_a_process_without_a_connection(thread, outcome):
    """The handler hangs if the third process polls with short sleeps."""
    broker = sleeping(8, 1, ACCEPT, MAIN, thread={"syscall": "accept4", "waits_fds": (4,)}, fds=SERVER_FDS)
    broker = with_threads(broker, (WAIT, StackFrame("/job/a.py", "handle", 3)))
    consumer = sleeping(7, 1, MAIN, thread=RECEIVES, fds=(Descriptor(3, "tcp", 50),))
    sockets = *connection(50, sent_s=90.0, received_s=95.0), LISTENER
    producer = sleeping(9, 1, MAIN, thread=thread)
    assert verdict_of(broker, consumer, producer, sockets=sockets).outcome == outcome


@pytest.mark.parametrize(
    ("source", "outcome"),
    [({"syscall": "poll"}, "waiting"), ({"syscall": "openat", "opens": "/job/in (a named pipe)"}, "hang")],
)
def test_reader_of_a_shell_pipeline_waits_for_the_file_that_it_follows(source, outcome):
    """A pipeline whose first program waits in the open of a named pipe hangs."""
    reads = [{"syscall": "read", "waits_fds": (fd,)} for fd in (0, 3)]
    shell = {"python": False, "title": "grep x"}
    first = sleeping(7, 1, thread=source, fds=(Descriptor(1, "pipe", 5, "w"),), **shell)
    ends = Descriptor(0, "pipe", 5, "r"), Descriptor(1, "pipe", 6, "w")
    second = sleeping(8, 1, thread=reads[0], fds=ends, **shell)
    reader = sleeping(9, 1, MAIN, thread=reads[1], fds=(Descriptor(3, "pipe", 6, "r"),))
    verdict = verdict_of(first, second, reader)
    assert (verdict.outcome, verdict.culprits) == (outcome, ("/7",))


def test_member_of_a_collective_and_the_client_that_waits_for_it_are_a_deadlock():
    trainer = sleeping(7, 1, MAIN, thread=RECEIVES, fds=(Descriptor(3, "tcp", 50),))
    fds = (Descriptor(3, "tcp", 51),)
    server = sleeping(8, 7, StackFrame(C10D, "broadcast"), MAIN, thread={"syscall": "futex"}, fds=fds)
    verdict = verdict_of(trainer, server, sockets=connection(50))
    assert (verdict.cause, set(verdict.culprits)) == ("deadlock", {"/7", "/8"})


def test_closed_server_waits_for_the_client_of_the_handler_that_it_joins():
    child = {"syscall": "wait4"}
    client = sleeping(7, 1, MAIN, thread=child, fds=(Descriptor(3, "tcp", 50),))
    server = sleeping(8, 7, JOIN, MAIN, thread=AT_FUTEX, fds=(Descriptor(3, "tcp", 51),))
    handles = StackFrame(f"{PYTHON}/http/server.py", "handle_one_request", 404)
    server = with_threads(server, (handles,), syscall="recvfrom", waits_fds=(3,), futex="")
    verdict = verdict_of(client, server, sockets=connection(50))
    assert (verdict.cause, set(verdict.culprits)) == ("deadlock", {"/7", "/8"})
