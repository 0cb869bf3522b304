"""Validate an untrusted checkpoint folder, read its settings, and load its model with transformers.

No hub is contacted (HF_HUB_OFFLINE is set) and no Python code of the folder runs. Settings by which transformers would
import a kernel are refused, and so are links and settings that lead to files outside of the folder. In the hub's cache,
links to its blobs are allowed. A model must be complete, no adapter, and no larger than its files allow. In the main
thread (Linux), building and loading it are limited in processor time and memory. Problems become an AuditError in one
line; a check, build or load that takes too long, a CpuLimitError.

`read_config` returns the settings, `load_model` the model. `check_tokenizer` checks the tokenizer that
`checkpoint_tokenizer` loads.
"""

import contextlib
import os
import re
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.results import AuditError
from diagnostics.cpu_limit import cpu_limit
from diagnostics.output.redact import truncate

# Ten times what any known model has; every layer is built, and every label named, before a weight is read.
_MAX_LAYERS, _MAX_LABELS = 2000, 1_000_000  # of ids, too
# Weights that are in no file would be created in memory. The limit allows 8 numbers a byte (1-bit weights).
_NUMBERS_PER_BYTE, _SLACK_NUMBERS = 8, 64 * safe_io.MIB
# Types of the settings whose values we use, in words too. All ids are listed, so their number is an integer.
_KINDS: dict[str, tuple[set[type], str]] = {
    "vocab_size": ({int}, "an integer"), "eos_token_id": ({int}, "an integer or a list of integers"),
    "lora_alpha": ({int, float}, "a number"), "text_config": ({dict}, "an object"),
}  # fmt: skip
# A model without its weights takes a second.
_MODEL_S, _MODEL_BYTES = 300.0, 4 * safe_io.GIB
_CHECK_S = 20.0
is_file = os.path.isfile  # as of a Path, but without errors for long names and closed folders
# Names of settings by which transformers, or timm, imports a kernel of the hub or loads a file; allowed values.
_LOADING_SETTING = re.compile(
    r"(?P<choice>(?:attn|experts)\w*_implementation)|(?P<name>implementation|kernel|backbone|architecture)"
    r"|(?P<none>checkpoint_path|pretrained_cfg|^(?:fast_)?tokenizer_files?$|^configuration_files$)"
    r"|(?P<tokenizer>tokenizer_class)|(?P<file>(?<!special_tokens_map_)files?$|(?:_dir|(?<!_or)_path|^(?:init_inputs|vocab|merges))$)"
)
_IMPLEMENTATIONS = {"eager", "sdpa", "grouped_mm", "batched_mm"}
_PLAIN_NAME = re.compile(r"[\w.+-]*")
# A class of another name may be a processor, which reads further files.
_TOKENIZER_CLASS = re.compile(r"\w*Tokenizer(?:Fast)?|TokenizersBackend")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings in config.json, after validating them.

    Raises:
        AuditError: The file is missing or invalid, describes a model that the folder's files cannot hold, or has a
            setting by which transformers may load something from elsewhere.
        CpuLimitError: Checking the settings takes too long.
    """
    path = folder / "config.json"
    if not is_file(path):
        raise AuditError(f"{folder}: no config.json: expected a folder that transformers loads")
    with cpu_limit(f"{path}: checking it", _CHECK_S):
        config = read_json_object(path)
        _check_numbers(path, config, _weight_bytes(folder))
        _check_settings(path)
    return config


def _check_settings(path: Path) -> None:
    """Refuse settings by which transformers imports code or reads other folders' files.

    Raises:
        AuditError: The file is invalid or has such a setting.
    """
    queue: list[tuple[str, Any]] = [("", read_json_object(path))]
    while queue:
        name, value = queue.pop()
        match = _LOADING_SETTING.search(name[:100])
        value = str(value) if value and match and match.lastgroup == "none" else value
        if isinstance(value, dict):
            for key, item in value.items():
                is_own = not match or _LOADING_SETTING.search(key[:100])
                queue.append((key if is_own else name, item))
        elif isinstance(value, list):
            queue += [(name, item) for item in value]
        elif isinstance(value, str) and not _is_allowed(match and match.lastgroup, value, path.parent):
            setting = f"{path}: {truncate(f'{name} = {value}', 120)}"
            raise AuditError(f"{setting}: refused, because transformers may load it from elsewhere")


def _is_allowed(kind: str | None, value: str, folder: Path) -> bool:
    """Return whether a setting is harmless: a known implementation, a plain name, or no file outside the folder.

    `kind` is the group of _LOADING_SETTING that its name matches, if any.
    """
    if kind == "choice":
        return value in _IMPLEMENTATIONS
    if kind == "name":
        return bool(_PLAIN_NAME.fullmatch(value))
    if kind == "tokenizer":
        return bool(_TOKENIZER_CLASS.fullmatch(value))
    # Relative to the working folders of this process and of the tokenizer's, too.
    paths = (Path(value), Path("/") / value, folder / value)
    files = [path for path in paths if value and os.path.exists(path)]  # noqa: PTH110 - no errors
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
        AuditError: The file is unreadable, too large, no JSON object, or a link to another folder, or a setting in it
            has another type.
    """
    try:
        document = safe_io.parse_json(safe_io.read_text(path, limit, inside=_root_of(path, path.parent)))
    except (OSError, ValueError) as error:
        raise AuditError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise AuditError(f"{path}: expected a JSON object")
    sections = [document, *(value for value in document.values() if isinstance(value, dict))]
    for name, value in (item for section in sections for item in section.items() if item[0] in _KINDS):
        kinds, expected = _KINDS[name]
        items = value if name == "eos_token_id" and isinstance(value, list) else [value]
        fits = (type(item) in kinds and (kinds == {dict} or abs(item) < 2**63) for item in items)
        if value is not None and not all(fits):
            raise AuditError(f"{path}: {name} = {truncate(str(value), 40)}: expected {expected}")
    return document


