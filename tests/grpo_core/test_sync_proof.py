"""A weight sync is proven by fingerprint and log-probs, and an update that did not arrive is detected."""

import pytest

from grpo_core.publish import Publisher, SyncError
from grpo_core.rollout.transformers_engine import TransformersEngine
from tests.gpu.devices import DEVICES
from tests.grpo_core.conftest import make_policy, perturb


class LostUpdate(TransformersEngine):
    """Report the new version and keep the old weights, as an engine reloaded from disk does (trl#5312)."""

    def update_weights(self, tensors, version):
        """Only store the version."""
        if version > 0:
            self.policy_version = version
        else:
            super().update_weights(tensors, version)


class LostUpdateUnreadable(LostUpdate):
    """Lose updates and, like vLLM, give no fingerprint, so that only the probe detects the loss."""

    def fingerprint(self):
        """Return no fingerprint."""


class HalfUpdate(TransformersEngine):
    """Load everything except the last layer's norm."""

    def update_weights(self, tensors, version):
        """Load all parameters but one."""
        norm = dict(self._model.named_parameters())["model.norm.weight"]
        super().update_weights({**dict(tensors), "model.norm.weight": norm}.items(), version)


class OldVersion(TransformersEngine):
    """Load the weights and still report the old version."""

    def update_weights(self, tensors, version):
        """Load the weights under the old version."""
        super().update_weights(tensors, min(version, 0))


def publisher(kind, model_dir, device="cpu"):
    """Return the trainer's model, and its publisher to an engine of a kind; version 0 is published."""
    policy = make_policy(model_dir, **{"train.device": device})
    engine = kind(model_dir, max_model_len=64, device=device)
    sync = Publisher(policy, engine, (0, 1, 2, 10), tolerance=1e-3)
    sync.publish(0)
    return policy.causal, sync


@pytest.mark.parametrize("device", DEVICES)
def test_every_update_is_proven_twice(model_dir, device):
    """Equal fingerprints and the log-probs of a probe prove three updates; where it is known, the move is large."""
    model, sync = publisher(TransformersEngine, model_dir, device)
    for version in range(1, 4):
        perturb(model.parameters(), 1e-2)
        proof = sync.publish(version)
        assert proof.fingerprint is True
        assert proof.difference < (1e-5 if device == "cpu" else 1e-4)
        assert proof.moved is None or proof.moved > 1e-3


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (LostUpdate, "it holds weights .* the update was lost or incomplete"),
        (HalfUpdate, "the update was lost or incomplete"),
        (OldVersion, "sent version 1, it reports 0"),
    ],
)
def test_unproven_update_is_refused(model_dir, kind, message):
    """`publish` raises SyncError if weights are old or partial, or if the engine reports another version."""
    model, sync = publisher(kind, model_dir)
    perturb(model.parameters(), 1e-2)
    with pytest.raises(SyncError, match=message):
        sync.publish(1)


@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4])
def test_probe_detects_stale_weights_after_small_steps(model_dir, size):
    """A lost update is noticed even if it would move log-probs by less than the tolerance."""
    model, sync = publisher(LostUpdateUnreadable, model_dir)
    perturb(model.parameters(), size)
    with pytest.raises(SyncError, match=r"differ from .* on the probe.* it may hold old or partial weights"):
        sync.publish(1)
