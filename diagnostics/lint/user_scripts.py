"""Read the training script that a command starts, and add the settings of the config object that it creates.

`add_script_settings` does both, and `read_user_script` only reads. The options that the script declares are read, too,
also those in up to eight files of the project that it imports. An entry "not checked" is added if the script is missing
or unreadable, or if it trains without a parser of TRL or transformers and creates no config or several.
"""

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
from diagnostics.lint.project_requirements import is_in_project
from diagnostics.lint.readers.python import MAX_SYNTAX_NODES, declared_options, parse_python, read_configs
from diagnostics.lint.readers.shell_scope import HOLE
from diagnostics.lint.readers.structured import MAX_BYTES, UnreadableError
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value

_PARSES = re.compile(r"\b(?:HfArgumentParser|TrlParser|H4ArgumentParser)\b")
# Calls that return unknown options in place of refusing them.
_KEEPS_UNKNOWN = re.compile(r"\breturn_remaining_strings\b|\bparse_known_args\b")
# Classes of TRL's own GRPO script, whose fields are the options of `trl grpo`.
_TRL_CLASSES = {"GRPOConfig", "ModelConfig", "ScriptArguments", "GRPOScriptArguments", "DatasetMixtureConfig"}
_MAX_IMPORTS = 8


@dataclass
class UserScript:
    """A training script, as far as it is understood.

    Attributes:
        options: Fields of its dataclasses and arguments of its parser, including those of imported files.
        framework: The framework with which it trains, by its source or an imported file of the project; empty if none.
        uses_parser: Whether a parser of transformers or TRL reads its options, so that they are GRPOConfig's.
        refuses_unknown: Whether this parser refuses options that neither TRL's classes nor the script declare.
        configs: The GRPOConfig objects that it creates itself.
        problem: Why it could not be read; empty if it was.
    """

    options: frozenset[str] = frozenset()
    framework: str = ""
    uses_parser: bool = False
    refuses_unknown: bool = False
    configs: list[Settings] = field(default_factory=list)
    problem: str = ""


@lru_cache(maxsize=100)
def read_user_script(path: Path) -> UserScript:
    """Read a script; one that is unreadable or not Python has a `problem`, no options and no framework."""
    try:
        text = safe_io.read_text(path, MAX_BYTES)
        tree = parse_python(text, str(path))
    except (OSError, UnreadableError) as error:
        return UserScript(problem=getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: "))
    try:
        configs = read_configs(text, str(path))
    except UnreadableError:
        configs = []
    imported = [read_declarations(file) for file in islice(_imported_files(tree, path), _MAX_IMPORTS)]
    options = _declared_in(tree).union(*(declared for declared, _ in imported))
    framework = framework_of_source(text) or next((name for _, name in imported if name), "")
    refuses_unknown = not _KEEPS_UNKNOWN.search(text) and _parses_known_classes(tree)
    return UserScript(options, framework, bool(_PARSES.search(text)), refuses_unknown, configs)


def _parses_known_classes(tree: ast.Module) -> bool:
    """Return whether a script has one parser of TRL or transformers, and its classes are TRL's or the script's own."""
    nodes = list(islice(ast.walk(tree), MAX_SYNTAX_NODES))
    known = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and re.match(r"trl\b(?!\.experimental)", node.module or "")
        for alias in node.names
        if alias.name in _TRL_CLASSES and not node.level
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and {getattr(base, "id", "") for base in node.bases} <= known:
            known.add(node.name)
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _PARSES.fullmatch(node.func.id)
    ]
    if len(calls) != 1 or not (arguments := [*calls[0].args, *(item.value for item in calls[0].keywords)]):
        return False
    classes = arguments[0].elts if isinstance(arguments[0], ast.Tuple | ast.List) else arguments[:1]
    return bool(classes) and {getattr(item, "id", "") for item in classes} <= known


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
                yield from (it for it in sorted(package.parent.glob("*.py")) if is_in_project(it, str(path)))


def add_script_settings(settings: Settings, file: str, *, module: bool = False) -> None:
    """Add the settings of the script that a command starts; if they cannot be read, add an entry "not checked".

    If the script creates one config object, its options replace the command's, except those that the command passes on.
    """
    path = find_script(settings.target, file, module=module)
    if path is None:
        reason = "the script was not found, so its options were not checked"
        _add_not_checked(settings, reason, "lint it where the script is")
        return
    settings.files.add(str(path))
    script = read_user_script(path)
    if script.problem:
        _add_not_checked(settings, f"{script.problem}, so its options were not checked", "", Place(str(path)))
        return
    # A script that trains under another name may declare other options.
    settings.script_options = script.options
    settings.framework_parser = script.refuses_unknown and script.framework == "trl"
    if script.uses_parser or not script.framework:
        return
    if not script.configs:
        reason = "it trains with a config that is created outside the code that lint reads"
        _add_not_checked(settings, reason, "", Place(str(path)))
    elif len(script.configs) > 1:
        reason = "it creates several configs, and which one the run takes is decided at run time"
        _add_not_checked(settings, reason, f"lint {path.name} by itself", Place(str(path)))
        settings.options.clear()
        settings.has_unread_options = True
    else:
        _apply_config(settings, script.configs[0])


def _apply_config(settings: Settings, config: Settings) -> None:
    """Replace the command's options by those of the config object, with the values that the command passes on."""
    arguments, settings.options = dict(settings.options), dict(config.options)
    for key, expression in config.forwarded.items():
        option = expression.data.rpartition(".")[2]
        if option in arguments:
            settings.set(key, arguments[option])
        elif key not in settings.options:
            settings.options[key] = Value(UNKNOWN, config.place, key)
    settings.has_unread_options = config.has_unread_options
    settings.framework_parser = config.framework_parser
    settings.not_checked += config.not_checked
    settings.env = {**config.env, **settings.env}


def _add_not_checked(settings: Settings, why: str, remedy: str, place: Place | None = None) -> None:
    target = settings.target.replace(HOLE, "...")
    settings.not_checked.append(NotChecked(target, why, remedy, str(place or settings.place)))
