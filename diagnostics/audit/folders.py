"""The one door for folders of weights that others made: here, whole, and of a size that their files can have."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.errors import AuditError
from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

# The most layers that a model is known to have is a tenth of it; each is built before any weight is read.
_MOST_LAYERS = 2000
# Transformers writes a name for each before a model is counted.
_MOST_LABELS = 1_000_000
# A weight takes half a byte at least; what is not in the files is made up in memory.
_LARGER = 8
_SMALL = 64 * given.MIB
# Of one file of a tokenizer, the largest known of which has 35 MiB.
_TOKENIZER = 128 * given.MIB
# An honest template takes a hundredth of a second, and some hundred kilobytes.
_TEMPLATE_S, _TEMPLATE_TAKES = 10.0, given.GIB
# A model of a hundred layers is made without its weights in a second, of some tens of megabytes, once its code is
# loaded, be it over a slow network.
_MADE_S, _MADE_TAKES = 300.0, 4 * given.GIB
_SIZES = (
    "vocab_size",
    "intermediate_size",
    "moe_intermediate_size",
    "hidden_size",
    "n_embd",
    "n_inner",
    "d_model",
)


def config(folder: Path) -> dict[str, Any]:
    """What its config.json says.

    Raises:
        AuditError: There is none, or it describes a model that the folder can't hold.
    """
    path = folder / "config.json"
    try:
        told = given.parsed(given.text(path, given.METADATA))
    except FileNotFoundError as error:
        raise AuditError(f"{folder}: no config.json: expected a folder that transformers loads") from error
    except (OSError, ValueError) as error:
        raise AuditError(f"{path}: {error}") from error
    if not isinstance(told, dict):
        raise AuditError(f"{path}: expected settings by name")
    if wrong := _wrong(told, _bytes(folder)):
        raise AuditError(f"{path}: {wrong}")
    return told


def _wrong(told: dict[str, Any], held: int) -> str:
    """What of it no model of these files has, empty if nothing."""
    each = [(name, value) for part in _parts(told) for name, value in part.items()]
    for name, value in each:
        # Some have a list here, one of each layer, or nothing.
        if _counted(name) and (
            isinstance(value, bool | float | str) or (isinstance(value, int) and value < 0)
        ):
            return f"{name} = {cut(str(value), 40)}: expected a whole number"
        if name == "num_labels" and isinstance(value, int) and value > _MOST_LABELS:
            return f"{name} = {cut(str(value), 40)}: expected at most {_MOST_LABELS} labels"
        if "layer" in name and isinstance(value, int) and value > _MOST_LAYERS:
            return f"{name} = {cut(str(value), 40)}: expected at most {_MOST_LAYERS} layers"
    for part in _parts(told):
        sizes = [part[name] for name in _SIZES if isinstance(part.get(name), int)]
        width = part.get("hidden_size") or part.get("n_embd") or part.get("d_model") or 1
        if sizes and max(sizes) * width > _LARGER * held + _SMALL:
            return f"{max(sizes)} by {width}: the weights beside it are {held} bytes"
    return ""


def _parts(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Itself, and those of a model of several parts."""
    return [told, *(value for value in told.values() if isinstance(value, dict))]


def _counted(name: str) -> bool:
    return name in _SIZES or name in {"num_hidden_layers", "n_layer", "num_attention_heads", "n_head"}


def _bytes(folder: Path) -> int:
    """How large its files of weights are."""
    return sum(
        path.stat().st_size
        for path in folder.iterdir()
        if path.suffix in {".safetensors", ".bin", ".pt", ".pth", ".gguf"} and path.is_file()
    )


