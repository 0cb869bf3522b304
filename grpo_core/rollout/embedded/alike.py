"""One token at a time by transformers' own forward pass, for every model that has a cache."""

from __future__ import annotations

from typing import Any

import torch

from grpo_core.kv_cache import cache_kwargs, output_cache


class AlikeDecoder:
    """As `Decoder`, for every model that has a cache: rows behind prompts of one length."""

    def __init__(self, model: Any, prompts: list[tuple[int, ...]], _: int = 0) -> None:
        """Reads the prompts; its cache grows."""
        places = {ids: place for place, ids in enumerate(dict.fromkeys(prompts))}
        rows_B = torch.tensor([places[ids] for ids in prompts], device=model.device)
        out = model(torch.tensor(list(places), device=model.device), use_cache=True)
        self._model, self._cache = model, output_cache(out)
        if isinstance(self._cache, tuple):  # as older models of transformers 4.48 keep them
            self._cache = model._reorder_cache(self._cache, rows_B)  # noqa: SLF001
        else:
            self._cache.reorder_cache(rows_B)
        self.logits_BV = out.logits[:, -1][rows_B]

    def follow(self, id_B: torch.Tensor) -> None:
        """Goes on behind one more token of each row."""
        out = self._model(id_B[:, None], use_cache=True, **cache_kwargs(self._model, self._cache))
        self.logits_BV = out.logits[:, -1]
