"""Publish a policy version to an engine, and prove that it arrived; otherwise raise SyncError, which ends the run.

Trainers have trained for months on completions of stale or half-loaded weights (trl#5312) because a sync that did
nothing looked like one that worked. Here the engine must report the version that was sent, and each sync is proven by:

1. *Fingerprint*: the digest of the engine's weights equals that of the trainer's, for engines that can read their
   weights. The engine chooses the exact digest, or one that is cheap enough for every update
   (`grpo_core.rollout.weights.digest`).
2. *Probe*: the engine samples a short completion from a fixed prompt and seed, and its log-probs are compared to the
   trainer's for the same ids. It needs no access to the engine's weights, and covers kernels and caches.

If each rank has an engine (`SharedEngine`), only rank 0's engine is proven.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpo_core.learn.batch import completion_batch
from grpo_core.learn.policy import Policy
from grpo_core.rollout.engine import Engine, check_answers
from grpo_core.rollout.weights.digest import digest_of_same_kind
from grpo_core.types import Completion, Request, RunError, SamplingParams

PROBE_COMPLETION = 4  # tokens: the prompt, and decode steps on top of it
# Where a digest has proven the weights, the probe only shows that sampling uses them: the prompt's pass and one decode
# step, after the end of the prompt. That halves its cost.
_SHORT_PROMPT, _SHORT_COMPLETION = 16, 2


class SyncError(RunError):
    """Raised when an engine does not have the weights that it was sent."""


@dataclass(frozen=True)
class Proof:
    """The measurements that prove one weight update.

    Attributes:
        version: The policy version that was published.
        fingerprint: True if the digests are equal; None if the engine can't read its weights.
        difference: Largest difference of a log-prob on the probe, trainer against engine.
        moved: Largest change of a log-prob of the previous probe by the update. A probe can distinguish new weights
            from old ones only if this is well above rounding. None without a previous probe, and if a digest proves the
            weights and the probe sampled other ids than the previous one.
    """

    version: int
    fingerprint: bool | None
    difference: float
    moved: float | None


class Publisher:
    """Publishes policy versions to an engine, and keeps the last probe to measure how much an update changed it.

    Attributes:
        last: The completion of the last probe; None before the first.
    """

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        probe_ids: tuple[int, ...],
        *,
        tolerance: float,
        exact: bool = True,
    ) -> None:
        """Store the policy and the engine; nothing is sent yet.

        Args:
            policy: The trainer's policy.
            engine: The engine that gets the weights.
            probe_ids: Prompt of the probe; an engine with a fingerprint gets only its last 16 ids.
            tolerance: Largest difference of a log-prob that counts as rounding.
            exact: Whether trainer and engine both compute in float32.
        """
        self._policy, self._engine = policy, engine
        short = engine.capabilities.fingerprint
        self._request = Request("probe", probe_ids[-_SHORT_PROMPT:] if short else probe_ids, seed=0)
        self._params = SamplingParams(max_tokens=_SHORT_COMPLETION if short else PROBE_COMPLETION)
        self._tolerance, self._exact = tolerance, exact
        self.last: Completion | None = None

    def publish(self, version: int) -> Proof:
        """Send all parameters and prove that they arrived.

        Raises:
            SyncError: The engine reports another version, or has or samples from other weights.
            EngineError: The engine failed.
        """
        name = self._engine.name
        sent = list(self._policy.engine_tensors())
        self._engine.update_weights(sent, version)
        if (reported := self._engine.policy_version) != version:
            raise SyncError(
                f"weight sync to the {name} engine: sent version {version}, it reports {reported}"
            )
        digest = self._engine.fingerprint()
        expected = None if digest is None else digest_of_same_kind(digest, sent, version)
        if digest is not None and digest != expected:
            raise SyncError(
                f"weight sync to the {name} engine: after version {version} it holds weights {digest[:24]}, but "
                f"{str(expected)[:24]} were sent: the update was lost or incomplete"
            )
        completions = self._engine.generate([self._request], self._params)
        (probe,) = check_answers(completions, [self._request], name, vocabulary=self._policy.vocabulary)
        difference, moved = self._compare(probe, digest=digest is not None)
        # An engine on the old weights must not pass: there, the fixed seed gives the old completion, so the difference
        # would be exactly `moved`. Half of it is the limit, unless it is as small as rounding.
        # In 16 bits rounding is as large as a small update; weights that are proven by fingerprint need no such limit.
        rounding = self._tolerance / 50 if self._exact else self._tolerance / (4 if digest is None else 1)
        limit = self._tolerance if moved is None else min(self._tolerance, max(rounding, moved / 2))
        # Written so that NaN is a failure, too.
        if not difference <= limit:
            raise SyncError(
                f"weight sync to the {name} engine: after version {version} its log-probs differ from the "
                f"trainer's by up to {difference:.2g} on the probe, where {limit:.2g} is allowed "
                f"(the update moved them by {0.0 if moved is None else moved:.2g}); it may hold old or partial "
                "weights, or keys cached under old ones; if it is rounding, raise rollout.sync_tolerance"
            )
        self.last = probe
        return Proof(version, None if digest is None else True, difference, moved)

    def _compare(self, probe: Completion, *, digest: bool) -> tuple[float, float | None]:
        """Return the largest log-prob difference of trainer and engine on this probe, and on the previous one or None.

        If both probes have the same ids, one row of the batch serves both. Other ids already prove that the engine no
        longer has the old weights, because the seed is fixed. Then the previous probe is compared only for an engine
        without a digest.
        """
        rows, last = [probe], self.last
        if last is not None and last.ids != probe.ids:
            if digest:
                last = None
            else:
                rows.append(last)
        batch = completion_batch([(self._request.prompt_ids, row) for row in rows], self._policy.device)
        with torch.no_grad():
            ours_BT, _ = self._policy.logprobs(batch, self._params.temperature)
        engine_BT = torch.tensor([probe.logprobs, *([] if last is None else [last.logprobs])]).to(ours_BT)
        differences = (ours_BT - engine_BT).abs().amax(1).tolist()
        return differences[0], differences[1] if last is not None else None
