"""Load the supported trainers and inference engines at import: FRAMEWORKS, and names that are derived from it.

Each one has a TOML file in this folder, with its packages and modules, and marks of it in logs and folders. The table
`[lint]` has the commands and options, which `diagnostics.lint.dialects` loads. `docs/lint.md` explains the keys.
Standard library only, because `diagnostics.collect` imports it on remote hosts, where the files are JSON.
"""

import json
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):  # noqa: UP036 - a remote host may have Python 3.10
    import tomllib

# `order` of a framework whose file has none: after the others.
_DEFAULT_ORDER = 100


@dataclass(frozen=True)
class CopyMarks:
    """Files that identify a project's own copy of a framework.

    Attributes:
        contains: A file that every copy contains.
        excludes: A file that no copy contains; a folder with it is a copy of another framework.
        version_files: Files that name the copy's release.
    """

    contains: str
    excludes: str = ""
    version_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Framework:
    """A trainer or an inference engine.

    Attributes:
        name: Its name in configs, in the catalog and on the command line, such as `ms-swift`.
        display_name: Its name in messages, such as `vLLM`.
        order: Its position in lists and reports; frameworks with the same number are sorted by name.
        packages: Distributions that contain it, the usual one first; empty if it is in no package registry.
        is_trainer: Whether it is a trainer; otherwise it is an engine.
        wraps: Other trainers that it installs and configures itself, so users do not set their options.
        modules: Its modules that `doctor` imports as a test, as `module` or `module:name`.
        entries: Modules that start a run; those with `vllm` in their name need vLLM.
        parser: Parser of the options: `dataclasses` (transformers' parser), `argparse` in the entry module, `hydra`, or
            `omegaconf` without hydra.
        sections: Whether a YAML config may have one section of options for each role, such as `train` and `rollout`.
        option_packages: Other packages whose options the framework's commands accept.
        copy: Files by which to recognise a project's own copy.
        log_texts: Literal texts, one of which is in every line that `log_marks` matches.
        log_marks: Pattern for its own log lines and frame paths.
        metric_prefixes: Beginnings of metric names that only this framework prints.
        metrics: Names of its metrics -> their canonical names in `diagnostics.logs.metrics`.
        lint: Its commands and options, see `diagnostics.lint.dialects.Dialect`.
    """

    name: str
    display_name: str
    order: int = _DEFAULT_ORDER
    packages: tuple[str, ...] = ()
    is_trainer: bool = True
    wraps: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    parser: str = ""
    sections: bool = False
    option_packages: tuple[str, ...] = ()
    copy: CopyMarks | None = None
    log_texts: tuple[str, ...] = ()
    log_marks: str = ""
    metric_prefixes: tuple[str, ...] = ()
    metrics: dict[str, str] = field(default_factory=dict)
    lint: dict[str, Any] = field(default_factory=dict)


def top_level_package(module: str) -> str:
    """Return the top-level package of a module or of a `module:name`.

    >>> top_level_package("trl:GRPOTrainer"), top_level_package("vllm._C")
    ('trl', 'vllm')
    """
    return module.partition(":")[0].partition(".")[0]


def _read_tables() -> list[dict[str, Any]]:
    """Read the files of this folder; on a remote host, where Python may have no TOML parser, they arrive as JSON."""
    folder = Path(__file__).parent
    tables = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    if not tables and sys.version_info >= (3, 11):
        tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))]
    return sorted(tables, key=lambda table: (table.get("order", _DEFAULT_ORDER), table["name"]))


def _with_tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _from_table(table: dict[str, Any]) -> Framework:
    copy = CopyMarks(**_with_tuples(table["copy"])) if "copy" in table else None
    return Framework(**_with_tuples(table | {"copy": copy}))


FRAMEWORKS = {table["name"]: _from_table(table) for table in _read_tables()}
# Top-level packages of the frameworks, which are also the first folders of their frame paths.
TOP_LEVEL_PACKAGES = tuple(top_level_package(item.modules[0]) for item in FRAMEWORKS.values() if item.modules)
DISPLAY_NAMES = {item.name: item.display_name for item in FRAMEWORKS.values()}
# Distributions of the trainers and of the engines.
TRAINER_PACKAGES = tuple(name for item in FRAMEWORKS.values() if item.is_trainer for name in item.packages)
ENGINE_PACKAGES = tuple(name for item in FRAMEWORKS.values() if not item.is_trainer for name in item.packages)
# Libraries that trainers share.
TRAINER_LIBRARIES = ("transformers", "accelerate", "datasets", "tokenizers", "huggingface-hub", "peft")
# Packages whose releases a report names first.
PACKAGES = (*ENGINE_PACKAGES, *TRAINER_PACKAGES, "torch", "transformers", "ray")


def parser_of(name: str) -> str:
    """Return how a framework reads its options; "" for an unknown framework.

    >>> parser_of("openrlhf"), parser_of("own")
    ('argparse', '')
    """
    return FRAMEWORKS[name].parser if name in FRAMEWORKS else ""


def uses_overrides(name: str) -> bool:
    """Return whether a framework's commands take `a.b=c` and its configs `${a.b}`.

    >>> uses_overrides("verl"), uses_overrides("trl")
    (True, False)
    """
    return parser_of(name) in {"hydra", "omegaconf"}


def configuring_trainers(packages: Collection[str]) -> set[str]:
    """Return the installed trainers whose options users set: the trainers of `packages`, without wrapped ones.

    >>> sorted(configuring_trainers({"trl", "ms-swift", "torch"})), sorted(configuring_trainers({"trl"}))
    (['ms-swift'], ['trl'])
    """
    installed = {
        item.name
        for item in FRAMEWORKS.values()
        if item.is_trainer and any(p in packages for p in item.packages)
    }
    return installed - {wrapped for name in installed for wrapped in FRAMEWORKS[name].wraps}
