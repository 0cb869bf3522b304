"""Every transport delivers all weights or none, also with failures in between."""

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
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.subprocess_engine import ProcessEngine
from grpo_core.rollout.weights import sync
from grpo_core.rollout.weights.digest import fingerprint_like
from grpo_core.rollout.weights.flat import Flat, parse_tensors
from grpo_core.rollout.weights.sync import Receiver, Sender, SetUpError, TornError
from grpo_core.tasks.model import load_model

KINDS = ("inline", "shm")


def weights(seed: int) -> dict[str, torch.Tensor]:
    """Make weights of several types and sizes, one larger than the pieces that are sent."""
    torch.manual_seed(seed)
    return {
        "embed": torch.randn(700, 513),
        "norm": torch.randn(7).bfloat16(),
        "turned": torch.randn(64, 32).T,
        "scale": torch.tensor(float(seed)),
        "empty": torch.empty(0, 3),
        "mask": torch.rand(5) > 0.5,
    }


class StoringEngine:
    """A fake engine that stores copies of received weights."""

    def __init__(self):
        self.policy_version, self.tensors = -1, {}

    def update_weights(self, tensors, version):
        self.tensors = {name: tensor.clone() for name, tensor in tensors}
        self.policy_version = version


class Pair:
    """A sender and a receiver in one process; the control channel between them is a call of a function."""

    def __init__(self, kind):
        self.engine, self.receiver = StoringEngine(), Receiver()
        self.before = {}  # method -> what happens before it is called
        self.sender = Sender(kind, self.call)

    def call(self, method, arguments, payload=None):
        arguments = json.loads(json.dumps(arguments))  # what a channel would do
        self.before.get(method, lambda _: None)(arguments)
        if payload is not None:  # as an upload's body
            tensors = parse_tensors(payload.joined()[: arguments["size"]], "weight sync inline")
            self.engine.update_weights(tensors.items(), arguments["version"])
            return {"version": self.engine.policy_version}
        if method == "sync_load":
            return self.receiver.load(arguments, self.engine)
        return getattr(self.receiver, method[5:])(arguments)

    def has_weights(self, tensors) -> bool:
        stored = self.engine.tensors
        return stored.keys() == tensors.keys() and all(torch.equal(stored[n], v) for n, v in tensors.items())

    def close(self):
        self.sender.close()
        self.receiver.close()


@pytest.fixture
def pair():
    """Build pairs, and end them."""
    built = []

    def build(kind) -> Pair:
        built.append(Pair(kind))
        return built[-1]

    yield build
    for item in built:
        item.close()


