"""Build unmodified TRL's `GRPOTrainer` on a CPU, with a tiny random Llama whose words are single letters.

`trainer` builds it; `model`, `tokenizer` and `config` (a `GRPOConfig`) build its parts. `take_step` and
`describe_unmoved_weights` train; the functions `reward_*` are rewards.
"""

import tempfile
from collections.abc import Sequence
from typing import Any

MODULES = ("torch", "transformers", "datasets", "tokenizers", "trl.trainer.grpo_trainer")
# Modules of repros that need only the tiny model.
MODEL_MODULES = ("torch", "transformers", "tokenizers")
_SPECIAL = ("<unk>", "<s>", "</s>")
_LETTERS = "abcdefghijklm"
VOCABULARY = len(_SPECIAL) + len(_LETTERS)
PROMPTS = ("a b", "c d", "e f", "g h")
STEPS = 4
# Sizes for `trainer`: one group of two or four completions per step.
PAIR: dict[str, Any] = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 4}
GROUP: dict[str, Any] = {"num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 8}


def tokenizer(words: Sequence[str] = tuple(_LETTERS), split: str = "Whitespace") -> Any:
    """Return a tokenizer of these words and three special tokens; `split` names a class of `pre_tokenizers`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: index for index, word in enumerate([*_SPECIAL, *words])}
    backend = Tokenizer(models.WordLevel(ids, unk_token=_SPECIAL[0]))
    backend.pre_tokenizer = getattr(pre_tokenizers, split)()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    # Without the names TRL 0.22 to 0.25 would pass token types to a model that has none.
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=names, **special)


def model(seed: int = 0, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    """Return a Llama of one layer with random weights.

    Args:
        seed: Seed of the weights.
        vocabulary: Number of token ids.
        options: Options of transformers' `LlamaConfig` that replace the defaults.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **(sizes | heads | ids | options))).float()


def config(**settings: Any) -> Any:
    """Return TRL's `GRPOConfig` for a CPU with these settings, and with a new folder for output."""
    from trl import GRPOConfig

    common = {"use_cpu": True, "bf16": False, "report_to": []}
    return GRPOConfig(output_dir=tempfile.mkdtemp(), **(common | settings))


def trainer(
    rewards: Any,
    callback: Any = None,
    *,
    prompts: Sequence[str] = PROMPTS,
    column: str = "prompt",
    policy: Any = None,
    rollouts: Any = None,
    **settings: Any,
) -> Any:
    """Return a `GRPOTrainer` of the installed TRL.

    Args:
        rewards: Reward function for TRL; it takes `completions` and returns a number for each.
        callback: A `TrainerCallback`, or None.
        prompts: Prompts of the training set.
        column: Column of the training set that has the prompts.
        policy: The model to train; None for the tiny model.
        rollouts: TRL's `rollout_func`, or None.
        settings: Settings of `GRPOConfig`, in addition to a seed, no KL term, SGD, a CPU, and no output.
    """
    import torch
    from datasets import Dataset
    from trl import GRPOTrainer

    torch.set_num_threads(1)
    common = {"seed": 7, "beta": 0.0, "optim": "sgd"}
    quiet = {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    return GRPOTrainer(
        model=model() if policy is None else policy,
        args=config(**(common | quiet | settings)),
        processing_class=tokenizer(),
        reward_funcs=rewards,
        train_dataset=Dataset.from_dict({column: list(prompts)}),
        callbacks=[callback] if callback else [],
        **({"rollout_func": rollouts} if rollouts else {}),
    )


def take_step(rewards: Any, **options: Any) -> None:
    """Train the tiny model for one step on a pair of completions; `options` are those of `trainer`."""
    trainer(rewards, **({"max_steps": 1} | PAIR | options)).train()


def reward_nothing(completions: Sequence[str], **_: Any) -> list[float]:
    """Return reward 0 for each completion."""
    return [0.0] * len(completions)


def reward_by_letters(completions: Sequence[str], **_: Any) -> list[float]:
    """Return rewards that depend on the letters of the text, so that they usually differ within a group."""
    return [float(sum(map(ord, text)) % 7) for text in completions]


def describe_unmoved_weights(rewards: Any, **settings: Any) -> str | None:
    """Train the tiny model for four steps; return a message if no weight moved, else None.

    Args:
        rewards: Reward function for TRL.
        settings: Settings of `GRPOConfig`, in addition to those of GROUP and a learning rate.
    """
    policy = model()
    before = {name: value.detach().clone() for name, value in policy.named_parameters()}
    common = {"learning_rate": 0.1, "max_steps": STEPS}
    trainer(rewards, policy=policy, **(GROUP | common | settings)).train()
    moved = any(bool((value.detach() != before[name]).any()) for name, value in policy.named_parameters())
    return None if moved else f"no weight moved in {STEPS} steps"
