"""A checkpoint's own distribution at each place of a text, and the law by which the text was sampled from it.

The only file of the recorded side that computes with a model. Of each place it keeps the most probable tokens, the
sampled one's rank and log-probs at a grid of temperatures; all else is made of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnostics.audit import folders

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diagnostics.audit.recorded.rows import Row

# Inverse temperatures: from 2.5 down to 0.25, 1 among them.
BETAS = tuple(1.08**step for step in range(-12, 19))
_TOP = 512
# What a token outside of a cut costs as noise (retokenised at a border), and a cut as such, in nats.
_OUTLIER, _CUT = 9.0, 14.0
_MOST_OUTLIERS = 0.004
_KINDS = ("whole", "top_p", "top_k")
_TENSORS = ("top", "special", "token", "rank", "whole", "spoken", "before")


@dataclass(frozen=True)
class Law:
    """How a text was sampled.

    Attributes:
        kind: `whole`, `top_p` or `top_k`: what cuts the distribution.
        temperature: By maximum likelihood under that cut.
        error: Its standard error.
        value: Of the cut; 1.0 or 0 where there is none.
        gain: By how many nats it explains the text better than no cut does.
        outliers: Tokens outside of the cut, which it takes for noise.
        fits: The chance of a fit no better than this, if the law is right.
    """

    kind: str
    temperature: float
    error: float
    value: float
    gain: float
    outliers: int
    fits: float


@dataclass
class Places:
    """All places of some texts; tensors of torch, a row a place.

    Attributes:
        top: The largest logits, sorted.
        special: Which of them belong to ids that are no text.
        token: The sampled token's logit.
        rank: How many are larger.
        whole: Log-sum-exp of all, at each of BETAS.
        spoken: The same of ids that are text.
        before: Mass of the more probable ones, at each of BETAS.
        rows: Texts that they are of.
        left_out: Texts that did not come back the same from their own ids.
    """

    top: Any
    special: Any
    token: Any
    rank: Any
    whole: Any
    spoken: Any
    before: Any
    rows: int
    left_out: int

    @property
    def count(self) -> int:
        """How many places there are."""
        return int(self.token.shape[0])

    def joined(self, other: Places) -> Places:
        """Those of both."""
        import torch

        both: dict[str, Any] = {
            name: torch.cat([getattr(self, name), getattr(other, name)]) for name in _TENSORS
        }
        return Places(**both, rows=self.rows + other.rows, left_out=self.left_out + other.left_out)

    def laws(self, expected: float = 1.0) -> list[Law]:
        """The best law of each kind, the likeliest first.

        Args:
            expected: A temperature at which the cut is taken, where the text does not speak against it: what was cut
                depends on it.
        """
        found = [self._best(kind, expected) for kind in _KINDS]
        plain = found[0][0]
        made = [
            Law(kind, temperature, error, value, likelihood - plain, outliers, fits)
            for kind, (likelihood, temperature, error, value, outliers, fits) in zip(
                _KINDS, found, strict=True
            )
        ]
        return sorted(made, key=lambda law: law.gain - (0 if law.kind == "whole" else _CUT), reverse=True)

    def _best(self, kind: str, expected: float) -> tuple[float, float, float, float, int, float]:
        """Likelihood, temperature, its error, value, outliers, fit: over the grid, then between its points."""
        told = [self._at(kind, place) for place in range(len(BETAS))]
        best = max(range(1, len(BETAS) - 1), key=lambda place: told[place][0])
        a, b, c = (told[best + step][0] for step in (-1, 0, 1))
        # A parabola in the logarithm of the temperature, whose steps are equal.
        bend, width = a - 2 * b + c, math.log(BETAS[1] / BETAS[0])
        shift = max(-1.0, min(1.0, 0.5 * (a - c) / bend)) if bend < 0 else 0.0
        beta = BETAS[best] * math.exp(width * shift)
        error = width / math.sqrt(-bend) / beta if bend < 0 else float("inf")
        near = best if abs(shift) < 0.5 else best + (1 if shift > 0 else -1)
        _, value, outliers = told[near]
        if kind == "top_p":
            asked = abs(1 / beta - expected) < 3 * error
            value = self._mass_at(told, 1 / expected if asked else beta)
        return b, 1 / beta, error, value, outliers, self._fit(kind, near, value)

    def _mass_at(self, told: list[tuple[float, float, int]], beta: float) -> float:
        """The cut between two points of the grid."""
        along = min(len(BETAS) - 1.001, max(0.0, math.log(beta / BETAS[0]) / math.log(BETAS[1] / BETAS[0])))
        low = int(along)
        return told[low][1] + (along - low) * (told[low + 1][1] - told[low][1])

    def _at(self, kind: str, place: int) -> tuple[float, float, int]:
        """Log-likelihood of the texts at one temperature under the best cut of a kind, its value, its outliers."""
        import torch

        beta = BETAS[place]
        said = (beta * self.token - self.spoken[:, place]).double()
        if kind == "whole":
            return float(said.sum()), 1.0, 0
        measure = self.before[:, place] if kind == "top_p" else self.rank.float()
        most = torch.sort(measure, descending=True).values[: max(1, int(_MOST_OUTLIERS * self.count)) + 1]
        best: tuple[float, float, int] | None = None
        for outliers in range(len(most)):
            value = float(most[outliers]) if kind == "top_p" else float(most[outliers]) + 1
            if kind == "top_k" and value > _TOP:
                continue
            inside = measure <= (value if kind == "top_p" else value - 1)
            kept = self._kept(kind, place, value)
            likelihood = float((said - kept.double().log())[inside].sum()) + float(said[~inside].sum())
            likelihood -= _OUTLIER * int((~inside).sum())
            if best is None or likelihood > best[0]:
                best = (likelihood, value, int((~inside).sum()))
        return best or (-math.inf, 0.0, 0)

    def _kept(self, kind: str, place: int, value: float) -> Any:
        """Of each place the mass that a cut leaves, among what is text."""
        import torch

        chances = torch.exp(BETAS[place] * self.top - self.whole[:, place, None])
        if kind == "top_k":
            inside = torch.arange(chances.shape[1])[None] < value
        else:
            # The token that crosses the bound is the last one that stays.
            inside = (chances.cumsum(1) - chances) <= value
        spoken = torch.exp(self.spoken[:, place] - self.whole[:, place])
        mass = (chances * inside * ~self.special).sum(1) / spoken
        # Behind the kept ones the nucleus goes on: then it has what was asked for.
        wide = inside[:, -1] & (mass < value)
        return torch.where(wide, torch.full_like(mass, min(value, 1.0)), mass).clamp(1e-6, 1.0)

    def _fit(self, kind: str, place: int, value: float) -> float:
        """How well the texts follow a law: where in the distribution each token fell should be spread evenly."""
        import torch

        beta = BETAS[place]
        chance = torch.exp(beta * self.token - self.whole[:, place])
        kept = torch.ones_like(chance) if kind == "whole" else self._kept(kind, place, value)
        ones = torch.rand(self.count, generator=torch.Generator().manual_seed(0))
        fell = ((self.before[:, place] + ones * chance) / kept.clamp_min(1e-6)).clamp(0, 0.999999)
        counts = torch.bincount((fell * 20).long(), minlength=20).double()
        expected = self.count / 20
        # What is no text is left out of the samples, not of these masses: a few percent of slack.
        off = float((((counts - expected).abs() - 0.04 * expected).clamp_min(0) ** 2 / expected).sum())
        return _chi_squared(off, 19)

    def lacking(self, law: Law) -> float:
        """How many tokens should have fallen outside of a law's cut, had there been none."""
        place = min(range(len(BETAS)), key=lambda each: abs(BETAS[each] * law.temperature - 1))
        return float((1 - self._kept(law.kind, place, law.value)).sum()) if law.kind != "whole" else 0.0


