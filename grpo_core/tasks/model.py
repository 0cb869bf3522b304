"""The tiny model and tokenizer, made on the spot, and the loading of any other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from grpo_core.config import ModelConfig

END, PAD = "<end>", "<pad>"
SEPARATOR = ">"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
HEAD_WIDTH = 32  # vLLM's CPU attention refuses 16


def make_tiny(folder: Path, options: ModelConfig, letters: str, seed: int) -> None:
    """Writes a random Llama and a tokenizer of single letters, as a transformers checkpoint.

    The same seed gives the same bytes. Initial weights are larger than Llama's 0.02, which at this width
    leaves attention flat.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    _no_progress_bars()
    vocabulary = [*letters, SEPARATOR, END, PAD]
    heads = options.hidden_size // HEAD_WIDTH
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=options.hidden_size, intermediate_size=2 * options.hidden_size,
        num_hidden_layers=options.layers, num_attention_heads=heads, num_key_value_heads=heads,
        max_position_embeddings=options.max_length, initializer_range=0.05, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=vocabulary.index(END), pad_token_id=vocabulary.index(PAD),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    _write_tokenizer(folder, vocabulary)


def _write_tokenizer(folder: Path, vocabulary: list[str]) -> None:
    """Two files that transformers 4 and 5 both read; either's own `save_pretrained` names its own classes."""
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


def loaded(kind: str, folder: Path | str, wrong: str, **options: Any) -> Any:
    """What a class of transformers makes of a folder that is here: no code beside it is run or asked about.

    Of a name Transformers 5 asks the hub for an adapter, whatever it is told of files that are here; of an adapter's
    base, too.

    Raises:
        ConfigError: It makes nothing of it; of a hostile one anything may be raised.
    """
    import transformers

    try:
        if not os.path.isfile(f"{folder}/config.json") or os.path.exists(f"{folder}/adapter_config.json"):  # noqa: PTH110, PTH113 - a NUL in it is no error
            raise ValueError("expected a folder with a whole model's config.json")  # noqa: TRY301 - one refusal
        made = getattr(transformers, kind).from_pretrained
        return made(str(folder), local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:
        raise ConfigError(f"{wrong}: {first_line(error)}") from error


def load_model(folder: Path | str, device: str = "cpu") -> Any:
    """A causal language model in float32, in evaluation mode (there is no dropout in what follows).

    Raises:
        ConfigError: Nothing loadable there, weights that are in no file (transformers draws them at random), or a model
            whose log-probs `grpo_core.learn.logprobs` would get wrong.
    """
    _no_progress_bars()
    where = f"model.path = {str(folder)!r}:"
    wrong = f"{where} not a transformers checkpoint"
    model, told = loaded("AutoModelForCausalLM", folder, wrong, output_loading_info=True)
    if lacking := sorted({name for name, _ in model.named_parameters()} & {*told["missing_keys"]}):
        raise ConfigError(f"{wrong}: {len(lacking)} of its weights are in no file there, {lacking[0]} first")
    head = model.get_output_embeddings()
    odd = [name for name in ("final_logit_softcapping", "logit_scale") if getattr(model.config, name, None)]
    if head is None or getattr(head, "bias", None) is not None or odd:
        found = ", ".join(odd) or "a bias or no such layer"
        raise ConfigError(f"{where} expected an output layer that is one matrix, found {found}")
    model = model.float().to(device).eval()
    # A file's memory begins anywhere, and rounding depends on where: in a mode that wakes its engine up, and so has new
    # memory, products would have other last digits than in one that does not.
    for value in model.parameters():
        value.data = value.data.clone()
    return model


def load_tokenizer(folder: Path | str) -> Any:
    """The tokenizer beside the model."""
    return loaded("AutoTokenizer", folder, f"model.path = {str(folder)!r}: no tokenizer there")


def known_ids(folder: Path | str, vocabulary: int) -> int:
    """How many token ids, from 0 on, both model and tokenizer have; without a tokenizer all of the model's.

    Models often have more output rows than their tokenizer has ids (TOK001). Such an id has no text: it is not sampled,
    and log-probs are of the distribution without it.
    """
    # Without files transformers 5 makes an empty tokenizer of the model's kind.
    if not any(Path(folder, name).is_file() for name in _TOKENIZER_FILES):
        return vocabulary
    ids = load_tokenizer(folder).get_vocab().values()
    return min(vocabulary, max(ids, default=vocabulary - 1) + 1)


def _no_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def first_line(error: BaseException) -> str:
    """What an error of a library says, short enough for one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
