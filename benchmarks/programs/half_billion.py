"""A Llama in the shapes of half a billion parameters, random weights, with a tokenizer of words and prompts."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.programs.tiny import write_llama

TOY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
FULL = {"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14}


def write_model(folder: Path, *, layers: int, toy: bool) -> None:
    """Write the model, a tokenizer of words, and prompts."""
    write_llama(folder, num_hidden_layers=layers, tie_word_embeddings=True, **(TOY if toy else FULL))
    lines = [json.dumps({"prompt": " ".join(f"w{(i * 37 + j) % 499}" for j in range(64))}) for i in range(64)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
