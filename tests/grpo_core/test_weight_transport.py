"""Weight transports deliver all weights or none, in one process and to another, also after a failed transfer.

Shared memory that no sender made is refused.
"""

import fcntl
import gc
import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.remote_engines import ProcessEngine
from grpo_core.rollout.weights.digest import digest_of_same_kind
from grpo_core.rollout.weights.transport import Sender, TensorFile, load_shared
from grpo_core.tasks.model import load_model
from tests.gpu.devices import DEVICES
from tests.grpo_core.conftest import engine_config
from tests.limits import file_size_limit

KINDS = ("http", "shm")


def make_weights(seed: int) -> dict[str, torch.Tensor]:
    """Return weights of several dtypes and sizes, one of them not contiguous."""
    torch.manual_seed(seed)
    return {
        "embed": torch.randn(700, 513),
        "norm": torch.randn(7).bfloat16(),
        "turned": torch.randn(64, 32).T,
        "scale": torch.tensor(float(seed)),
        "empty": torch.empty(0, 3),
        "mask": torch.rand(5) > 0.5,
    }


class Receiver:
    """Receive the weights of a sender in this process, and store copies of the tensors."""

    def __init__(self):
        self.tensors, self.names, self.mapped, self.refuse = {}, [], [], None

    def sender(self, kind) -> Sender:
        return Sender(kind, self.load, self.upload)

    def load(self, name, version) -> int:
        """Map shared memory and store its tensors."""
        self.names.append(name)
        self.mapped.append(load_shared(name, 2**30))
        return self.store(self.mapped[-1], version)

    def upload(self, file, version) -> int:
        return self.store(safetensors.torch.load(bytes(file.to_bytes())), version)

    def store(self, tensors, version) -> int:
        """Store copies of the tensors, or raise the error `refuse`."""
        if self.refuse:
            raise self.refuse
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return version

    def has_weights(self, tensors) -> bool:
        return self.tensors.keys() == tensors.keys() and all(
            torch.equal(self.tensors[name], value) for name, value in tensors.items()
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [*KINDS, "auto"])
def test_every_transport_moves_weights_bit_for_bit(kind, device):
    """Each transport sends three versions in a row from a device, the last one larger."""
    receiver = Receiver()
    sender = receiver.sender(kind)
    for version in range(3):
        sent = make_weights(version) | ({"more": torch.randn(3, 5, 70_000)} if version == 2 else {})
        assert sender.send(((name, value.to(device)) for name, value in sent.items()), version) == version
        assert receiver.has_weights(sent)
    assert len(receiver.names) == (3 if kind in ("auto", "shm") else 0)


def test_shared_memory_is_anonymous_and_used_again():
    """Versions of one size share the memory, whose size is sealed; it is freed with its last user."""

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:grpo-core-weights")

    gc.collect()  # memory of earlier tests
    before, receiver = mappings(), Receiver()
    sender = receiver.sender("shm")
    for version in range(2):
        sender.send(make_weights(version).items(), version)
    (name,) = set(receiver.names)
    assert re.fullmatch(rf"/proc/{os.getpid()}/fd/\d+", name)
    with pytest.raises(PermissionError):
        os.truncate(name, 1)
    del sender
    gc.collect()
    assert not os.path.lexists(name)
    assert torch.equal(receiver.mapped[-1]["embed"], make_weights(1)["embed"])
    assert mappings() > before
    receiver.mapped.clear()
    gc.collect()
    assert mappings() == before


@pytest.mark.parametrize("error", [EngineError("refused"), EngineTimeoutError("late")])
def test_memory_of_a_failed_update_is_not_written_again(error):
    """An engine that answers too late may still read it."""
    receiver = Receiver()
    sender, receiver.refuse = receiver.sender("shm"), error
    with pytest.raises(EngineError):
        sender.send(make_weights(0).items(), 0)
    receiver.refuse = None
    sender.send(make_weights(1).items(), 1)
    assert receiver.has_weights(make_weights(1))
    assert torch.equal(receiver.mapped[0]["embed"], make_weights(0)["embed"])


