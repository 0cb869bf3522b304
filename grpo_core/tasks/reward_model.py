"""A reward that another model gives."""

from __future__ import annotations

from grpo_core.config import ConfigError
from grpo_core.machine.resources import torch_device
from grpo_core.tasks.model import loaded

MODEL_BATCH = 16  # texts that the reward model reads at one time


class RewardModel:
    """The score that a sequence classification model with one label gives to prompt and completion."""

    def __init__(self, folder: str, device: str) -> None:
        """Loads it, in float32.

        Raises:
            ConfigError: Not such a model, no pad token, or weights that are not in the checkpoint.
        """
        where = f"reward.model = {folder!r}: expected a sequence classification model"
        self._tokenizer = loaded("AutoTokenizer", folder, where)
        kind = "AutoModelForSequenceClassification"
        self._model, info = loaded(kind, folder, where, output_loading_info=True)
        config, pad = self._model.config, self._tokenizer.pad_token_id
        if config.num_labels != 1 or pad is None or info["missing_keys"]:
            # Transformers makes these up at random.
            missing = ", ".join(sorted(info["missing_keys"])) or "none"
            found = f"{config.num_labels} labels, pad token {pad}, missing weights: {missing}"
            raise ConfigError(
                f"{where} with 1 label, all its weights and a tokenizer with a pad token, found {found}"
            )
        config.pad_token_id, self._tokenizer.padding_side = pad, "right"
        self._model.float().to(torch_device(device)).eval()
        longest = getattr(config, "max_position_embeddings", self._tokenizer.model_max_length)
        self._limit = min(longest, self._tokenizer.model_max_length)

    def __call__(self, prompts: list[str], completions: list[str]) -> list[float]:
        """One score a completion.

        Raises:
            ValueError: A text is longer than the model takes; it is not cut.
        """
        import torch

        texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        scores: list[float] = []
        bos = self._tokenizer.bos_token  # a chat template writes it into the prompt itself
        special = not (bos and texts[0].startswith(bos))
        for start in range(0, len(texts), MODEL_BATCH):
            part = texts[start : start + MODEL_BATCH]
            rows = self._tokenizer(part, padding=True, return_tensors="pt", add_special_tokens=special)
            mask_BT = rows["attention_mask"].to(self._model.device)
            length = int(mask_BT.sum(1).max())
            if length > self._limit:
                raise ValueError(f"{length} tokens, and the reward model takes {self._limit}")
            with torch.inference_mode():
                ids_BT = rows["input_ids"].to(self._model.device)
                scores += self._model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, 0].tolist()
        return scores
