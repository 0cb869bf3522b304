"""A reward model as a reward function: a sequence classifier with one output, reading prompt and completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from grpo_core.config import ConfigError
from grpo_core.reward_functions import RewardError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH = 16


class RewardModel:
    """Scores texts with `AutoModelForSequenceClassification`, in float32 on the CPU, without dropout."""

    def __init__(self, folder: str) -> None:
        """Loads model and tokenizer.

        Raises:
            ConfigError: Nothing loadable there, or a classifier with several outputs.
        """
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        where = f"reward.model = {folder!r}"
        try:
            self._model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: not a sequence classifier: {str(error).splitlines()[0]}") from error
        if self._model.config.num_labels != 1:
            raise ConfigError(f"{where}: expected one output, found {self._model.config.num_labels}")
        self._model = self._model.float().eval()
        self._longest = int(getattr(self._model.config, "max_position_embeddings", 0))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def __call__(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        """One score a completion.

        Raises:
            RewardError: A text is longer than the model can read; cutting it would score something else.
        """
        ids = [
            self._tokenizer.encode(prompt + completion)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        longest = max(range(len(ids)), key=lambda place: len(ids[place]))
        if self._longest and len(ids[longest]) > self._longest:
            raise RewardError(
                f"reward function model: sample {longest} has {len(ids[longest])} tokens with its prompt, "
                f"the reward model reads {self._longest}"
            )
        # Neighbours of like length share a batch: less padding, and the answer does not depend on it.
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        scores = [0.0] * len(ids)
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            padded = self._padded([ids[place] for place in places])
            for place, logits in zip(places, self._model(**padded).logits, strict=True):
                scores[place] = float(logits[0])
        return scores

    def _padded(self, rows: list[list[int]]) -> dict[str, torch.Tensor]:
        """Padded at the end, with a mask; the classifier finds each row's last token by the pad id."""
        pad = self._model.config.pad_token_id
        if pad is None:
            if len({len(row) for row in rows}) > 1:
                raise RewardError(
                    "reward function model: it has no pad_token_id, and its texts differ in length"
                )
            pad = 0
        width = max(map(len, rows))
        return {
            "input_ids": torch.tensor([row + [pad] * (width - len(row)) for row in rows]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
        }
