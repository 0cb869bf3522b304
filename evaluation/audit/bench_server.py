"""Extend the fake server of the audit's tests by faults and variations that only the benches use."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diagnostics.audit.live.sampling_distribution import Sampling
from tests.diagnostics.audit.fake_vllm_server import Engine, ServerFaults


@dataclass
class BenchFaults(ServerFaults):
    """Faults of the server, with those of the benches.

    Attributes:
        shift: Log-probs are shifted by this many positions.
        permuted: Each prompt gets the samples of the next one.
        noise: Standard deviation of Gaussian noise on every logit, which simulates other kernels.
        batches: Each sequence is computed in a batch of random size, whose other sequences are random.
    """

    shift: int = 0
    permuted: bool = False
    noise: float = 0.0
    batches: bool = False


class BenchEngine(Engine):
    """Compute completions and scores as `Engine` does, with the faults of `BenchFaults`."""

    faults: BenchFaults

    def __init__(self, folder: Path, dtype: str, faults: BenchFaults | None = None, seed: int = 0) -> None:
        super().__init__(folder, dtype, faults or BenchFaults(), seed)

    def forward(self, model: Any, sequences: list[list[int]]) -> torch.Tensor:
        """Return the logits of equally long sequences, with noise, or each in a batch of its own."""
        if self.faults.batches:
            batches = ([ids, *self._neighbours(len(ids))] for ids in sequences)
            rows = torch.stack([super(BenchEngine, self).forward(model, batch)[0] for batch in batches])
        else:
            rows = super().forward(model, sequences)
        noise = (
            torch.randn(rows.shape, generator=self.generator, dtype=rows.dtype) if self.faults.noise else 0.0
        )
        return rows + self.faults.noise * noise

    def _neighbours(self, length: int) -> list[list[int]]:
        """Return random sequences that fill the batch."""
        count = int(torch.randint(0, 8, (1,), generator=self.generator))
        rows = torch.randint(0, len(self.tokenizer), (count, length), generator=self.generator)
        return [[int(token) for token in row] for row in rows]

    def sample(self, prompts: list[list[int]], count: int, sampling: Sampling) -> list[tuple[Any, Any, Any]]:
        """Sample tokens, and shift their log-probs."""
        samples, by = super().sample(prompts, count, sampling), self.faults.shift
        return [(ids, values[-by:] + values[:-by], reported) for ids, values, reported in samples]

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a completions request; the samples of its prompts may be exchanged."""
        choices = super().complete(body)["choices"]
        return {"choices": exchange_samples(choices, body) if self.faults.permuted else choices}


def exchange_samples(choices: list[dict[str, Any]], body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of a request with the samples of the next prompt for each."""
    copies = body.get("n", 1)
    moved = choices[copies:] + choices[:copies]
    return [{**item, "index": place} for place, item in enumerate(moved)]
