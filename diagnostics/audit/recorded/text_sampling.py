"""P7: temperature, top-p and top-k from texts alone, by the checkpoint that sampled them.

Each text is tokenised again, and left out if it does not decode to itself. Temperature and truncation are those
that make the texts likeliest: top-p is the most probability mass before a sampled token, top-k the highest rank.
Texts lack
special tokens, so each position is judged given that its token is not special.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.audit import checkpoint_validation
from diagnostics.audit.model import CLEAN, NOT_DECIDED, Estimate, Note, Result, RunnerUp, fault, note, skipped
from diagnostics.audit.recorded.run_data import RunArtifacts, Sample, Unreadable
from diagnostics.output.redact import mask_and_cut

PROBE = "P7"
_ENOUGH, _MAX_TEXTS, _LONGEST = 1024, 2048, 1024
_ALARM, _UNFIT = 0.05, 1e-7
# Inverse temperatures from 2.5 down to 0.25, 1 among them; logits that are kept of each position.
BETAS = tuple(1.08**step for step in range(-12, 19))
_TOP = 512
# Cost in nats of a token outside of a truncation (retokenised at a border), and of a truncation as such.
_OUTLIER, _TRUNCATION = 9.0, 14.0
_MOST_OUTLIERS = 0.004
_KINDS = ("whole", "top_p", "top_k")
_TENSORS = ("top", "special", "token", "rank", "log_total", "log_text", "mass_before")


@dataclass(frozen=True)
class TextSampling:
    """Estimated sampling parameters.

    Attributes:
        kind: `whole`, `top_p` or `top_k`.
        temperature: Maximum likelihood under that truncation, with its standard error.
        value: Value of the truncation; 1 if there is none.
        gain: Nats by which it explains the texts better than no truncation.
        outliers: Tokens outside of the truncation, taken as noise.
        chance: Probability of a fit no better than this.
    """

    kind: str
    temperature: float
    error: float
    value: float
    gain: float
    outliers: int
    chance: float


@dataclass
class Positions:
    """All positions of some texts; torch tensors with a row a position.

    Attributes:
        top: Largest logits, sorted; `special` marks those of special tokens.
        token: Logit of the sampled token; `rank` is the number of larger ones.
        log_total: Log-sum-exp of all logits at each of BETAS; `log_text` without special tokens.
        mass_before: Probability of more likely tokens, at each of BETAS.
        skipped: Texts that did not decode to themselves.
    """

    top: Any
    special: Any
    token: Any
    rank: Any
    log_total: Any
    log_text: Any
    mass_before: Any
    texts: int
    skipped: int

    @property
    def count(self) -> int:
        """Return the number of positions."""
        return int(self.token.shape[0])

    def join(self, other: Positions) -> Positions:
        """Return the positions of both."""
        import torch

        tensors: dict[str, Any] = {
            name: torch.cat([getattr(self, name), getattr(other, name)]) for name in _TENSORS
        }
        return Positions(**tensors, texts=self.texts + other.texts, skipped=self.skipped + other.skipped)

    def rank_samplings(self, expected: float) -> list[TextSampling]:
        """Return the best parameters of each kind, the likeliest first.

        Args:
            expected: Temperature at which a truncation is measured unless the texts contradict it.
        """
        fits = [self._maximise(kind, expected) for kind in _KINDS]
        baseline = fits[0][0]
        samplings = [
            TextSampling(kind, *fit[1:4], fit[0] - baseline, *fit[4:])
            for kind, fit in zip(_KINDS, fits, strict=True)
        ]
        return sorted(
            samplings, key=lambda each: each.gain - (0 if each.kind == "whole" else _TRUNCATION), reverse=True
        )

    def _maximise(self, kind: str, expected: float) -> tuple[float, float, float, float, int, float]:
        """Return likelihood, temperature, its error, value, outliers and chance, found between points of a grid."""
        grid = [self._likelihood(kind, place) for place in range(len(BETAS))]
        best = max(range(1, len(BETAS) - 1), key=lambda place: grid[place][0])
        a, b, c = (grid[best + step][0] for step in (-1, 0, 1))
        # A parabola in the logarithm of the temperature, whose steps are equal.
        bend, width = a - 2 * b + c, math.log(BETAS[1] / BETAS[0])
        shift = max(-1.0, min(1.0, 0.5 * (a - c) / bend)) if bend < 0 else 0.0
        beta = BETAS[best] * math.exp(width * shift)
        error = width / math.sqrt(-bend) / beta if bend < 0 else float("inf")
        near = best if abs(shift) < 0.5 else best + (1 if shift > 0 else -1)
        _, value, outliers = grid[near]
        if kind == "top_p":
            value = _interpolate(grid, 1 / expected if abs(1 / beta - expected) < 3 * error else beta)
        return b, 1 / beta, error, value, outliers, self._chance(kind, near, value)

    def _likelihood(self, kind: str, place: int) -> tuple[float, float, int]:
        """Return the log-likelihood at one temperature under the best truncation, its value and its outliers."""
        import torch

        logprobs = (BETAS[place] * self.token - self.log_text[:, place]).double()
        if kind == "whole":
            return float(logprobs.sum()), 1.0, 0
        measure = self.mass_before[:, place] if kind == "top_p" else self.rank.float()
        highest = torch.sort(measure, descending=True).values[: max(1, int(_MOST_OUTLIERS * self.count)) + 1]
        best = (-math.inf, 0.0, 0)
        for bound in map(float, highest):
            value = bound if kind == "top_p" else bound + 1
            if kind == "top_k" and value > _TOP:
                continue
            inside = measure <= bound
            outliers = int((~inside).sum())
            mass = self._mass_inside(kind, place, value).double().log()
            likelihood = (
                float((logprobs - mass)[inside].sum()) + float(logprobs[~inside].sum()) - _OUTLIER * outliers
            )
            best = max(best, (likelihood, value, outliers), key=lambda fit: fit[0])
        return best

    def _mass_inside(self, kind: str, place: int, value: float) -> Any:
        """Return the probability that a truncation keeps at each position, among text tokens."""
        import torch

        shares = torch.exp(BETAS[place] * self.top - self.log_total[:, place, None])
        # The token that crosses the bound is the last one kept.
        likelier = torch.arange(shares.shape[1])[None] if kind == "top_k" else shares.cumsum(1) - shares
        inside = likelier < value if kind == "top_k" else likelier <= value
        text_share = torch.exp(self.log_text[:, place] - self.log_total[:, place])
        mass = (shares * inside * ~self.special).sum(1) / text_share
        # Where the nucleus goes on beyond the kept logits, it has the mass that was asked for.
        beyond = inside[:, -1] & (mass < value)
        return torch.where(beyond, torch.full_like(mass, min(value, 1.0)), mass).clamp(1e-6, 1.0)

    def _chance(self, kind: str, place: int, value: float) -> float:
        """Return the probability of the fit: the quantile of each sampled token should be uniform."""
        import torch

        shares = torch.exp(BETAS[place] * self.token - self.log_total[:, place])
        mass = torch.ones_like(shares) if kind == "whole" else self._mass_inside(kind, place, value)
        uniform = torch.rand(self.count, generator=torch.Generator().manual_seed(0))
        quantiles = ((self.mass_before[:, place] + uniform * shares) / mass.clamp_min(1e-6)).clamp(
            0, 0.999999
        )
        counts = torch.bincount((quantiles * 20).long(), minlength=20).double()
        expected = self.count / 20
        # Special tokens are missing from the texts and not from these shares: a few percent of slack.
        statistic = float((((counts - expected).abs() - 0.04 * expected).clamp_min(0) ** 2 / expected).sum())
        return _chi_squared_tail(statistic, 19)

    def expected_outside(self, sampling: TextSampling) -> float:
        """Return how many tokens should lie outside of a truncation if there were none."""
        if sampling.kind == "whole":
            return 0.0
        place = min(range(len(BETAS)), key=lambda place: abs(BETAS[place] * sampling.temperature - 1))
        return float((1 - self._mass_inside(sampling.kind, place, sampling.value)).sum())


def _interpolate(grid: list[tuple[float, float, int]], beta: float) -> float:
    position = min(len(BETAS) - 1.001, max(0.0, math.log(beta / BETAS[0]) / math.log(BETAS[1] / BETAS[0])))
    low = int(position)
    return grid[low][1] + (position - low) * (grid[low + 1][1] - grid[low][1])


def _chi_squared_tail(value: float, freedom: int) -> float:
    """Return the tail probability, by Wilson and Hilferty's approximation."""
    if value <= 0:
        return 1.0
    scaled = 2 / (9 * freedom)
    return 0.5 * math.erfc((((value / freedom) ** (1 / 3)) - (1 - scaled)) / math.sqrt(2 * scaled))