def _chi_squared(value: float, freedom: int) -> float:
    """Wilson and Hilferty's approximation of the chance of so much."""
    if value <= 0:
        return 1.0
    scaled = 2 / (9 * freedom)
    return 0.5 * math.erfc((((value / freedom) ** (1 / 3)) - (1 - scaled)) / math.sqrt(2 * scaled))


def places(folder: Path, rows: Sequence[Row], most: int, longest: int) -> Places:
    """Runs texts through a checkpoint.

    Args:
        folder: Of the checkpoint, with its tokenizer.
        rows: The texts.
        most: Completion tokens.
        longest: Tokens of one text, prompt included.

    Raises:
        AuditError: Transformers can't load the checkpoint.
    """
    import torch

    tokenizer = folders.tokenizer(folder)
    model = folders.model(folder, use_safetensors=True).float().eval()
    special = torch.tensor(sorted(set(tokenizer.all_special_ids)), dtype=torch.long)
    parts: list[tuple[Any, ...]] = []
    count = left_out = 0
    with torch.inference_mode():
        for row in rows:
            ids = _ids(tokenizer, row)
            if ids is None or len(ids[0]) + len(ids[1]) > longest:
                left_out += 1
                continue
            asked, said = ids
            logits = model(torch.tensor([[*asked, *said]])).logits[0, len(asked) - 1 : -1].float()
            parts.append(_measured(logits, torch.tensor(said), special))
            count += len(said)
            if count >= most:
                break
    if not parts:
        raise ValueError(f"none of {len(rows)} texts comes back the same from its own ids")
    top = min(part[0].shape[1] for part in parts)
    cut = [(part[0][:, :top], part[1][:, :top], *part[2:]) for part in parts]
    made: dict[str, Any] = {
        name: torch.cat([part[place] for part in cut]) for place, name in enumerate(_TENSORS)
    }
    return Places(**made, rows=len(parts), left_out=left_out)


