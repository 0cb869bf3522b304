"""A Llama in the shapes of half a billion parameters, random weights, with a tokenizer of words and prompts."""

from __future__ import annotations

import json
from pathlib import Path


def make(folder: Path, *, layers: int, toy: bool) -> None:
    """Writes the model and a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    size = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2} if toy else {
        "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    }  # fmt: skip
    config = LlamaConfig(
        **size, num_hidden_layers=layers, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    words = {f"w{i}": i for i in range(size["vocab_size"])} | {"<end>": size["vocab_size"]}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "w0"}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    lines = [json.dumps({"prompt": " ".join(f"w{(i * 37 + j) % 499}" for j in range(64))}) for i in range(64)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
