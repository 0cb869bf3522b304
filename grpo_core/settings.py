"""Reading of settings: TOML and command line in, a checked `Config` out, or one line that names the mistake."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import math
import operator
import typing
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core import config as options_module
from grpo_core.config import REMOVED, Config, ConfigError
from grpo_core.rules import check, ignored, mismatches
from grpo_core.safe_io import read_bytes

Entry = tuple[str, str, Any]  # where it was set, section.key, value
_COMMAND_LINE, _OF_A_DIALECT = "command line", "of the dialect"
_LISTS: dict[Any, type] = {tuple[str, ...]: str, tuple[float, ...]: float}
_NAMES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: "a list of strings (on the command line: a,b)",
    tuple[float, ...]: "a list of numbers (on the command line: 1,0.5)",
}
_LIMITS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("low", "at least", operator.ge),
    ("above", "more than", operator.gt),
    ("high", "at most", operator.le),
    ("below", "less than", operator.lt),
)


def load(path: Path | None, overrides: list[str], warn: Callable[[str], None] = lambda _: None) -> Config:
    """Read a TOML file (None: the defaults, the shipped tiny task) and apply `--section.key VALUE`.

    Args:
        path: The file, or None.
        overrides: Arguments of the command line.
        warn: Called with one line for each option that has no effect, or makes engine and trainer differ.

    Raises:
        ConfigError: The file can't be read, a key is unknown, a value is not allowed, or two contradict.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}  # section.key -> where it was set
    for source, key, value in [*_file_entries(path), *_argument_entries(overrides, warn)]:
        if key in REMOVED:  # runs and records of earlier releases have these keys
            if str(value).lower() != str(REMOVED[key]).lower():
                raise ConfigError(f"{source}: {key} was removed; {REMOVED[key]!r} is what remains")
        elif key not in fields():
            raise ConfigError(f"{source}: {key}: unknown key{_suggestion(key)}")
        else:
            values[key], sources[key] = _converted(source, key, value), source
    if values.get("loss.dialect"):
        _add_dialect(values, sources)
    tables: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    for key, value in values.items():
        section, name = key.split(".")
        tables[section][name] = value
    config = Config(**{section: kind(**tables[section]) for section, kind in sections().items()})
    check(config, sources)
    for key, reason in ignored(config):
        if key in sources and not sources[key].startswith(_OF_A_DIALECT):
            warn(f"{sources[key]}: {key} = {values[key]!r} has no effect: {reason}")
    for note in mismatches(config):
        warn(note)
    return config


def _add_dialect(values: dict[str, Any], sources: dict[str, str]) -> None:
    """Set the values of a dialect for the keys that are not set."""
    from grpo_core.learn.dialects import dialect

    source, name = sources["loss.dialect"], values["loss.dialect"]
    try:
        settings = dialect(name).settings
    except ConfigError as error:
        raise ConfigError(f"{source}: loss.dialect: {error}") from error
    for option, value in settings.items():
        if (key := f"loss.{option}") not in values:
            values[key], sources[key] = value, f"{_OF_A_DIALECT} {name}"


def _file_entries(path: Path | None) -> list[Entry]:
    """Read the entries of a TOML file."""
    if path is None:
        return []
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        document = tomllib.loads(read_bytes(path).decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a TOML file with settings") from error
    except ValueError as error:  # a pipe, a device, no UTF-8, or another language
        raise ConfigError(f"{path}: not TOML: {error}") from error
    entries = []
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: {section} = {table!r} stands outside of a section; {_sections_text()}"
            )
        entries += [(str(path), f"{section}.{name}", value) for name, value in table.items()]
    return entries


