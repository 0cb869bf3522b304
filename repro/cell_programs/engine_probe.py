"""Compare an engine's log-probs with the reference trainer's, before and after a weight update.

    python -m repro.cell_programs.engine_probe [--section.key VALUE ...] [--json]

`probe` returns the report. Without `model.path`, a tiny model is made. `python -m grpo_core train --help-settings`
lists the settings. Exit codes: 0 the log-probs agree within `rollout.sync_tolerance`; 1 they differ, or the engine
failed or ignored the update; 2 wrong usage.
"""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from grpo_core.config import Config, ConfigError
from grpo_core.learn.batch import completion_batch
from grpo_core.learn.policy import Policy
from grpo_core.machine.devices import resolve_devices
from grpo_core.machine.process_setup import make_deterministic, versions
from grpo_core.rollout.engine import EngineError, check_answers
from grpo_core.rollout.engine_factory import build_engine
from grpo_core.settings import load
from grpo_core.tasks import model
from grpo_core.tasks.dataset import ShippedTask, long_prompt, requests_for
from grpo_core.types import Completion, SamplingParams
from repro import render
from repro.cell_programs import print_report

SCHEMA = "grpo-doctor.engine.v1"


def probe(config: Config) -> dict[str, Any]:
    """Start the configured engine on the model, sample, change the weights, and sample again.

    Returns:
        The report. `outcome` is `ok`, or `failed` with the reason in `error`.
    """
    config = resolve_devices(config)
    make_deterministic(config.train.threads)
    document: dict[str, Any] = {"schema": SCHEMA, "engine": config.rollout.engine, "engine_version": None}
    with tempfile.TemporaryDirectory(prefix="grpo-core-probe-") as folder:
        try:
            observed = _observe(config, config.model.path or folder)
        except EngineError as failure:
            return {**document, "outcome": "failed", "error": str(failure), "versions": versions()}
    error = _find_fault(observed, config.rollout.sync_tolerance)
    outcome = "ok" if error is None else "failed"
    return {**document, **observed, "outcome": outcome, "error": error, "versions": versions()}


def _observe(config: Config, folder: str) -> dict[str, Any]:
    """Sample before and after an update of the engine, and return the differences of the log-probs."""
    if not config.model.path:
        model.make_tiny(Path(folder), config.model, config.task.letters, config.train.seed)
    policy, tokenizer = Policy(folder, config), model.load_tokenizer(folder)
    prompts = ShippedTask(config, tokenizer).batch(0, 8)
    # Add a prompt that is long enough for the prefix cache, because the other prompts are too short for it.
    ids = long_prompt(prompts[0].ids, room=config.model.max_length - config.sampling.max_tokens)
    prompts.append(replace(prompts[0], id="long", ids=ids))
    requests = requests_for(prompts, config.sampling.group_size, config.train.seed)
    params = SamplingParams(config.sampling.max_tokens, config.sampling.temperature)

    def largest_difference(completions: Sequence[Completion]) -> float:
        """Return the largest |trainer - engine| over the log-probs of all sampled tokens."""
        rows = [(request.prompt_ids, row) for request, row in zip(requests, completions, strict=True)]
        batch = completion_batch(rows, policy.device)
        with torch.no_grad():
            logprobs, _ = policy.logprobs(batch, params.temperature)
        return float((logprobs - batch.behaviour_BT).abs()[batch.mask_BT].max())

    with closing(build_engine(config, folder)) as engine:
        before = check_answers(engine.generate(requests, params), requests, engine.name)
        difference_before = largest_difference(before)
        _perturb(policy.causal, config.train.seed)
        moved = largest_difference(before)
        engine.update_weights(policy.engine_tensors(), 1)
        after = check_answers(engine.generate(requests, params), requests, engine.name)
        return {
            "engine_version": getattr(engine, "engine_version", None),
            "tokens": sum(len(completion.ids) for completion in [*before, *after]),
            "max_logprob_difference_before": difference_before,
            "max_logprob_difference_after": largest_difference(after),
            "update_moved_logprobs_by": moved,
            "change_seen": [c.logprobs for c in before] != [c.logprobs for c in after],
        }


def _find_fault(observed: dict[str, Any], tolerance: float) -> str | None:
    """Return the reason why the observations are a failure; None if they are not."""
    if not observed["max_logprob_difference_before"] <= tolerance:
        return (
            f"with equal weights the engine's log-probs differ from the trainer's by more than {tolerance:g}"
        )
    if not observed["change_seen"]:
        return "the engine answers as if its weights had not been updated"
    if not observed["max_logprob_difference_after"] <= tolerance:
        return f"after a weight update the engine's log-probs differ from the trainer's by more than {tolerance:g}"
    return None


def _perturb(model: Any, seed: int) -> None:
    """Add noise of a tenth of its mean size to each parameter, so that stale weights cannot pass as new ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.add_(0.1 * parameter.abs().mean() * noise)


def main(arguments: list[str]) -> None:
    """Print the report and exit with code 0 if it is `ok`, 1 if it is `failed`, 2 for wrong settings."""
    try:
        config = load(None, [argument for argument in arguments if argument != "--json"])
    except ConfigError as error:
        render.print_to_stderr(f"engine_probe: {error}")
        raise SystemExit(2) from error
    print_report(lambda: probe(config), as_json="--json" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
