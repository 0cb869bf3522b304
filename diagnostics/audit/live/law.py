"""The law of a sampled log-prob: what an engine reports for a token, out of the weights' logits and how it samples.

The order of the steps is vLLM's: penalties and bias on the logits, temperature, min-p, top-k, top-p, and then the share
of the token among what is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diagnostics.audit.live.endpoints import Drawn

# A token that a law does not allow, as a difference: so much, and no more, so that one at a border decides nothing.
_CAP = 2.0
# The likeliest ids of a row; with the seen ones they are all that a law is computed on where a vocabulary is larger.
_KEPT = 4096
# What is left out is kept in so many parts: of flat distributions it has most of the mass.
_BINS = 128
# Log-probs by which an id may miss a cut because of arithmetic alone.
_BORDER = 0.2
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
NAMES = tuple(NEUTRAL)


@dataclass(frozen=True)
class Law:
    """How an engine samples; `bias` is what it adds to the logit of one id."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[int, float] | None = None

    def with_(self, name: str, value: float) -> Law:
        """The same with one value changed."""
        changed: dict[str, Any] = {name: round(value) if name == "top_k" else value}
        return replace(self, **changed)

    def get(self, name: str) -> float:
        """A value by its name."""
        return float(getattr(self, name))

    @classmethod
    def of(cls, given: dict[str, Any]) -> Law:
        """Of a request's parameters; those that are not there are neutral."""
        found = {name: given[name] for name in NAMES if given.get(name) is not None}
        if found.get("top_k", 0) < 0:
            found["top_k"] = 0
        return cls(**found)


