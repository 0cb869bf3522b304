"""Define the trainer: state, files and parts of a training step, which the loops in `grpo_core.modes` call in order.

The parts: publish the policy, evaluate, build a rollout, score its completions, update the policy. A mode samples the
completions to train on. After an update the trainer writes metrics and, if they are due, completions, records and a
checkpoint.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpo_core.config import Config, ConfigError
from grpo_core.learn.advantages import with_advantages
from grpo_core.learn.batch import make_batch
from grpo_core.learn.group_pool import GroupPool, staleness
from grpo_core.learn.policy import Policy
from grpo_core.learn.update import Updater
from grpo_core.machine import checkpoint
from grpo_core.machine.devices import resolve_devices
from grpo_core.machine.process_setup import Interrupts, make_deterministic
from grpo_core.machine.world import join_world
from grpo_core.publish import PROBE_COMPLETION, Proof, Publisher
from grpo_core.records.recording import Recorder
from grpo_core.rollout.engine import Engine, check_answers
from grpo_core.run_files import RunFiles, mean, read_metrics
from grpo_core.tasks import dataset, model
from grpo_core.tasks.rewards import Scorer
from grpo_core.types import Completion, Request, Rollout, SamplingParams

Report = Callable[[dict[str, Any]], None]  # receives each step's metrics


class Trainer:
    """The trained policy with its optimizer, rewards and files.

    Attributes:
        config: All settings.
        folder: Folder of the run.
        model_dir: Folder of the model that training starts from.
        tokenizer: The model's tokenizer.
        prompts: The training prompts.
        world: The processes that train together.
        share_engine: Wraps a mode's engine so that all training processes can call it; see `World.share_engine`.
        policy: The policy that is trained.
        step: Number of finished steps.
        sampling: Sampling parameters of the training.
        history: The metrics of each step so far.
        proofs: The proof of each weight sync; of those before a resume only the last.
        interrupts: Handler that records a Ctrl-C.
        engine_name: Name of the engine; `unknown` for a server before the first connection.
        in_flight: Function that returns the mode's unfinished rollouts for a checkpoint; most modes have none.
        resumed: The checkpoint from which the mode restores its state; None: there is nothing to restore.
    """

    def __init__(self, config: Config, folder: Path, report: Report, *, resume: bool = False) -> None:
        """Make or load the model, and start the run's files in `folder`.

        Args:
            config: Checked settings.
            folder: Folder of the run, which exists.
            report: Called with each step's metrics.
            resume: Continue from the newest checkpoint in `folder`, or start over if there is none.

        Raises:
            ConfigError: The settings can't be used on this machine, or data or model can't be read.
        """
        self.resumed = saved = _load_checkpoint(folder) if resume else None
        self.config = config = resolve_devices(config)
        self.folder, self._report = folder, report
        self.engine_name = "unknown" if config.rollout.port else config.rollout.engine
        make_deterministic(config.train.threads)
        self.world = join_world(config)
        self.share_engine = self.world.share_engine
        self.model_dir = config.model.path or str(folder / "model")
        if not config.model.path and saved is None and self.world.is_first:
            model.make_tiny(folder / "model", config.model, config.task.letters, config.train.seed)
        self.world.gather(None)  # no process reads the model before it is written
        self.policy = Policy(self.model_dir, config, self.world)
        self.tokenizer = model.load_tokenizer(self.model_dir)
        stop, options = self.tokenizer.eos_token_id, config.sampling
        stops = () if stop is None else (int(stop),)
        self.sampling = SamplingParams(options.max_tokens, options.temperature, stops, **options.truncation)
        self.prompts = dataset.build_prompts(config, self.tokenizer)
        self.config = config = dataset.with_steps(config, self.prompts)
        self._scorer = Scorer(config, self.tokenizer, self.world)
        self._eval_prompts = dataset.build_eval_prompts(config, self.tokenizer) if config.eval.every else []
        self._evaluated_step, self._eval_metrics = -1, dict[str, float]()
        self._updater = Updater(self.policy, config, self.world)
        self.interrupts = Interrupts()
        self.proofs: list[Proof] = []
        self.step, self._round = 0, 0
        self._pool = GroupPool(config)
        self.in_flight: Callable[[], checkpoint.State] = checkpoint.State
        self._files = RunFiles(config, folder, saved.files if saved else {}) if self.world.is_first else None
        self._recorder = Recorder(folder, config, is_first=self.world.is_first)
        self.history, self._times = list[dict[str, Any]](), dict[str, float]()
        if saved is not None:
            self.policy.load_state(saved.tensors.pop("policy"))
            self._updater.load_state(saved.tensors.pop("optimizer"), saved.version)
            self.step, self._round = saved.step, saved.round
            self.proofs = [Proof(**saved.proof)] if saved.proof else []
            self.history = read_metrics(folder / "metrics.jsonl")
        self._step_started = time.perf_counter()

    @property
    def version(self) -> int:
        """The policy version: optimizer updates so far."""
        return self._updater.updates

    def steps(self) -> Iterator[int]:
        """Yield the number of finished steps, until all are done."""
        while self.step < self.config.train.steps:
            yield self.step

    def publisher(self, engine: Engine) -> Publisher:
        """Build the publisher of this policy to an engine, and store it: checkpoints contain its last probe.

        Raises:
            ConfigError: The engine can't sample as configured.
        """
        if (unable := self.config.sampling.truncation) and not engine.capabilities.truncation:
            keys = ", ".join(f"sampling.{key} = {value!r}" for key, value in unable.items())
            raise ConfigError(f"{keys}: the {engine.name} engine samples at a temperature only")
        ids = self.prompts.batch(0, 1)[0].ids
        # An engine without a fingerprint may keep cached keys of old weights, which only a long prompt detects.
        room = self.config.model.max_length - PROBE_COMPLETION
        probe = ids[-room:] if engine.capabilities.fingerprint else dataset.long_prompt(ids, room=room)
        tolerance = self.config.rollout.sync_tolerance
        sync = Publisher(self.policy, engine, probe, tolerance=tolerance, exact=not self.config.low_precision)
        if self.resumed and self.resumed.probe:  # the next proof compares with this probe
            sync.last = checkpoint.completion_from(self.resumed.probe)
        self._sync, self.engine_name = sync, engine.name
        return sync

    def publish(self, sync: Publisher) -> None:
        """Send the current version to the engine and store the proof that it arrived."""
        with self.timed("sync"):
            self.proofs.append(sync.publish(self.version))

    def next_rollout(self) -> Rollout:
        """Return the next batch of prompts with their requests."""
        self._round += 1
        return dataset.rollout(self.prompts, self._round - 1, self.config)

    def evaluate(self, engine: Engine) -> None:
        """Sample and score the evaluation prompts with this policy version, if due; `learn` writes the metrics."""
        every = self.config.eval.every
        if not every or self.step % every or self._evaluated_step == self.step:
            return
        prompts, seed = self._eval_prompts, self.config.train.seed
        requests = [Request(p.id, p.ids, dataset.derived_seed(seed, "eval", p.id)) for p in prompts]
        sampling = replace(self.sampling, temperature=self.config.eval.temperature)
        with self.timed("eval"):
            completions = engine.generate(requests, sampling)
            check_answers(completions, requests, engine.name, vocabulary=self.policy.vocabulary)
            staleness(completions, self.version, 0)
            groups = self._scorer.groups(prompts, completions, self.step)
        self._eval_metrics = {
            "eval/policy_version": self.version,
            "eval/reward/mean": mean([sample.reward for group in groups for sample in group]),
            "eval/completions/mean_length": mean([len(completion.ids) for completion in completions]),
        }
        self._evaluated_step = self.step  # set last: an engine that failed is called again when it is back

    def ready(self) -> bool:
        """Return whether the step has enough groups to train on."""
        return self._pool.ready()

    def add_rollout(self, rollout: Rollout, completions: Sequence[Completion], *, max_age: int = 0) -> None:
        """Score the completions of a rollout and add them to the step's.

        Args:
            rollout: The prompts and requests.
            completions: The completions, in the order of the requests.
            max_age: Highest allowed age of a token, in policy versions.

        Raises:
            EngineError: The completions do not match the requests.
            StalenessError: A token is too old.
            RewardError: A reward function failed.
        """
        vocabulary = self.policy.vocabulary
        check_answers(list(completions), rollout.requests, self.engine_name, vocabulary=vocabulary)
        ages = staleness(completions, self.version, max_age)
        with self.timed("reward"):
            groups = self._scorer.groups(rollout.prompts, completions, self.step)
        self._pool.add(groups, rollout.requests, ages)

    def learn(self) -> None:
        """Update the policy on the step's groups, write the step's metrics, and save a checkpoint if due.

        Call `publish` first: the metrics have its proof.

        Raises:
            NotFiniteError: The loss or its gradient is not finite.
        """
        pool, self._pool = self._pool, GroupPool(self.config)
        version = self.version
        with self.timed("train"):
            samples = with_advantages(pool.select(), self.config.loss)
            on_gradients = self._recorder.begin_step(self.step + 1, self.policy)
            updated = self._updater.update(make_batch(samples, self.policy.device), on_gradients)
        self.step += 1
        entry = {
            "step": self.step,
            "policy_version": version,
            **pool.metrics(),
            "completions/filtered": mean([not sample.trained for sample in samples]),
            **updated,
            "sync/difference": self.proofs[-1].difference,
            "sync/moved": self.proofs[-1].moved,
            **self._eval_metrics,
            **self._step_times(),
        }
        self._eval_metrics = {}
        with self.interrupts.shielded():  # write the step's lines and its checkpoint without an interruption
            if self._files is not None:
                self._files.write(self.step, samples, entry)
            self._recorder.end_step(self.step, version, samples, pool.requests)
            self.history.append(entry)
            every = self.config.checkpoint.every
            if every and (self.step % every == 0 or self.step == self.config.train.steps):
                self._save()
        if self._files is not None:
            self._report(entry)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the wall time of the block to this step's `time/<part>_s`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._times[part] = self._times.get(part, 0.0) + time.perf_counter() - started

    def save_policy(self) -> None:
        """Write the policy to `policy/` as a transformers checkpoint, in the engine's dtype, with its tokenizer.

        Adapters are merged.
        """
        tensors = dict(self.policy.engine_tensors())  # all processes take part
        if self.world.is_first:
            self.policy.causal.save_pretrained(self.folder / "policy", state_dict=tensors)
            self.tokenizer.save_pretrained(self.folder / "policy")

    def close(self) -> None:
        """Close the run's files."""
        if self._files is not None:
            self._files.close()

    def _save(self) -> None:
        """Save a checkpoint; all ranks compute its tensors, rank 0 writes it."""
        mode = self.in_flight()
        tensors = {"policy": self.policy.state(), "optimizer": self._updater.state(), **mode.tensors}
        if self._files is None:
            return
        probe = asdict(self._sync.last) if self._sync.last else None
        state = replace(mode, step=self.step, version=self.version, round=self._round, tensors=tensors)
        state = replace(state, files=self._files.positions(), probe=probe, proof=asdict(self.proofs[-1]))
        checkpoint.save(self.folder / "checkpoints", state, keep=self.config.checkpoint.keep)

    def _step_times(self) -> dict[str, float]:
        """Return the wall times of the step's parts, and start those of the next step."""
        now = time.perf_counter()
        times = {f"time/{part}_s": s for part, s in {**self._times, "step": now - self._step_started}.items()}
        self._times, self._step_started = {}, now
        return times


def _load_checkpoint(folder: Path) -> checkpoint.State | None:
    """Load the newest usable checkpoint. Without one the run starts over: rank 0 removes checkpoints and records."""
    saved = checkpoint.load(folder / "checkpoints")
    if saved is None and os.environ.get("RANK", "0") == "0":
        for name in ("checkpoints", "rollouts"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "rollouts.jsonl").unlink(missing_ok=True)
    return saved
