"""Read the training script that a command starts: declared options, and the GRPOConfig that the script creates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

from diagnostics import safe_io
from diagnostics.findings import NotChecked
from diagnostics.lint.dialects import framework_of_source
from diagnostics.lint.project_files import find_above, find_script
from diagnostics.lint.readers.python import declared_options, parse_python, read_configs
from diagnostics.lint.readers.structured import MAX_BYTES, UnreadableError
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value

_PARSES = re.compile(r"\b(?:HfArgumentParser|TrlParser|H4ArgumentParser)\b")
_MAX_IMPORTS = 8


@dataclass
class UserScript:
    """A training script.

    Attributes:
        options: Fields of its dataclasses and arguments of its parser, including those of imported files.
        framework: The framework that it, or a file of the project that it imports, trains with; empty if none.
        uses_parser: A parser of transformers or TRL reads its options, so they are GRPOConfig's.
        configs: The GRPOConfig objects that it creates itself.
    """

    options: frozenset[str] = frozenset()
    framework: str = ""
    uses_parser: bool = False
    configs: list[Settings] = field(default_factory=list)


def read_user_script(path: Path) -> UserScript:
    """Read a script; a file that is no Python has no options and does not train."""
    status = path.stat()
    return _read_user_script(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=100)
def _read_user_script(path: Path, _modified: int, _size: int) -> UserScript:
    text = safe_io.read_text(path, MAX_BYTES)
    tree = parse_python(text)
    if tree is None:
        return UserScript()
    try:
        configs = read_configs(text, str(path))
    except UnreadableError:
        configs = []
    imported = [_read_imported(file) for file in islice(_imported_files(tree, path), _MAX_IMPORTS)]
    options = _declared_in(tree).union(*(declared for declared, _ in imported))
    framework = framework_of_source(text) or next((name for _, name in imported if name), "")
    return UserScript(options, framework, bool(_PARSES.search(text)), configs)


def read_declared_options(path: Path) -> frozenset[str]:
    """Return the options that a file declares; none if it cannot be read."""
    return _read_imported(path)[0]


def _read_imported(path: Path) -> tuple[frozenset[str], str]:
    """Return the options that a file declares, and the framework that it trains with."""
    try:
        text = safe_io.read_text(path, MAX_BYTES)
    except OSError:
        return frozenset(), ""
    tree = parse_python(text)
    return _declared_in(tree) if tree is not None else frozenset(), framework_of_source(text)


def _declared_in(tree: ast.Module) -> frozenset[str]:
    return frozenset(name for name, _ in declared_options(ast.walk(tree)))


def _imported_files(tree: ast.Module, path: Path) -> Iterator[Path]:
    """Yield the project's files that a script imports; for a package, all of its modules."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = find_script(node.module, str(path), module=True)
            package = find_above(node.module.replace(".", "/") + "/__init__.py", str(path))
            if module is not None:
                yield module
            elif package is not None:
                yield from sorted(package.parent.glob("*.py"))


def add_script_settings(settings: Settings, file: str, *, module: bool = False) -> None:
    """Add the settings of the started script; options that the command passes on take precedence."""
    path = find_script(settings.target, file, module=module)
    if path is None:
        _report(
            settings,
            "the script was not found, so its options were not checked",
            "lint it where the script is",
        )
        return
    settings.files.add(str(path))
    script = read_user_script(path)
    # A script that trains under another name may declare other options.
    settings.script_options = script.options
    if script.uses_parser or not script.framework:
        return
    if not script.configs:
        reason = "it trains with a config that is created outside the code that lint reads"
        _report(settings, reason, "", Place(str(path)))
    elif len(script.configs) > 1:
        reason = "it creates several configs, and which one the run takes is decided at run time"
        _report(settings, reason, f"lint {path.name} by itself", Place(str(path)))
        settings.options.clear()
        settings.has_unread_options = True
    else:
        _apply_config(settings, script.configs[0])


def _apply_config(settings: Settings, config: Settings) -> None:
    """Replace the options by those of the script's config, with the values that the command passes to it."""
    arguments, settings.options = dict(settings.options), dict(config.options)
    for key, option in config.forwarded.items():
        if option in arguments:
            settings.set(key, arguments[option])
        elif key not in settings.options:
            settings.options[key] = Value(UNKNOWN, config.place, key)
    settings.has_unread_options = config.has_unread_options
    settings.framework_parser = config.framework_parser
    settings.not_checked += config.not_checked
    settings.env = {**config.env, **settings.env}


def _report(settings: Settings, why: str, remedy: str, place: Place | None = None) -> None:
    settings.not_checked.append(NotChecked(settings.target, why, remedy, str(place or settings.place)))
