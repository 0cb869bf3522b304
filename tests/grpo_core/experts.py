"""Tiny random mixtures of experts, as transformers checkpoints with the tiny model's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

KINDS = ("mixtral", "qwen3_moe", "olmoe")


def make_moe(
    folder: Path, tokenizer: Path, kind: str = "qwen3_moe", *, layers: int = 2, hidden: int = 64
) -> Path:
    """Eight experts, two of them a token; the tokenizer's files are those of another checkpoint."""
    import transformers

    vocabulary = 13
    shared = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 32,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.08,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": vocabulary - 2,
        "pad_token_id": vocabulary - 1,
    }
    name, more = {
        "mixtral": ("Mixtral", {"num_local_experts": 8}),
        "qwen3_moe": ("Qwen3Moe", {"num_experts": 8, "moe_intermediate_size": hidden, "head_dim": 32}),
        "olmoe": ("Olmoe", {"num_experts": 8}),
    }[kind]
    config = getattr(transformers, f"{name}Config")(**shared, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForCausalLM")(config).float()
        for (
            parameter
        ) in model.parameters():  # some routers start at zero, and would choose by chance of rounding
            if not parameter.detach().any():
                torch.nn.init.normal_(parameter, std=0.08)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, folder / file)
    return folder
