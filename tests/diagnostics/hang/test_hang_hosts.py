"""`hang --hosts` joins the snapshots of several hosts at TCP connections.

Loopback connections are not joined, and saved bundles of several hosts are refused. If a host gives no valid answer,
the verdict on an otherwise healthy job is unknown. Reports number the hosts instead of naming them. Two network
namespaces simulate hosts for the whole command. The program that is sent to hosts is tested in test_doctor_hosts.py.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.collect.remote import MARK, Answer, read_output
from diagnostics.hang.collect.snapshot import NoProcessError
from diagnostics.hang.command import join_answers
from diagnostics.hang.diagnosis import diagnose
from diagnostics.hang.parsers import ParseError
from diagnostics.hang.parsers.dump_files import read_files
from diagnostics.hang.snapshot import SCHEMA, Descriptor, Snapshot, Socket, StackFrame
from tests.diagnostics.hang.processes import sleeping

ROOT = Path(__file__).parents[3]
WAITS_FOR_RESPONSE = (StackFrame("/py/lib/python3.11/http/client.py", "_read_status", 286),)
WAITS_FOR_EVENT = (
    StackFrame("/py/lib/python3.11/threading.py", "wait", 327),
    StackFrame("/job/serve.py", "answer", 9),
)
SERVER, CLIENT = "10.77.0.1:8000", "10.77.0.2:41000"


def process(pid, frames, inode, **thread):
    """Return a sleeping process with one TCP socket."""
    return sleeping(pid, 1, *frames, thread=thread, fds=(Descriptor(3, "tcp", inode),))


def waiting_server(**socket_values):
    """Return the snapshot of a server that waits for an event and is connected to the client."""
    return Snapshot(
        (process(7, WAITS_FOR_EVENT, 500),),
        (Socket(500, "tcp", SERVER, CLIENT, "ESTABLISHED", **socket_values),),
    )


def stuck_client(local=CLIENT, remote=SERVER):
    """Return the snapshot of a client that sent a request 90 s ago and got no response."""
    waits = process(7, WAITS_FOR_RESPONSE, 500, syscall="recvfrom", waits_fds=(3,))
    return Snapshot(
        (waits,), (Socket(500, "tcp", local, remote, "ESTABLISHED", sent_s=90.0, received_s=95.0),)
    )


def node_answer(snapshot):
    """Return the answer of a host's collector with this snapshot."""
    return Answer(json.loads(json.dumps(snapshot.to_json())))


def join(*snapshots):
    """Join the snapshots of several hosts into one."""
    return join_answers(list(map(node_answer, snapshots)))


def test_connection_between_hosts_leads_to_the_blocking_server():
    """A connection leads to the blocking server on the other host, although process ids and inodes are equal."""
    verdict = diagnose(join(waiting_server(received_s=90.0, sent_s=95.0), stuck_client())).verdict
    assert (verdict.outcome, verdict.culprits, verdict.victims) == ("hang", ("host-1/7",), ("host-2/7",))
    assert [edge.target for edge in verdict.chain] == ["host-1/7"]
    assert any("on host-1" in line for line in verdict.chain[0].evidence)


def test_loopback_addresses_of_two_hosts_are_not_connected():
    loopback = replace(waiting_server().sockets[0], local="127.0.0.1:8000", remote="127.0.0.1:41000")
    client = stuck_client("127.0.0.1:41000", "127.0.0.1:8000")
    snapshot = join(replace(waiting_server(), sockets=(loopback,)), client)
    assert all("host-1" not in edge.target for edges in diagnose(snapshot).graph.values() for edge in edges)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer({}, problem="no answer within 30 s"), "no answer within 30 s"),
        (read_output(f'{MARK} {{"schema": "{SCHEMA}", "processes": [7]}}', ""), "a broken snapshot"),
        (read_output(f"{MARK} {{}}", ""), "this JSON is no snapshot"),
    ],
)
def test_host_without_a_valid_answer_leaves_the_verdict_unknown(answer, reason):
    """A host without a valid answer makes the verdict unknown, even if the other hosts look healthy."""
    idle = Snapshot((process(7, (), 500),), waiting_server().sockets)
    snapshot = join_answers([node_answer(idle), answer])
    diagnosis = diagnose(snapshot)
    assert diagnosis.verdict.outcome == "unknown"
    assert "host-2" in diagnosis.verdict.sentence
    assert any(text.startswith("host-2: ") and reason in text for text in diagnosis.verdict.unseen)


def test_report_numbers_a_host_that_the_launcher_names(tmp_path, run_command):
    """An error of the launcher may contain the host's name; a report that is shared has its number only."""
    (tmp_path / "hosts").write_text("bluefin\n")
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/sh\necho "pods \\"$1\\" not found" >&2\nexit 1\n')
    launcher.chmod(0o755)
    command = ("hang", "--hosts", tmp_path / "hosts", "--host-command", f"{launcher} {{host}}")
    result = run_command(*command, "--format", "json")
    assert result.code == 3
    assert "host-1" in result.out
    assert "bluefin" not in result.out


