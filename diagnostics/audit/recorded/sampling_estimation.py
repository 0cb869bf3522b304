"""Estimate the sampling parameters of recorded samples with the checkpoint that sampled them.

With the engine's log-probs (P5) they are fitted as a live server's are. The trainer's log-probs show whether the
checkpoint belongs to a sample: it must reproduce them at one temperature.

From texts alone (P7), each text is tokenised again, and left out if it does not decode to itself. Temperature and
truncation are those that make the texts likeliest: top-p is the most probability mass before a sampled token, top-k the
highest rank. Texts lack special tokens, so each position is judged given that its token is not special.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from diagnostics.audit import checkpoint_validation
from diagnostics.audit.live import estimation, sampling_checks
from diagnostics.audit.live.reference import Reference, step_of
from diagnostics.audit.live.sampled_ids import likeliest_temperature
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling
from diagnostics.audit.recorded.run_data import Checkpoint, Recording, RunArtifacts, Sample
from diagnostics.audit.results import (
    AuditError,
    Estimate,
    Note,
    Result,
    RunnerUp,
    clean,
    fault,
    note,
    skipped,
    undecided,
)

# Samples with log-probs that are computed, tokens of each, longest sample, and tokens that must belong to the weights.
_STREAM_SAMPLES, _STREAM_TOKENS, _LONGEST, _ENOUGH_STREAM = 32, 32, 1024, 256
# Mean difference up to which the trainer's log-probs belong to the weights; below the second both are float32.
_NEAR, _EXACT = 0.024, 2e-4
_MOST_FOLDERS = 2
# Tokens of text that are needed, and texts that are tried.
_ENOUGH, _MAX_TEXTS = 1024, 2048
_ALARM, _UNFIT = 0.05, 1e-7
# Cost in nats of a token outside of a truncation (retokenised at a border), and of a truncation as such.
_OUTLIER, _TRUNCATION = 9.0, 14.0
_MOST_OUTLIERS = 0.004
_WANT_TOKENS = "{enough} tokens of text; there are {count}"
# Tokens that should be outside of a truncation, to call it one; differences of top-p and top-k that do not count.
_OUTSIDE, _NO_DIFFERENCE = 14.0, {"top_p": 0.004, "top_k": 0.5}


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
    pairs = random.Random(0).sample(pairs, min(len(pairs), _STREAM_SAMPLES))
    if sum(len(trainer.ids) for trainer, _ in pairs) < _ENOUGH_STREAM:
        return None
    temperature, means = _trainer_temperature(reference, [trainer for trainer, _ in pairs])
    known = [engine for (_, engine), mean in zip(pairs, means, strict=True) if mean <= _NEAR]
    if sum(len(completion.ids) for completion in known) < _ENOUGH_STREAM:
        return None
    half = "bfloat16" if reference.dtype == "float32" else reference.dtype
    for dtype in ("float32", half) if max(means) < _EXACT else (half,):
        results = sampling_checks.check_sampling(reference, known, dtype, Sampling(temperature), "processed")
        faults = [result for result in results if result.is_fault]
        if all(result.is_explained for result in faults):
            return faults
    return []


def _completions(row: Sample) -> tuple[Completion, Completion] | None:
    """Return the first tokens with the trainer's and with the engine's log-probs; None if either is missing."""
    tokens = row.tokens
    if tokens is None or not 0 < tokens.prompt <= _LONGEST - _STREAM_TOKENS:
        return None
    pairs: list[tuple[float, float]] = []
    for engine, trainer in zip(tokens.engine[tokens.prompt :], tokens.trainer[tokens.prompt :], strict=False):
        if engine is None or trainer is None or len(pairs) == _STREAM_TOKENS:
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


@dataclass(frozen=True)
class TextFit:
    """The likeliest parameters of a kind (`whole`, `top_p` or `top_k`), with the temperature's standard error."""

    kind: str
    sampling: Sampling
    error: float
    likelihood: float


