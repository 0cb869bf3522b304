"""A folder of weights that others made: what it says of its size is not believed, and its chat template has limits.

Asked for where `model.path` or `reward.model` is set; a run that makes its own model reads none of it.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.records import given
from grpo_core.tasks.model import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

# Settings, and one file of a tokenizer, the largest known of which has 35 MiB.
_CONFIG, _TOKENIZER = 4 << 20, 128 << 20
# Ten times what any known model has; each is an object of Python's before a weight is read.
_MOST = 2000
# Transformers writes a name for each before a model is counted.
_LABELS = 1_000_000
# A number takes a bit at least; what is not in the files is made up in memory.
_A_BYTE, _SMALL = 8, 64 << 20
# An honest model is made without its weights in a second, once its code is loaded, be it over a slow network; a
# template takes a hundredth of one.
_MODEL_S, _TEMPLATE_S = 300.0, 10.0
_MODEL_TAKES, _TEMPLATE_TAKES = 4 << 30, 1 << 30
_KINDS = {"model.path": "AutoModelForCausalLM", "reward.model": "AutoModelForSequenceClassification"}
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth"}


def check_folder(key: str, folder: str, *, counted: bool = True) -> None:
    """Refuses one that is not there, or whose files can't hold the model that it describes.

    Args:
        key: The setting that names it.
        folder: Which.
        counted: Whether transformers is asked how large a model that is.

    Raises:
        ConfigError: It says more than its files have, or what it holds is no file of that kind.
    """
    if not Path(folder).is_dir():
        raise ConfigError(f"{key} = {folder!r}: no such folder; expected a transformers checkpoint")
    if not Path(folder, "config.json").exists():
        return  # as whoever loads it says
    try:
        _files(Path(folder))
        if not counted:
            return
        # Not within the limits: with CUDA it takes gigabytes of addresses.
        import torch  # noqa: F401
        import transformers  # noqa: F401

        with held(_MODEL_S, _MODEL_TAKES):
            wanted = _numbers(folder, _KINDS[key])
        found = sum(path.stat().st_size for path in Path(folder).iterdir() if path.suffix in _WEIGHTS)
        if wanted > _A_BYTE * found + _SMALL:
            raise ValueError(f"{wanted} numbers, and the weights beside it are {found} bytes")  # noqa: TRY301
    except (Exception, MemoryError) as error:
        raise ConfigError(f"{key} = {folder!r}: config.json: {first_line(error)[:200]}") from error


def _files(folder: Path) -> None:
    """Raises ValueError or OSError where one is larger than its kind, or a setting is without end."""
    for path in folder.glob("*.[jmt]*"):
        if path.suffix in {".json", ".model", ".jinja", ".txt"}:
            most = _CONFIG if path.name == "config.json" else _TOKENIZER
            if given.found_at(path).stat().st_size > most:
                raise ValueError(f"{path.name} is larger than {most >> 20} MiB")
    told = json.loads(given.read(folder / "config.json"))
    for part in (told, *told.values()):
        for name, value in part.items() if isinstance(part, dict) else ():
            size = _LABELS if name == "num_labels" else _MOST if "layer" in name or "expert" in name else 0
            if size and isinstance(value, int) and value > size:
                raise ValueError(f"{name} = {str(value)[:40]}: expected at most {size}")


def _numbers(folder: str, kind: str) -> int:
    """How many a model of these settings has; it is made without memory."""
    import torch
    import transformers

    made = getattr(transformers, kind).from_config
    told = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        try:
            empty = made(told, trust_remote_code=False)
        except (AttributeError, TypeError, ValueError):
            # Of a model of several parts Transformers 4 makes the language's alone by its own settings.
            empty = made(told.get_text_config(), trust_remote_code=False)
    return sum(value.numel() for value in (*empty.parameters(), *empty.buffers()))


@contextlib.contextmanager
def held(limit_s: float = _TEMPLATE_S, most: int = _TEMPLATE_TAKES) -> Iterator[None]:
    """What runs within has a clock, and so much memory more, where this is the first thread.

    Raises:
        TimeoutError: It took longer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: Any) -> None:
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
