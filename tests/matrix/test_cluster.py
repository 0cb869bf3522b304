"""The matrix on a cluster: how questions are handed out, what a node does, and a real local Ray cluster."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diagnostics.matrix.ask.registry import load
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.run.cluster import bundle, node

ROOT = Path(__file__).resolve().parents[2]
RAY = Path(sys.executable).parent / "ray"


@dataclass
class LocalCluster:
    """Raylets on loopback, each started by `ray start` with a folder and ports of its own."""

    folder: Path
    environ: dict[str, str]
    address: str = ""
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name, *, cpus, head=False):
        """Starts a node and returns its folder once it runs; Ray itself gives up on a busy machine after 30 s."""
        own = self.folder / name
        own.mkdir()
        said = own / "ray.out"
        for attempt in (1, 2, 3):
            process = self.nodes[name] = self._launch(own, cpus, head=head)
            _until(
                lambda: "Ray runtime started" in said.read_text() or self.nodes[name].poll() is not None, 240
            )
            if process.poll() is None:
                return own
            assert attempt < 3, said.read_text()
            assert "timed out during startup" in said.read_text(), said.read_text()
            self.kill(name)
        raise AssertionError

    def _launch(self, own, cpus, *, head):
        ports = [_free_port() for _ in range(6)]
        host = f"127.0.0.{2 + len(self.nodes)}"  # Ray takes 127.0.0.1 for a wish to be found from outside
        where = [f"--address={self.address}"]
        if head:
            self.address = f"{host}:{ports[0]}"
            where = ["--head", f"--port={ports[0]}", "--include-dashboard=false"]
            where.append(f"--temp-dir={self.folder / 'ray'}")
        command = [
            str(RAY), "start", "--block", *where, f"--node-ip-address={host}", f"--num-cpus={cpus}", "--num-gpus=0",
            f"--dashboard-agent-listen-port={ports[2]}", f"--dashboard-agent-grpc-port={ports[3]}",
            f"--metrics-export-port={ports[4]}", f"--runtime-env-agent-port={ports[5]}",
            "--object-store-memory=80000000", "--memory=2000000000", "--disable-usage-stats",
        ]  # fmt: skip
        with (own / "ray.out").open("wb") as output:
            return subprocess.Popen(
                command,
                env={**self.environ, "GRPO_DOCTOR_NODE_FOLDER": str(own), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name):
        """Ends a node by SIGKILL: its raylet first, as a machine's end would, then what started it."""
        process = self.nodes.pop(name)
        below = _below(process.pid)
        for pid in (*(pid for pid in below if "raylet/raylet" in _command(pid)), *below, process.pid):
            _kill(pid)
        process.wait()

    def stop(self):
        """Ends all of it, the head last."""
        for name in reversed(list(self.nodes)):
            self.kill(name)


@pytest.fixture
def cluster(world):
    """A head that takes no work, on which the run's own process is."""
    pytest.importorskip("ray")
    # A socket's path may have 107 bytes, and Ray adds some sixty.
    folder = Path(tempfile.mkdtemp(prefix="gd-"))
    world.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    world.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    made = LocalCluster(folder, world.environ)
    try:
        made.start("head", cpus=0, head=True)
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def toys(world, kit):
    """Two cells whose first import waits for ever, where it says so; every later one goes on."""
    gate = world.folder / "gate"
    os.mkfifo(gate)
    waits = (
        "import os, pathlib\n"
        f"said = pathlib.Path({str(world.folder / 'waiting')!r})\n"
        "if not said.exists():\n"
        "    aside = said.with_suffix('.part')\n"
        "    aside.write_text(f'{os.getpid()} {os.environ[\"HOME\"]}')\n"
        "    aside.rename(said)\n"
        f"    open({str(gate)!r}).read()\n"
    )
    world.index.add("vllm", "1.0", kit.vllm("1.0", kit.nothing, before=waits))
    world.index.add("vllm", "2.0", kit.vllm("2.0", kit.nothing))
    world.index.add("trl", "1.0", kit.trl("from vllm import LLM"), extras={"vllm": ("vllm>=1.0",)})
    world.write(kit.cell("1.0", "1.0", kit.deep), kit.cell("2.0", "1.0", kit.deep))
    assert world.run("lock").returncode == 0
    return world


