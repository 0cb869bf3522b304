"""The log-prob that an engine reports for a token, computed from the weights' logits and the sampling parameters.

The order is vLLM's: penalties and bias on the logits, temperature, min-p, top-k, top-p, then the token's share of
what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from diagnostics.audit.live.reference import Reference

# Largest difference counted for one token, so that a token at a border decides nothing.
_CAP = 2.0
# Logits kept of a large vocabulary, besides those of seen ids; the rest is averaged in so many bins.
_KEPT, _BINS = 4096, 128
# Log-prob by which an id may miss a truncation because of rounding.
_BORDER = 0.2


@dataclass(frozen=True)
class Completion:
    """A sampled completion.

    Attributes:
        logprobs: The engine's log-prob of each sampled id.
        reported: The ids to which these log-probs belong, if the server reports them.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reported: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; `bias` is an id and the value added to its logit."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[int, float] | None = None

    def replace(self, name: str, value: float) -> Sampling:
        """Return a copy with one value changed."""
        changed: dict[str, Any] = {name: round(value) if name == "top_k" else value}
        return replace(self, **changed)

    def value(self, name: str) -> float:
        """Return a parameter by its name."""
        return float(getattr(self, name))

    @property
    def untruncated(self) -> Sampling:
        """Return a copy without top-p, top-k and min-p."""
        return replace(self, top_p=1.0, top_k=0, min_p=0.0)

    @classmethod
    def of_request(cls, request: dict[str, Any]) -> Sampling:
        """Return the parameters of a request; absent ones are neutral."""
        values = {name: request[name] for name in NEUTRAL if request.get(name) is not None}
        values["top_k"] = max(0, values.get("top_k", 0))
        return cls(**values)


NEUTRAL: dict[str, Any] = {field.name: field.default for field in fields(Sampling) if field.name != "bias"}
"""Values of the parameters that change nothing."""


