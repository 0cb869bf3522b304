"""The trainer: everything of a GRPO step but where its completions come from, which the modes decide."""

from __future__ import annotations

import copy
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_core import metrics, model, rewards, task
from grpo_core.advantages import group_advantages
from grpo_core.batch import make_batch
from grpo_core.determinism import settle
from grpo_core.engines import EngineSpec, engine_spec
from grpo_core.engines.wire import check_answers
from grpo_core.interrupts import Interrupts
from grpo_core.staleness import staleness
from grpo_core.types import Sample, SamplingParams
from grpo_core.update import Updater
from grpo_core.weights import PROBE_COMPLETION, Publisher, fingerprint_of, long_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from grpo_core.config import Config
    from grpo_core.engines.base import Engine
    from grpo_core.types import Completion, Prompt, Request
    from grpo_core.weights import Proof


@dataclass(frozen=True)
class Rollout:
    """What is asked of the engine for one step."""

    step: int
    prompts: tuple[Prompt, ...]
    requests: tuple[Request, ...]


class Trainer:
    """The trained model, its optimizer and its records.

    Attributes:
        config: All settings.
        version: The policy version: optimizer updates so far.
        sampling: How completions are sampled.
        history: The metrics of each step so far.
        proofs: One a weight sync.
        interrupts: Remembers a Ctrl-C.
    """

    def __init__(self, config: Config, folder: Path, report: Callable[[dict[str, Any]], None]) -> None:
        """Makes or loads the model, and starts the run's files in `folder`.

        Args:
            config: Checked settings.
            folder: Of this run; exists.
            report: Called with each step's metrics.
        """
        settle(config.train.threads)
        self.config, self.folder, self._report = config, folder, report
        self.model_dir = config.model.path or str(folder / "model")
        if not config.model.path:
            model.make_tiny(folder / "model", config.model, config.task.letters, config.train.seed)
        self.model = model.load_model(self.model_dir, config.train.device)
        self.tokenizer = model.load_tokenizer(self.model_dir)
        self.sampling = SamplingParams(
            config.sampling.max_tokens,
            config.sampling.temperature,
            () if self.tokenizer.eos_token_id is None else (int(self.tokenizer.eos_token_id),),
        )
        reference = copy.deepcopy(self.model).requires_grad_(False) if config.loss.kl_coefficient else None
        self._updater = Updater(self.model, reference, config)
        self._metrics = metrics.JsonLines(folder / "metrics.jsonl")
        self._completions = metrics.JsonLines(folder / "completions.jsonl")
        self.interrupts = Interrupts()
        self.history: list[dict[str, Any]] = []
        self.proofs: list[Proof] = []
        self._times: dict[str, float] = {}
        self._step_started = time.perf_counter()

    @property
    def version(self) -> int:
        """Optimizer updates so far."""
        return self._updater.updates

    def engine_spec(self) -> EngineSpec:
        """The engine this run samples with."""
        return engine_spec(self.config, self.model_dir)

    def publisher(self, engine: Engine) -> Publisher:
        """What publishes this model to an engine; its probe is a prompt no step has."""
        probe = task.rows(self.config.task, self.tokenizer, seed=self.config.train.seed, step=-1, count=1)
        ids = long_prompt(probe[0].ids, room=self.config.model.max_length - PROBE_COMPLETION)
        return Publisher(self.model, engine, ids, tolerance=self.config.rollout.sync_tolerance)

    def publish(self, publisher: Publisher) -> None:
        """Sends the current version to the engine and keeps the proof that it arrived."""
        with self.timed("sync"):
            self.proofs.append(publisher.publish(self.version))

    def rollout(self, step: int) -> Rollout:
        """What to ask for in a step: a function of the seed and the step alone."""
        config = self.config
        prompts = task.rows(
            config.task,
            self.tokenizer,
            seed=config.train.seed,
            step=step,
            count=config.train.prompts_per_step,
        )
        requests = task.requests_for(prompts, config.sampling.group_size, config.train.seed)
        return Rollout(step, tuple(prompts), tuple(requests))

    def learn(self, rollout: Rollout, completions: Sequence[Completion]) -> None:
        """Scores the completions, updates the policy and writes the step down.

        Raises:
            EngineError: The completions are not those that were asked for.
            StalenessError: A token is too old.
            RewardError: The reward function is broken.
            NotFiniteError: The loss or its gradient is.
        """
        config = self.config
        check_answers(list(completions), rollout.requests, config.rollout.engine)
        limit = config.rollout.max_staleness if config.rollout.mode == "async" else 0
        ages = staleness(completions, self.version, limit)
        version = self.version
        with self.timed("train"):
            samples, zero_variance = self._judged(rollout, completions)
            batch = make_batch(samples, config.train.device)
            updated = self._updater.update(batch)
        entry = {
            "step": rollout.step + 1,
            "policy_version": version,
            **_described(samples, zero_variance / len(rollout.prompts)),
            **updated,
            "staleness/mean": metrics.mean(ages),
            "staleness/max": max(ages),
            "sync/difference": self.proofs[-1].difference,
            "sync/moved": self.proofs[-1].moved,
            **self._step_times(),
        }
        self._record(rollout, samples, entry)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the wall time of what it encloses to this step's `time/<part>_s`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._times[part] = self._times.get(part, 0.0) + time.perf_counter() - started

    def fingerprint(self) -> str:
        """The digest of the policy's parameters now."""
        return fingerprint_of(self.model.named_parameters())

    def close(self) -> None:
        """Closes the run's files."""
        self._metrics.close()
        self._completions.close()

    def _judged(self, rollout: Rollout, completions: Sequence[Completion]) -> tuple[list[Sample], int]:
        """Completions with texts, rewards and advantages; and the number of groups without a signal."""
        size = self.config.sampling.group_size
        prompts = [prompt for prompt in rollout.prompts for _ in range(size)]
        texts = [self._text(completion) for completion in completions]
        columns = {key: [prompt.columns[key] for prompt in prompts] for key in prompts[0].columns}
        scores = rewards.score(rewards.letters_in_place, [prompt.text for prompt in prompts], texts, columns)
        loss = self.config.loss
        groups = [scores[start : start + size] for start in range(0, len(scores), size)]
        advantages = group_advantages(
            groups, scale=loss.advantage_scale, ddof=loss.advantage_ddof, epsilon=loss.advantage_epsilon
        )
        flat = [value for group in advantages.values for value in group]
        samples = [Sample(*parts) for parts in zip(prompts, completions, texts, scores, flat, strict=True)]
        return samples, advantages.zero_variance_groups

    def _text(self, completion: Completion) -> str:
        """The completion as text, without the stop id that ended it.

        Special tokens elsewhere stay: what a reward can't see, a policy soon learns to hide things behind.
        """
        ids = completion.ids[:-1] if completion.finish_reason == "stop" else completion.ids
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _record(self, rollout: Rollout, samples: list[Sample], entry: dict[str, Any]) -> None:
        every, last = self.config.output.completions_every, rollout.step + 1 == self.config.train.steps
        if every and (rollout.step % every == 0 or last):
            for sample in samples:
                self._completions.write(metrics.completion_entry(rollout.step + 1, sample))
        with self.interrupts.shielded():
            self._metrics.write(entry)
            self.history.append(entry)
        self._report(entry)

    def _step_times(self) -> dict[str, float]:
        now = time.perf_counter()
        times = {f"time/{part}_s": seconds for part, seconds in self._times.items()}
        times["time/step_s"] = now - self._step_started
        self._times, self._step_started = {}, now
        return times


def _described(samples: list[Sample], zero_variance: float) -> dict[str, float]:
    """What can be said of the samples themselves."""
    lengths = [len(sample.completion.ids) for sample in samples]
    scores = [sample.reward for sample in samples]
    return {
        "reward/mean": metrics.mean(scores),
        "reward/std": metrics.deviation(scores),
        "reward/zero_variance_groups": zero_variance,
        "completions/tokens": sum(lengths),
        "completions/mean_length": metrics.mean(lengths),
        "completions/truncated": metrics.mean([s.completion.finish_reason == "length" for s in samples]),
    }