@pytest.mark.ray
@pytest.mark.heavy
def test_a_node_killed_during_a_layer_loses_nothing(toys, cluster):
    """SIGKILL to the node that imports: its answers stay, the cell goes on elsewhere, the table is a local run's."""
    folders = {name: cluster.start(name, cpus=1) for name in ("one", "two")}
    errors = toys.folder / "errors.txt"
    with errors.open("wb") as stream:
        process = _start(toys, stream, "--ray", cluster.address)
        try:
            waiting = toys.folder / "waiting"
            _until_it_waits(process, waiting, errors)
            pid, home = waiting.read_text().split()
            (hit,) = (name for name, folder in folders.items() if Path(home).is_relative_to(folder))
            before = _lines(toys.store)
            cluster.kill(hit)
            output, _ = process.communicate(timeout=500)
        finally:
            process.kill()
            process.wait()
    said = errors.read_text()
    assert process.returncode == 0, said + output
    assert "asking vllm-1.0+trl-1.0 import again elsewhere" in said
    after = _lines(toys.store)
    assert after[: len(before)] == before  # nothing that was answered is lost or asked again
    assert len(after) == 10
    # The environment was the killed node's; the other one built its own, and not in our store.
    (other,) = {*folders} - {hit}
    built = "cells/vllm-1.0+trl-1.0/environments/vllm-1.0+trl-1.0/grpo-doctor.json"
    assert [name for name in folders if (folders[name] / built).exists()] == sorted(folders)
    assert not (toys.store / "environments").exists()
    assert (toys.store / "logs" / "vllm-1.0+trl-1.0" / "import.log").exists()
    _until(lambda: not _alive(int(pid)), 500)
    assert f"/{other}" not in str(after)
    # The same questions asked here: the same identities, the same table.
    here = toys.folder / "here"
    local = toys.run("run", store=here)
    assert (local.returncode, local.stdout) == (0, output), local.stderr
    assert _verdicts(toys.report(here)) == _verdicts(toys.report())
    assert {line["identity"] for line in _lines(here)} == {line["identity"] for line in after}


@pytest.mark.ray
@pytest.mark.heavy
def test_a_run_that_ends_early_ends_what_the_nodes_do(toys, cluster):
    """SIGKILL, then Ctrl-C: the program on the node is gone, the store is valid, the next run goes on from there."""
    folder = cluster.start("one", cpus=2)
    errors, waiting = toys.folder / "errors.txt", toys.folder / "waiting"
    before = []
    for number, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        waiting.unlink(missing_ok=True)
        with errors.open("wb") as stream:
            process = _start(toys, stream, "--ray", cluster.address, "--drop", "--cells", "vllm-1.0+trl-1.0")
            _until_it_waits(process, waiting, errors)
            process.send_signal(number)
            output, _ = process.communicate(timeout=500)
        assert process.returncode == code, errors.read_text()
        _until(lambda: not _alive(int(waiting.read_text().split()[0])), 500)
        before = before or _lines(toys.store)
        assert (_lines(toys.store), len(before)) == (before, 3)
    assert "interrupted: what was finished is kept" in errors.read_text()
    assert "3 of 5 questions passed" in output
    done = toys.run("run", "--ray", cluster.address, "--drop", "--cells", "vllm-1.0+trl-1.0")
    assert done.returncode == 0, done.stderr
    assert _lines(toys.store)[:3] == before
    assert "removed the environment of vllm-1.0+trl-1.0" in done.stderr
    assert not list(folder.glob("cells/*/environments/*"))


