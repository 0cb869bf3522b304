"""Validate an untrusted checkpoint folder, and load its model, tokenizer and settings with transformers.

No hub is contacted (HF_HUB_OFFLINE is set) and no Python code of the folder runs. Settings by which transformers would
import a kernel are refused, and so are links and settings that lead to files outside of the folder (and, in the hub's
cache, its blobs). A model must be complete, and no larger than its files allow. A tokenizer must have tokenizer.json,
whose steps may not make a text much longer, and whose tokens may not be very long.

`chat_ids` runs the folder's chat template, in transformers' sandbox. Building a model and running a template have time
and memory limits in the main thread (SIGALRM, RLIMIT_AS; Linux). Problems become an AuditError in one line.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import re
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from diagnostics import safe_io
from diagnostics.audit.results import AuditError, NotAvailableError
from diagnostics.output.redact import mask_and_cut

# Ten times what any known model has; every layer is built, and every label named, before a weight is read.
_MAX_LAYERS, _MAX_LABELS = 2000, 1_000_000
# Weights that are in no file would be created in memory. The limit allows 8 numbers a byte (1-bit weights).
_NUMBERS_PER_BYTE, _SLACK_NUMBERS = 8, 64 * safe_io.MIB
_MAX_TOKENIZER_FILE = 128 * safe_io.MIB
# An honest chat template takes 10 ms and some hundred kilobytes; a model without its weights a second.
_TEMPLATE_S, _TEMPLATE_BYTES = 10.0, safe_io.GIB
_MODEL_S, _MODEL_BYTES = 300.0, 4 * safe_io.GIB
_TEMPLATE_FOLDER = "additional_chat_templates"  # the subfolder that transformers reads too
# Names of settings by which transformers, or timm, imports a kernel of the hub or loads a file; allowed values.
_LOADING_SETTING = re.compile(
    r"(?P<choice>(?:attn|experts)\w*_implementation)|(?P<name>implementation|kernel|backbone|architecture)"
    r"|(?P<none>checkpoint_path|pretrained_cfg|^(?:fast_)?tokenizer_files?$)"
    r"|(?P<file>(?<!special_tokens_map_)files?$|(?:_dir|(?<!_or)_path|^(?:init_inputs|vocab|merges))$)"
)
_IMPLEMENTATIONS = {"eager", "sdpa", "grouped_mm", "batched_mm"}
# The parts of a tokenizer.json that change texts or ids, and the largest factor by which each may lengthen them.
_TOKENIZER_PARTS, _MAX_GROWTH = ("normalizer", "pre_tokenizer", "post_processor", "decoder"), 64
_GROWTH = msgspec.toml.decode(Path(__file__).with_name("tokenizer_growth.toml").read_bytes())
# Characters of one token, of all added tokens after the normalizer (100 bytes of memory each), and of a chat.
_MAX_TOKEN, _MAX_ADDED, _MAX_CHAT = 1024, 16 * safe_io.MIB, 16 * safe_io.KIB
_PLAIN_NAME = re.compile(r"[\w.+-]*")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings in config.json, after validating them.

    Raises:
        AuditError: The file is missing or invalid, describes a model that the folder's files cannot hold, or has a
            setting by which transformers may load something from elsewhere.
    """
    path = folder / "config.json"
    if not path.exists():
        raise AuditError(f"{folder}: no config.json: expected a folder that transformers loads")
    config = read_json_object(path)
    if problem := _config_problem(config, _weight_bytes(folder)):
        raise AuditError(f"{path}: {problem}")
    _check_settings(path)
    return config


def _check_settings(path: Path) -> set[str]:
    """Refuse settings by which transformers imports code or reads other folders' files; return all texts and keys.

    Raises:
        AuditError: The file is invalid or has such a setting.
    """
    queue: list[tuple[str, Any]] = [("", read_json_object(path))]
    texts: set[str] = set()
    while queue:
        name, value = queue.pop()
        match = _LOADING_SETTING.search(name)
        value = str(value) if value and match and match.lastgroup == "none" else value
        if isinstance(value, dict):
            texts |= value.keys()
            for key, item in value.items():
                is_own = not match or _LOADING_SETTING.search(key[:100])
                queue.append((key[:100] if is_own else name, item))
        elif isinstance(value, list):
            queue += [(name, item) for item in value]
        elif name in {"extra_ids", "num_madeup_words", "offset"} and type(value) is int and value > 1024:
            raise AuditError(f"{path}: {name}: expected at most 1024 tokens that transformers makes")
        elif isinstance(value, str):
            texts.add(value)
            if not _is_allowed(match and match.lastgroup, value, path.parent):
                setting = f"{path}: {mask_and_cut(f'{name} = {value}', 120)}"
                raise AuditError(f"{setting}: refused, because transformers may load it from elsewhere")
    return texts