def test_hosts_without_a_job_are_refused():
    empty = node_answer(Snapshot(notes=("no process here looks like a part of a job",)))
    with pytest.raises(NoProcessError, match="none of 2 hosts"):
        join_answers([empty, empty])


def test_host_cannot_claim_the_name_of_another():
    forged = replace(stuck_client(), processes=(replace(stuck_client().processes[0], host="host-1"),))
    assert {p.host for p in join(waiting_server(), forged).processes} == {"host-1", "host-2"}


def test_bundles_of_several_hosts_are_refused(tmp_path):
    """Bundles of several hosts are refused, because each numbers its addresses from address-1."""
    for name, part in (("a", waiting_server()), ("b", stuck_client())):
        (tmp_path / f"{name}.json").write_text(json.dumps(part.to_json()))
    with pytest.raises(ParseError, match="--hosts"):
        read_files([str(tmp_path / "a.json"), str(tmp_path / "b.json")])


# Two simulated hosts: separate process and network namespaces, connected by a virtual cable.
NAMESPACE = "unshare --net --pid --fork --mount-proc --kill-child sh -c"
SERVER_PROGRAM = """
import socket, threading
listening = socket.create_server(("10.77.0.1", 8000))
print("up", flush=True)
connection, _ = listening.accept()
connection.recv(100)
def lookup():
    threading.Event().wait()
lookup()
"""
CLIENT_PROGRAM = """
import http.client
connection = http.client.HTTPConnection("10.77.0.1", 8000)
connection.request("GET", "/reward")
print("asking", flush=True)
connection.getresponse()
"""


@pytest.fixture
def two_hosts():
    """Make two connected network namespaces; yield the process id of a process in each."""
    if os.getuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("needs root, and ip, unshare and nsenter")
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(2):
            words, pipe = [*NAMESPACE.split(), "echo up; read line"], subprocess.PIPE
            machine = subprocess.Popen(words, stdin=pipe, stdout=pipe)
            stack.callback(machine.communicate)
            if machine.stdout.readline() != b"up\n":
                pytest.skip("this kernel refuses unshare")
            pids.append(Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split()[0])
        try:
            for words in cable_commands(*pids):
                subprocess.run(words.split(), check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"cannot connect network namespaces here: {error.stderr.strip()}")
        yield pids


def cable_commands(first, second):
    """Yield the commands that connect two network namespaces."""
    yield f"ip link add grpo1 netns {first} type veth peer name grpo2 netns {second}"
    for number, pid in ((1, first), (2, second)):
        inside = f"nsenter --target {pid} --net ip"
        yield f"{inside} addr add 10.77.0.{number}/24 dev grpo{number}"
        yield f"{inside} link set grpo{number} up"
        yield f"{inside} link set lo up"


def test_command_blames_the_server_in_another_network_namespace(two_hosts, tmp_path):
    """The command blames the server, which has read the request and waits for something else."""
    (tmp_path / "reward_server.py").write_text(SERVER_PROGRAM)
    (tmp_path / "train_client.py").write_text(CLIENT_PROGRAM)
    hosts, enter = tmp_path / "hosts", tmp_path / "enter"
    hosts.write_text("".join(f"m{number}\n" for number in (1, 2)))
    first, second = two_hosts
    enter.write_text(
        f"#!/bin/sh\ncase $1 in m1) pid={first};; *) pid={second};; esac\nshift\n"
        'exec nsenter --target $pid --net --pid --mount -- "$@"\n'
    )
    enter.chmod(0o755)
    options = "--match reward_server|train_client --patience 0.001 --format json --node-limit 300"
    words = ["hang", "--hosts", str(hosts), "--host-command", f"{enter} {{host}}", *options.split()]
    words += ["--host-python", sys.executable]
    with contextlib.ExitStack() as stack:
        for name, program in (("m1", "reward_server"), ("m2", "train_client")):
            started = [str(enter), name, sys.executable, str(tmp_path / f"{program}.py")]
            child = stack.enter_context(subprocess.Popen(started, stdout=subprocess.PIPE))
            stack.callback(child.kill)
            assert child.stdout.readline()
        started = [sys.executable, "-m", "diagnostics", *words]
        done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert "host-1 is m1\nhost-2 is m2" in done.stderr
    assert [key.partition("/")[0] for key in document["culprits"]] == ["host-1"]
    assert {process["host"] for process in document["processes"]} == {"host-1", "host-2"}
    assert any("on host-1" in line for edge in document["chain"] for line in edge["evidence"])
