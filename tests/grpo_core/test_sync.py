"""Weights get to an engine by every transport, whole or not at all, whatever breaks on the way."""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.rollout.build import EngineSpec
from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.subprocess_engine import ProcessEngine
from grpo_core.rollout.weights import transports as shm
from grpo_core.rollout.weights.digest import fingerprint_like
from grpo_core.rollout.weights.flat import PIECE, Flat, FlatError, tensors_in
from grpo_core.rollout.weights.sync import Receiver, open_sender
from grpo_core.rollout.weights.transports import SetUpError, TornError
from grpo_core.tasks.model import load_model

KINDS = ("inline", "shm", "files", "gloo")


def weights(seed: int) -> dict[str, torch.Tensor]:
    """Of several types and sizes, one of them larger than the pieces that are sent."""
    torch.manual_seed(seed)
    return {
        "embed": torch.randn(700, 513),
        "norm": torch.randn(7).bfloat16(),
        "turned": torch.randn(64, 32).T,
        "scale": torch.tensor(float(seed)),
        "empty": torch.empty(0, 3),
        "mask": torch.rand(5) > 0.5,
    }


class Held:
    """Stands for an engine: keeps copies of what it is given."""

    def __init__(self):
        self.policy_version, self.tensors = -1, {}

    def update_weights(self, tensors, version):
        self.tensors = {name: tensor.clone() for name, tensor in tensors}
        self.policy_version = version


class Pair:
    """A sender and a receiver in one process; the control channel between them is a call of a function."""

    def __init__(self, kind, root, timeout_s=500):
        self.engine, self.receiver = Held(), Receiver(timeout_s=timeout_s, root=root)
        self.before = {}  # method -> what happens before it is called
        self.sender = open_sender(kind, self.call, timeout_s=timeout_s, root=root)

    def call(self, method, arguments, payload=None):
        arguments = json.loads(json.dumps(arguments))  # what a channel would do
        self.before.get(method, lambda _: None)(arguments)
        if method == "sync_load":
            body = None if payload is None else bytearray(b"".join(map(bytes, payload.pieces())))
            return self.receiver.load(arguments, self.engine, body)
        return getattr(self.receiver, method[5:])(arguments)

    def holds(self, tensors) -> bool:
        held = self.engine.tensors
        return held.keys() == tensors.keys() and all(torch.equal(held[n], v) for n, v in tensors.items())

    def close(self):
        self.sender.close()
        self.receiver.close()


@pytest.fixture
def pair(tmp_path):
    """Builds pairs, and ends them."""
    built = []

    def build(kind, **options) -> Pair:
        built.append(Pair(kind, tmp_path, **options))
        return built[-1]

    yield build
    for each in built:
        each.close()


