"""The names of the frameworks' options, by release: read out of their wheels, kept as data beside this file.

`python -m tests.diagnostics.programs.option_names` writes them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from diagnostics.lint.values import Settings, Value

FOLDER = Path(__file__).parent / "options"
# Whose options a framework's own command takes beside its own.
_BESIDE = {"trl": ("transformers",), "ms-swift": ("transformers",)}
_NEAR = 0.84
# Hydra's choice of a file for a part of the config.
_GROUP = set("@/")
# What TrlParser and ms-swift take beside any option, and what `trl grpo` hands on to accelerate.
_ANYWHERE = {"config", "accelerate_config", "env", "deepspeed", "help"}
_LAUNCHER = re.compile(
    r"num_(?:processes|machines|cpu_threads_per_process)$|config_file$|mixed_precision$|gpu_ids$|multi_gpu$"
    r"|machine_rank$|main_process_\w+$|use_(?:deepspeed|fsdp)$|(?:deepspeed|zero|fsdp|dynamo|rdzv)_\w+$|debug$|same_network$"
)


@cache
def _read(package: str) -> Mapping[str, Mapping[str, list[str]]]:
    path = FOLDER / f"{package}.json"
    found: Mapping[str, Mapping[str, list[str]]] = (
        json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    )
    return found


def packages(framework: str) -> tuple[str, ...]:
    """Those whose options a framework's command takes and whose names are here, its own first; none if its are not."""
    return (framework, *_BESIDE.get(framework, ())) if _read(framework) else ()


def names(framework: str, role: str = "train") -> set[str]:
    """Every name that some release knows."""
    kind = "serve" if role == "serve" and "serve" in _read(framework) else "options"
    own = packages(framework) if kind == "options" else (framework,)
    return {name for package in own for name in _read(package)[kind]}


def options_of(settings: Settings) -> list[Value]:
    """The options that a run sets by name: not its files, and not what a `+` adds to a config."""
    return [
        value.named(key)
        for key, value in settings.items.items()
        if not settings.signs.get(key)
        and not key.startswith(("@", "-", "deepspeed.", "hydra", "megatron"))
        and not _GROUP & set(key)
        and key not in _ANYWHERE
        and not _LAUNCHER.match(key)
    ]


def takes(name: str, among: Collection[str]) -> bool:
    """Tells whether a parser that knows these names takes this one: argparse takes a beginning, and `no_` of a switch.

    >>> takes("no_use_vllm", {"use_vllm"}), takes("vllm_mod", {"vllm_mode"}), takes("vlm_mode", {"vllm_mode"})
    (True, True, False)
    """
    if name in among or name.removeprefix("no_") in among:
        return True
    # Of two that begin so it takes neither.
    return "." not in name and sum(each.startswith(name) for each in among) == 1


def was_read(package: str, release: Version | None) -> bool:
    """Tells whether that very release was read."""
    return release is not None and str(release) in _read(package).get("releases", ())


def span(package: str, name: str) -> tuple[str, str] | None:
    """The first and the last release that have a name."""
    found = _read(package).get("options", {}).get(name)
    return (found[0], found[1]) if found else None


def lacks(package: str, name: str, release: Version) -> bool:
    """Tells whether a release that was read lacks a name that others have."""
    found = span(package, name)
    if found is None or not was_read(package, release):
        return False
    if any(span(other, name) for other in _BESIDE.get(package, ())):
        return False  # named again here, and there all along
    return not Version(found[0]) <= release <= Version(found[1])


def nearest(name: str, among: Iterable[str]) -> str:
    """The known name that somebody may have meant; "" where none is near.

    >>> nearest("num_generation", {"num_generations", "seed"}), nearest("wandb_entity", {"num_generations"})
    ('num_generations', '')
    """
    import difflib

    head, dot, last = name.rpartition(".")
    # A dotted name is nearly always wrong in its last part, or right in it.
    here = [each for each in among if each.rpartition(".")[0] == head] if dot else list(among)
    found = difflib.get_close_matches(last, [each.rpartition(".")[2] for each in here], 1, _NEAR)
    if found:
        return head + dot + found[0]
    found = difflib.get_close_matches(name, among, 1, _NEAR) if dot else []
    return found[0] if found else ""
