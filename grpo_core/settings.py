"""Read a configuration from TOML and command line, and return a checked `Config`, or raise ConfigError.

`load` does both. A dialect's settings replace defaults of the loss. `describe_settings` returns the options'
documentation.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core import config as options_module
from grpo_core.config import Config, ConfigError
from grpo_core.config_checks import check_contradictions, ineffective_options, sampling_notes
from grpo_core.safe_io import read_bytes

Entry = tuple[str, str, Any]  # where it was set, section.key, value
_COMMAND_LINE = "command line"
# Annotation of an option -> its type, or that of its items, and what is expected.
_KINDS: dict[str, tuple[type, str]] = {
    "str": (str, "a string"),
    "int": (int, "an integer"),
    "float": (float, "a number"),
    "bool": (bool, "true or false"),
    "tuple[str, ...]": (str, "a list of strings (on the command line: a,b)"),
    "tuple[float, ...]": (float, "a list of numbers (on the command line: 1,0.5)"),
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
        path: Path of the TOML file, or None.
        overrides: Arguments of the command line.
        warn: Called with one line for each option that was set and has no effect, and for options that make the engine
            sample from another distribution than the trained one.

    Raises:
        ConfigError: The file can't be read, a key is unknown, a value is not allowed, or two contradict.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}  # section.key -> where it was set
    for source, key, value in [*_file_entries(path), *_argument_entries(overrides)]:
        values[key], sources[key] = _convert(source, key, value), source
    explicit = {key: fields()[key].metadata for key in values}
    if values.get("loss.dialect"):
        for key, value in _dialect_settings(sources["loss.dialect"], values["loss.dialect"]).items():
            if key not in values:
                values[key], sources[key] = value, f"of the dialect {values['loss.dialect']}"
    tables: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    for key, value in values.items():
        section, name = key.split(".")
        tables[section][name] = value
    config = Config(**{section: kind(**tables[section]) for section, kind in sections().items()})
    check_contradictions(config, sources)
    for key, needed in ineffective_options(config, explicit):
        warn(f"{sources[key]}: {key} = {values[key]!r} has no effect: it needs {needed}")
    for note in sampling_notes(config):
        warn(note)
    return config


def _dialect_settings(source: str, name: str) -> dict[str, Any]:
    """Return a dialect's loss settings by key; `source` names in an error where the dialect was set."""
    from grpo_core.learn.dialects import dialect

    try:
        return {f"loss.{option}": value for option, value in dialect(name).settings.items()}
    except ConfigError as error:
        raise ConfigError(f"{source}: loss.dialect: {error}") from error


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


def _argument_entries(arguments: list[str]) -> list[Entry]:
    """Parse `--a.b value` and `--a.b=value`."""
    entries, rest = [], iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            raise ConfigError(f"{_COMMAND_LINE}: {argument!r}: expected --section.key VALUE")
        key, equals, value = argument[2:].partition("=")
        text = value if equals else next(rest, None)
        if text is None:
            raise ConfigError(f"{_COMMAND_LINE}: --{key}: a value is missing")
        entries.append((_COMMAND_LINE, key, text))
    return entries


def sections() -> dict[str, type]:
    """Return the classes of the sections, by section name."""
    return {field.name: type(field.default) for field in dataclasses.fields(Config)}


def _sections_text() -> str:
    return "sections are " + ", ".join(f"[{name}]" for name in sections())


@functools.cache
def fields() -> dict[str, dataclasses.Field[Any]]:
    """Return the options' fields by `section.key`."""
    return {
        f"{section}.{field.name}": field
        for section, kind in sections().items()
        for field in dataclasses.fields(kind)
    }


def _suggestion(key: str) -> str:
    """Return the most similar key as a suggestion, or the list of sections."""
    same_name = [known for known in fields() if known.split(".")[1] == key.rpartition(".")[2]]
    if close := same_name or difflib.get_close_matches(key, list(fields()), n=1, cutoff=0.5):
        return f"; did you mean {close[0]}?"
    return f"; {_sections_text()} (see train --help-settings)"


def _convert(source: str, key: str, value: Any) -> Any:
    """Convert a value to the option's type, and check that it is allowed."""
    if key not in fields():
        raise ConfigError(f"{source}: {key}: unknown key{_suggestion(key)}")
    field = fields()[key]
    (item, expected), is_list = _KINDS[str(field.type)], str(field.type).startswith("tuple")
    read: Any = value
    if source == _COMMAND_LINE:
        parts = [part.strip() for part in value.split(",") if part.strip()] if is_list else [value]
        read = [_from_text(part, item) for part in parts]
        read = read if is_list else read[0]
    items = read if isinstance(read, list) and is_list else [read]
    items = [float(entry) if item is float and type(entry) is int else entry for entry in items]
    wrong = "" if isinstance(read, list) == is_list else expected
    for entry in items:
        wrong = wrong or (expected if type(entry) is not item else _broken_limit(entry, field))
    if wrong:
        raise ConfigError(f"{source}: {key} = {value!r}: expected {wrong}")
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
    """Convert the text of a command-line value; a text that cannot be converted is returned unchanged."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


def describe_settings(word: str = "") -> str:
    """Describe the options whose name, default or text contains a word, two lines each; a sentence if none does."""
    blocks = []
    for key, text in _documentation().items():
        field = fields()[key]
        choices = field.metadata.get("choices")
        allowed = f" [{', '.join(map(str, choices))}]" if choices else ""
        block = f"  --{key} {field.default!r}{allowed}\n      {text}"
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
