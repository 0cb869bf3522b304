"""Read the training script that a command starts, and add the settings of the config object that it creates.

The options that the script declares are read, too, also those in up to eight files of the project that it imports. If
the script is missing, or creates no config or several, an entry "not checked" is added.
"""

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
    """A training script, as far as it is understood.

    Attributes:
        options: Fields of its dataclasses and arguments of its parser, including those of imported files.
        framework: The framework with which it trains, by its source or an imported file of the project; empty if none.
        uses_parser: Whether a parser of transformers or TRL reads its options, so that they are GRPOConfig's.
        configs: The GRPOConfig objects that it creates itself.
    """

    options: frozenset[str] = frozenset()
    framework: str = ""
    uses_parser: bool = False
    configs: list[Settings] = field(default_factory=list)


@lru_cache(maxsize=100)
def read_user_script(path: Path) -> UserScript:
    """Read a script; one that is not Python has no options and no framework."""
    text = safe_io.read_text(path, MAX_BYTES)
    try:
        tree = parse_python(text, str(path))
    except UnreadableError:
        return UserScript()
    try:
        configs = read_configs(text, str(path))
    except UnreadableError:
        configs = []
    imported = [read_declarations(file) for file in islice(_imported_files(tree, path), _MAX_IMPORTS)]
    options = _declared_in(tree).union(*(declared for declared, _ in imported))
    framework = framework_of_source(text) or next((name for _, name in imported if name), "")
    return UserScript(options, framework, bool(_PARSES.search(text)), configs)


def read_declarations(path: Path) -> tuple[frozenset[str], str]:
    """Return the options that a Python file declares, and the framework that it trains with; empty if unreadable."""
    try:
        text = safe_io.read_text(path, MAX_BYTES)
        return _declared_in(parse_python(text, str(path))), framework_of_source(text)
    except (OSError, UnreadableError):
        return frozenset(), ""


def _declared_in(tree: ast.Module) -> frozenset[str]:
    return frozenset(name for name, _ in declared_options(ast.walk(tree)))


def _imported_files(tree: ast.Module, path: Path) -> Iterator[Path]:
    """Yield the files of the project that a script imports from; for a package, the modules in its folder."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = find_script(node.module, str(path), module=True)
            package = find_above(node.module.replace(".", "/") + "/__init__.py", str(path))
            if module is not None:
                yield module
            elif package is not None:
                yield from sorted(package.parent.glob("*.py"))


def add_script_settings(settings: Settings, file: str, *, module: bool = False) -> None:
    """Add the settings of the script that a command starts; if they cannot be read, add an entry "not checked".

    Options that the command passes on to the config object take precedence.
    """
    path = find_script(settings.target, file, module=module)
    if path is None:
        reason = "the script was not found, so its options were not checked"
        _report(settings, reason, "lint it where the script is")
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
    """Replace the command's options by those of the config object, with the values that the command passes on."""
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