class Seen:
    """Sampled tokens beside the logits that the weights give there.

    Attributes:
        reported: What the engine says of each.
        ids: The sampled ids.
        rows: In which sample each stands.
    """

    def __init__(self, drawn: Sequence[Drawn], logits: Iterable[Any]) -> None:
        """`logits` has, for each sample, a row for each of its sampled ids."""
        import torch

        rows = list(logits)
        self._logits = torch.cat(rows)
        size = self._logits.shape[1]
        self.ids = torch.tensor([token for each in drawn for token in each.ids])
        self.reported = torch.tensor(
            [value for each in drawn for value in each.logprobs], dtype=torch.float64
        )
        self.rows = torch.tensor([place for place, each in enumerate(drawn) for _ in each.ids])
        self._prompt = torch.zeros(self._logits.shape, dtype=torch.bool)
        self._counts = torch.zeros(self._logits.shape, dtype=torch.int16)
        place = 0
        for each in drawn:
            inside = [token for token in each.prompt if token < size]
            for later, token in enumerate(each.ids):
                self._prompt[place, inside] = True
                if later:
                    self._counts[place] = self._counts[place - 1]
                    self._counts[place, each.ids[later - 1]] += 1
                del token
                place += 1
        self._narrowed(size)
        self._sorted: dict[tuple[Any, ...], Any] = {}

    def _narrowed(self, size: int) -> None:
        """Of a large vocabulary only the likeliest ids and those seen one by one, the others in parts."""
        import torch

        self.places = self.ids[:, None]
        self.columns = torch.arange(size).expand(len(self.ids), size)
        # Of what is left out, by equal counts: its logits on average, and how many they stand for.
        self._rest = self._logits.new_empty((len(self.ids), 0))
        self._of_rest = 0.0
        if size <= 2 * _KEPT:
            return
        wanted = self._logits.clone()
        wanted[self._prompt | (self._counts > 0)] = float("inf")
        wanted.scatter_(1, self.places, float("inf"))
        order = wanted.argsort(dim=1, descending=True)
        columns, behind = order[:, :_KEPT], order[:, _KEPT:]
        whole = behind.shape[1] // _BINS * _BINS
        self._rest = self._logits.gather(1, behind[:, :whole]).reshape(len(self.ids), _BINS, -1).mean(2)
        self._of_rest = math.log(behind.shape[1] / _BINS)
        self._logits, self._prompt, self._counts = (
            each.gather(1, columns) for each in (self._logits, self._prompt, self._counts)
        )
        self.places, self.columns = (columns == self.ids[:, None]).int().argmax(1)[:, None], columns

    def part(self, most: int) -> Seen:
        """The same of some tokens alone, spread over all."""
        made = object.__new__(Seen)
        step = max(1, -(-len(self.ids) // most))
        for name in (
            "_logits",
            "ids",
            "reported",
            "rows",
            "_prompt",
            "_counts",
            "places",
            "columns",
            "_rest",
        ):
            setattr(made, name, getattr(self, name)[::step])
        made._of_rest = self._of_rest  # noqa: SLF001 - it is one of this class
        made._sorted = {}  # noqa: SLF001 - it is one of this class
        return made

    def penalised(self, law: Law) -> Any:
        """The logits with penalties and bias."""
        logits = self._logits
        if law.repetition_penalty != 1:
            seen = self._prompt | (self._counts > 0)
            factor = law.repetition_penalty
            logits = logits.where(~seen, (logits / factor).where(logits > 0, logits * factor))
        if law.frequency_penalty or law.presence_penalty:
            logits = logits - law.frequency_penalty * self._counts - law.presence_penalty * (self._counts > 0)
        if law.bias is not None:
            logits = logits + law.bias[1] * (self.columns == law.bias[0])
        return logits

    def logprobs(self, law: Law) -> Any:
        """What the law says for each token; minus infinity where it does not allow it."""
        return self.whole(law).gather(1, self.places)[:, 0]

    def whole(self, law: Law) -> Any:
        """The whole distribution at each place, as log-probs."""
        logits = self.penalised(law) / law.temperature
        cuts_rest = law.min_p > 0 or law.top_k > 0
        if not self._rest.shape[1] or cuts_rest:
            cut = self._cut(logits, law) if cuts_rest or law.top_p < 1 else logits
            return cut.log_softmax(1)
        mass = logits.logsumexp(1, keepdim=True).logaddexp(self._beyond(law))
        if law.top_p >= 1:
            return logits - mass
        cut = self._cut(logits, law, mass)
        left = cut.logsumexp(1, keepdim=True)
        # Where nothing of what is kept was cut, the nucleus goes on in the rest.
        return cut - left.where(cut.isinf().any(1, keepdim=True), left.maximum(mass + math.log(law.top_p)))

    def _beyond(self, law: Law) -> Any:
        """The mass of what is left out, as a logarithm: no penalty is on it."""
        return (self._rest / law.temperature).logsumexp(1, keepdim=True) + self._of_rest

    def _cut(self, logits: Any, law: Law, mass: Any = None) -> Any:
        low = float("-inf")
        ordered, order = self._order(logits, law)
        if law.min_p > 0:
            ordered = ordered.masked_fill(ordered < ordered[:, :1] + math.log(law.min_p), low)
        if 0 < law.top_k < ordered.shape[1]:
            ordered = ordered.clone()
            ordered[:, law.top_k :] = low
        if law.top_p < 1:
            shares = ordered.softmax(1) if mass is None else (ordered - mass).exp()
            before = shares.cumsum(1) - shares
            ordered = ordered.masked_fill((before >= law.top_p) & (before > 0), low)
        return ordered.new_empty(ordered.shape).scatter_(1, order, ordered)

    def _order(self, logits: Any, law: Law) -> Any:
        """The logits from the largest on; a temperature changes nothing of their order."""
        key = (law.repetition_penalty, law.presence_penalty, law.frequency_penalty, law.bias)
        if key not in self._sorted:
            if len(self._sorted) > 4:
                self._sorted.clear()
            self._sorted[key] = logits.argsort(dim=1, descending=True)
        order = self._sorted[key]
        return logits.gather(1, order), order

    def off(self, law: Law) -> Any:
        """How far each reported log-prob is from the law's, at most so much."""
        return (self.reported - self.logprobs(law)).abs().nan_to_num(_CAP, _CAP, _CAP).clamp(max=_CAP)

    def residual(self, law: Law) -> float:
        """The mean of that without the worst of fifty: at the border of a nucleus rounding moves a token over it."""
        return trimmed(self.off(law))

    def surprise(self, law: Law) -> tuple[float, float, float]:
        """Of the sampled ids, not of what is reported: sum of log-probs, what it should be, and its deviation."""
        whole = self.whole(law)
        shares = whole.exp()
        finite = whole.masked_fill(whole.isinf(), 0.0)
        mean, squares = (shares * finite).sum(1), (shares * finite.square()).sum(1)
        if self._rest.shape[1] and law.min_p <= 0 and law.top_k <= 0 and law.top_p >= 1:
            logits = self.penalised(law) / law.temperature
            beyond = self._rest / law.temperature
            beyond = beyond - logits.logsumexp(1, keepdim=True).logaddexp(self._beyond(law))
            held = (beyond + self._of_rest).exp()
            mean, squares = mean + (held * beyond).sum(1), squares + (held * beyond.square()).sum(1)
        spread = squares - mean.square()
        taken = whole.gather(1, self.places)[:, 0]
        outside = taken.isinf()
        # At the border of a cut the engine's own type lets in what exact numbers leave out; few may be farther away.
        free = self.whole(replace(law, top_p=1.0, top_k=0, min_p=0.0))
        least = free.masked_fill(whole.isinf(), math.inf).min(1).values
        border = outside & (free.gather(1, self.places)[:, 0] > least - _BORDER)
        if int((outside & ~border).sum()) <= max(1, len(taken) // 100):
            border = outside
        taken, mean, spread = taken[~border], mean[~border], spread[~border]
        taken = taken.clamp(min=-50.0)
        return float(taken.sum()), float(mean.sum()), float(spread.sum().clamp(min=0).sqrt())


def trimmed(values: Any) -> float:
    """The mean without the largest 2 %."""
    count = len(values)
    kept = values.sort().values[: count - round(0.02 * count)]
    return float(kept.mean())