def model(folder: Path, **options: Any) -> Any:
    """What transformers makes of a whole model; nothing beside it is run, nothing is asked of a hub.

    Args:
        folder: Which. Of an adapter's base Transformers 5 asks the hub, whatever it is told of files that are here.
        options: More for transformers.

    Raises:
        AuditError: There is no whole model, it makes nothing of it, or weights are in no file: transformers draws these
            at random and only logs that.
    """
    config(folder)
    if (folder / "adapter_config.json").exists():
        raise AuditError(f"{folder}: an adapter: expected a whole model")
    _counted_first(folder)
    wrong = "transformers does not load it"
    made, told = _loaded("AutoModelForCausalLM", folder, wrong, {**options, "output_loading_info": True})
    if lacking := sorted({name for name, _ in made.named_parameters()} & {*told["missing_keys"]}):
        raise AuditError(f"{folder}: {len(lacking)} of its weights are in no file there, {lacking[0]} first")
    return made


def _counted_first(folder: Path) -> None:
    """Has the model made without memory, and counts its numbers: a config has many names for what makes it large.

    Raises:
        AuditError: It has more than its files hold, or can't be made like this in time.
    """
    held, wrong = _bytes(folder), f"{folder / 'config.json'}: "
    # Not within the limits: with CUDA it takes gigabytes of addresses.
    import torch  # noqa: F401

    _quiet()
    try:
        with _held(_MADE_S, _MADE_TAKES):
            numbers = _numbers(folder)
    except (Exception, MemoryError) as error:
        why = cut(" ".join(str(error).split()), 200) or type(error).__name__
        raise AuditError(f"{wrong}transformers makes no model of it: {why}") from error
    if numbers > _LARGER * held + _SMALL:
        raise AuditError(f"{wrong}{numbers} numbers: the weights beside it are {held} bytes")


def _numbers(folder: Path) -> int:
    import torch

    transformers = _quiet()
    told = transformers.AutoConfig.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )
    with torch.device("meta"):
        try:
            made = transformers.AutoModelForCausalLM.from_config(told, trust_remote_code=False)
        except (AttributeError, TypeError, ValueError):
            # Of a model of several parts Transformers 4 makes the language's alone by its own settings.
            made = transformers.AutoModelForCausalLM.from_config(
                told.get_text_config(), trust_remote_code=False
            )
    return sum(value.numel() for value in (*made.parameters(), *made.buffers()))


def tokenizer(folder: Path) -> Any:
    """What transformers makes of a tokenizer's files.

    Raises:
        AuditError: They are not there, no files of their kind's size, or it makes nothing of them.
    """
    wrong = "its tokenizer can't be read"
    try:
        found = [path for path in folder.iterdir() if path.suffix in {".json", ".model", ".jinja", ".txt"}]
        for path in found:
            with given.opened(path) as file:
                if file.seek(0, 2) > _TOKENIZER:
                    raise AuditError(
                        f"{folder}: {wrong}: {path.name} is larger than {_TOKENIZER // given.MIB} MiB"
                    )
    except (OSError, ValueError) as error:
        raise AuditError(f"{folder}: {wrong}: {error}") from error
    return _loaded("AutoTokenizer", folder, wrong, {})


def _quiet() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _loaded(kind: str, folder: Path, wrong: str, options: dict[str, Any]) -> Any:
    transformers = _quiet()
    try:
        made = getattr(transformers, kind).from_pretrained
        return made(str(folder), local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:
        told = cut(" ".join(str(error).split()), 200)
        raise AuditError(f"{folder}: {wrong}: {told}") from error


def chat(words: Any, messages: list[dict[str, str]]) -> list[int]:
    """The ids of a conversation by a tokenizer's own template: a program of others, which may not end.

    Raises:
        AuditError: It raised something, took longer than a few seconds, or more memory than a text.
    """
    try:
        with _held(_TEMPLATE_S, _TEMPLATE_TAKES):
            told = words.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=True
            )
    except (Exception, MemoryError) as error:
        why = cut(" ".join(str(error).split()), 200) or type(error).__name__
        raise AuditError(f"its chat template: {why}") from error
    return list(told["input_ids"])


@contextlib.contextmanager
def _held(limit_s: float, most: int) -> Iterator[None]:
    """A program's limits for a while, where this is its first thread: a clock, and so much memory more."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer in {limit_s:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    known = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (min([taken + most, *known]), hard))
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)