def _argument_entries(arguments: list[str], warn: Callable[[str], None]) -> list[Entry]:
    """Parse `--a.b value` and `--a.b=value`; the last of a repeated key counts, with a warning."""
    pairs, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            raise ConfigError(f"{_COMMAND_LINE}: {argument!r}: expected --section.key VALUE")
        key, equals, value = argument[2:].partition("=")
        if not equals and not rest:
            raise ConfigError(f"{_COMMAND_LINE}: --{key}: a value is missing")
        pairs.append((key, value if equals else rest.pop(0)))
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            warn(f"{_COMMAND_LINE}: {key} is given {count} times; the last, {dict(pairs)[key]}, counts")
    return [(_COMMAND_LINE, key, value) for key, value in pairs]


def sections() -> dict[str, type]:
    """Return the sections' classes by name."""
    return typing.get_type_hints(Config)


def _sections_text() -> str:
    return "sections are " + ", ".join(f"[{name}]" for name in sections())


@functools.cache
def fields() -> dict[str, tuple[type, dataclasses.Field[Any]]]:
    """Return `section.key` -> type and field."""
    return {
        f"{section}.{field.name}": (typing.get_type_hints(kind)[field.name], field)
        for section, kind in sections().items()
        for field in dataclasses.fields(kind)
    }


def _suggestion(key: str) -> str:
    close = difflib.get_close_matches(key, list(fields()), n=1, cutoff=0.5)
    same_name = [known for known in fields() if known.split(".")[1] == key.rpartition(".")[2]]
    if same_name or close:
        return f"; did you mean {(same_name or close)[0]}?"
    return f"; {_sections_text()} (see train --help-settings)"


def _converted(source: str, key: str, value: Any) -> Any:
    """Return the value in the field's type, if it is allowed."""
    kind, field = fields()[key]
    converted: Any = _from_text(value, kind) if source == _COMMAND_LINE else value
    is_list, item = kind in _LISTS, _LISTS.get(kind, kind)
    items = converted if isinstance(converted, list) and is_list else [converted]
    items = [float(entry) if item is float and type(entry) is int else entry for entry in items]
    expected = "" if isinstance(converted, list) == is_list else _NAMES[kind]
    for entry in items:
        expected = expected or (_NAMES[kind] if type(entry) is not item else _broken_limit(entry, field))
    if expected:
        raise ConfigError(f"{source}: {key} = {value!r}: expected {expected}")
    return tuple(items) if is_list else items[0]


def _broken_limit(value: Any, field: dataclasses.Field[Any]) -> str:
    """Return the expected range for an invalid value; empty if the value is allowed."""
    limits = field.metadata
    if "choices" in limits and value not in limits["choices"]:
        return f"one of {', '.join(map(repr, limits['choices']))}"
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    for name, words, allows in _LIMITS:
        if name in limits and not allows(value, limits[name]):
            return f"{words} {limits[name]}"
    return ""


def _from_text(text: str, kind: type) -> Any:
    if kind in _LISTS:
        return [_from_text(part.strip(), _LISTS[kind]) for part in text.split(",") if part.strip()]
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


def describe_settings(word: str = "") -> str:
    """Return the options whose name or documentation contains a word, two lines each."""
    documentation = _documentation()
    blocks = []
    for key, (_, field) in fields().items():
        choices = field.metadata.get("choices")
        allowed = f" [{', '.join(map(str, choices))}]" if choices else ""
        block = f"  --{key} {field.default!r}{allowed}\n      {documentation[key]}"
        if word.lower() in block.lower():
            blocks.append(block)
    if not blocks:
        return f"No setting has {word!r} in its name or meaning; --help-settings alone shows all."
    return "\n".join(["Settings and their defaults:", *blocks])


def _documentation() -> dict[str, str]:
    """Return the string below each option in config.py, by `section.key`."""
    names = {kind.__name__: section for section, kind in sections().items()}
    texts = {}
    for node in ast.parse(Path(str(options_module.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            for option, text in zip(node.body, node.body[1:]):  # noqa: B905 - neighbours, on Python 3.10
                if isinstance(option, ast.AnnAssign) and isinstance(text, ast.Expr):
                    key = f"{names[node.name]}.{ast.unparse(option.target)}"
                    texts[key] = " ".join(ast.literal_eval(text.value).split())
    return texts