class Texts:
    """All positions of some texts, with the logits of the checkpoint that sampled them."""

    def __init__(self, observed: Observed, special_ids: Sequence[int]) -> None:
        import torch

        self.observed, self.count = observed, len(observed.ids)
        self._special = torch.isin(observed.columns, torch.tensor(list(special_ids), dtype=torch.long))

    def rank_fits(self, expected: float) -> list[TextFit]:
        """Return the best parameters of each kind, the likeliest first; a truncation must gain what it costs."""
        fits = [self._fit(kind, expected) for kind in ("whole", "top_p", "top_k")]
        return sorted(fits, key=lambda fit: (fit.kind != "whole") * _TRUNCATION - fit.likelihood)

    def _fit(self, kind: str, expected: float) -> TextFit:
        """Fit a kind; its truncation is measured at the expected temperature unless the texts contradict that."""
        value, error = likeliest_temperature(lambda temperature: self._best(kind, temperature)[1])
        is_expected = abs(value - expected) < 3 * error
        sampling, likelihood = self._best(kind, expected if is_expected else value)
        return TextFit(kind, replace(sampling, temperature=value), error, likelihood)

    def _best(self, kind: str, temperature: float) -> tuple[Sampling, float]:
        """Return the likeliest truncation of a kind at a temperature; few tokens may lie outside of it."""
        free = Sampling(temperature=temperature)
        if kind == "whole":
            return free, self._likelihood(free)
        shares, own_shares = self._shares(free)
        likelier = (shares > own_shares) * (shares if kind == "top_p" else 1.0)
        highest = likelier.sum(1).sort(descending=True).values
        bounds = {float(highest[0]), float(highest[int(_MOST_OUTLIERS * self.count)])}
        candidates = [free.replace(kind, bound + (1e-6 if kind == "top_p" else 1)) for bound in bounds]
        best = max(candidates, key=self._likelihood)
        return best, self._likelihood(best)

    def _shares(self, sampling: Sampling) -> tuple[Any, Any]:
        """Return the probabilities of all ids at each position, and that of the sampled one."""
        shares = self.observed.distribution(sampling).exp()
        return shares, shares.gather(1, self.observed.places)

    def _likelihood(self, sampling: Sampling) -> float:
        """Return the log-likelihood of the texts; a token outside of the truncation counts as noise."""
        shares, own_shares = self._shares(sampling)
        noise = self.observed.logprobs(sampling.untruncated) - _OUTLIER
        logprobs = own_shares[:, 0].log()
        text_share = (1 - (shares * self._special).sum(1)).clamp(min=1e-6)
        return float((logprobs - text_share.log()).where(logprobs.isfinite(), noise).sum())

    def chance(self, sampling: Sampling) -> float:
        """Return the probability of a fit no better: the quantile of each sampled token should be uniform."""
        import torch

        shares, own_shares = self._shares(sampling)
        uniform = torch.rand(self.count, generator=torch.Generator().manual_seed(0))
        quantiles = (shares * (shares > own_shares)).sum(1) + uniform * own_shares[:, 0]
        counts = torch.bincount((quantiles.clamp(0, 0.999999) * 20).long(), minlength=20).double()
        expected = self.count / 20
        # Special tokens are missing from the texts and not from these shares: a few percent of slack.
        excess = ((counts - expected).abs() - 0.04 * expected).clamp_min(0)
        return _chi_squared_tail(float((excess**2 / expected).sum()), 19)

    def expected_outside(self, sampling: Sampling) -> float:
        """Return how many tokens should lie outside of a truncation if there were none."""
        inside = self.observed.distribution(sampling).isfinite() | self._special
        shares, _ = self._shares(sampling.untruncated)
        return float((1 - (shares * inside).sum(1)).sum())


def _chi_squared_tail(value: float, freedom: int) -> float:
    """Return the tail probability, by Wilson and Hilferty's approximation."""
    scaled = 2 / (9 * freedom)
    return 0.5 * math.erfc((((value / freedom) ** (1 / 3)) - (1 - scaled)) / math.sqrt(2 * scaled))


def _observe(folder: Path, rows: Sequence[Sample], most: int) -> tuple[list[Observed], int, list[int]]:
    """Run texts through a checkpoint, up to a number of tokens; return them, how many were left out, special ids."""
    tokenizer, reference = checkpoint_validation.load_tokenizer(folder), Reference(folder)
    parts: list[Observed] = []
    count = failures = 0
    for row in rows:
        prompt, ids = _encode(tokenizer, row)
        if not prompt or not ids or len(prompt) + len(ids) > _LONGEST:
            failures += 1
            continue
        completion = Completion(tuple(prompt), tuple(ids), (0.0,) * len(ids))
        parts.append(Observed.compute(reference, [completion], "float32"))
        count += len(ids)
        if count >= most:
            break
    if not parts:
        raise ValueError(f"none of {len(rows)} texts decodes to itself")
    return parts, failures, sorted(set(tokenizer.all_special_ids))


def _encode(tokenizer: Any, row: Sample) -> tuple[list[int], list[int]]:
    """Return the ids of prompt and completion; no ids of a completion that does not decode to itself."""
    special = set(tokenizer.all_special_ids)
    if row.tokens is not None and row.tokens.prompt > 0:
        ids, first = row.tokens.ids, row.tokens.prompt
        return list(ids[:first]), [token for token in ids[first:] if token not in special]
    if row.chat is not None:
        prompt = checkpoint_validation.chat_ids(tokenizer, row.chat)
    else:
        starts_with_bos = row.prompt.startswith(tokenizer.bos_token or "\0")
        prompt = tokenizer(row.prompt, add_special_tokens=not starts_with_bos)["input_ids"]
    completion = tokenizer(row.completion, add_special_tokens=False)["input_ids"]
    decoded = tokenizer.decode(completion, skip_special_tokens=True)
    is_same = decoded.strip() == row.completion.strip() and not set(completion) & special
    return list(prompt), list(completion) if is_same else []


def matching_checkpoints(
    checkpoints: Sequence[Checkpoint], recording: Recording
) -> Iterator[tuple[Path, list[Sample]]]:
    """Yield the run's own checkpoints, the newest first, with the samples of the step after each."""
    steps = recording.steps()
    for checkpoint in reversed(checkpoints):
        if checkpoint.step >= 0 and checkpoint.loads and checkpoint.step + 1 in steps:
            yield checkpoint.folder, steps[checkpoint.step + 1]


