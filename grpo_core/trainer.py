"""The trainer: everything of a GRPO step but where its completions come from, which the modes decide."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from grpo_core.learn.policy import Policy
from grpo_core.learn.pool import DynamicPool, Pool, staleness
from grpo_core.learn.update import Updater
from grpo_core.machine import checkpoint
from grpo_core.machine.determinism import settle
from grpo_core.machine.interrupts import Interrupts
from grpo_core.machine.resources import resolve
from grpo_core.machine.world import World, alone
from grpo_core.metrics import RunFiles, mean
from grpo_core.publish import PROBE_COMPLETION, Proof, Publisher
from grpo_core.rollout.engine import check_answers
from grpo_core.tasks import model
from grpo_core.tasks.dataset import build_prompts, rollout
from grpo_core.tasks.rewards import Judge
from grpo_core.tasks.task import long_prompt
from grpo_core.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from grpo_core.config import Config
    from grpo_core.evaluation import Evaluation
    from grpo_core.rollout.engine import Engine
    from grpo_core.types import Completion, Rollout

    # Is given each step's metrics; what it returns goes where the curves go.
    Report = Callable[[dict[str, Any]], Mapping[str, float] | None]


class Trainer:
    """The trained policy, its optimizer and its records.

    Attributes:
        config: All settings.
        world: The processes that train together.
        shared: Makes a mode's engine that of all processes.
        policy: What is trained.
        step: Steps done.
        sampling: How completions are sampled.
        history: The metrics of each step so far.
        proofs: One a weight sync.
        interrupts: Remembers a Ctrl-C.
        engine_name: What samples; of a server that is not yet reached, `unknown`.
        under_way: What the mode has in flight between two steps, for a checkpoint; most have nothing.
        resumed: Where an earlier run had come to, for what the mode then had in flight; None: there was none.
    """

    def __init__(
        self, config: Config, folder: Path, report: Report, resumed: checkpoint.State | None = None
    ) -> None:
        """Makes or loads the model, and starts the run's files in `folder`.

        Args:
            config: Checked settings.
            folder: Of this run; exists.
            report: Called with each step's metrics; may return more numbers for the curves.
            resumed: What was read of the newest checkpoint: model and files are there (see `ResumedTrainer`).

        Raises:
            ConfigError: The settings can't be met on this machine, or data or model can't be read.
        """
        self.config: Config = resolve(config)
        config = self.config
        self.folder, self._report = folder, report
        self.engine_name = "unknown" if config.rollout.port else config.rollout.engine
        settle(config.train.threads)
        self.world = World()
        if not alone(config):
            from grpo_core.machine.world import joined

            self.world = joined(config)
        self.model_dir = config.model.path or str(folder / "model")
        if not config.model.path and resumed is None and self.world.first:
            model.make_tiny(folder / "model", config.model, config.task.letters, config.train.seed)
        self.shared = self.world.shared
        self.world.from_first(None)  # nobody reads the model before it is written
        self.policy = Policy(self.model_dir, config, self.world)
        self.tokenizer = model.load_tokenizer(self.model_dir)
        stop = self.tokenizer.eos_token_id
        stops = () if stop is None else (int(stop),)
        self.sampling = SamplingParams(config.sampling.max_tokens, config.sampling.temperature, stops)
        self.prompts = build_prompts(config, self.tokenizer)
        self._judge = Judge(config, self.tokenizer, self.world)
        self._evaluation: Evaluation | None = None
        if config.eval.every:
            from grpo_core.evaluation import Evaluation

            self._evaluation = Evaluation(config, self.tokenizer, self._judge)
        self._updater = Updater(self.policy, config, self.world)
        self.interrupts = Interrupts()
        self.proofs: list[Proof] = []
        self.step, self._round = 0, 0
        self._pool = self._empty_pool()
        self.under_way: Callable[[], checkpoint.State] = checkpoint.State
        self.resumed = resumed
        self._watchdog: Any = None
        if config.train.stall_s:
            from grpo_core.extras import extra

            self._watchdog = extra("watchdog").Watchdog(folder / "stalls.txt", config.train)
        self._files = RunFiles(config, folder, resumed.files if resumed else {}) if self.world.first else None
        self._recorder: Any = None
        if config.output.record_every:
            from grpo_core.extras import extra

            self._recorder = extra("recorder").StepRecorder(folder, config, first=self.world.first)
        self.history, self._times = list[dict[str, Any]](), dict[str, float]()
        self._step_started = time.perf_counter()

    @property
    def version(self) -> int:
        """The policy version: optimizer updates so far."""
        return self._updater.updates

    def steps(self) -> Iterator[int]:
        """The steps that are left."""
        while self.step < self.config.train.steps:
            yield self.step

    def publisher(self, engine: Engine) -> Publisher:
        """What publishes this policy to an engine."""
        ids = self.prompts.batch(0, 1)[0].ids
        probe = long_prompt(ids, room=self.config.model.max_length - PROBE_COMPLETION)
        tolerance = self.config.rollout.sync_tolerance
        sync = Publisher(self.policy, engine, probe, tolerance=tolerance, exact=not self.config.lowered)
        self._sync, self.engine_name = sync, engine.name
        return sync

    def publish(self, sync: Publisher) -> None:
        """Sends the current version to the engine and keeps the proof that it arrived."""
        with self.timed("sync"):
            self.proofs.append(sync.publish(self.version))

    def next_rollout(self) -> Rollout:
        """The next batch of prompts."""
        self._round += 1
        return rollout(self.prompts, self._round - 1, self.config)

    def evaluate(self, engine: Engine) -> None:
        """If it is time: samples the evaluation prompts, from this very version, between two calls of the training."""
        if self._evaluation is not None and self._evaluation.due(self.step):
            with self.timed("eval"):
                self._evaluation.make(self.step, engine, self.sampling, self.version, self.policy.vocabulary)

    def ready(self) -> bool:
        """Whether the step has what it trains on."""
        return self._pool.ready()

    def take(self, rollout: Rollout, completions: Sequence[Completion], *, max_age: int = 0) -> None:
        """Scores the completions of a rollout and adds them to the step's.

        Args:
            rollout: What was asked for.
            completions: What was answered, in the order of the requests.
            max_age: Of a token, in policy versions.

        Raises:
            EngineError: The completions are not those that were asked for.
            StalenessError: A token is too old.
            RewardError: A reward function is broken.
        """
        known = self.policy.vocabulary
        check_answers(list(completions), rollout.requests, self.engine_name, vocabulary=known)
        ages = staleness(completions, self.version, max_age)
        self._judge.step = self.step
        with self.timed("reward"):
            groups = self._judge.groups(rollout.prompts, completions)
        self._pool.add(groups, rollout.requests, ages)

    def learn(self) -> None:
        """Updates the policy on the step's groups, writes the step down and saves it.

        Raises:
            NotFiniteError: The loss or its gradient is.
        """
        pool, self._pool = self._pool, self._empty_pool()
        version, recorder = self.version, self._recorder
        with self.timed("train"):
            groups, penalty, loss = pool.chosen(), dict[str, float](), self.config.loss
            if loss.kl_coefficient and loss.kl_placement == "reward":
                from grpo_core.learn.kl import priced

                groups, penalty = priced(groups, self.policy, self.config, self.world)
            samples = [sample for group in self._updater.judged(groups) for sample in group.samples]
            batch = self.policy.make_batch(samples, self.policy.device)
            look = recorder.begin(self.step + 1, self.policy) if recorder else None
            updated = self._updater.update(batch, look)
        self.step += 1
        entry = {
            "step": self.step,
            "policy_version": version,
            **pool.described(),
            **penalty,
            "completions/filtered": mean([not sample.trained for sample in samples]),
            **updated,
            "sync/difference": self.proofs[-1].difference,
            "sync/moved": self.proofs[-1].moved,
            **(self._evaluation.taken() if self._evaluation else {}),
            **self._step_times(),
        }
        with self.interrupts.shielded():  # a step's lines, and then the checkpoint that makes them count
            if self._files is not None:
                self._files.write(self.step, samples, entry)
            if recorder:
                recorder.end(self.step, version, samples, pool.requests)
            self.history.append(entry)
            every = self.config.checkpoint.every
            if every and (self.step % every == 0 or self.step == self.config.train.steps):
                self._save()
        if self._files is not None and (told := self._report(entry)):
            self._files.curves(self.step, told)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the wall time of what it encloses to this step's `time/<part>_s`; a sign of life, too."""
        started = time.perf_counter()
        if self._watchdog is not None:
            self._watchdog.beat()
        try:
            yield
        finally:
            self._times[part] = self._times.get(part, 0.0) + time.perf_counter() - started

    def save_policy(self) -> None:
        """Writes the policy as a transformers checkpoint, adapters merged, with its tokenizer."""
        tensors = dict(self.policy.tensors())  # which takes all processes
        if self.world.first:
            self.policy.causal.save_pretrained(self.folder / "policy", state_dict=tensors)
            self.tokenizer.save_pretrained(self.folder / "policy")

    def close(self) -> None:
        """Closes the run's files."""
        if self._watchdog is not None:
            self._watchdog.close()
        if self._files is not None:
            self._files.close()

    def _save(self) -> None:
        ahead = self.under_way()
        tensors = {"policy": self.policy.state(), "optimizer": self._updater.state(), **ahead.tensors}
        if self._files is None:
            return
        proof, probe = asdict(self.proofs[-1]), asdict(self._sync.last) if self._sync.last else None
        state = replace(
            ahead, step=self.step, version=self.version, round=self._round, files=self._files.positions(),
            probe=probe, proof=proof, tensors=tensors,
        )  # fmt: skip
        checkpoint.save(self.folder / "checkpoints", state, keep=self.config.checkpoint.keep)

    def _empty_pool(self) -> Pool:
        return DynamicPool(self.config) if self.config.sampling.dynamic else Pool()

    def _step_times(self) -> dict[str, float]:
        now = time.perf_counter()
        times = {f"time/{part}_s": s for part, s in {**self._times, "step": now - self._step_started}.items()}
        self._times, self._step_started = {}, now
        return times