def _ids(tokenizer: Any, row: Row) -> tuple[list[int], list[int]] | None:
    """Ids of prompt and completion, or None where the completion does not come back the same."""
    if row.tokens is not None and row.tokens.prompt > 0:
        special = set(tokenizer.all_special_ids)
        said = [each for each in row.tokens.ids[row.tokens.prompt :] if each not in special]
        return list(row.tokens.ids[: row.tokens.prompt]), said
    if row.chat is not None:
        asked = folders.chat(tokenizer, row.chat)
    else:
        first = tokenizer.bos_token or "\0"
        asked = tokenizer(row.prompt, add_special_tokens=not row.prompt.startswith(first))["input_ids"]
    said = tokenizer(row.completion, add_special_tokens=False)["input_ids"]
    if not asked or not said or set(said) & set(tokenizer.all_special_ids):
        return None
    if tokenizer.decode(said, skip_special_tokens=True).strip() != row.completion.strip():
        return None
    return list(asked), list(said)


def _measured(logits: Any, said: Any, special: Any) -> tuple[Any, ...]:
    """The tensors of `Places`, of one text."""
    import torch

    ordered, ids = torch.sort(logits, dim=1, descending=True)
    token = logits.gather(1, said[:, None])[:, 0]
    rank = (logits > token[:, None]).sum(1)
    spoken = logits.clone()
    spoken[:, special] = -math.inf
    whole, only, before = [], [], []
    for beta in BETAS:
        total = torch.logsumexp(beta * logits, dim=1)
        whole.append(total)
        only.append(torch.logsumexp(beta * spoken, dim=1))
        above = torch.where(logits > token[:, None], torch.exp(beta * logits - total[:, None]), 0.0)
        before.append(above.sum(1))
    keep = min(_TOP, ordered.shape[1])
    return (
        ordered[:, :keep],
        torch.isin(ids[:, :keep], special),
        token,
        rank,
        torch.stack(whole, 1),
        torch.stack(only, 1),
        torch.stack(before, 1),
    )