def compute_positions(folder: Path, rows: Sequence[Sample], most: int) -> Positions:
    """Run texts through a checkpoint, up to a number of completion tokens.

    Raises:
        AuditError: Transformers cannot load the checkpoint.
        ValueError: No text decodes to itself.
    """
    import torch

    tokenizer = checkpoint_validation.load_tokenizer(folder)
    model = checkpoint_validation.load_model(folder, use_safetensors=True).float().eval()
    special = torch.tensor(sorted(set(tokenizer.all_special_ids)), dtype=torch.long)
    parts: list[tuple[Any, ...]] = []
    count = failures = 0
    with torch.inference_mode():
        for row in rows:
            encoded = _encode(tokenizer, row)
            if encoded is None or len(encoded[0]) + len(encoded[1]) > _LONGEST:
                failures += 1
                continue
            prompt, completion = encoded
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].float()
            parts.append(_measure(logits, torch.tensor(completion), special))
            count += len(completion)
            if count >= most:
                break
    if not parts:
        raise ValueError(f"none of {len(rows)} texts decodes to itself")
    tensors: dict[str, Any] = {
        name: torch.cat([part[index] for part in parts]) for index, name in enumerate(_TENSORS)
    }
    return Positions(**tensors, texts=len(parts), skipped=failures)