@pytest.mark.parametrize("kind", [*KINDS, "auto", "http"])
def test_every_transport_moves_weights_bit_for_bit(pair, kind):
    """Three versions in a row, the last one larger."""
    both = pair(kind)
    for version in range(3):
        sent = weights(version) | ({"more": torch.randn(3, 5, 70_000)} if version == 2 else {})
        assert both.sender.send(sent.items(), version) == version
        assert both.has_weights(sent)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_version_does_not_disturb_the_next(pair, kind):
    """The engine's own reason reaches the sender."""
    both = pair(kind)

    def refuse(tensors, version):
        raise EngineError("odd engine, update_weights: nothing was loaded: a is missing")

    both.engine.update_weights = refuse
    with pytest.raises(EngineError, match="nothing was loaded: a is missing"):
        both.sender.send(weights(0).items(), 0)
    del both.engine.update_weights
    both.sender.send(weights(1).items(), 1)
    assert both.has_weights(weights(1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_is_not_what_came_loads_nothing(pair, kind):
    """One byte less than was sent."""
    both = pair(kind)
    both.sender.send(weights(0).items(), 0)
    both.before["sync_load"] = lambda arguments: arguments.update(size=arguments["size"] - 1)
    with pytest.raises(EngineError, match=r"weight sync (inline|by shared memory): not safetensors"):
        both.sender.send(weights(1).items(), 1)
    assert (both.engine.policy_version, both.has_weights(weights(0))) == (0, True)


def test_shared_memory_has_no_name_and_is_mapped_only_where_it_is_used(pair):
    """Its descriptor is open for as long as the receiver opens it; the memory goes with the last of the two."""
    both, observed = pair("shm"), {}
    both.before["sync_open"] = lambda call: observed.update(name=call["name"])
    both.sender.send(weights(0).items(), 0)
    assert re.fullmatch(rf"/proc/{os.getpid()}/fd/\d+", observed["name"])

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:grpo-core-weights")

    before = mappings()
    both.close()
    both.engine.tensors = {}
    gc.collect()
    assert mappings() == before - 2


def test_a_half_written_version_is_not_loaded(pair):
    """A sender that dies or gives up in the middle leaves a half-written version."""
    both = pair("shm")
    both.sender.send(weights(0).items(), 0)
    both.before["sync_load"] = lambda _: both.sender._memory[:8].add_(1)
    with pytest.raises(EngineError, match="is half written; nothing was loaded"):
        both.sender.send(weights(1).items(), 1)
    assert both.has_weights(weights(0))


def test_a_version_that_is_replaced_while_it_is_read_is_an_error(pair):
    """The engine may have parts of both: the sender gets an error, and the next version is complete again."""
    both = pair("shm")
    both.sender.send(weights(0).items(), 0)
    load = both.engine.update_weights

    def overtaken(tensors, version):
        load(tensors, version)
        sync._counters(both.sender._memory).add_(1)  # another version is there by now

    both.engine.update_weights = overtaken
    with pytest.raises(TornError, match="may hold a mix of two versions; send one again"):
        both.sender.send(weights(1).items(), 1)
    both.engine.update_weights = load
    both.sender.send(weights(2).items(), 2)
    assert both.has_weights(weights(2))


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
    """Limit the file size to simulate a full disk; the error is then 'File too large'."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_room_the_error_says_how_much(pair):
    """Nothing is loaded."""
    both = pair("shm")
    with no_room(), pytest.raises(SetUpError, match=r"\d{7} bytes.*File too large; make room"):
        both.sender.send(weights(0).items(), 0)
    assert both.engine.policy_version == -1


@pytest.mark.parametrize("fault", ["no room", "no such system"])
def test_auto_goes_inline_where_there_is_no_shared_memory_and_says_so(pair, monkeypatch, capsys, fault):
    """Once, and the weights arrive."""
    if fault == "no such system":
        monkeypatch.delattr(os, "memfd_create")
    both = pair("auto")
    with no_room(4096 if fault == "no room" else resource.RLIM_INFINITY):
        for version in range(2):
            both.sender.send(weights(version).items(), version)
            assert both.has_weights(weights(version))
    message = capsys.readouterr().err
    assert message.count("weights go inline, which is slower") == 1
    assert ("File too large" if fault == "no room" else "memfd_create") in message


def test_what_is_not_open_can_not_be_loaded(pair):
    """Neither can an unknown version."""
    both = pair("shm")
    with pytest.raises(EngineError, match="not open; open them first"):
        both.call("sync_load", {"version": 0, "size": 1, "generation": 1})
    with pytest.raises(EngineError, match=r"rollout.sync = 'smoke': there are auto, inline"):
        Sender("smoke", both.call)
    with pytest.raises(EngineError, match=r"rollout.sync = 'files': there are auto, inline"):
        Sender("files", both.call)


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
        sent["large"] = torch.rand(2**18 + 1024)
    memory = Flat(sent.items(), 3).joined()
    theirs = torch.frombuffer(bytearray(safetensors.torch.save(sent)), dtype=torch.uint8)
    for actual in (
        safetensors.torch.load(memory.numpy().tobytes()),
        parse_tensors(memory, "here"),
        parse_tensors(theirs, "here"),
    ):
        assert actual.keys() == sent.keys()
        assert all(torch.equal(actual[name], value) for name, value in sent.items())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_other_bytes_are_refused_by_name(data):
    """Cut off, longer, or changed anywhere in the header: an error, or tensors that lie inside of the bytes."""
    complete = bytearray(safetensors.torch.save({"a": torch.ones(3, 4), "b": torch.ones(5).half()}))
    length = int.from_bytes(complete[:8], "little")
    kind = data.draw(st.sampled_from(["cut", "more", "byte", "any"]))
    if kind == "cut":
        complete = complete[: data.draw(st.integers(0, len(complete) - 1))]
    elif kind == "more":
        complete += data.draw(st.binary(min_size=1, max_size=9))
    elif kind == "byte":
        complete[data.draw(st.integers(0, 8 + length - 1))] = data.draw(st.integers(0, 255))
    else:
        text = data.draw(st.text(max_size=60)).encode()
        complete = bytearray(len(text).to_bytes(8, "little") + text)
    try:
        memory = torch.frombuffer(complete, dtype=torch.uint8) if complete else torch.empty(0).byte()
        actual = parse_tensors(memory, "here")
    except EngineError:
        return
    assert kind in ("byte", "any")
    assert sum(value.numel() * value.element_size() for value in actual.values()) <= len(complete)


@pytest.fixture(scope="module")
def process(model_dir):
    """Start an engine in a separate process."""
    spec = EngineSpec("transformers", str(model_dir), max_model_len=64)
    with closing(ProcessEngine(spec, timeout_s=500)) as engine:
        yield engine


@pytest.mark.parametrize("kind", ["auto", *KINDS])
def test_every_transport_reaches_another_process(process, model_dir, kind):
    """The child's digest equals that of the sent weights."""
    model = load_model(model_dir)
    process._sender = Sender(kind, process._call_receiver)
    for version in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        sent = list(model.named_parameters())
        process.update_weights(sent, version)
        stored = process.fingerprint()
        assert (process.policy_version, stored) == (version, fingerprint_like(stored, sent, version))
    process._sender.close()


def test_a_killed_receiver_is_named_and_leaves_nothing(model_dir):
    """Killed during an update: an error that names it, within the time limit."""
    spec = EngineSpec("transformers", str(model_dir), max_model_len=64)
    with closing(ProcessEngine(spec, timeout_s=500, sync="shm")) as engine:
        call = engine._call_receiver

        def killed(method, arguments, payload=None):
            if method == "sync_load":
                os.kill(engine.pid, signal.SIGKILL)
            return call(method, arguments, payload)

        engine._sender._call = killed
        with pytest.raises(EngineError, match=r"its process \d+ ended with signal 9"):
            engine.update_weights([("a", torch.zeros(1000))], 3)
        assert engine.policy_version == -1


_DIES_WRITING = """
import os, signal, sys, torch
from grpo_core.rollout.build import EngineSpec
from grpo_core.rollout.subprocess_engine import ProcessEngine
from grpo_core.rollout.weights.flat import Flat
engine = ProcessEngine(EngineSpec("transformers", sys.argv[1], max_model_len=64), timeout_s=500, sync="shm")
print(engine.pid, flush=True)
Flat.fill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
engine.update_weights([("a", torch.zeros(1000))], 0)
"""


def test_a_killed_sender_leaves_no_process(model_dir):
    """And so no memory, which had no name."""
    command = [sys.executable, "-c", _DIES_WRITING, str(model_dir)]
    sender = subprocess.Popen(command, stdout=subprocess.PIPE)
    child = int(sender.stdout.readline())
    ended = os.pidfd_open(child)
    assert sender.wait(timeout=500) == -signal.SIGKILL
    sender.stdout.close()
    # The child ends by itself, since its stdin does; a pid's descriptor can be read when it has.
    assert select.select([ended], [], [], 500)[0]
    os.close(ended)


def test_a_refused_version_leaves_the_one_that_was_there(process, model_dir):
    """The engine's client still reports the previous version."""
    sent = list(load_model(model_dir).named_parameters())
    process._sender = Sender("shm", process._call_receiver)
    process.update_weights(sent, 3)
    with pytest.raises(EngineError, match=r"nothing was loaded: .* is missing"):
        process.update_weights(sent[1:], 4)
    assert process.policy_version == 3


def test_an_abort_reaches_a_process_that_is_sampling_nothing(process, model_dir):
    """It comes between two calls, from another thread, and disturbs neither."""
    process._sender = Sender("auto", process._call_receiver)
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
    with pytest.raises(EngineError, match=r"a shape of \d+ dimensions"):
        parse_tensors(file_of_shape(shape), "here")


def test_a_dimension_is_a_size():
    """Not any number that JSON can hold."""
    with pytest.raises(EngineError, match="that does not fit in 0 bytes"):
        parse_tensors(file_of_shape([10**4000, 0]), "here")
    assert parse_tensors(file_of_shape([2**62, 0]), "here")["a"].shape == (2**62, 0)


def test_a_header_that_is_no_object_is_named():
    """The error names the header's type; it once was Python's own message."""
    head = b"[1]     "
    body = torch.frombuffer(bytearray(len(head).to_bytes(8, "little") + head), dtype=torch.uint8)
    with pytest.raises(EngineError, match="a header that is no object"):
        parse_tensors(body, "here")
