"""Compute the log-probs that an engine should report for sampled tokens, from logits and sampling parameters.

`Observed` has sampled tokens (`Completion`) with a reference model's logits; its methods take the parameters
(`Sampling`). The order is vLLM's: penalties, temperature, min-p, top-k, top-p. The log-prob is renormalised over the
remaining tokens. If the vocabulary has more than 8192 ids, 4096 logits of each position are kept (the ids in the prompt
or sample, then the likeliest), and the others are averaged in bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from diagnostics.audit.live.reference import Reference

# Largest difference counted for one token, so that a token at the border of a truncation decides nothing.
_CAP = 2.0
# Number of logits that are kept of a large vocabulary, and number of bins in which the rest is averaged.
_KEPT, _BINS = 4096, 128
# Log-prob by which an id may miss a truncation because of rounding.
_BORDER = 0.2
# Attributes of observed tokens that have no row for each token.
_NOT_BY_TOKEN = ("_sort_key", "_sorted", "_mass_key", "_masses", "_log_bin_size")


@dataclass(frozen=True)
class Completion:
    """A sampled completion.

    Attributes:
        prompt: Ids of the prompt.
        ids: Sampled ids.
        logprobs: The engine's log-prob of each sampled id.
        reported_ids: The ids to which these log-probs belong, if the server reports them.
        finish_reason: The server's reason for the end, as `length`; empty if unknown.
        stop_reason: The stop id or string at which the completion ended; None for the end-of-sequence id.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reported_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    stop_reason: int | str | None = None


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; the defaults change nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

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


NAMES = tuple(field.name for field in fields(Sampling))
"""Names of the sampling parameters."""