def _encode(tokenizer: Any, row: Sample) -> tuple[list[int], list[int]] | None:
    """Return the ids of prompt and completion; None if the completion does not decode to itself."""
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
    if not prompt or not completion or set(completion) & special:
        return None
    if tokenizer.decode(completion, skip_special_tokens=True).strip() != row.completion.strip():
        return None
    return list(prompt), list(completion)


def _measure(logits: Any, completion: Any, special: Any) -> tuple[Any, ...]:
    """Return the tensors of `Positions` for one text."""
    import torch

    ordered, ids = torch.sort(logits, dim=1, descending=True)
    token = logits.gather(1, completion[:, None])[:, 0]
    larger = logits > token[:, None]
    text_logits = logits.clone()
    text_logits[:, special] = -math.inf
    log_total = torch.stack([torch.logsumexp(beta * logits, dim=1) for beta in BETAS], 1)
    log_text = torch.stack([torch.logsumexp(beta * text_logits, dim=1) for beta in BETAS], 1)
    before = [
        torch.where(larger, torch.exp(beta * logits - log_total[:, place, None]), 0.0).sum(1)
        for place, beta in enumerate(BETAS)
    ]
    top = min(_TOP, ordered.shape[1])
    return (
        ordered[:, :top], torch.isin(ids[:, :top], special), token, larger.sum(1), log_total, log_text,
        torch.stack(before, 1),
    )  # fmt: skip


def check_texts(
    run: RunArtifacts,
    checkpoint: Path | None,
    most: int,
    unreadable: list[Unreadable],
    expected: Mapping[str, float],
) -> Iterator[Result]:
    """Check temperature and truncation of recorded texts.

    Args:
        run: The artifacts.
        checkpoint: Weights of the samples; None for the run's own, each with the step that it sampled.
        most: Tokens to compute at most.
        unreadable: Receives checkpoints that could not be computed.
        expected: The trainer's temperature, top_p and top_k.
    """
    candidates = list(_candidates(run, checkpoint))
    if not candidates:
        yield skipped(
            "text", PROBE, "want_checkpoint", "--checkpoint DIR: the weights that sampled the texts"
        )
        return
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        yield skipped("text", PROBE, "want_torch", "torch and transformers: pip install 'grpo-doctor[audit]'")
        return
    positions: Positions | None = None
    for folder, rows in candidates:
        left = most - (positions.count if positions else 0)
        if left <= 0:
            break
        try:
            more = compute_positions(folder, rows, left)
        except Exception as error:  # noqa: BLE001 - a checkpoint can fail to load in as many ways as there are models
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            unreadable.append(Unreadable(str(folder), mask_and_cut(first, 200)))
            continue
        positions = more if positions is None else positions.join(more)
    count = positions.count if positions else 0
    if positions is None or count < _ENOUGH:
        need = "{enough} tokens of text; there are {count}"
        yield skipped("text", PROBE, "want_tokens_of_text", need, count=count, enough=_ENOUGH)
        return
    yield from _judge(positions, {"temperature": 1.0, "top_p": 1.0, "top_k": 0} | dict(expected))