def _check_numbers(path: Path, config: dict[str, Any], size: int) -> None:
    """Refuse a number of layers or labels that is too large or negative, or more ids than weights of `size` bytes hold.

    Raises:
        AuditError: A number is refused.
    """
    sections = [config, *(value for value in config.values() if isinstance(value, dict))]
    widths = [section.get(name) for section in sections for name in ("hidden_size", "n_embd", "d_model")]
    width = max([1, *(width for width in widths if isinstance(width, int))])
    ids = min(_MAX_LABELS, (_NUMBERS_PER_BYTE * size + _SLACK_NUMBERS) // width)
    limits = {"num_labels": _MAX_LABELS, "vocab_size": ids}
    for name, value in (item for section in sections for item in section.items()):
        limit = limits.get(name, _MAX_LAYERS if "layer" in name else None)
        if limit is not None and isinstance(value, int) and not 0 <= value <= limit:
            raise AuditError(f"{path}: {name} = {truncate(str(value), 40)}: expected at most {limit}")


def _weight_bytes(folder: Path) -> int:
    suffixes = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in suffixes and path.is_file())


def model_bytes(folder: Path) -> int:
    """Return how many additional bytes of memory loading a checkpoint, or computing with it, may need."""
    return _MODEL_BYTES + 4 * _weight_bytes(folder)


def load_model(folder: Path) -> Any:
    """Load a complete model as AutoModelForCausalLM.

    Adapters are refused: transformers 5 requests their base from the hub, even with local_files_only.

    Raises:
        AuditError: The folder has no whole model that transformers loads, or weights are missing, which transformers
            would fill at random.
        CpuLimitError: Checking, building or loading the model takes too long.
    """
    read_config(folder)
    if is_file(folder / "adapter_config.json"):
        raise AuditError(f"{folder}: an adapter: expected a whole model")
    check_files(folder)
    _check_size(folder)
    load = _import_transformers().AutoModelForCausalLM.from_pretrained
    options = {"trust_remote_code": False, "output_loading_info": True}
    # A pickle of weights may ask for memory that the file does not hold.
    with memory_limit(f"{folder}: transformers loading it", model_bytes(folder)):
        model, info = load(str(folder), local_files_only=True, **options)
    if missing := sorted({name for name, _ in model.named_parameters()} & {*info["missing_keys"]}):
        raise AuditError(f"{folder}: {len(missing)} weights are in no file, {missing[0]} first")
    return model