class Observed:
    """Sampled tokens, their reported log-probs, and the logits that a reference model computes at their positions.

    Attributes:
        reported: Log-prob that the engine reports for each token.
        ids: Sampled ids.
        samples: Index of the completion that each token belongs to.
        sampled_columns: Index of the sampled id among the kept logits, by position, as a column vector.
    """

    # The sorted logits for the last penalties, and their masses for the last temperature.
    _sort_key: Any = None
    _sorted: Any = None
    _mass_key: Any = None
    _masses: Any = None

    def __init__(self, completions: Sequence[Completion], logits: Iterable[Any]) -> None:
        """`logits` has, for each completion, a row for each of its sampled ids."""
        import torch

        self._logits = torch.cat(list(logits))
        self.ids = torch.tensor([token for completion in completions for token in completion.ids])
        reported = [value for completion in completions for value in completion.logprobs]
        self.reported = torch.tensor(reported, dtype=torch.float64)
        self.samples = torch.tensor([index for index, entry in enumerate(completions) for _ in entry.ids])
        self._seen = torch.zeros(self._logits.shape, dtype=torch.bool)
        self._counts = torch.zeros(self._logits.shape, dtype=torch.int16)
        size, index = self._logits.shape[1], 0
        for completion in completions:
            rows = slice(index, index + len(completion.ids))
            self._seen[rows, [token for token in completion.prompt if token < size]] = True
            self._counts[list(range(index + 1, rows.stop)), list(completion.ids[:-1])] = 1
            self._counts[rows] = self._counts[rows].cumsum(0, dtype=torch.int16)
            index = rows.stop
        self._seen |= self._counts > 0
        self._narrow(size)
        # A penalty is computed hundreds of times; mixed types and `where` would take most of the time of a search.
        self._counts, self._seen_logits = self._counts.double(), self._logits.where(self._seen, 0.0)

    @classmethod
    def compute(
        cls, reference: Reference, completions: Sequence[Completion], dtype: str, *, native: bool = False
    ) -> Observed:
        """Compute the logits of the completions with a reference model.

        With `native` they are computed in the engine's dtype, otherwise exactly: in float64, for large models float32.
        """
        sequences = [[*completion.prompt, *completion.ids] for completion in completions]
        rows = zip(completions, reference.logits(sequences, dtype, native=native), strict=True)
        return cls(completions, [row[len(completion.prompt) - 1 : -1].double() for completion, row in rows])

    def subset(self, most: int) -> Observed:
        """Return at most `most` tokens, evenly spread."""
        step = max(1, -(-len(self.ids) // most))
        copied = object.__new__(Observed)
        tensors = {name: value[::step] for name, value in self.__dict__.items() if name not in _NOT_BY_TOKEN}
        copied.__dict__ = tensors | {"_log_bin_size": self._log_bin_size}
        return copied

    def _narrow(self, size: int) -> None:
        """Reduce a large vocabulary: keep the likeliest, prompt and sampled ids, and average the other ids in bins.

        The least likely ids, at most 127, fill no bins; each counts like the average of the ids in bins.
        """
        self.sampled_columns = self.ids[:, None]
        self._rest, self._log_bin_size = self._logits.new_empty((len(self.ids), 0)), 0.0
        if size <= 2 * _KEPT:
            return
        priority = self._logits.clone()
        priority[self._seen] = float("inf")
        priority.scatter_(1, self.sampled_columns, float("inf"))
        columns, rest = priority.argsort(dim=1, descending=True).tensor_split([_KEPT], dim=1)
        even = rest.shape[1] // _BINS * _BINS
        self._rest = self._logits.gather(1, rest[:, :even]).reshape(len(self.ids), _BINS, -1).mean(2)
        self._log_bin_size = math.log(rest.shape[1] / _BINS)
        tensors = (self._logits, self._seen, self._counts)
        self._logits, self._seen, self._counts = (tensor.gather(1, columns) for tensor in tensors)
        self.sampled_columns = (columns == self.ids[:, None]).int().argmax(1)[:, None]

    def penalised_logits(self, sampling: Sampling) -> Any:
        """Return the logits after penalties."""
        logits, repeated_logits, factor = self._logits, self._seen_logits, sampling.repetition_penalty
        if factor != 1:
            positive, negative = repeated_logits.clamp(min=0), repeated_logits.clamp(max=0)
            logits = (logits - repeated_logits).add_(positive, alpha=1 / factor).add_(negative, alpha=factor)
        if sampling.frequency_penalty or sampling.presence_penalty:
            logits = logits.sub(self._counts, alpha=sampling.frequency_penalty)
            logits = logits.sub_(self._counts.clamp(max=1), alpha=sampling.presence_penalty)
        return logits

    def logprobs(self, sampling: Sampling) -> Any:
        """Return the log-prob of each sampled token; minus infinity where truncation removes the token."""
        if sampling == sampling.untruncated:
            logits = self.penalised_logits(sampling) / sampling.temperature
            return (logits.gather(1, self.sampled_columns) - self._log_mass(logits, sampling))[:, 0]
        ordered, _, rank = self._sort(sampling)
        size, log_mass = self._truncate(sampling)
        logprobs = ordered.gather(1, rank) / sampling.temperature - log_mass
        return logprobs.masked_fill(rank >= size, -math.inf)[:, 0]

    def distribution(self, sampling: Sampling) -> Any:
        """Return the log-probs of the kept ids at each position, in the order of the kept logits."""
        import torch

        if sampling == sampling.untruncated:
            logits = self.penalised_logits(sampling) / sampling.temperature
            return logits - self._log_mass(logits, sampling)
        ordered, order, _ = self._sort(sampling)
        size, log_mass = self._truncate(sampling)
        logprobs = ordered / sampling.temperature - log_mass
        logprobs = logprobs.masked_fill(torch.arange(ordered.shape[1]) >= size, -math.inf)
        return torch.empty_like(logprobs).scatter_(1, order, logprobs)

    def _log_mass(self, logits: Any, sampling: Sampling) -> Any:
        """Return the log-sum-exp of the logits, including the averaged rest, which no penalty affects."""
        mass = logits.logsumexp(1, keepdim=True)
        if not self._rest.shape[1]:
            return mass
        rest = (self._rest / sampling.temperature).logsumexp(1, keepdim=True) + self._log_bin_size
        return mass.logaddexp(rest)

    def _sort(self, sampling: Sampling) -> Any:
        """Return the logits sorted before the temperature, their order, and the sampled id's rank."""
        key = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        if self._sorted is None or self._sort_key != key:
            ordered, order = self.penalised_logits(sampling).sort(dim=1, descending=True)
            rank = (order == self.sampled_columns).int().argmax(1, keepdim=True)
            self._sort_key, self._sorted, self._mass_key = key, (ordered, order, rank), None
        return self._sorted

    def _truncate(self, sampling: Sampling) -> tuple[Any, Any]:
        """Return at each position how many ids truncation keeps, and the log-sum-exp of their logits / temperature."""
        import torch

        ordered, *_ = self._sort(sampling)
        scaled_top = ordered[:, :1] / sampling.temperature
        if self._mass_key != (self._sort_key, sampling.temperature):
            rest = self._rest / sampling.temperature + self._log_bin_size
            scaled = torch.cat([ordered / sampling.temperature, rest], dim=1)
            self._masses = (scaled - scaled_top).exp().cumsum(1)
            self._mass_key = (self._sort_key, sampling.temperature)
        masses, stored = self._masses, ordered.shape[1]
        size = torch.full((len(ordered), 1), masses.shape[1])
        if sampling.min_p > 0:
            lowest = ordered[:, :1] + sampling.temperature * math.log(sampling.min_p)
            size = (ordered >= lowest).sum(1, keepdim=True)
        if sampling.top_k > 0:
            size = size.clamp(max=sampling.top_k)
        mass = masses.gather(1, size - 1)
        if sampling.top_p < 1:
            nucleus = sampling.top_p * mass
            size = torch.minimum(size, torch.searchsorted(masses, nucleus) + 1)
            # If the nucleus goes on in the averaged rest, where it ends there is not known.
            mass = masses.gather(1, size - 1).where(size <= stored, nucleus)
        return size, mass.log() + scaled_top

    def differences(self, sampling: Sampling) -> Any:
        """Return the absolute difference of each reported log-prob from the computed one, at most _CAP."""
        return (self.reported - self.logprobs(sampling)).abs().nan_to_num(_CAP, _CAP, _CAP).clamp(max=_CAP)

    def residual(self, sampling: Sampling) -> float:
        """Return the mean difference without the largest 2 %, because rounding moves tokens across a top-p border."""
        return trimmed_mean(self.differences(sampling))

    def total_logprob(self, sampling: Sampling) -> tuple[float, float, float]:
        """Return the total log-prob of the sampled ids, with its expectation and standard deviation.

        Ids that truncation removes are left out if rounding explains them. The others are left out, too, if they are at
        most 1 % of the ids, or one id.
        """
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
        sampled = distribution.gather(1, self.sampled_columns)[:, 0]
        outside = sampled.isinf()
        # The engine's own type admits ids at the border of a truncation that exact numbers exclude.
        free = self.distribution(sampling.untruncated)
        lowest = free.masked_fill(distribution.isinf(), math.inf).min(1).values
        border = outside & (free.gather(1, self.sampled_columns)[:, 0] > lowest - _BORDER)
        if int((outside & ~border).sum()) <= max(1, len(sampled) // 100):
            border = outside
        sampled, mean, variance = sampled[~border].clamp(min=-50.0), mean[~border], variance[~border]
        return float(sampled.sum()), float(mean.sum()), float(variance.sum().clamp(min=0).sqrt())


def trimmed_mean(values: Any) -> float:
    """Return the mean without the largest 2 %."""
    count = len(values)
    return float(values.sort().values[: count - round(0.02 * count)].mean())