def _is_allowed(kind: str | None, value: str, folder: Path) -> bool:
    """Return whether a setting is harmless: a known implementation, a plain name, or no file out of the folder.

    `kind` is the group of _LOADING_SETTING that its name matches, if any.
    """
    if kind == "choice":
        return value in _IMPLEMENTATIONS
    if kind == "name":
        return bool(_PLAIN_NAME.fullmatch(value))
    files = [path for path in (Path(value), folder / value) if value and os.path.exists(path)]  # noqa: PTH110 - no errors
    if kind is None:
        files = [path for path in files if "/" in value and not os.path.isdir(path)]  # noqa: PTH112 - no errors
    return kind != "none" and all(path.resolve().is_relative_to(_root_of(path, folder)) for path in files)


def _root_of(path: Path, folder: Path) -> Path:
    """Return the folder that must contain a file: the checkpoint's, or for a link in the hub's cache the blobs'."""
    root = folder.resolve()
    blobs = root.parent.parent / "blobs"
    return blobs if root.parent.name == "snapshots" and path.resolve().is_relative_to(blobs) else root


def read_json_object(path: Path, limit: int = safe_io.METADATA_LIMIT) -> dict[str, Any]:
    """Return the JSON object in a file of at most `limit` bytes.

    Raises:
        AuditError: The file is unreadable, too large, no JSON object, or a link to another folder.
    """
    try:
        document = safe_io.parse_json(safe_io.read_text(path, limit, inside=_root_of(path, path.parent)))
    except (OSError, ValueError) as error:
        raise AuditError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise AuditError(f"{path}: expected a JSON object")
    return document


def _config_problem(config: dict[str, Any], size: int) -> str:
    """Return the first setting that is too large or negative, in one line; empty if all are plausible.

    Checked are numbers of layers and labels, and the vocabulary that weights of `size` bytes can hold.
    """
    sections = [config, *(value for value in config.values() if isinstance(value, dict))]
    widths = [section.get(name) for section in sections for name in ("hidden_size", "n_embd", "d_model")]
    width = max([1, *(width for width in widths if isinstance(width, int))])
    limits = {"num_labels": _MAX_LABELS, "vocab_size": (_NUMBERS_PER_BYTE * size + _SLACK_NUMBERS) // width}
    for name, value in (item for section in sections for item in section.items()):
        limit = limits.get(name, _MAX_LAYERS if "layer" in name else None)
        if limit is not None and isinstance(value, int) and not 0 <= value <= limit:
            return f"{name} = {mask_and_cut(str(value), 40)}: expected at most {limit}"
    return ""


def _weight_bytes(folder: Path) -> int:
    suffixes = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in suffixes and path.is_file())


def load_model(folder: Path) -> Any:
    """Load a complete model as AutoModelForCausalLM.

    Adapters are refused: transformers 5 requests their base from the hub, even with local_files_only.

    Raises:
        AuditError: The folder has no whole model that transformers loads, or weights are missing, which transformers
            would fill at random.
        NotAvailableError: Building the model takes too long.
    """
    read_config(folder)
    if (folder / "adapter_config.json").exists():
        raise AuditError(f"{folder}: an adapter: expected a whole model")
    check_files(folder)
    _check_size(folder)
    problem = "transformers does not load it"
    model, info = _load("AutoModelForCausalLM", folder, problem, output_loading_info=True)
    if missing := sorted({name for name, _ in model.named_parameters()} & {*info["missing_keys"]}):
        raise AuditError(f"{folder}: {len(missing)} weights are in no file, {missing[0]} first")
    return model