@pytest.mark.parametrize("fault", ["file", "elsewhere", "size", "gone", "unsealed", "garbage", "shape"])
def test_only_sender_memory_is_mapped(tmp_path, fault):
    """Refused: files, other paths, closed descriptors, too much or unsealed memory, other bytes, impossible shapes."""
    descriptor = os.memfd_create("grpo-core-weights", os.MFD_ALLOW_SEALING)
    header = b'{"a":{"dtype":"F32","shape":[18446744073709551615,0],"data_offsets":[0,0]}}'
    written = len(header).to_bytes(8, "little") + header if fault == "shape" else b"garbage" * 9
    os.write(descriptor, written)
    name, most = f"/proc/{os.getpid()}/fd/{descriptor}", 10 if fault == "size" else 2**20
    if fault == "file":
        os.dup2(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT), descriptor)
    elif fault == "elsewhere":
        name = "/dev/zero"
    elif fault == "gone":
        name = f"/proc/{os.getpid()}/fd/99999"
    elif fault != "unsealed":
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with pytest.raises(EngineError, match="weight sync by shared memory"):
        load_shared(name, most)
    os.close(descriptor)


def test_missing_room_for_shared_memory_is_an_error():
    """The error has the size and names the other transport."""
    reason = r"\d{7} bytes.*File too large; make room, or set rollout.sync = 'http'"
    with file_size_limit(4096), pytest.raises(EngineError, match=reason):
        Receiver().sender("auto").send(make_weights(0).items(), 0)


def test_auto_uploads_on_a_system_without_shared_memory(monkeypatch):
    """An explicit choice of shared memory is an error there."""
    monkeypatch.delattr(os, "memfd_create")
    receiver = Receiver()
    receiver.sender("auto").send(make_weights(0).items(), 0)
    assert receiver.has_weights(make_weights(0))
    assert receiver.names == []
    with pytest.raises(EngineError, match="memfd_create"):
        receiver.sender("shm").send(make_weights(0).items(), 0)


@pytest.mark.parametrize("kind", ["smoke", "files"])
def test_unknown_transport_is_refused(kind):
    """The error lists the existing transports."""
    with pytest.raises(EngineError, match=rf"rollout.sync = '{kind}': there are auto, http and shm"):
        Receiver().sender(kind)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 30), max_size=3), max_size=6),
    kinds=st.lists(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]), min_size=6),
)
def test_payload_is_safetensors(shapes, kinds):
    """The safetensors library reads the payload."""
    sent = {f"t{i}": (torch.rand(shape) * 9).to(kinds[i]) for i, shape in enumerate(shapes)}
    actual = safetensors.torch.load(bytes(TensorFile(sent.items()).to_bytes()))
    assert actual.keys() == sent.keys()
    assert all(torch.equal(actual[name], value) for name, value in sent.items())


@pytest.fixture(scope="module")
def process(model_dir):
    """Yield an engine in a separate process."""
    with closing(ProcessEngine(engine_config(), model_dir)) as engine:
        yield engine


@pytest.mark.parametrize("kind", ["auto", *KINDS])
def test_every_transport_reaches_another_process(process, model_dir, kind):
    """The child's digest equals that of the sent weights; a refused version keeps the one before."""
    model = load_model(model_dir)
    process._sender = Sender(kind, process._load_shared, process._upload)
    for version in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        sent = list(model.named_parameters())
        process.update_weights(sent, version)
        stored = process.fingerprint()
        assert (process.policy_version, stored) == (version, digest_of_same_kind(stored, sent, version))
    with pytest.raises(EngineError, match=r"nothing was loaded: .* is missing"):
        process.update_weights(sent[1:], 4)
    assert (process.policy_version, process.fingerprint()) == (1, stored)


def test_killed_receiver_is_reported(model_dir):
    """If the receiver is killed during an update, the error says how its process ended."""
    with closing(ProcessEngine(engine_config(sync="shm"), model_dir)) as engine:
        load = engine._load_shared

        def killed(name, version):
            os.kill(engine.pid, signal.SIGKILL)
            return load(name, version)

        engine._sender._load = killed
        with pytest.raises(EngineError, match=r"its process ended with signal 9"):
            engine.update_weights([("a", torch.zeros(1000))], 3)
        assert engine.policy_version == -1
