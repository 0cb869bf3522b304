"""The model, tokenizer and prompts that both trainers are given, and the reward."""

from __future__ import annotations

import json
import random
from pathlib import Path

VOCABULARY, END = 2048, 2048
"""The end token is one that the model can't say, so that both sides sample to the full length."""


def make(folder: Path, prompt_lengths: tuple[int, ...], prompts: int) -> None:
    """Writes a random Llama of 4 layers, a tokenizer of words, and prompts of the given lengths in turn."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    words = {f"w{i}": i for i in range(VOCABULARY)} | {"<end>": END}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "w0"}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    draw = random.Random(0)
    with (folder / "prompts.jsonl").open("w") as file:
        for place in range(prompts):
            length = prompt_lengths[place % len(prompt_lengths)]
            text = " ".join(f"w{draw.randrange(1, VOCABULARY)}" for _ in range(length))
            file.write(json.dumps({"prompt": text}) + "\n")


def even_words(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """The share of words with an even number: something that differs between completions."""
    del prompts, columns
    return [sum(int(word[1:]) % 2 == 0 for word in text.split()) / 64 for text in completions]
