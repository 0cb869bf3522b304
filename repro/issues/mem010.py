"""MEM010: a table as long as a made-up context length is allocated on the host at once."""

from __future__ import annotations

from repro.drivers import calls

# 40 TB, more than the host gives out to anybody.
LONG, SHORT = 10_000_000_000, 1000


def _allocate(mitigation: str | None) -> None:
    import torch

    torch.nn.Embedding(SHORT if mitigation == "shorter" else LONG, 1000)


REPRO = calls.repro(
    "MEM010",
    "The host has no memory for an allocation",
    needs=("torch",),
    modules=("torch",),
    trigger=("table", "a table of 10,000,000,000 rows of 4 kB each"),
    call=_allocate,
    failure=("RuntimeError", "torch.empty((num_embeddings, embedding_dim), **factory_kwargs),", "__init__"),
    says="can't allocate memory",
    helps={"shorter": "a table of the length that is needed"},
)