def test_what_a_node_is_sent_is_enough(world, kit, tmp_path):
    """Code, matrix file and locks alone, in a folder of their own: the question is answered, another one refused."""
    world.index.add("vllm", "1.0", kit.vllm("1.0"))
    world.index.add("trl", "1.0", kit.trl("from vllm import LLM"), extras={"vllm": ("vllm",)})
    path = world.write(kit.cell("1.0", "1.0", ("contract",), recipe=None))
    assert world.run("run").returncode == 0
    (known,) = _lines(world.store)
    workplace = Workplace(load(path), Store(world.store), programs=world.folder / "programs")
    sent = bundle.write(workplace, tmp_path / "sent")
    # Of tests the conformance suite, which is a layer's program.
    assert {item.name for item in sent.iterdir()} == {
        "diagnostics", "grpo_core", "repro", "tests", "matrix.toml",
    }  # fmt: skip
    job = {"task": "ask", "cell": known["cell"], "layer": "contract", "inputs": known["inputs"], "run": "r",
           "afresh": False, "make_room": False, "budget_gb": None}  # fmt: skip
    other = {**job, "inputs": [*known["inputs"][:-1], ["code", "older"]]}
    program = "import json, sys; from diagnostics.matrix.run.cluster import node; "
    program += "print(json.dumps([node.work(job) for job in json.loads(sys.argv[1])]))"
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([job, other])],
        env={**world.environ, "PYTHONPATH": str(sent), "GRPO_DOCTOR_NODE_FOLDER": str(tmp_path / "node")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    answered, refused = json.loads(done.stdout)
    event = json.loads(answered["line"])
    assert [event[key] for key in ("identity", "inputs", "cell")] == [
        known[key] for key in ("identity", "inputs", "cell")
    ]
    assert event["answer"]["outcome"] == "pass"
    assert "here it would be another question: code is" in refused["refused"]
    assert (tmp_path / "node" / "wheels").is_dir()


def test_a_long_log_comes_back_cut(tmp_path, monkeypatch):
    """Its end, and how much is left where it was written."""
    (tmp_path / "x.log").write_text("one two")
    workplace = Workplace(load(ROOT / "matrix.toml"), Store(tmp_path))
    assert node._log(workplace, "x.log") == b"one two"
    monkeypatch.setattr(node, "LOG_BYTES", 3)
    assert node._log(workplace, "x.log") == b"[4 bytes before this were left on the node]\ntwo"
    assert (node._log(workplace, ""), node._log(workplace, "none.log")) == (None, None)


def test_the_guard_ends_what_a_killed_process_left(tmp_path):
    """The process that started a program is killed: the program is ended, though nobody asks for it any more."""
    program = (
        "import pathlib, subprocess, sys\n"
        "from diagnostics.matrix.run.cluster.guard import guarded\n"
        "from diagnostics import processes\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "with guarded(folder):\n"
        "    processes.run([sys.executable, '-c', 'input()'], environment={}, log=folder / 'x.log', timeout_s=600,\n"
        "                  folder=folder, ledger=folder / 'running.json')\n"
    )
    program = program.replace("'input()'", "'import signal; signal.pause()'")
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    ledger = tmp_path / "running.json"
    _until(lambda: ledger.exists() and ledger.read_text().endswith("}"), 500)
    pid = json.loads(ledger.read_text())["group"]
    assert _alive(pid)
    process.kill()
    process.wait()
    _until(lambda: not _alive(pid), 500)


def _until_it_waits(process, waiting, errors):
    _until(waiting.exists, 500, lambda: (process.poll() is None, errors.read_text()))


def _start(world, errors, *arguments):
    return subprocess.Popen(
        world.command("run", *arguments),
        env=world.environ,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def _lines(store):
    return [json.loads(line) for line in (store / "store.jsonl").read_text().splitlines()]


def _verdicts(report):
    return {
        name: {layer: item["verdict"] for layer, item in layers.items()} for name, layers in report.items()
    }


def _until(condition, timeout_s, still=lambda: (True, "")):
    end = time.monotonic() + timeout_s
    while not condition():
        going, said = still()
        assert going, said
        assert time.monotonic() < end, f"waited too long: {said}"
        time.sleep(0.05)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _below(pid):
    """All processes that this one started, and theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, parent = path.parent.name, path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == pid:
            found += [int(number), *_below(int(number))]
    return found


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
