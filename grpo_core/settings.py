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
from grpo_core.config import Config, ConfigError
from grpo_core.rules import check, ignored
from grpo_core.safe_io import read_bytes

_TRUNCATED = (
    "the engine samples from the full distribution, whose log-probs the trainer computes; use temperature"
)
# Keys that are refused by name: those of earlier versions and of other trainers, with the reason.
_REFUSED = {
    "sampling.top_p": _TRUNCATED,
    "sampling.top_k": _TRUNCATED,
    "sampling.min_p": _TRUNCATED,
    "sampling.repetition_penalty": _TRUNCATED,
    "rollout.environment": "multi-turn rollouts were removed",
    "rollout.turn_tokens": "multi-turn rollouts were removed",
    "rollout.replay_experts": "expert routing replay was removed",
}
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
        warn: Called with one line for each option that has no effect.

    Raises:
        ConfigError: The file can't be read, a key is unknown, a value is not allowed, or two contradict.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}  # section.key -> where it was set
    known = fields()
    for source, key, value in [*_file_entries(path), *_argument_entries(overrides, warn)]:
        if key in _REFUSED:
            raise ConfigError(f"{source}: {key}: {_REFUSED[key]}")
        if key not in known:
            raise ConfigError(f"{source}: {key}: unknown key{_suggestion(key, list(known))}")
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
        key = f"loss.{option}"
        if key not in values:
            values[key], sources[key] = _converted(source, key, value), f"{_OF_A_DIALECT} {name}"


def _file_entries(path: Path | None) -> list[tuple[str, str, Any]]:
    """Read (source, section.key, value) from a TOML file."""
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
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: {section} = {table!r} stands outside of a section; {_sections_text()}"
            )
    return [
        (str(path), f"{section}.{name}", value)
        for section, table in document.items()
        for name, value in table.items()
    ]


def _argument_entries(arguments: list[str], warn: Callable[[str], None]) -> list[tuple[str, str, str]]:
    """Parse `--a.b value` and `--a.b=value`; the last of a repeated key counts, with a warning."""
    pairs, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            raise ConfigError(f"{_COMMAND_LINE}: {argument!r}: expected --section.key VALUE")
        key, equals, value = argument[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"{_COMMAND_LINE}: --{key}: a value is missing")
            value = rest.pop(0)
        pairs.append((key, value))
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
        f"{section}.{field.name}": (hints[field.name], field)
        for section, cls in sections().items()
        for hints in [typing.get_type_hints(cls)]
        for field in dataclasses.fields(cls)
    }


def _choices(field: dataclasses.Field[Any]) -> tuple[Any, ...] | None:
    """Return the listed values of a field, if any; engines are listed where they are built."""
    choices = field.metadata.get("choices")
    if choices != "engines":
        return choices
    from grpo_core.rollout.build import ENGINES

    return tuple(ENGINES)


def _suggestion(dotted: str, known: list[str]) -> str:
    close = difflib.get_close_matches(dotted, known, n=1, cutoff=0.5)
    same_name = [key for key in known if key.split(".")[1] == dotted.rpartition(".")[2]]
    if same_name or close:
        return f"; did you mean {(same_name or close)[0]}?"
    return f"; {_sections_text()} (see train --help-settings)"


def _converted(source: str, key: str, value: Any) -> Any:
    """Return the value in the field's type, if it is allowed."""
    kind, field = fields()[key]
    from_text = source == _COMMAND_LINE and isinstance(value, str)  # a dialect's values have types
    converted: Any = _from_text(value, kind) if from_text else value
    item = _LISTS.get(kind, kind)
    if kind in _LISTS:
        well_formed = isinstance(converted, (list, tuple))
        items = list(converted) if well_formed else []
    else:
        well_formed, items = True, [converted]
    items = [float(x) if item is float and type(x) is int else x for x in items]
    if not well_formed or any(type(x) is not item for x in items):
        raise ConfigError(f"{source}: {key} = {value!r}: expected {_NAMES[kind]}")
    for x in items:
        if expected := _broken_limit(x, field):
            raise ConfigError(f"{source}: {key} = {value!r}: expected {expected}")
    return tuple(items) if kind in _LISTS else items[0]


def _broken_limit(value: Any, field: dataclasses.Field[Any]) -> str:
    """Return the expected range for an invalid value; empty if the value is allowed."""
    choices, limits = _choices(field), field.metadata
    if choices is not None and value not in choices:
        return f"one of {', '.join(map(repr, choices))}"
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
    blocks = [block for block in _option_blocks() if word.lower() in block.lower()]
    if not blocks:
        return f"No setting has {word!r} in its name or meaning; --help-settings alone shows all."
    return "\n".join(["Settings and their defaults:", *blocks])


def _option_blocks() -> list[str]:
    """Return each option with its default and the string below it in config.py."""
    documented: dict[tuple[str, str], str] = {}
    for node in ast.parse(Path(str(options_module.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for option, text in zip(node.body, node.body[1:]):  # noqa: B905 - neighbours, on Python 3.10
                if isinstance(option, ast.AnnAssign) and isinstance(text, ast.Expr):
                    documented[node.name, ast.unparse(option.target)] = ast.literal_eval(text.value)
    blocks = []
    for key, (_, field) in fields().items():
        section, name = key.split(".")
        choices = _choices(field)
        allowed = f" [{', '.join(map(str, choices))}]" if choices else ""
        documentation = " ".join(documented[sections()[section].__name__, name].split())
        blocks.append(f"  --{key} {field.default!r}{allowed}\n      {documentation}")
    return blocks
