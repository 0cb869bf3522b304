"""Create the tiny model and tokenizer of the shipped task, and load models and tokenizers from local folders.

`make_tiny` creates them; `load_model` and `load_tokenizer` load. Loading uses transformers, without network and without
running code from the folder. A model is refused if its output layer has a bias, or if its config has
`final_logit_softcapping` or `logit_scale`: `grpo_core.learn.logprobs` would compute its log-probs wrongly. `known_ids`
counts the ids that model and tokenizer both have.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from grpo_core.config import ConfigError, ModelConfig
from grpo_core.safe_io import read_bytes, resolve_file

END, PAD = "<end>", "<pad>"
SEPARATOR = ">"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
HEAD_WIDTH = 32  # vLLM's CPU attention refuses 16


def make_tiny(folder: Path, options: ModelConfig, letters: str, seed: int) -> None:
    """Write a random Llama and a tokenizer of single letters, as a transformers checkpoint.

    The same seed gives the same bytes. The standard deviation of initial weights is larger than Llama's 0.02, with
    which attention would be nearly uniform at this width.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    _no_progress_bars()
    vocabulary = [*letters, SEPARATOR, END, PAD]
    heads = options.hidden_size // HEAD_WIDTH
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=options.hidden_size,
        intermediate_size=2 * options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=options.max_length,
        initializer_range=0.05,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=vocabulary.index(END),
        pad_token_id=vocabulary.index(PAD),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    _write_tokenizer(folder, vocabulary)


def _write_tokenizer(folder: Path, vocabulary: list[str]) -> None:
    """Write two files that transformers 4 and 5 both read; `save_pretrained` of either names its own classes."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(PAD, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],  # by default also token_type_ids: not Llama's
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def load_pretrained(kind: str, folder: Path | str, wrong: str, **options: Any) -> Any:
    """Load a local folder by a class of transformers; no code in the folder is run.

    An adapter's folder and a name that is no folder are refused: transformers 5 would query the hub.

    Raises:
        ConfigError: The folder can't be loaded; the message begins with `wrong`.
    """
    import transformers

    try:
        _check_files(Path(folder))
        from_pretrained = getattr(transformers, kind).from_pretrained
        return from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:
        raise ConfigError(f"{wrong}: {first_line(error)}") from error


def _check_files(folder: Path) -> None:
    """Refuse an adapter, and files or shards that are not regular: transformers would wait for ever for a pipe.

    Raises:
        OSError: The folder or a file in it can't be read.
        ValueError: There is no whole model, or a file is not regular.
    """
    names = set(os.listdir(folder))  # noqa: PTH208 - names alone
    if "config.json" not in names or "adapter_config.json" in names:
        raise ValueError("expected a folder with a whole model's config.json")
    for name in sorted(names):
        if name.endswith((".bin.index.json", ".safetensors.index.json")):
            names |= set(json.loads(read_bytes(folder / name))["weight_map"].values())
    for path in (folder / name for name in names):
        if path.exists() and not path.is_dir():
            resolve_file(path)


def load_model(folder: Path | str, device: str = "cpu") -> Any:
    """Load a causal language model in float32 and evaluation mode (dropout is off).

    Raises:
        ConfigError: The model can't be loaded, some weights are in no file (transformers would initialise them at
            random) or in files of unusual names, or its output layer is refused (see above).
    """
    _no_progress_bars()
    where = f"model.path = {str(folder)!r}:"
    wrong = f"{where} not a transformers checkpoint"
    # vLLM does not know this setting, so it would load other weights.
    if weights := getattr(load_pretrained("AutoConfig", folder, wrong), "transformers_weights", None):
        raise ConfigError(f"{where} expected weights in files of the usual names, not in {weights!r}")
    model, info = load_pretrained("AutoModelForCausalLM", folder, wrong, output_loading_info=True)
    if missing := sorted({name for name, _ in model.named_parameters()} & {*info["missing_keys"]}):
        raise ConfigError(f"{wrong}: {len(missing)} of its weights are in no file there, {missing[0]} first")
    head = model.get_output_embeddings()
    scales = [
        name for name in ("final_logit_softcapping", "logit_scale") if getattr(model.config, name, None)
    ]
    if head is None or getattr(head, "bias", None) is not None or scales:
        problem = ", ".join(scales) or "a bias or no such layer"
        raise ConfigError(f"{where} expected an output layer that is one matrix, found {problem}")
    model = model.float().to(device).eval()
    # Rounding depends on the alignment of memory, which is arbitrary in a mapped file. An engine that wakes allocates
    # new memory; without these copies its products would differ in the last digits from those of other modes.
    for value in model.parameters():
        value.data = value.data.clone()
    return model


def load_tokenizer(folder: Path | str) -> Any:
    """Load the tokenizer of a model folder; raises ConfigError if it can't be loaded."""
    return load_pretrained("AutoTokenizer", folder, f"model.path = {str(folder)!r}: no tokenizer there")


def known_ids(folder: Path | str, vocabulary: int) -> int:
    """Return the number of token ids that both model and tokenizer have; without a tokenizer, return `vocabulary`.

    Models often have more output rows than their tokenizer has ids (TOK001). An id without a text is not sampled, and
    log-probs are those of the distribution without it.
    """
    # Without files transformers 5 returns an empty tokenizer of the model's kind.
    if not any(Path(folder, name).is_file() for name in _TOKENIZER_FILES):
        return vocabulary
    ids = load_tokenizer(folder).get_vocab().values()
    return min(vocabulary, max(ids, default=vocabulary - 1) + 1)


def _no_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