def check_files(folder: Path) -> None:
    """Check that the files that transformers may read are regular files of the folder: a pipe would block for ever.

    These are the files in the folder, the shards that an index names, and additional chat templates.

    Raises:
        AuditError: An index is unreadable, or a file is a pipe, a device, or in another folder.
        CpuLimitError: An index names too many files.
    """
    with cpu_limit(f"{folder}: checking its files", _CHECK_S):
        _check_paths(folder)


def _check_paths(folder: Path) -> None:
    paths = [path for path in folder.iterdir() if not path.is_dir()]
    paths += (folder / "additional_chat_templates").glob("*.jinja")
    for index in folder.glob("*.index.json"):
        names = read_json_object(index, safe_io.DOCUMENT_LIMIT).get("weight_map")
        paths += [folder / name for name in {*map(str, names.values())}] if isinstance(names, dict) else []
    for path in paths:
        try:
            safe_io.open_regular(path, inside=_root_of(path, folder)).close()
        except FileNotFoundError:
            continue  # transformers reports it
        except (OSError, ValueError) as error:
            raise AuditError(f"{folder}: {truncate(path.name, 80)}: {error}") from error


def _check_size(folder: Path) -> None:
    """Build the model on the meta device and count its parameters, because a config has many names for sizes.

    Raises:
        AuditError: The model cannot be built, or has more numbers than the files can hold.
        CpuLimitError: Building the model takes too long.
    """
    import torch  # outside of the limit: with CUDA it reserves gigabytes of addresses

    size, path = _weight_bytes(folder), folder / "config.json"
    transformers = _import_transformers()
    build, options = transformers.AutoModelForCausalLM.from_config, {"trust_remote_code": False}
    what = f"{path}: transformers building the model"
    with memory_limit(what, _MODEL_BYTES), torch.device("meta"):
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


def check_tokenizer(folder: Path) -> None:
    """Check the files and settings of a tokenizer before it is loaded.

    Raises:
        AuditError: The folder or its tokenizer.json is missing, a subfolder has another tokenizer, or a file or a
            setting is refused.
        CpuLimitError: An index names too many files.
    """
    problem = f"{folder}: its tokenizer cannot be read"
    if not folder.is_dir():
        raise AuditError(f"{problem}: no such folder")
    check_files(folder)
    if not is_file(folder / "tokenizer.json"):
        raise AuditError(f"{problem}: it needs tokenizer.json, because other classes read other files")
    if parts := [path.name for path in folder.glob("*_tokenizer")]:  # RagTokenizer reads such folders
        raise AuditError(f"{problem}: {truncate(parts[0], 80)}: a tokenizer in a subfolder is not checked")
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if (path := folder / name).exists():
            _check_settings(path)
            # transformers takes any setting from this file after it has set the others.
            keys = read_json_object(path) if name.startswith("special") else ()
            if others := [key for key in keys if not key.endswith(("_token", "_tokens"))]:
                raise AuditError(
                    f"{path}: {truncate(others[0], 80)}: refused, because it is no special token"
                )


def _import_transformers() -> Any:
    """Import transformers with the hub switched off for this process, and silence its messages."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True  # if it was imported before
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


@contextlib.contextmanager
def memory_limit(what: str, extra_bytes: int) -> Iterator[None]:
    """Limit additional memory and processor time of the `with` body (main thread only).

    The limit of time grows with that of memory: a large model takes longer.

    Raises:
        AuditError: The body raised an exception.
        CpuLimitError: It took too long.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    limit = min(value for value in (used + extra_bytes, soft, hard) if value != resource.RLIM_INFINITY)
    if threading.current_thread() is threading.main_thread():
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        with cpu_limit(what, _MODEL_S * max(1, extra_bytes / _MODEL_BYTES)):
            yield
    except AuditError:
        raise
    except Exception as error:
        raise AuditError(f"{what} failed: {one_line_message(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def one_line_message(error: BaseException | str) -> str:
    """Return an error's message on one line, truncated but not masked; the error's class if it has no message."""
    return truncate(" ".join(str(error).split()), 200) or type(error).__name__