def _candidates(run: RunArtifacts, checkpoint: Path | None) -> Iterator[tuple[Path, list[Sample]]]:
    """Yield checkpoints with the samples of the step after them."""
    recording = next((each for each in run.recordings if any(_has_texts(row) for row in each.rows)), None)
    if recording is None:
        return
    if checkpoint is not None:
        yield checkpoint, _choose(recording.rows)
        return
    steps = recording.steps()
    for each in reversed(run.checkpoints):
        if each.step >= 0 and each.loads and each.step + 1 in steps:
            yield each.folder, _choose(steps[each.step + 1])


def _has_texts(row: Sample) -> bool:
    return bool(row.prompt and row.completion)


def _choose(rows: Sequence[Sample]) -> list[Sample]:
    usable = [row for row in rows if _has_texts(row)]
    return random.Random(0).sample(usable, min(len(usable), _MAX_TEXTS))


def _judge(positions: Positions, expected: Mapping[str, float]) -> Iterator[Result]:
    best, second, *_ = positions.rank_samplings(expected["temperature"])
    evidence = (
        note("text_read", "{count} tokens of {texts} texts; {skipped} texts did not decode to themselves",
             count=positions.count, texts=positions.texts, skipped=positions.skipped),
        note("text_fit", "chance of a fit no better than this: {chance:.2g}; tokens taken as noise: {outliers}",
             chance=best.chance, outliers=best.outliers),
    )  # fmt: skip
    width = 1.96 * best.error
    estimate = Estimate("temperature", round(best.temperature, 4), best.temperature - width, best.temperature + width,
                        expected["temperature"])  # fmt: skip
    if best.chance < _UNFIT:  # the texts are another checkpoint's, or were altered
        need = note("want_checkpoint_of_step", "--checkpoint DIR of the step that sampled these"
                                               " texts: no" " sampling parameters"
                    " make them of this one")  # fmt: skip
        yield Result(
            "text",
            NOT_DECIDED,
            PROBE,
            estimates=(estimate,),
            count=positions.count,
            evidence=evidence,
            needed=(need,),
        )
        return
    difference = abs(best.temperature - expected["temperature"])
    values = {"value": best.temperature, "expected": expected["temperature"]}
    fields: dict[str, Any] = {
        "values": values, "estimates": (estimate,), "residual": difference, "floor": best.error, "alarm": _ALARM,
        "runner_up": RunnerUp(second.kind, abs(best.gain - second.gain)), "count": positions.count,
        "evidence": evidence,
    }  # fmt: skip
    if difference > max(_ALARM, 3 * best.error):
        message = "the texts were sampled at temperature {value:.3f}; the trainer computes with {expected:g}"
        yield fault("text/temperature", PROBE, message, "NUM001", **fields)
    elif best.error > _ALARM / 2:
        need = note("want_tokens_of_text", "{enough} tokens of text; there are {count}", count=positions.count,
                    enough=4 * positions.count)  # fmt: skip
        yield Result("text/temperature", NOT_DECIDED, PROBE, needed=(need,), **fields)
    else:
        yield Result("text/temperature", CLEAN, PROBE, **fields)
    yield _truncation(positions, best, expected, evidence)


def _truncation(
    positions: Positions, best: TextSampling, expected: Mapping[str, float], evidence: tuple[Note, ...]
) -> Result:
    """Report a truncation if no token lies outside of it although many should."""
    missing = positions.expected_outside(best)
    is_whole = best.kind == "whole"
    near = 0.004 if best.kind == "top_p" else 0.5
    if is_whole or abs(best.value - expected[best.kind]) <= near or missing < 14:
        estimates = (
            () if is_whole else (Estimate(best.kind, round(best.value, 4), expected=expected[best.kind]),)
        )
        return Result(
            "text/support", CLEAN, PROBE, estimates=estimates, count=positions.count, evidence=evidence
        )
    values = {"value": best.value, "lacking": missing, "expected": expected[best.kind]}
    value = round(best.value, 4) if best.kind == "top_p" else int(best.value)
    message = ("the texts were sampled within top-p {value:.4f}; the trainer"
               " computes with" " {expected:g}" if best.kind == "top_p"
               else "the texts were sampled from the {value:.0f} most likely tokens (top-k); the trainer computes with"
               " {expected:g}")  # fmt: skip
    return fault(f"text/{best.kind}", PROBE, message, "NUM002", values=values, count=positions.count, evidence=evidence,
                 estimates=(Estimate(best.kind, value, expected=values["expected"]),),
                 runner_up=RunnerUp("whole", best.gain))  # fmt: skip
