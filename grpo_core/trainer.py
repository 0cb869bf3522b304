"""The trainer: everything of a GRPO step but where its completions come from, which the modes decide."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from grpo_core import metrics
from grpo_core.files import RunFiles, due
from grpo_core.learn.advantages import group_advantages
from grpo_core.learn.batch import make_batch
from grpo_core.learn.policy import Policy
from grpo_core.learn.pool import Pool, cut_off
from grpo_core.learn.staleness import staleness
from grpo_core.learn.update import Updater
from grpo_core.machine import checkpoint
from grpo_core.machine.checkpoint import State, completion_from
from grpo_core.machine.determinism import settle
from grpo_core.machine.distributed import World
from grpo_core.machine.interrupts import Interrupts
from grpo_core.machine.resources import check_devices, check_processes
from grpo_core.machine.watchdog import Watchdog
from grpo_core.publish import PROBE_COMPLETION, Proof, Publisher, long_prompt
from grpo_core.rollout.build import EngineSpec, engine_spec
from grpo_core.rollout.weights.digest import exact_digest
from grpo_core.rollout.wire import check_answers
from grpo_core.tasks import model
from grpo_core.tasks.data import build_eval_prompts, build_prompts
from grpo_core.tasks.rewards import build_rewards
from grpo_core.tasks.task import derived_seed, requests_for
from grpo_core.types import Request, Sample, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from grpo_core.config import Config
    from grpo_core.rollout.engine import Engine
    from grpo_core.types import Completion, Group, Prompt


@dataclass(frozen=True)
class Rollout:
    """What is asked of the engine at one time: a batch of prompts, several completions each."""

    number: int
    prompts: tuple[Prompt, ...]
    requests: tuple[Request, ...]


@dataclass
class InFlight:
    """A rollout that was asked for and is not trained on yet.

    Attributes:
        rollout: What was asked for.
        begun: The completions so far, by request id, where a weight update came in between.
    """

    rollout: Rollout
    begun: dict[str, Completion] = field(default_factory=dict)


class Trainer:
    """The trained policy, its optimizer and its records.

    Attributes:
        config: All settings.
        world: The processes that train together.
        policy: What is trained.
        step: Steps done.
        flight: Rollouts that an engine is sampling ahead of the trainer; kept by the async mode.
        sampling: How completions are sampled.
        history: The metrics of each step so far.
        proofs: One a weight sync.
        interrupts: Remembers a Ctrl-C.
        engine_name: What samples; of a server that is not yet reached, `unknown`.
    """

    def __init__(
        self, config: Config, folder: Path, report: Callable[[dict[str, Any]], None], *, resume: bool = False
    ) -> None:
        """Makes or loads the model, and starts the run's files in `folder`, or goes on with them.

        Args:
            config: Checked settings.
            folder: Of this run; exists.
            report: Called with each step's metrics.
            resume: Go on from the newest checkpoint, if there is one.

        Raises:
            ConfigError: The settings can't be met on this machine, or data or model can't be read.
        """
        settle(config.train.threads)
        self.config, self.folder, self._report = config, folder, report
        self.engine_name = "unknown" if config.rollout.port else config.rollout.engine
        self.world = World(config.train.device)
        check_devices(config, self.world.size, torch.cuda.device_count())
        check_processes(config, self.world.size)
        found = checkpoint.load(folder / "checkpoints") if resume else None
        self.model_dir = config.model.path or str(folder / "model")
        if not config.model.path and found is None and self.world.first:
            model.make_tiny(folder / "model", config.model, config.task.letters, config.train.seed)
        self.world.from_first(None)  # nobody reads the model before it is written
        self.policy = Policy(self.model_dir, config, self.world)
        self.tokenizer = model.load_tokenizer(self.model_dir)
        stop = self.tokenizer.eos_token_id
        self.sampling = SamplingParams(
            config.sampling.max_tokens, config.sampling.temperature, () if stop is None else (int(stop),)
        )
        self.prompts = build_prompts(config, self.tokenizer)
        self._eval_prompts = build_eval_prompts(config, self.tokenizer) if config.eval.every else []
        self._rewards = build_rewards(config)
        self._updater = Updater(self.policy, config, self.world)
        self.interrupts = Interrupts()
        self.proofs: list[Proof] = []
        self.step, self._round = 0, 0
        self.flight: list[InFlight] = []
        self._pool = Pool(config)
        self._evaluated: dict[str, float] = {}
        self._evaluated_at = -1
        self._resumed: tuple[State, dict[str, dict[str, Any]]] | None = None
        # The weights that rollouts in flight are sampled with, while they are not the policy's own any more.
        self._held: tuple[int, dict[str, Any]] | None = None
        if found is not None:
            self._restore(*found)
        elif self.world.first:
            checkpoint.clear(folder / "checkpoints")
        self._watchdog = Watchdog(folder / "stalls.txt", config.train.stall_s)
        kept = found[0].files if found else {}
        self._files = RunFiles(config, folder, kept) if self.world.first else None
        self.history = metrics.read_metrics(folder / "metrics.jsonl") if found else []
        self._times: dict[str, float] = {}
        self._step_started = time.perf_counter()

    @property
    def version(self) -> int:
        """The policy version: optimizer updates so far."""
        return self._updater.updates

    def steps(self) -> Iterator[int]:
        """The steps that are left."""
        while self.step < self.config.train.steps:
            yield self.step

    def engine_spec(self) -> EngineSpec:
        """The engine this run samples with."""
        return engine_spec(self.config, self.model_dir)

    def publisher(self, engine: Engine) -> Publisher:
        """What publishes this policy to an engine, which after a resume holds what it held before."""
        ids = self.prompts.batch(0, 1)[0].ids
        probe = long_prompt(ids, room=self.config.model.max_length - PROBE_COMPLETION)
        sync = Publisher(self.policy, engine, probe, tolerance=self.config.rollout.sync_tolerance)
        self._sync, self.engine_name = sync, engine.name
        if self._resumed is None:
            return sync
        (state, tensors), self._resumed = self._resumed, None
        if self.flight:
            self._held = (state.flight_version, tensors["sampling"])
            with self.policy.having(tensors["sampling"]):
                sync.publish(state.flight_version)
        elif state.probe is not None:
            sync.last = completion_from(state.probe)
        return sync

    def publish(self, sync: Publisher) -> None:
        """Sends the current version to the engine and keeps the proof that it arrived."""
        with self.timed("sync"):
            self.proofs.append(sync.publish(self.version))
        ahead = self.config.rollout.mode == "async" and self.config.rollout.max_staleness > 0
        if ahead and self.config.checkpoint.every:
            self._held = (self.version, {name: value.clone() for name, value in self.policy.state().items()})

    def rollout(self, number: int) -> Rollout:
        """What to ask for: a function of the seed and the number alone."""
        config = self.config
        prompts = self.prompts.batch(number, config.train.prompts_per_step)
        requests = requests_for(prompts, config.sampling.group_size, config.train.seed)
        return Rollout(number, tuple(prompts), tuple(requests))

    def next_rollout(self) -> Rollout:
        """The next batch of prompts."""
        self._round += 1
        return self.rollout(self._round - 1)

    def evaluate(self, engine: Engine) -> None:
        """If it is time: samples the evaluation prompts, from this very version, between two calls of the training."""
        options = self.config.eval
        if not options.every or self.step % options.every or self._evaluated_at == self.step:
            return
        seed = self.config.train.seed
        requests = [Request(p.id, p.ids, derived_seed(seed, "eval", p.id)) for p in self._eval_prompts]
        with self.timed("eval"):
            completions = engine.generate(requests, replace(self.sampling, temperature=options.temperature))
            check_answers(completions, requests, engine.name, vocabulary=self.policy.vocabulary)
            staleness(completions, self.version, 0)
            samples = self._judged(self._eval_prompts, completions)
        self._evaluated_at = self.step  # not before: an engine that failed is asked again when it is back
        self._evaluated = {
            "eval/policy_version": self.version,
            "eval/reward/mean": metrics.mean([sample.reward for sample in samples]),
            "eval/completions/mean_length": metrics.mean([len(c.ids) for c in completions]),
        }

    def ready(self) -> bool:
        """Whether the step has what it trains on."""
        return self._pool.ready()

    def take(self, rollout: Rollout, completions: Sequence[Completion]) -> None:
        """Scores the completions of a rollout and adds them to the step's.

        Raises:
            EngineError: The completions are not those that were asked for.
            StalenessError: A token is too old.
            RewardError: A reward function is broken.
        """
        rollout_options, size = self.config.rollout, self.config.sampling.group_size
        check_answers(
            list(completions), rollout.requests, self.engine_name, vocabulary=self.policy.vocabulary
        )
        limit = rollout_options.max_staleness if rollout_options.mode == "async" else 0
        ages = staleness(completions, self.version, limit)
        with self.timed("reward"):
            samples = self._judged([p for p in rollout.prompts for _ in range(size)], completions)
        self._pool.add(rollout.prompts, rollout.requests, samples, ages)

    def learn(self) -> None:
        """Updates the policy on the step's groups, writes the step down and saves it.

        Raises:
            NotFiniteError: The loss or its gradient is.
        """
        pool, self._pool = self._pool, Pool(self.config)
        version = self.version
        with self.timed("train"):
            samples, penalty = self._with_advantages(pool.chosen())
            batch = make_batch(samples, self.policy.device)
            recorded = self._record_due()
            policy = exact_digest(self.policy.tensors()) if recorded else None
            updated = self._updater.update(batch, digested=recorded)
        self.step += 1
        entry = {
            "step": self.step,
            "policy_version": version,
            **pool.described(),
            **penalty,
            "completions/filtered": metrics.mean([not sample.trained for sample in samples]),
            **updated,
            "sync/difference": self.proofs[-1].difference,
            "sync/moved": self.proofs[-1].moved,
            **self._evaluated,
            **self._step_times(),
        }
        self._evaluated = {}
        with self.interrupts.shielded():  # a step's lines, and then the checkpoint that makes them count
            if self._files is not None:
                self._files.write(self.step, samples, entry)
                if recorded and self._updater.first is not None:
                    loss, gradient = self._updater.first
                    result = {"loss": loss, "gradient": gradient, "policy": policy}
                    self._files.record(self.step, version, samples, pool.requests, result)
            self.history.append(entry)
            every = self.config.checkpoint.every
            if every and (self.step % every == 0 or self.step == self.config.train.steps):
                self._save()
        if self._files is not None:
            self._report(entry)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the wall time of what it encloses to this step's `time/<part>_s`; a sign of life, too."""
        started = time.perf_counter()
        self._watchdog.beat()
        try:
            yield
        finally:
            self._times[part] = self._times.get(part, 0.0) + time.perf_counter() - started

    def save_policy(self) -> Path | None:
        """Writes the policy as a transformers checkpoint, adapters merged, with its tokenizer."""
        tensors = dict(self.policy.tensors())
        if not self.world.first:
            return None
        self.policy.causal.save_pretrained(self.folder / "policy", state_dict=tensors)
        self.tokenizer.save_pretrained(self.folder / "policy")
        return self.folder / "policy"

    def close(self) -> None:
        """Closes the run's files."""
        self._watchdog.close()
        if self._files is not None:
            self._files.close()

    def _judged(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> list[Sample]:
        """Completions with texts and rewards; each process scores its share."""
        share = self.world.share(len(completions))
        texts = [self._text(completion) for completion in completions]
        scores = self._rewards.score(prompts[share], completions[share], texts[share])
        parts = self.world.gather(
            [
                (total, {name: values[place] for name, values in scores.by_function.items()})
                for place, total in enumerate(scores.totals)
            ]
        )
        judged = [entry for part in parts for entry in part]
        filtered = self.config.sampling.overlong_filter
        samples = [
            Sample(prompt, completion, text, total, 0.0, by_name)
            for prompt, completion, text, (total, by_name) in zip(
                prompts, completions, texts, judged, strict=True
            )
        ]
        return [replace(sample, trained=not (filtered and cut_off(sample))) for sample in samples]

    def _with_advantages(self, groups: list[Group]) -> tuple[list[Sample], dict[str, float]]:
        """The samples of a step in order, and what the KL took off their rewards, where it does."""
        loss, size = self.config.loss, self.config.sampling.group_size
        samples = [sample for group in groups for sample in group.samples]
        penalty: dict[str, float] = {}
        if loss.kl_coefficient and loss.kl_placement == "reward":
            sums = self._updater.kl_sums(make_batch(samples, self.policy.device))
            penalty = {"kl/reward": metrics.mean(sums)}
            samples = [
                replace(sample, reward=sample.reward - loss.kl_coefficient * kl)
                for sample, kl in zip(samples, sums, strict=True)
            ]
        rewards = [sample.reward for sample in samples]
        advantages = group_advantages(
            [rewards[start : start + size] for start in range(0, len(rewards), size)],
            baseline=loss.advantage_baseline,
            scale=loss.advantage_scale,
            ddof=loss.advantage_ddof,
            epsilon=loss.advantage_epsilon,
        )
        flat = [value for group in advantages.values for value in group]
        return [replace(s, advantage=a) for s, a in zip(samples, flat, strict=True)], penalty

    def _text(self, completion: Completion) -> str:
        """The completion as text, without the stop id that ended it.

        Special tokens elsewhere stay: what a reward can't see, a policy soon learns to hide things behind.
        """
        ids = completion.ids[:-1] if completion.finish_reason == "stop" else completion.ids
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _record_due(self) -> bool:
        return due(self.step + 1, self.config.output.record_every, self.config)

    def _save(self) -> None:
        tensors = {"policy": self.policy.state(), "optimizer": self._updater.state()}
        flight_version = -1
        if self.flight:
            assert self._held is not None
            flight_version, tensors["sampling"] = self._held
        if self._files is None:
            return
        last = self._sync.last
        state = State(
            step=self.step,
            version=self.version,
            round=self._round,
            files=self._files.positions(),
            probe=None if last is None else asdict(last),
            proof=asdict(self.proofs[-1]),
            flight=[(f.rollout.number, [asdict(c) for c in f.begun.values()]) for f in self.flight],
            flight_version=flight_version,
        )
        checkpoint.save(self.folder / "checkpoints", state, tensors, keep=self.config.checkpoint.keep)

    def _restore(self, state: State, tensors: dict[str, dict[str, Any]]) -> None:
        self.policy.load(tensors["policy"])
        self._updater.load(tensors["optimizer"], state.version)
        self.step, self._round = state.step, state.round
        self.proofs = [Proof(**state.proof)] if state.proof else []
        for number, begun in state.flight:
            completions = [completion_from(entry) for entry in begun]
            self.flight.append(InFlight(self.rollout(number), {c.request_id: c for c in completions}))
        self._resumed = (state, tensors)

    def _step_times(self) -> dict[str, float]:
        now = time.perf_counter()
        times = {f"time/{part}_s": seconds for part, seconds in self._times.items()}
        times["time/step_s"] = now - self._step_started
        self._times, self._step_started = {}, now
        return times
