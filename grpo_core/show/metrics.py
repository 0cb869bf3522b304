"""What a run writes down: metrics and completions, one JSON object a line, flushed line by line.

An interrupted run keeps every line it had written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from grpo_core.types import Sample


class JsonLines:
    """A file of JSON objects, one a line."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Starts the file anew, or goes on behind its first `keep_bytes`: what stands there was written later.

        Raises:
            ConfigError: The file is shorter than that.
        """
        self.path = path
        self._file = path.open("ab")
        size = self._file.tell()
        if size < keep_bytes:
            self._file.close()
            raise ConfigError(
                f"{path}: {size} bytes, but the checkpoint was saved when it had {keep_bytes}: it was replaced or cut "
                "off since; put it back, or start another run under a new output.name"
            )
        self._file.truncate(keep_bytes)
        self._file.seek(keep_bytes)

    def position(self) -> int:
        """Bytes in the file, all of them whole lines: the `keep_bytes` that goes on from here."""
        return self._file.tell()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Writes one line. NaN is refused: it is not JSON, and nothing here may be NaN."""
        self._file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def completion_entry(step: int, sample: Sample) -> dict[str, Any]:
    """One line of completions.jsonl: what people read, and what a replay needs."""
    completion = sample.completion
    return {
        "step": step,
        "request": completion.request_id,
        "prompt": sample.prompt.text,
        "completion": sample.text,
        "reward": sample.reward,
        "advantage": sample.advantage,
        "finish_reason": completion.finish_reason,
        "prompt_ids": list(sample.prompt.ids),
        "ids": list(completion.ids),
        "logprobs": list(completion.logprobs),
        "versions": list(completion.versions),
    }


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; 0 of nothing.

    >>> mean([1, 2]), mean([])
    (1.5, 0.0)
    """
    return sum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """The standard deviation with n - 1; 0 of fewer than two.

    >>> deviation([1.0, 3.0])
    1.4142135623730951
    """
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return float((sum((value - centre) ** 2 for value in values) / (len(values) - 1)) ** 0.5)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file, none if there is no file; a last line cut off by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


# What run.html and docs/metrics.md say of each name; <...> stands for a name that the run brings.
EXPLAINED: dict[str, str] = {
    "step": "Rollout batches trained on so far, this one included.",
    "policy_version": "Optimizer updates made before this step: the version of the policy that it trains.",
    "reward/mean": "Mean reward of the completions sampled for this step. It should rise over tens of steps; flat "
    "from the start: nothing is rewarded, or everything; falling after a rise: look at the ratios and the entropy.",
    "reward/std": "Standard deviation of these rewards, in units of reward. Near 0 there is nothing to tell good "
    "completions from bad by.",
    "reward/zero_variance_groups": "Share of groups whose rewards are all equal, which teach nothing. Towards 1 the "
    "task is too hard, too easy, or the policy says one thing only.",
    "reward/<function>/mean": "Mean of one reward function before its weight, where there are several. One that "
    "rises while the others fall is being gamed.",
    "kl/reward": "KL to the model before training that is taken off a completion's reward (before its coefficient), in "
    "nats per completion. As for kl, slow growth is healthy.",
    "loss": "The loss of the step's last update. It has no level that is good, stays near 0 and does not fall as "
    "reward rises; only its jumps mean something.",
    "kl": "Mean KL to the model before training, in nats per token, where it is a part of the loss; 0 otherwise. Slow "
    "growth is healthy; a leap means that the policy left what the model knew.",
    "entropy": "Mean entropy of the next-token distribution, in nats per token. It falls slowly in a healthy run; near "
    "0 early on, exploration is over; rising for long, the policy dissolves into noise.",
    "clip_ratio": "Share of tokens whose gradient the clip cut off, in the step's last update: 0 with one update a "
    "step. With more, a small share is healthy; where it keeps growing, the updates are too large.",
    "ratio/mean": "Mean ratio of the policy now to the policy at the step's start, in the step's last update: exactly "
    "1 with one update a step. Away from 1 the updates are too large.",
    "grad_norm": "Norm of the gradient before it is scaled down to train.max_grad_norm. Single peaks are usual; "
    "always far above that bound, the bound sets the step size; 0: nothing to learn from.",
    "lr": "Learning rate of the step's last update.",
    "logprob_difference/mean": "Mean absolute difference of a token's log-prob, trainer against engine, in nats. With "
    "fresh tokens it is rounding, far below 1e-5 in float32. More: the engine has other weights, or another scale.",
    "logprob_difference/max": "The largest such difference of any token. Stale tokens make it large; without them, "
    "more than rounding means that the engine does not sample from the policy that is trained.",
    "importance_ratio/mean": "Mean probability ratio of the trainer's policy at the step's start to what the engine "
    "sampled from. 1 up to rounding when tokens are fresh, near 1 when stale; elsewhere the two disagree.",
    "importance_ratio/max": "The largest such ratio of any token. Above loss.correction_cap the correction bounds it; "
    "100 is a token that the trainer holds for a hundred times as likely as the engine that sampled it did.",
    "staleness/mean": "Mean age of the tokens trained on, in policy versions. 0 but in async mode.",
    "staleness/max": "Age of the oldest token, in policy versions: never above rollout.max_staleness.",
    "sync/difference": "Largest difference of a log-prob on a probe after the last weight sync, trainer against "
    "engine, in nats. Rounding; above rollout.sync_tolerance the run ends.",
    "sync/moved": "How far the update before that sync moved the probe's log-probs, in nats; nothing at the first. At "
    "0 for long, the policy does not move.",
    "completions/tokens": "Tokens sampled for this step.",
    "completions/mean_length": "Mean length of a completion, in tokens. Growth without reward is rambling; a sudden "
    "fall, that the policy found a short cut.",
    "completions/truncated": "Share of completions cut off at sampling.max_tokens. Should stay small: what "
    "the policy wanted to say behind that is neither rewarded nor learnt.",
    "completions/filtered": "Share of the completions trained on that got no gradient, being cut off "
    "(sampling.overlong_filter). High: the step learns from few.",
    "prompts/dropped": "Prompts that were too long and dropped from the data. More than a few: raise "
    "model.max_length, or look at the data.",
    "resample/rounds": "Further batches of prompts that dynamic sampling took to fill the step. Often at "
    "sampling.max_resample_times: the data holds too few prompts that the policy can learn from.",
    "resample/exhausted": "1 where even these did not fill the step with groups that have a signal. Should be 0.",
    "eval/policy_version": "The policy version that the evaluation sampled from.",
    "eval/reward/mean": "Mean reward on the evaluation prompts, which are never trained on. It should follow "
    "reward/mean; if it stays behind, the policy learns the training prompts by heart.",
    "eval/completions/mean_length": "Mean length of the evaluation's completions, in tokens.",
    "time/rollout_s": "Seconds of the step spent waiting for completions. In async mode near 0 if the engine keeps up.",
    "time/reward_s": "Seconds of the step in reward functions. Should be small; see reward.threads.",
    "time/train_s": "Seconds of the step in forward and backward passes and the optimizer.",
    "time/sync_s": "Seconds of the step in sending weights to the engine and proving that they arrived.",
    "time/eval_s": "Seconds of the step in evaluation.",
    "time/step_s": "Seconds from the end of the last step to the end of this one; the first includes the start of the "
    "engine. Steps that get slower and slower have longer completions, or a machine short of memory.",
}