@pytest.mark.parametrize("kind", [*KINDS, "auto", "http"])
def test_every_transport_moves_weights_bit_for_bit(pair, tmp_path, kind):
    """Three versions in a row, the last one larger; nothing is left behind."""
    both = pair(kind)
    for version in range(3):
        sent = weights(version) | ({"more": torch.randn(3, 5, 70_000)} if version == 2 else {})
        assert both.sender.send(sent.items(), version) == version
        assert both.holds(sent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_version_does_not_disturb_the_next(pair, tmp_path, kind):
    """The engine's own reason reaches the sender."""
    both = pair(kind)

    def refuse(tensors, version):
        raise EngineError("odd engine, update_weights: nothing was loaded: a is missing")

    both.engine.update_weights = refuse
    with pytest.raises(EngineError, match="nothing was loaded: a is missing"):
        both.sender.send(weights(0).items(), 0)
    del both.engine.update_weights
    both.sender.send(weights(1).items(), 1)
    assert both.holds(weights(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_is_not_what_came_loads_nothing(pair, kind):
    """One byte less than was sent."""
    both = pair(kind)
    both.sender.send(weights(0).items(), 0)
    both.before["sync_load"] = lambda arguments: arguments.update(size=arguments["size"] - 1)
    with pytest.raises(EngineError, match=f"weight sync (inline|by {kind[:3]}|by shared memory)"):
        both.sender.send(weights(1).items(), 1)
    assert (both.engine.policy_version, both.holds(weights(0))) == (0, True)


def test_shared_memory_has_no_name_and_is_mapped_only_where_it_is_used(pair):
    """Its descriptor is open for as long as the receiver opens it; the memory goes with the last of the two."""
    both, seen = pair("shm"), {}
    both.before["sync_open"] = lambda call: seen.update(name=call["name"])
    both.sender.send(weights(0).items(), 0)
    assert re.fullmatch(rf"/proc/{os.getpid()}/fd/\d+", seen["name"])

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:grpo-core-weights")

    before = mappings()
    both.close()
    both.engine.tensors = {}
    gc.collect()
    assert mappings() == before - 2


def test_a_half_written_version_is_not_loaded(pair):
    """As a sender leaves it that dies, or gives up, in the middle."""
    both = pair("shm")
    both.sender.send(weights(0).items(), 0)
    both.before["sync_load"] = lambda _: both.sender._memory[:8].add_(1)
    with pytest.raises(EngineError, match="is half written; nothing was loaded"):
        both.sender.send(weights(1).items(), 1)
    assert both.holds(weights(0))


def test_a_version_that_is_replaced_while_it_is_read_is_an_error(pair):
    """The engine may have parts of both: the sender is told, and the next version is whole again."""
    both = pair("shm")
    both.sender.send(weights(0).items(), 0)
    load = both.engine.update_weights

    def overtaken(tensors, version):
        load(tensors, version)
        shm._counters(both.sender._memory).add_(1)  # another version is there by now

    both.engine.update_weights = overtaken
    with pytest.raises(TornError, match="may hold a mix of two versions; send one again"):
        both.sender.send(weights(1).items(), 1)
    both.engine.update_weights = load
    both.sender.send(weights(2).items(), 2)
    assert both.holds(weights(2))


@pytest.mark.parametrize("fault", ["file", "elsewhere", "size", "gone", "unsealed"])
def test_only_what_a_sender_makes_is_mapped(pair, tmp_path, fault):
    """No file, no path, no other size, and nothing that could shrink under the reader."""
    both, opened = pair("shm"), []

    def prepare(call):
        if fault == "file":
            opened.append(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
            os.truncate(opened[0], call["size"])
            call["name"] = f"/proc/{os.getpid()}/fd/{opened[0]}"
        elif fault == "elsewhere":
            call["name"] = "/dev/zero"
        elif fault == "gone":
            call["name"] = f"/proc/{os.getpid()}/fd/99999"
        elif fault == "unsealed":
            opened.append(os.memfd_create("grpo-core-weights"))
            os.truncate(opened[0], call["size"])
            call["name"] = f"/proc/{os.getpid()}/fd/{opened[0]}"
        else:
            call["size"] += 1

    both.before["sync_open"] = prepare
    with pytest.raises(SetUpError, match="weight sync by shared memory"):
        both.sender.send(weights(0).items(), 0)
    for descriptor in opened:
        os.close(descriptor)


@contextmanager
def no_room(size: int = 4096):
    """Files may not grow beyond this: stands for a full disk. What a system says then is 'File too large'."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", ["shm", "files"])
def test_without_room_the_error_says_where_and_how_much(pair, tmp_path, kind):
    """Nothing is loaded and nothing is left."""
    both = pair(kind)
    with no_room(), pytest.raises(SetUpError, match=r"\d{7} bytes.*File too large; make room"):
        both.sender.send(weights(0).items(), 0)
    assert (both.engine.policy_version, list(tmp_path.iterdir())) == (-1, [])


@pytest.mark.parametrize("fault", ["no room", "no such system"])
def test_auto_goes_inline_where_there_is_no_shared_memory_and_says_so(pair, monkeypatch, capsys, fault):
    """Once, and the weights arrive."""
    if fault == "no such system":
        monkeypatch.delattr(os, "memfd_create")
    both = pair("auto")
    with no_room(4096 if fault == "no room" else resource.RLIM_INFINITY):
        for version in range(2):
            both.sender.send(weights(version).items(), version)
            assert both.holds(weights(version))
    said = capsys.readouterr().err
    assert said.count("weights go inline, which is slower") == 1
    assert ("File too large" if fault == "no room" else "memfd_create") in said


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("byte", "not the bytes that were written"),
        ("gone", "No such file"),
        ("link", "symbolic link|not the bytes|has 0 bytes"),
        ("../x", "is no name that a sender gives"),
    ],
)
def test_files_are_read_only_as_they_were_written(pair, tmp_path, fault, says):
    """And below the root alone."""
    both = pair("files")

    def disturb(call):
        path = tmp_path / call["name"]
        if fault == "byte":
            whole = bytearray(path.read_bytes())
            whole[5000] ^= 1
            path.write_bytes(whole)
        elif fault == "gone":
            path.unlink()
        elif fault == "link":
            path.unlink()
            path.symlink_to("/dev/null")
        else:
            call["name"] = "../" + call["name"]

    both.before["sync_load"] = disturb
    with pytest.raises(EngineError, match=says):
        both.sender.send(weights(0).items(), 0)
    assert both.engine.policy_version == -1


def test_files_need_a_folder_from_the_start(pair):
    """A sender can't name one."""
    both = pair("files")
    both.receiver._root = None
    with pytest.raises(EngineError, match="was started with no folder for it"):
        both.sender.send(weights(0).items(), 0)


def test_a_group_whose_other_rank_never_comes_is_an_error_in_time(pair):
    """The receiver answers, and does not join."""
    both = pair("gloo", timeout_s=1)
    both.sender._call = lambda method, arguments, payload=None: {}
    with pytest.raises(SetUpError, match="weight sync by gloo: no group of trainer and engine"):
        both.sender.send(weights(0).items(), 0)


def test_a_group_whose_other_rank_stops_receiving_is_an_error_in_time(pair):
    """And the next version takes a new group."""
    both = pair("gloo")
    both.sender.send(weights(0).items(), 0)
    both.sender._timeout_s = 1
    call, both.sender._call = both.sender._call, lambda method, arguments, payload=None: {}
    large = {"large": torch.zeros(30_000_000)}  # more than sockets hold
    with pytest.raises(EngineError, match=r"weight sync by gloo: version 1: .*in 1 s \(rollout.timeout_s\)"):
        both.sender.send(large.items(), 1)
    both.sender._call, both.sender._timeout_s = call, 500
    both.sender.send(weights(2).items(), 2)
    assert both.holds(weights(2))


def test_two_groups_do_not_need_or_disturb_a_group_that_is_there(pair):
    """No default group before, none after."""
    first, second = pair("gloo"), pair("gloo")
    first.sender.send(weights(0).items(), 0)
    second.sender.send(weights(1).items(), 0)
    first.sender.send(weights(2).items(), 1)
    assert (first.holds(weights(2)), second.holds(weights(1))) == (True, True)
    assert not torch.distributed.is_initialized()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a GPU for each of the two ranks")
def test_nccl_moves_weights_between_gpus(pair, tmp_path):
    """From the second to the first; they never pass through the CPU."""
    both = pair("nccl")
    both.sender = open_sender("nccl", both.call, timeout_s=500, device="cuda:1")
    for version in range(2):
        sent = {name: value.to("cuda:1") for name, value in weights(version).items()}
        both.sender.send(sent.items(), version)
        assert {value.device for value in both.engine.tensors.values()} == {torch.device("cuda:0")}
        both.engine.tensors = {name: value.cpu() for name, value in both.engine.tensors.items()}
        assert both.holds(weights(version))


def test_nccl_without_a_gpu_is_refused_before_anything_is_sent(pair):
    """By the receiver."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    both = pair("nccl")
    with pytest.raises(SetUpError, match="sees no GPU; use gloo"):
        both.sender.send(weights(0).items(), 0)


def test_what_is_not_open_can_not_be_loaded(pair):
    """Nor what nobody knows."""
    both = pair("shm")
    with pytest.raises(EngineError, match="it isn't open; open it first"):
        both.call("sync_load", {"kind": "gloo", "version": 0, "size": 1})
    with pytest.raises(EngineError, match="no receiver is called 'smoke'"):
        both.call("sync_open", {"kind": "smoke"})
    with pytest.raises(EngineError, match=r"rollout.sync = 'smoke': there are auto, inline"):
        open_sender("smoke", both.call, timeout_s=1)
    with pytest.raises(EngineError, match=r"rollout.sync = 'files': it needs a folder"):
        open_sender("files", both.call, timeout_s=1)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 30), max_size=3), max_size=6),
    kinds=st.lists(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]), min_size=6),
    large=st.booleans(),
)
def test_what_is_sent_is_safetensors(shapes, kinds, large):
    """The library reads it, and we read what the library writes."""
    sent = {f"t{i}": (torch.rand(shape) * 9).to(kinds[i]) for i, shape in enumerate(shapes)}
    if large:
        sent["large"] = torch.rand(PIECE // 4 + 1024)
    flat = Flat(sent.items(), 3)
    memory = torch.empty(flat.size, dtype=torch.uint8)
    flat.fill(memory)
    joined = b"".join(map(bytes, flat.pieces()))
    assert joined == memory.numpy().tobytes()
    theirs = torch.frombuffer(bytearray(safetensors.torch.save(sent)), dtype=torch.uint8)
    for found in (safetensors.torch.load(joined), tensors_in(memory), tensors_in(theirs)):
        assert found.keys() == sent.keys()
        assert all(torch.equal(found[name], value) for name, value in sent.items())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_other_bytes_are_refused_by_name(data):
    """Cut off, longer, or changed anywhere in the header: FlatError, or tensors that lie inside of the bytes."""
    whole = bytearray(safetensors.torch.save({"a": torch.ones(3, 4), "b": torch.ones(5).half()}))
    length = int.from_bytes(whole[:8], "little")
    kind = data.draw(st.sampled_from(["cut", "more", "byte", "any"]))
    if kind == "cut":
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif kind == "more":
        whole += data.draw(st.binary(min_size=1, max_size=9))
    elif kind == "byte":
        whole[data.draw(st.integers(0, 8 + length - 1))] = data.draw(st.integers(0, 255))
    else:
        text = data.draw(st.text(max_size=60)).encode()
        whole = bytearray(len(text).to_bytes(8, "little") + text)
    try:
        found = tensors_in(torch.frombuffer(whole, dtype=torch.uint8) if whole else torch.empty(0).byte())
    except FlatError:
        return
    assert kind in ("byte", "any")
    assert sum(value.numel() * value.element_size() for value in found.values()) <= len(whole)


@pytest.fixture(scope="module")
def process(model_dir, tmp_path_factory):
    """An engine in a process of its own."""
    root = tmp_path_factory.mktemp("sync")
    spec = EngineSpec("transformers", str(model_dir), max_model_len=64)
    with closing(ProcessEngine(spec, timeout_s=500, root=root)) as engine:
        engine.root = root
        yield engine


@pytest.mark.parametrize("kind", ["auto", *KINDS])
def test_every_transport_reaches_another_process(process, model_dir, kind):
    """The digest of what the child holds is that of what was sent."""
    model = load_model(model_dir)
    process._sender = open_sender(kind, process._call, timeout_s=500, root=process.root)
    for version in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        sent = list(model.named_parameters())
        process.update_weights(sent, version)
        held = process.fingerprint()
        assert (process.policy_version, held) == (version, fingerprint_like(held, sent, version))
    process._sender.close()


@pytest.mark.parametrize("kind", ["shm", pytest.param("gloo", marks=pytest.mark.slow)])
def test_a_killed_receiver_is_named_and_leaves_nothing(model_dir, kind):
    """Killed when weights are on their way: an error that says so, within the time limit."""
    spec = EngineSpec("transformers", str(model_dir), max_model_len=64)
    tensors = [("large", torch.zeros(30_000_000))]
    with closing(ProcessEngine(spec, timeout_s=500, sync=kind)) as engine:
        call, at = engine._call, {"shm": "sync_load", "gloo": "sync_begin"}[kind]

        def killed(method, arguments, payload=None):
            answer = call(method, arguments, payload) if kind == "gloo" else None
            if method == at:
                os.kill(engine.pid, signal.SIGKILL)
            return call(method, arguments, payload) if answer is None else answer

        engine._sender._call = killed
        with pytest.raises(EngineError, match=r"ended with signal 9|weight sync by gloo: version 3"):
            engine.update_weights(tensors, 3)
        assert engine.policy_version == -1


def test_a_receiver_that_reads_no_more_is_waited_for_no_longer_than_the_limit(model_dir):
    """Stopped, and the pipe full: the error names the limit, and the engine is ended, who has half a message."""
    spec = EngineSpec("transformers", str(model_dir), max_model_len=64)
    with closing(ProcessEngine(spec, timeout_s=500, sync="inline")) as engine:
        engine._timeout_s = 0.1
        os.kill(engine.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, engine.pid, os.WSTOPPED | os.WNOWAIT)  # a stop takes its time
        with pytest.raises(EngineTimeoutError, match=r"did not read on in 0\.1 s"):
            engine.update_weights([("large", torch.zeros(1_000_000))], 3)
        engine._timeout_s = 500
        with pytest.raises(EngineError, match="signal 9"):
            engine.fingerprint()


_DIES = """
import os, signal, sys, torch
from grpo_core.rollout.build import EngineSpec
from grpo_core.rollout.subprocess_engine import ProcessEngine
from grpo_core.rollout.weights.flat import Flat
engine = ProcessEngine(EngineSpec("transformers", sys.argv[1], max_model_len=64), timeout_s=500, sync=sys.argv[2])
print(engine.pid, flush=True)
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "writing":
    Flat.fill = die
    def pieces(self):
        yield memoryview(bytearray(4096))
        die()
    Flat.pieces = pieces
else:
    call = engine._call
    engine._sender._call = lambda method, *rest: die() if method == "sync_open" else call(method, *rest)
engine.update_weights([("a", torch.zeros(1000))], 0)
"""


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("shm", "writing"),
        pytest.param("inline", "writing", marks=pytest.mark.slow),
        pytest.param("shm", "opening", marks=pytest.mark.slow),
    ],
)
def test_a_killed_sender_leaves_no_process(model_dir, kind, phase):
    """And so no memory, which had no name."""
    command = [sys.executable, "-c", _DIES, str(model_dir), kind, phase]
    sender = subprocess.Popen(command, stdout=subprocess.PIPE)
    child = int(sender.stdout.readline())
    ended = os.pidfd_open(child)
    assert sender.wait(timeout=500) == -signal.SIGKILL
    sender.stdout.close()
    # The child ends by itself, since its stdin does; a pid's descriptor can be read when it has.
    assert select.select([ended], [], [], 500)[0]
    os.close(ended)


def test_a_refused_version_leaves_the_one_that_was_there(process, model_dir):
    """As the trainer's side counts them, too."""
    sent = list(load_model(model_dir).named_parameters())
    process._sender = open_sender("shm", process._call, timeout_s=500)
    process.update_weights(sent, 3)
    with pytest.raises(EngineError, match=r"nothing was loaded: .* is missing"):
        process.update_weights(sent[1:], 4)
    assert process.policy_version == 3
    process._answers.put(({"error": "torn", "torn": True}, bytearray()))  # as the child says it
    with pytest.raises(EngineError, match="torn"):
        process._receive("sync_load")
    assert process.policy_version == -1


def test_an_abort_reaches_a_process_that_is_sampling_nothing(process, model_dir):
    """It comes between two calls, from another thread, and disturbs neither."""
    process._sender = open_sender("auto", process._call, timeout_s=500)
    stopper = threading.Thread(target=process.abort)
    stopper.start()
    stopper.join()
    process.reset_prefix_cache()
    process.update_weights(load_model(model_dir).named_parameters(), 7)
    assert process.policy_version == 7


def file_of_shape(shape) -> torch.Tensor:
    """A file of one tensor of a shape."""
    head = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return torch.frombuffer(bytearray(len(head).to_bytes(8, "little") + head), dtype=torch.uint8)


@pytest.mark.parametrize("shape", [[2**62] * 3000, [1] * 17, [0] * 10**5])
def test_a_tensor_has_few_dimensions(shape):
    """The product of a million large ones takes minutes, in which nothing else runs."""
    with pytest.raises(FlatError, match=r"a shape of \d+ dimensions"):
        tensors_in(file_of_shape(shape))


def test_a_dimension_is_a_size():
    """Not any number that JSON can hold."""
    with pytest.raises(FlatError, match="that is none in 0 bytes"):
        tensors_in(file_of_shape([10**4000, 0]))
    assert tensors_in(file_of_shape([2**62, 0]))["a"].shape == (2**62, 0)


def test_a_header_that_is_no_object_is_named():
    """It was refused by what Python's list said of itself."""
    head = b"[1]     "
    body = torch.frombuffer(bytearray(len(head).to_bytes(8, "little") + head), dtype=torch.uint8)
    with pytest.raises(FlatError, match="a header that is no object"):
        tensors_in(body)
