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
from diagnostics.hang.snapshot import Snapshot, StackFrame
from tests.diagnostics.hang.processes import rank

WORDS = ("CLIENT PROTOCOL ", "TIMEOUT ", "SET FORMAT ")


def status(counts):
    """A document as NCCL writes it: a communicator, its ranks, how many operations each has started."""
    ranks = [
        {
            "rank": rank,
            "host": "127.0.0.1",
            "pid": 100 + rank,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {"init_state": 0},
            "collective_counts": {"AllReduce": count, "Broadcast": 1},
        }
        for rank, count in enumerate(counts)
    ]
    communicator = {"hash": "0x1", "size": len(ranks), "ranks": ranks, "missing_ranks": []}
    return {"nccl_version": "2.28.3", "communicators": [communicator], "ras": {"timeouts_count": 0}}


def reply_to(line, document):
    """The reply to a line."""
    if line.startswith(WORDS[0]):
        return b"SERVER PROTOCOL 2\n"
    return b"OK\n" if line.startswith(WORDS[1:]) else json.dumps(document, indent=2).encode()


@contextmanager
def ras_service(serve):
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


def serve_protocol(document):
    """Serve the protocol, and end the connection after the status."""

    def serve(client):
        with client.makefile("rb") as lines:
            for line in lines:
                client.sendall(reply_to(line.decode().strip(), document))
                if line.strip() == b"VERBOSE STATUS":
                    return

    return serve


def until_closed(client):
    while client.recv(4096):
        pass


def test_a_service_is_queried_by_its_protocol():
    with ras_service(serve_protocol(status((3, 4)))) as port:
        assert nccl_ras.query(("127.0.0.1", port), timeout_s=30) == status((3, 4))


def test_a_silent_service_costs_no_more_than_the_time_limit():
    with ras_service(until_closed) as port:
        assert nccl_ras.query(("127.0.0.1", port), timeout_s=0.05) is None


def test_a_service_that_sends_too_much_is_disconnected(monkeypatch):
    monkeypatch.setattr(nccl_ras, "MAX_BYTES", 1000)

    def serve(client):
        try:
            while True:
                client.sendall(b"{" * 4096)
        except OSError:
            pass

    with ras_service(serve) as port:
        assert nccl_ras.query(("127.0.0.1", port), timeout_s=30) is None


def test_a_service_that_has_ended_is_no_fault():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    assert nccl_ras.query(address) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_only_a_process_of_the_job_is_queried(host):
    """The kernel shows which process listens at RAS's port."""
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        host_table = peers.Host(discovery.process_table())
        host_table.survey([os.getpid()])
        assert nccl_ras.find_service(host_table, [os.getpid()]) is None
        host_table.processes[os.getpid()].environment = {nccl_ras.ADDRESS_VARIABLE: f"localhost:{port}"}
        assert nccl_ras.find_service(host_table, [os.getpid()]) == ("127.0.0.1", port)
        assert nccl_ras.find_service(host_table, [os.getppid()]) is None


def in_all_reduce(number):
    frames = (
        StackFrame("torch/distributed/distributed_c10d.py", "all_reduce", 9),
        StackFrame("/job/a.py", "step", 3),
    )
    return rank(number, *frames)


def test_the_rank_that_started_fewer_collectives_is_blamed():
    """Stacks do not show it: each rank is in an all_reduce."""
    ranks = tuple(map(in_all_reduce, range(3)))
    same = diagnose(Snapshot(ranks, seconds=1.5)).verdict
    counts = nccl_ras.collectives_of(status((7, 6, 7)), ranks)
    verdict = diagnose(Snapshot(ranks, collectives=counts, seconds=1.5)).verdict
    assert same.outcome == "unknown"
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "absent", ("/101",))


@pytest.mark.parametrize(
    "document", [None, {}, [], {"communicators": [{}]}, {"communicators": [1]}, status((5, 5, 5))]
)
def test_equal_counts_and_other_documents_give_no_collectives(document):
    assert nccl_ras.collectives_of(document, map(in_all_reduce, range(3))) == ()


def test_ranks_in_one_collective_are_named():
    """The verdict names the one observed rank, or says that several are all in the collective."""
    alone = replace(in_all_reduce(0), world=None)
    single = diagnose(Snapshot((alone,), seconds=1.5)).verdict.sentence
    several = diagnose(Snapshot(tuple(map(in_all_reduce, range(3))), seconds=1.5)).verdict.sentence
    assert "rank 0 (pid 100) is in all_reduce" in single
    assert "are all in all_reduce" in several
