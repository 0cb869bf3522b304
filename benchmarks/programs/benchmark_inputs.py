"""Write the inputs of the benchmarks (random Llama, tokenizer, prompts) and define the reward function."""

from __future__ import annotations

import json
import random
from pathlib import Path

VOCABULARY = 2048
"""Size of the vocabulary. The end token has the next id, which the model cannot sample: no completion ends early."""


def write_llama(folder: Path, **sizes: int | bool) -> None:
    """Write a random Llama to FOLDER/model, and a tokenizer with the words `w0`, `w1`, … and an end token."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(num_key_value_heads=2, max_position_embeddings=512, **ids, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    words = {f"w{i}": i for i in range(sizes["vocab_size"])} | {"<end>": sizes["vocab_size"]}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "w0"}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))


def write_large_vocab_model(folder: Path, *, layers: int, toy: bool) -> None:
    """Write a random Llama with the layer sizes of a 0.5B model (toy: tiny), its tokenizer and 64 prompts."""
    sizes = {"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14}
    if toy:
        sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    write_llama(folder, num_hidden_layers=layers, tie_word_embeddings=True, **sizes)
    lines = [json.dumps({"prompt": " ".join(f"w{(i * 37 + j) % 499}" for j in range(64))}) for i in range(64)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))


def write_model(folder: Path, prompt_lengths: tuple[int, ...], prompts: int) -> None:
    """Write a random Llama of 4 layers, its tokenizer, and prompts whose lengths cycle through `prompt_lengths`."""
    write_llama(
        folder,
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        tie_word_embeddings=False,
    )
    draw = random.Random(0)
    with (folder / "prompts.jsonl").open("w") as file:
        for index in range(prompts):
            length = prompt_lengths[index % len(prompt_lengths)]
            text = " ".join(f"w{draw.randrange(1, VOCABULARY)}" for _ in range(length))
            file.write(json.dumps({"prompt": text}) + "\n")


def even_words(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Return as reward the number of even-numbered words divided by 64, the completion length of the step benchmark."""
    del prompts, columns
    return [sum(int(word[1:]) % 2 == 0 for word in text.split()) / 64 for text in completions]