class Observed:
    """Sampled tokens with the logits that some weights give at their positions.

    Attributes:
        reported: Log-prob that the engine reports for each token.
        ids: Sampled ids.
        samples: Index of the completion that each token belongs to.
        columns: Id of each kept logit, by position.
        places: Column of the sampled id, by position.
    """

    def __init__(self, completions: Sequence[Completion], logits: Iterable[Any]) -> None:
        """`logits` has, for each completion, a row for each of its sampled ids."""
        import torch

        self._logits = torch.cat(list(logits))
        size = self._logits.shape[1]
        self.ids = torch.tensor([token for completion in completions for token in completion.ids])
        reported = [value for completion in completions for value in completion.logprobs]
        self.reported = torch.tensor(reported, dtype=torch.float64)
        self.samples = torch.tensor(
            [index for index, completion in enumerate(completions) for _ in completion.ids]
        )
        self._in_prompt = torch.zeros(self._logits.shape, dtype=torch.bool)
        self._counts = torch.zeros(self._logits.shape, dtype=torch.int16)
        place = 0
        for completion in completions:
            prompt = [token for token in completion.prompt if token < size]
            for index in range(len(completion.ids)):
                self._in_prompt[place, prompt] = True
                if index:
                    self._counts[place] = self._counts[place - 1]
                    self._counts[place, completion.ids[index - 1]] += 1
                place += 1
        self._narrow(size)
        self._orders: dict[tuple[Any, ...], Any] = {}

    @classmethod
    def compute(
        cls, reference: Reference, completions: Sequence[Completion], dtype: str, *, native: bool = False
    ) -> Observed:
        """Compute the logits of completions with some weights, in the engine's type or (native=False) more exactly."""
        sequences = [[*completion.prompt, *completion.ids] for completion in completions]
        rows = zip(completions, reference.logits(sequences, dtype, native=native), strict=True)
        return cls(completions, [row[len(completion.prompt) - 1 : -1].double() for completion, row in rows])

    @classmethod
    def join(cls, parts: Sequence[Observed]) -> Observed:
        """Return the tokens of all parts, which have the same vocabulary."""
        import torch

        joined = object.__new__(cls)
        joined.__dict__ = parts[0].__dict__ | {"_orders": {}}
        for name in parts[0].__dict__.keys() - {"_log_bin_size", "_orders"}:
            joined.__dict__[name] = torch.cat([part.__dict__[name] for part in parts])
        return joined

    def _narrow(self, size: int) -> None:
        """Keep the likeliest and the seen ids of a large vocabulary, and average the others in bins."""
        import torch

        self.places = self.ids[:, None]
        self.columns = torch.arange(size).expand(len(self.ids), size)
        self._rest = self._logits.new_empty((len(self.ids), 0))
        self._log_bin_size = 0.0
        if size <= 2 * _KEPT:
            return
        priority = self._logits.clone()
        priority[self._in_prompt | (self._counts > 0)] = float("inf")
        priority.scatter_(1, self.places, float("inf"))
        order = priority.argsort(dim=1, descending=True)
        columns, rest = order[:, :_KEPT], order[:, _KEPT:]
        even = rest.shape[1] // _BINS * _BINS
        self._rest = self._logits.gather(1, rest[:, :even]).reshape(len(self.ids), _BINS, -1).mean(2)
        self._log_bin_size = math.log(rest.shape[1] / _BINS)
        self._logits, self._in_prompt, self._counts = (
            tensor.gather(1, columns) for tensor in (self._logits, self._in_prompt, self._counts)
        )
        self.places, self.columns = (columns == self.ids[:, None]).int().argmax(1)[:, None], columns

    def subset(self, most: int) -> Observed:
        """Return some tokens, spread over all."""
        part = object.__new__(Observed)
        step = max(1, -(-len(self.ids) // most))
        shared = {"_log_bin_size": self._log_bin_size, "_orders": {}}
        part.__dict__ = shared | {
            name: tensor[::step] for name, tensor in self.__dict__.items() if name not in shared
        }
        return part

    def penalised_logits(self, sampling: Sampling) -> Any:
        """Return the logits with penalties and bias."""
        logits = self._logits
        if sampling.repetition_penalty != 1:
            fact = self._in_prompt | (self._counts > 0)
            factor = sampling.repetition_penalty
            logits = logits.where(~fact, (logits / factor).where(logits > 0, logits * factor))
        if sampling.frequency_penalty or sampling.presence_penalty:
            logits = logits - sampling.frequency_penalty * self._counts
            logits = logits - sampling.presence_penalty * (self._counts > 0)
        if sampling.bias is not None:
            logits = logits + sampling.bias[1] * (self.columns == sampling.bias[0])
        return logits

    def logprobs(self, sampling: Sampling) -> Any:
        """Return the log-prob of each token; minus infinity where it is truncated."""
        return self.distribution(sampling).gather(1, self.places)[:, 0]

    def distribution(self, sampling: Sampling) -> Any:
        """Return the log-probs of all kept ids at each position."""
        logits = self.penalised_logits(sampling) / sampling.temperature
        drops_rest = sampling.min_p > 0 or sampling.top_k > 0
        if not self._rest.shape[1] or drops_rest:
            truncated = self._truncate(logits, sampling) if drops_rest or sampling.top_p < 1 else logits
            return truncated.log_softmax(1)
        mass = self._log_mass(logits, sampling)
        if sampling.top_p >= 1:
            return logits - mass
        truncated = self._truncate(logits, sampling, mass)
        inside = truncated.logsumexp(1, keepdim=True)
        # If none of the stored logits is truncated, the nucleus continues in the others.
        reaches_rest = inside.maximum(mass + math.log(sampling.top_p))
        return truncated - inside.where(truncated.isinf().any(1, keepdim=True), reaches_rest)

    def _log_mass(self, logits: Any, sampling: Sampling) -> Any:
        """Return the log of the total mass, with the averaged rest, which no penalty touches."""
        rest = (self._rest / sampling.temperature).logsumexp(1, keepdim=True) + self._log_bin_size
        return logits.logsumexp(1, keepdim=True).logaddexp(rest)

    def _truncate(self, logits: Any, sampling: Sampling, mass: Any = None) -> Any:
        lowest = float("-inf")
        order = self._order(logits, sampling)
        ordered = logits.gather(1, order)
        if sampling.min_p > 0:
            ordered = ordered.masked_fill(ordered < ordered[:, :1] + math.log(sampling.min_p), lowest)
        if 0 < sampling.top_k < ordered.shape[1]:
            ordered = ordered.clone()
            ordered[:, sampling.top_k :] = lowest
        if sampling.top_p < 1:
            shares = ordered.softmax(1) if mass is None else (ordered - mass).exp()
            before = shares.cumsum(1) - shares
            ordered = ordered.masked_fill((before >= sampling.top_p) & (before > 0), lowest)
        return ordered.new_empty(ordered.shape).scatter_(1, order, ordered)

    def _order(self, logits: Any, sampling: Sampling) -> Any:
        """Return the order of the logits, which a temperature does not change."""
        key = (
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.bias,
        )
        if key not in self._orders:
            if len(self._orders) > 4:
                self._orders.clear()
            self._orders[key] = logits.argsort(dim=1, descending=True)
        return self._orders[key]

    def differences(self, sampling: Sampling) -> Any:
        """Return the absolute difference of each reported log-prob, at most the cap."""
        return (self.reported - self.logprobs(sampling)).abs().nan_to_num(_CAP, _CAP, _CAP).clamp(max=_CAP)

    def residual(self, sampling: Sampling) -> float:
        """Return the mean difference without the largest 2 %: rounding moves tokens over a nucleus's border."""
        return trimmed_mean(self.differences(sampling))

    def surprise(self, sampling: Sampling) -> tuple[float, float, float]:
        """Return the sampled ids' total log-prob, its expectation and its standard deviation."""
        distribution = self.distribution(sampling)
        shares = distribution.exp()
        finite = distribution.masked_fill(distribution.isinf(), 0.0)
        mean, squares = (shares * finite).sum(1), (shares * finite.square()).sum(1)
        if self._rest.shape[1] and sampling == sampling.untruncated:
            logits = self.penalised_logits(sampling) / sampling.temperature
            rest = self._rest / sampling.temperature - self._log_mass(logits, sampling)
            rest_shares = (rest + self._log_bin_size).exp()
            mean, squares = mean + (rest_shares * rest).sum(1), squares + (rest_shares * rest.square()).sum(1)
        variance = squares - mean.square()
        sampled = distribution.gather(1, self.places)[:, 0]
        outside = sampled.isinf()
        # The engine's own type admits ids at the border of a truncation that exact numbers exclude.
        free = self.distribution(sampling.untruncated)
        lowest = free.masked_fill(distribution.isinf(), math.inf).min(1).values
        border = outside & (free.gather(1, self.places)[:, 0] > lowest - _BORDER)
        if int((outside & ~border).sum()) <= max(1, len(sampled) // 100):
            border = outside
        sampled, mean, variance = sampled[~border].clamp(min=-50.0), mean[~border], variance[~border]
        return float(sampled.sum()), float(mean.sum()), float(variance.sum().clamp(min=0).sqrt())


def trimmed_mean(values: Any) -> float:
    """Return the mean without the largest 2 %."""
    count = len(values)
    return float(values.sort().values[: count - round(0.02 * count)].mean())
