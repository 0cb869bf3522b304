"""The names of the frameworks' options, by release: read out of their wheels, kept as data beside this file.

`python -m tests.diagnostics.programs.option_names` writes them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from diagnostics import given
from diagnostics.frameworks import FRAMEWORKS, has_sections, parser_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from diagnostics.lint.values import Settings, Value

FOLDER = Path(__file__).parent / "options"
_NEAR = 0.84
# Hydra's choice of a file for a part of the config.
_GROUP = set("@/")
# What TrlParser and ms-swift take beside any option, and what `trl grpo` hands on to accelerate.
_ANYWHERE = {"config", "accelerate_config", "env", "deepspeed", "help"}
# What `vllm serve` takes with one dash, in vllm/engine/arg_utils.py.
_SHORT = {
    "O": "", "O0": "", "O1": "", "O2": "", "O3": "", "ac": "", "asc": "", "cc": "", "dc": "", "dcp": "", "dp": "",
    "dpa": "", "dpb": "", "dpe": "", "dph": "", "dpl": "", "dpm": "", "dpn": "", "dpp": "", "dpr": "", "ep": "",
    "n": "", "pcp": "", "pp": "", "q": "", "r": "", "sc": "", "tp": "",
}  # fmt: skip
_LAUNCHER = re.compile(
    r"num_(?:processes|machines|cpu_threads_per_process)$|config_file$|mixed_precision$|gpu_ids$|multi_gpu$"
    r"|machine_rank$|main_process_\w+$|use_(?:deepspeed|fsdp)$|(?:deepspeed|zero|fsdp|dynamo|rdzv)_\w+$|debug$|same_network$"
)

_OLDER, _NEWER = (Version("0"),), (Version("9999"),)


@cache
def _read(package: str) -> Mapping[str, Any]:
    if package == "vllm":
        # Of a server's names nothing is known but that some release has them: what another knows is never refused.
        text = (FOLDER.parent.parent / "data" / "options.json").read_text(encoding="utf-8")
        return {"releases": (), "options": {**json.loads(text)["packages"]["vllm"]["options"], **_SHORT}}
    path = FOLDER / f"{package}.json"
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _beside(package: str) -> tuple[str, ...]:
    """Packages whose options a framework's own commands take beside its own."""
    return FRAMEWORKS[package].beside if package in FRAMEWORKS else ()


def packages(framework: str) -> tuple[str, ...]:
    """Those whose options a framework's command takes and whose names are here, its own first; none if its are not."""
    return (framework, *_beside(framework)) if _read(framework) else ()


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


def added(settings: Settings) -> list[Value]:
    """What a command asks Hydra to add by `+`: lists and tables not, which it merges, and groups not."""
    return [
        value.named(key)
        for key, value in settings.items.items()
        if settings.signs.get(key) == "+"
        and "." in key
        and not _GROUP & set(key)
        and value.known
        and not isinstance(value.data, list | dict)
        and not str(value.data).startswith(("[", "{"))
    ]


def unread(settings: Settings, framework: str, among: Collection[str]) -> tuple[str, list[Value]]:
    """Options of a part whose names are not among the known ones, and what the part is.

    That is the config of a `model_engine` of verl's that was not read, and a section for a role in a YAML.
    """
    if has_sections(framework):
        return "its sections for roles", [value for value in options_of(settings) if "." in value.key]
    engine = settings.items.get("model_engine")
    part = f".{engine.data}." if engine is not None and engine.known else ""
    if not part or any(part in name for name in among):
        return "", []
    return f"the config of model_engine{part[:-1].replace('.', '=')}", [
        value for value in options_of(settings) if part in value.key
    ]


def takes(name: str, among: Collection[str], *, free: bool = False) -> bool:
    """Tells whether a parser that knows these names takes this one: argparse takes a beginning, and `no_` of a switch.

    >>> takes("no_use_vllm", {"use_vllm"}), takes("vllm_mod", {"vllm_mode"}), takes("vlm_mode", {"vllm_mode"})
    (True, True, False)

    Args:
        name: Of an option.
        among: The names that are known.
        free: Whether an option that is a table may hold any key.
    """
    if name in among or name.removeprefix("no_") in among:
        return True
    if free and any(name[:at] in among for at, char in enumerate(name) if char == "."):
        return True
    # Of two that begin so it takes neither.
    return "." not in name and sum(each.startswith(name) for each in among) == 1


