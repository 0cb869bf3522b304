"""A real `GRPOTrainer` of TRL on a tiny random model, on a CPU, with text of single letters.

Nothing of TRL is replaced. Gradients are seen through a callback of the Hugging Face trainer; the learning rate may be
zero, so that the policy stays the one that sampled.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULES = ("torch", "transformers", "datasets", "tokenizers", "trl.trainer.grpo_trainer")
_SPECIAL = ("<unk>", "<s>", "</s>")
_LETTERS = "abcdefghijklm"
VOCABULARY = len(_SPECIAL) + len(_LETTERS)
PROMPTS = ("a b", "c d", "e f", "g h")


def tokenizer() -> Any:
    """Returns a tokenizer of 13 letters and three special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: place for place, word in enumerate([*_SPECIAL, *_LETTERS])}
    made = Tokenizer(models.WordLevel(words, unk_token=_SPECIAL[0]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    # Without the names TRL 0.22 to 0.25 would hand token types to a model that knows none.
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token=_SPECIAL[0],
        bos_token=_SPECIAL[1],
        eos_token=_SPECIAL[2],
        pad_token=_SPECIAL[2],
        model_input_names=["input_ids", "attention_mask"],
    )


def model(seed: int = 0, vocabulary: int = VOCABULARY) -> Any:
    """Returns a Llama of one layer with random weights, the same for the same seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes, **heads, **ids)).float()


def trainer(
    rewards: Any, seen: Any, *, prompts: Sequence[str] = PROMPTS, held: Any = None, **settings: Any
) -> Any:
    """Returns a `GRPOTrainer` of the installed TRL.

    Args:
        rewards: TRL's reward function: takes `completions`, returns a number for each.
        seen: a `TrainerCallback`.
        prompts: of the training set.
        held: the model to train; the tiny one if None.
        settings: of `GRPOConfig`, beside those that keep it small, quiet and on a CPU.
    """
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    common = {"use_cpu": True, "bf16": False, "report_to": [], "seed": 7, "beta": 0.0, "optim": "sgd"}
    quiet = {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    return GRPOTrainer(
        model=held or model(),
        args=GRPOConfig(output_dir=tempfile.mkdtemp(), **(common | quiet | settings)),
        processing_class=tokenizer(),
        reward_funcs=rewards,
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
        callbacks=[seen],
    )