def can_compute() -> bool:
    """Return whether torch and transformers are installed."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def check_texts(
    run: RunArtifacts, checkpoint: Path | None, most: int, given: Mapping[str, float]
) -> Iterator[Result]:
    """Check temperature and truncation of recorded texts.

    Args:
        run: The artifacts.
        checkpoint: Weights of the samples; None for the run's own, each with the step that it sampled.
        most: Tokens to compute at most.
        given: The trainer's temperature, top_p and top_k.
    """
    recording = next(
        (entry for entry in run.recordings if any(map(_has_texts, entry.rows))), Recording("", ())
    )
    candidates = list(matching_checkpoints(run.checkpoints, recording))
    if checkpoint is not None and recording.rows:
        candidates = [(checkpoint, list(recording.rows))]
    if not candidates:
        yield skipped("text", "want_checkpoint", "--checkpoint DIR: the weights that sampled the texts")
        return
    if not can_compute():
        yield skipped("text", "want_torch", "torch and transformers: pip install 'grpo-doctor[audit]'")
        return
    parts: list[Observed] = []
    special: set[int] = set()
    count = failures = 0
    for folder, rows in candidates:
        usable = list(filter(_has_texts, rows))
        chosen = random.Random(0).sample(usable, min(len(usable), _MAX_TEXTS))
        try:
            more, left_out, special_ids = _observe(folder, chosen, most - count)
        except Exception as error:  # noqa: BLE001 - a checkpoint can fail to load in as many ways as there are models
            run.unread.add(folder, error)
            continue
        parts, failures, special = parts + more, failures + left_out, special | set(special_ids)
        count = sum(len(entry.ids) for entry in parts)
        if count >= most:
            break
    if count < _ENOUGH:
        yield skipped("text", "want_tokens_of_text", _WANT_TOKENS, count=count, enough=_ENOUGH)
        return
    text = "{count} tokens of {texts} texts; {skipped} texts did not decode to themselves"
    fact = note("text_read", text, count=count, texts=len(parts), skipped=failures)
    yield from _judge(Texts(Observed.join(parts), sorted(special)), Sampling.of_request(dict(given)), fact)


def _has_texts(row: Sample) -> bool:
    return bool(row.prompt and row.completion)


def _judge(texts: Texts, expected: Sampling, seen: Note) -> Iterator[Result]:
    best, second, *_ = texts.rank_fits(expected.temperature)
    value, target = best.sampling.temperature, expected.temperature
    chance, difference = texts.chance(best.sampling), abs(value - target)
    evidence = (seen, note("text_fit", "chance of a fit no better than this: {chance:.2g}", chance=chance))
    width = 1.96 * best.error
    estimate = Estimate("temperature", round(value, 4), value - width, value + width, target)
    fields: dict[str, Any] = {"estimates": (estimate,), "count": texts.count, "evidence": evidence}
    if chance < _UNFIT:  # the texts are another checkpoint's, or were altered
        text = "--checkpoint DIR of the step that sampled these texts: no sampling parameters make them of this one"
        yield undecided("text", note("want_checkpoint_of_step", text), **fields)
        return
    values, runner_up = {"value": value, "expected": target}, abs(best.likelihood - second.likelihood)
    fields |= {"residual": difference, "floor": best.error, "alarm": _ALARM}
    fields |= {"runner_up": RunnerUp(second.kind, runner_up)}
    if difference > max(_ALARM, 3 * best.error):
        message = "the texts were sampled at temperature {value:.3f}; the trainer computes with {expected:g}"
        yield fault("text/temperature", message, "NUM001", values, **fields)
    elif best.error > _ALARM / 2:
        need = note("want_tokens_of_text", _WANT_TOKENS, count=texts.count, enough=4 * texts.count)
        yield undecided("text/temperature", need, values=values, **fields)
    else:
        yield clean("text/temperature", values=values, **fields)
    yield _judge_truncation(texts, best, expected, evidence)


def _judge_truncation(texts: Texts, best: TextFit, expected: Sampling, evidence: tuple[Note, ...]) -> Result:
    """Report a truncation if no token lies outside of it although many should."""
    fields: dict[str, Any] = {"count": texts.count, "evidence": evidence}
    if best.kind == "whole":
        return clean("text/support", **fields)
    value, target = best.sampling.value(best.kind), expected.value(best.kind)
    outside = texts.expected_outside(best.sampling)
    fields["estimates"] = (Estimate(best.kind, round(value, 4), expected=target),)
    if abs(value - target) <= _NO_DIFFERENCE[best.kind] or outside < _OUTSIDE:
        return clean("text/support", **fields)
    message = "the texts were sampled within top-p {value:.4f}; the trainer computes with {expected:g}"
    if best.kind == "top_k":
        message = "the texts were sampled with top-k {value:.0f}; the trainer computes with {expected:g}"
    values = {"value": value, "lacking": outside, "expected": target}
    return fault(f"text/{best.kind}", message, "NUM002", values, **fields)