def of_copy(settings: Settings, folder: str) -> Mapping[str, Value | None]:
    """The options of a project's own copy of a framework, with their defaults where its files say them.

    None where they are not read, or where the command builds its config out of parts that are not there.

    Args:
        settings: Of a run of that framework.
        folder: Of the copy's package.
    """
    if parser_of(settings.framework) == "hydra":
        named = settings.items.get("--config-name")
        config = str(named.data).removesuffix(".yaml") if named is not None and named.known else ""
        chosen = {
            key: str(value.data)
            for key, value in settings.items.items()
            if key in settings.signs and ("." not in key or _GROUP & set(key))
        }
        return composed_copy(folder, config, frozenset(chosen.items()))
    if parser_of(settings.framework) == "argparse":
        from diagnostics.lint import scripts

        return dict.fromkeys(scripts.declared(Path(folder, "cli/train_ppo_ray.py")))
    return {}


@cache
def composed_copy(folder: str, config: str, chosen: frozenset[tuple[str, str]]) -> Mapping[str, Value | None]:
    """Of a copy of verl: what its config has once it is composed with the files that a command chooses."""
    from diagnostics.lint.sources import hydra

    main, configs = Path(folder, "trainer/main_ppo.py"), Path(folder, "trainer/config")
    text = given.text(main, 1_000_000) if main.is_file() else ""
    named = re.search(r"""hydra\.main\([^)]*config_name\s*=\s*["'](\w+)""", text)
    if not named:
        return {}
    groups = hydra.groups(configs, config or named[1])
    choices = {key: file for key, file in chosen if key in groups}
    if any(_GROUP & set(key) and key not in groups for key, _file in chosen):
        return {}
    found = hydra.values(configs, config or named[1], choices)
    return {**dict.fromkeys(choices), **found} if found else {}


def was_read(package: str, release: Version | None) -> bool:
    """Tells whether that very release was read."""
    return release is not None and str(release) in _read(package).get("releases", ())


def span(package: str, name: str) -> tuple[str, str] | None:
    """The first and the last release that have a name."""
    found = _read(package).get("options", {}).get(name)
    return (found[0], found[1]) if found else None


def together(package: str, wanted: Iterable[str]) -> tuple[list[str], tuple[Version, ...]]:
    """Of these names those that some release lacks, and the releases that were read and have them all."""
    read = [Version(each) for each in _read(package).get("releases", ())]
    if not read:
        return [], ()
    beside = {name for other in _beside(package) for name in _read(other)["options"]}
    spans = [(name, found) for name in wanted if name not in beside and (found := span(package, name))]
    some = [
        (name, found) for name, found in spans if Version(found[0]) > read[0] or Version(found[1]) < read[-1]
    ]
    if not some:
        return [], ()
    first, last = max(Version(found[0]) for _, found in some), min(Version(found[1]) for _, found in some)
    return [name for name, _ in some], tuple(release for release in read if first <= release <= last)


def fitting(package: str, settings: Settings) -> tuple[Version, ...]:
    """The releases that take every option of a run; one that nobody has read stands for those past either end."""
    found = together(package, [value.key for value in options_of(settings)])[1] if settings.exact else ()
    if not found:
        return ()
    read = [Version(each) for each in _read(package)["releases"]]
    return (*_OLDER[: found[0] == read[0]], *found, *_NEWER[: found[-1] == read[-1]])


def outside(package: str, name: str, release: Version) -> tuple[str, str] | None:
    """The releases that have a name, where one like this is not among them."""
    found = span(package, name)
    if found is None or Version(found[0]) <= Version(release.base_version) <= Version(found[1]):
        return None
    oldest, *_, newest = map(Version, _read(package)["releases"])
    # Of what is older or newer than all that were read nothing is known.
    return found if oldest <= release <= newest else None


def lacks(package: str, name: str, release: Version) -> bool:
    """Tells whether a release that was read lacks a name that others have."""
    found = span(package, name)
    if found is None or not was_read(package, release):
        return False
    if any(span(other, name) for other in _beside(package)):
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
    found = difflib.get_close_matches(name, among, 1, _NEAR) if not here else []
    return found[0] if found else ""