def check_files(folder: Path, limit: float = math.inf) -> None:
    """Check that the files that transformers may read are regular files of the folder: a pipe would block for ever.

    These are the files in the folder, the shards that an index names, and additional chat templates.

    Args:
        folder: The checkpoint.
        limit: Maximum size in bytes of a tokenizer's file.

    Raises:
        AuditError: An index is unreadable, or a file is too large, a pipe, a device, or in another folder.
    """
    paths = [path for path in folder.iterdir() if not path.is_dir()]
    paths += (folder / _TEMPLATE_FOLDER).glob("*.jinja")
    for index in folder.glob("*.index.json"):
        names = read_json_object(index, safe_io.DOCUMENT_LIMIT).get("weight_map")
        paths += [folder / name for name in {*map(str, names.values())}] if isinstance(names, dict) else []
    for path in paths:
        try:
            with safe_io.open_regular(path, inside=_root_of(path, folder)) as file:
                if path.suffix in {".json", ".model", ".jinja", ".txt"} and file.seek(0, 2) > limit:
                    raise ValueError(f"larger than {limit // safe_io.MIB} MiB")  # noqa: TRY301
        except FileNotFoundError:
            continue  # transformers reports it
        except (OSError, ValueError) as error:
            raise AuditError(f"{folder}: {mask_and_cut(path.name, 80)}: {error}") from error


def _check_size(folder: Path) -> None:
    """Build the model on the meta device and count its parameters, because a config has many names for sizes.

    Raises:
        AuditError: The model cannot be built, or has more numbers than the files can hold.
        NotAvailableError: Building the model takes too long.
    """
    import torch  # outside of the limit: with CUDA it reserves gigabytes of addresses

    size, path = _weight_bytes(folder), folder / "config.json"
    transformers = _import_transformers()
    build, options = transformers.AutoModelForCausalLM.from_config, {"trust_remote_code": False}
    what = f"{path}: transformers building the model"
    with resource_limit(what, _MODEL_S, _MODEL_BYTES), torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, **options)
        if weights := getattr(config, "transformers_weights", None):  # vLLM does not know it
            raise ValueError(f"transformers_weights = {weights!r}: expected files of the usual names")
        try:
            model = build(config, **options)
        except (AttributeError, TypeError, ValueError):
            # transformers 4 builds the language part of a multimodal model only from its own settings.
            model = build(config.get_text_config(), **options)
        numbers = sum(value.numel() for value in (*model.parameters(), *model.buffers()))
    if numbers > _NUMBERS_PER_BYTE * size + _SLACK_NUMBERS:
        raise AuditError(f"{path}: {numbers} numbers: the folder's weights are {size} bytes")


