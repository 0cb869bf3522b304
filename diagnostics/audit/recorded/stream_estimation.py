"""P5 with weights: the sampling parameters of a run's engine, two values at once, where a checkpoint is available.

The trainer's log-probs show whether a checkpoint belongs to a sample: it must reproduce them at one temperature. The
engine's log-probs are then fitted as a live server's are.
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

from diagnostics.audit.live import estimation, sampling_checks
from diagnostics.audit.live.reference import Reference, step_of
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling
from diagnostics.audit.recorded.run_data import Recording, RunArtifacts, Sample
from diagnostics.audit.recorded.text_sampling import can_compute, matching_checkpoints
from diagnostics.audit.results import FAULT, AuditError, Result

# Samples that are computed, tokens of each, longest sample, and tokens that must belong to the weights.
_SAMPLES, _TOKENS, _LONGEST, _ENOUGH = 32, 32, 1024, 256
# Mean difference up to which the trainer's log-probs belong to the weights; below the second both are float32.
_NEAR, _EXACT = 0.024, 2e-4
_MOST_FOLDERS = 2


def estimate_streams(run: RunArtifacts, recording: Recording, checkpoint: Path | None) -> list[Result]:
    """Return the faults of a recording with their values; empty if no weights here explain the samples.

    Args:
        run: The artifacts, whose own checkpoints are tried, each for the step after it.
        recording: The samples.
        checkpoint: Weights to take instead: for the step after it, or for all samples.
    """
    candidates = matching_checkpoints(run.checkpoints, recording)
    if checkpoint is not None:
        rows = recording.steps().get((step_of(checkpoint) or 0) + 1) or list(recording.rows)
        candidates = iter([(checkpoint, rows)])
    for folder, rows in islice(candidates, _MOST_FOLDERS) if can_compute() else ():
        try:
            results = _estimate(Reference(folder), rows)
        except (AuditError, RuntimeError, IndexError) as error:
            run.unread.add(folder, error)
            continue
        if results is not None:
            return results
    return []


def _estimate(reference: Reference, rows: list[Sample]) -> list[Result] | None:
    """Return the faults; None if too few of the samples belong to these weights."""
    pairs = [pair for row in rows if (pair := _completions(row)) and max(pair[0].ids) < reference.vocabulary]
    pairs = random.Random(0).sample(pairs, min(len(pairs), _SAMPLES))
    if sum(len(trainer.ids) for trainer, _ in pairs) < _ENOUGH:
        return None
    temperature, means = _trainer_temperature(reference, [trainer for trainer, _ in pairs])
    known = [engine for (_, engine), mean in zip(pairs, means, strict=True) if mean <= _NEAR]
    if sum(len(completion.ids) for completion in known) < _ENOUGH:
        return None
    half = "bfloat16" if reference.dtype == "float32" else reference.dtype
    for dtype in ("float32", half) if max(means) < _EXACT else (half,):
        results = sampling_checks.check_sampling(reference, known, dtype, Sampling(temperature), "processed")
        faults = [result for result in results if result.outcome == FAULT]
        if all(result.is_explained for result in faults):
            return faults
    return []


def _completions(row: Sample) -> tuple[Completion, Completion] | None:
    """Return the first tokens with the trainer's and with the engine's log-probs; None if either is missing."""
    tokens = row.tokens
    if tokens is None or not 0 < tokens.prompt <= _LONGEST - _TOKENS:
        return None
    pairs: list[tuple[float, float]] = []
    for engine, trainer in zip(tokens.engine[tokens.prompt :], tokens.trainer[tokens.prompt :], strict=False):
        if engine is None or trainer is None or len(pairs) == _TOKENS:
            break
        pairs.append((engine, trainer))
    if not pairs:
        return None
    prompt, ids = tokens.ids[: tokens.prompt], tokens.ids[tokens.prompt : tokens.prompt + len(pairs)]
    engine_logprobs, trainer_logprobs = zip(*pairs, strict=True)
    return Completion(prompt, ids, trainer_logprobs), Completion(prompt, ids, engine_logprobs)


def _trainer_temperature(reference: Reference, completions: list[Completion]) -> tuple[float, list[float]]:
    """Return the trainer's temperature, and the mean difference of each sample from these weights at it."""
    observed = Observed.compute(reference, completions, "float32")
    temperature, _ = estimation.search(observed, Sampling(), "temperature")
    if abs(temperature - 1) < estimation.RANGES["temperature"][3]:
        temperature = 1.0
    return temperature, observed.residual_by_sample(Sampling(temperature)).tolist()
