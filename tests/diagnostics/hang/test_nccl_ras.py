"""Querying NCCL's RAS: a stand-in implements the protocol from NCCL's sources; not tested with real NCCL."""

import json
import os
import socket
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from diagnostics.hang.collect import discovery, nccl_ras, peers
from diagnostics.hang.diagnosis import diagnose
from diagnostics.hang.snapshot import Process, Snapshot, StackFrame, Thread

WORDS = ("CLIENT PROTOCOL ", "TIMEOUT ", "SET FORMAT ")


def status(counts):
    """A document as NCCL writes it: a communicator, its ranks, how often each has begun an operation."""
    ranks = [
        {"rank": rank, "host": "127.0.0.1", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
         "status": {"init_state": 0}, "collective_counts": {"AllReduce": count, "Broadcast": 1}}
        for rank, count in enumerate(counts)
    ]  # fmt: skip
    communicator = {"hash": "0x1", "size": len(ranks), "ranks": ranks, "missing_ranks": []}
    return {"nccl_version": "2.28.3", "communicators": [communicator], "ras": {"timeouts_count": 0}}


def answered(line, document):
    """A line's answer."""
    if line.startswith(WORDS[0]):
        return b"SERVER PROTOCOL 2\n"
    return b"OK\n" if line.startswith(WORDS[1:]) else json.dumps(document, indent=2).encode()


@contextmanager
def standing_in(serve):
    """A server on loopback for one client; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run():
            client, _ = server.accept()
            with client:
                serve(client)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def speak(document):
    """Serve the protocol, and end the connection behind the status."""

    def serve(client):
        with client.makefile("rb") as lines:
            for line in lines:
                client.sendall(answered(line.decode().strip(), document))
                if line.strip() == b"VERBOSE STATUS":
                    return

    return serve


def until_closed(client):
    while client.recv(4096):
        pass


def test_it_is_asked_by_its_protocol():
    """And gives its document."""
    with standing_in(speak(status((3, 4)))) as port:
        assert nccl_ras.query(("127.0.0.1", port), timeout_s=30) == status((3, 4))


def test_one_that_says_nothing_is_given_up():
    """Within the limit, which is all that a job that hangs may cost."""
    with standing_in(until_closed) as port:
        assert nccl_ras.query(("127.0.0.1", port), timeout_s=0.05) is None


def test_one_that_says_too_much_is_given_up(monkeypatch):
    """A service that sends more than a RAS status can have is disconnected."""
    monkeypatch.setattr(nccl_ras, "MAX_BYTES", 1000)

    def serve(client):
        try:
            while True:
                client.sendall(b"{" * 4096)
        except OSError:
            pass

    with standing_in(serve) as port:
        assert nccl_ras.query(("127.0.0.1", port), timeout_s=30) is None


def test_nobody_there_is_no_fault():
    """It may have ended since."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    assert nccl_ras.query(address) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_only_a_process_of_the_job_is_asked(host):
    """The kernel shows which process listens at RAS's port."""
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        host_table = peers.Host(discovery.process_table())
        host_table.survey([os.getpid()])
        assert nccl_ras.find_service(host_table, [os.getpid()]) is None
        host_table.processes[os.getpid()].environment = {nccl_ras.ADDRESS_VARIABLE: f"localhost:{port}"}
        assert nccl_ras.find_service(host_table, [os.getpid()]) == ("127.0.0.1", port)
        assert nccl_ras.find_service(host_table, [os.getppid()]) is None


def rank(number):
    frames = (
        StackFrame("torch/distributed/distributed_c10d.py", "all_reduce", 9),
        StackFrame("/job/a.py", "step", 3),
    )
    thread = Thread(100 + number, "MainThread", frames, asleep_s=90.0)
    return Process(
        100 + number, ppid=1, role="trainer", rank=number, world=3, job="127.0.0.1:1", threads=(thread,)
    )


def test_who_has_begun_less_is_named_though_all_stacks_are_alike():
    """Stacks cannot show this: each rank is in an all_reduce."""
    ranks = tuple(map(rank, range(3)))
    same = diagnose(Snapshot(ranks, seconds=1.5)).verdict
    counts = nccl_ras.collectives_of(status((7, 6, 7)), ranks)
    verdict = diagnose(Snapshot(ranks, collectives=counts, seconds=1.5)).verdict
    assert same.outcome == "unknown"
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "absent", ("/101",))


@pytest.mark.parametrize(
    "document", [None, {}, [], {"communicators": [{}]}, {"communicators": [1]}, status((5, 5, 5))]
)
def test_what_tells_no_ranks_apart_says_nothing(document):
    """Neither does a document that is not RAS's."""
    assert nccl_ras.collectives_of(document, map(rank, range(3))) == ()


def test_one_rank_and_several_are_told_in_their_own_words():
    """The verdict names the one observed rank, or says that several are all in the collective."""
    alone = replace(rank(0), world=None)
    single = diagnose(Snapshot((alone,), seconds=1.5)).verdict.sentence
    several = diagnose(Snapshot(tuple(map(rank, range(3))), seconds=1.5)).verdict.sentence
    assert "rank 0 (pid 100) is in all_reduce" in single
    assert "are all in all_reduce" in several