@contextlib.contextmanager
def tokenizer_errors() -> Iterator[None]:
    """Make a NotAvailableError of errors of the tokenizers package, also of a panic, and hide what it prints."""
    with Path(os.devnull).open("wb") as null, os.fdopen(os.dup(2), "wb") as stderr:
        os.dup2(null.fileno(), 2)
        try:
            yield
        except (AuditError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a panic is no Exception
            raise NotAvailableError(f"the tokenizer failed: {one_line_message(error)}") from error
        finally:
            os.dup2(stderr.fileno(), 2)


@tokenizer_errors()
def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer with AutoTokenizer, after its files have been checked.

    Raises:
        AuditError: Its files are missing, not regular, too large or unreadable, or have a refused setting.
        NotAvailableError: The tokenizers package panics.
    """
    problem = "its tokenizer cannot be read"
    if not folder.is_dir():
        raise AuditError(f"{folder}: {problem}: no such folder")
    check_files(folder, _MAX_TOKENIZER_FILE)
    names = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    settings = [path for name in names if (path := folder / name).exists()]
    texts = {text for path in settings for text in _check_settings(path)}
    if not (path := folder / "tokenizer.json").exists():
        raise AuditError(f"{folder}: {problem}: it needs tokenizer.json, because other files are not checked")
    _check_lengths(path, safe_io.read_text(path, _MAX_TOKENIZER_FILE, inside=_root_of(path, folder)), texts)
    tokenizer = _load("AutoTokenizer", folder, problem)
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is None:
        raise AuditError(f"{folder}: {problem}: {type(tokenizer).__name__} does not use tokenizer.json")
    _check_lengths(path, backend.to_str(), set())  # transformers adds steps and tokens of other settings
    return tokenizer


def _check_lengths(path: Path, text: str, settings: set[str]) -> None:
    """Raise AuditError if steps or tokens of a tokenizer can make a text much longer, or take gigabytes.

    No limit of time ends a call of the tokenizers package. `text` is that of the file, or of the loaded tokenizer;
    `settings` are texts that may become added tokens.
    """
    try:
        document = safe_io.parse_json(text)
        growth = {part: _growth(document[part]) for part in _TOKENIZER_PARTS if document.get(part)}
        model, added = document["model"], {token["content"] for token in document.get("added_tokens") or ()}
        tokens = [item if isinstance(item, str) else item[0] for item in model["vocab"]]
        tokens += [*added, *(value for value in model.values() if isinstance(value, str))]
        longest = max([model.get("max_input_chars_per_word") or 0, *map(len, tokens)])
        added_size = sum(map(len, added | settings)) * growth.get("normalizer", 1)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise AuditError(f"{path}: not checked: unknown parts: {mask_and_cut(repr(error), 99)}") from None
    if part := next((part for part in growth if growth[part] > _MAX_GROWTH), ""):
        raise AuditError(f"{path}: its {part} makes a text more than {_MAX_GROWTH} times as long")
    if longest > _MAX_TOKEN or added_size > _MAX_ADDED:
        raise AuditError(f"{path}: its tokens are longer than those of any known tokenizer")


def _growth(step: Any) -> float:
    """Return by which factor a step of a tokenizer, or a sequence of steps, can make a text longer, in characters."""
    kind = step["type"]
    if kind == "Sequence":
        return math.prod(_growth(item) for items in step.values() if type(items) is list for item in items)
    if kind == "Replace":  # a regular expression may also match the empty texts around a character
        old, new = len(step["pattern"].get("String", "")), len(step["content"])
        return max(1.0, new / old) if old else 1.0 + 2 * new
    if kind == "Precompiled":  # the size of a trie, the trie, and replacements that end with NUL
        data = base64.b64decode(step["precompiled_charsmap"])
        texts = data[4 + int.from_bytes(data[:4], "little") :].decode(errors="replace").split("\0")
        return max(1, *map(len, texts))
    if kind == "TemplateProcessing":
        ids = [len(token["ids"]) for token in step["special_tokens"].values()]
        return len(step["single"]) * max([1, *ids])
    return float(_GROWTH[kind]) + len(step.get("prepend", ""))


def _import_transformers() -> Any:
    """Import transformers with the hub switched off for this process, and silence its messages."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True  # if it was imported before
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _load(kind: str, folder: Path, problem: str, **options: bool) -> Any:
    """Call `from_pretrained` of transformers' class `kind` offline; an error becomes an AuditError with `problem`."""
    try:
        load = getattr(_import_transformers(), kind).from_pretrained
        return load(str(folder), local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:
        raise AuditError(f"{folder}: {problem}: {one_line_message(error)}") from error


def chat_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Return the token ids of a conversation with the generation prompt.

    In the main thread the chat template has time and memory limits.

    Raises:
        AuditError: The template failed, also from lack of memory, or makes a long text.
        NotAvailableError: The template exceeded the time limit, or the tokenizer failed.
    """
    with resource_limit("the chat template", _TEMPLATE_S, _TEMPLATE_BYTES):
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    if len(text) > _MAX_CHAT:
        raise AuditError(f"the chat template makes a text of more than {_MAX_CHAT} characters")
    return token_ids(tokenizer, text, add_special_tokens=False)


@tokenizer_errors()
def token_ids(tokenizer: Any, text: str, **options: bool) -> list[int]:
    """Return the token ids of a text; raise NotAvailableError if the tokenizer fails."""
    return list(tokenizer(text, **options)["input_ids"])


@contextlib.contextmanager
def resource_limit(what: str, seconds: float, extra_bytes: int) -> Iterator[None]:
    """Limit time and additional memory in the main thread, and convert errors; in other threads only convert errors.

    Raises:
        AuditError: The body of the `with` statement failed.
        NotAvailableError: The body exceeded the time limit.
    """

    def stop(*_: object) -> None:
        raise TimeoutError

    is_limited = threading.current_thread() is threading.main_thread()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    if is_limited:
        previous = signal.signal(signal.SIGALRM, stop)
        resource.setrlimit(resource.RLIMIT_AS, (min([used + extra_bytes, *limits]), hard))
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:  # before an error is handled, which the alarm would interrupt
            if is_limited:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeoutError as error:
        raise NotAvailableError(f"{what} took more than {seconds:g} s") from error
    except (Exception, MemoryError) as error:
        raise AuditError(f"{what} failed: {one_line_message(error)}") from error
    finally:
        if is_limited:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            signal.signal(signal.SIGALRM, previous)


def one_line_message(error: BaseException) -> str:
    """Return an error's message on one line with secrets masked; the error's class if it has no message."""
    return mask_and_cut(" ".join(str(error).split()), 200) or type(error).__name__
