"""Write the inputs of the training benchmarks (random Llama, tokenizer, prompts), and define their reward function.

The end token's id is outside the model's vocabulary, so the model cannot sample it, and no completion ends early.
`write_inputs` writes them, `write_small_model` and `write_large_vocab_model` with chosen sizes; `even_words` is the
reward.
"""

import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path

VOCABULARY = 2048
"""Size of the small model's vocabulary."""


def write_inputs(folder: Path, prompts: Iterable[str], **sizes: int | bool) -> None:
    """Write a random Llama to FOLDER/model, a tokenizer with the words `w0`, `w1`, … and an end token, and prompts.

    Args:
        folder: Folder to write to.
        prompts: Texts for FOLDER/prompts.jsonl.
        sizes: Options of `LlamaConfig`, with `vocab_size`.
    """
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
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))


def write_large_vocab_model(folder: Path, *, layers: int, toy: bool) -> None:
    """Write a random Llama with the layer sizes of a 0.5B model (toy: tiny), its tokenizer and 64 prompts."""
    sizes = {"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14}
    if toy:
        sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    prompts = (" ".join(f"w{(i * 37 + j) % 499}" for j in range(64)) for i in range(64))
    write_inputs(folder, prompts, num_hidden_layers=layers, tie_word_embeddings=True, **sizes)


def write_small_model(folder: Path, prompt_lengths: tuple[int, ...], count: int) -> None:
    """Write a random Llama of 4 layers, its tokenizer, and `count` prompts whose lengths cycle through these."""
    generator = random.Random(0)
    lengths = itertools.islice(itertools.cycle(prompt_lengths), count)
    write_inputs(
        folder,
        (" ".join(f"w{generator.randrange(1, VOCABULARY)}" for _ in range(length)) for length in lengths),
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        tie_word_embeddings=False,
    )


def even_words(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Return rewards: the number of even-numbered words in a completion, divided by 64.

    64 is the completion length that `benchmarks/step.py` sets.
    """
    del prompts, columns
    return [sum(int(word[1:]) % 2 == 0 for word in text.split()) / 64 for text in completions]
