"""Reading settings: TOML and command line in, a checked `Config` out, or one line that says what is wrong."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections import Counter
from typing import TYPE_CHECKING, Any

from grpo_core.config import Config, ConfigError
from grpo_core.rules import check, ignored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# Keys of earlier versions, and what a user of one needs to know.
_REMOVED = {
    "rollout.environment": "multi-turn rollouts were removed",
    "rollout.turn_tokens": "multi-turn rollouts were removed",
    "rollout.replay_experts": "expert routing replay was removed",
}
_COMMAND_LINE, _OF_A_DIALECT = "command line", "of the dialect"


def load(path: Path | None, overrides: list[str], warn: Callable[[str], None] = lambda _: None) -> Config:
    """Reads a TOML file (or none: the defaults, the shipped tiny task) and applies `--section.key VALUE`.

    Args:
        path: The file, or None.
        overrides: From the command line.
        warn: Is given one line for each setting that has no effect.

    Raises:
        ConfigError: The file can't be read, a key is unknown, a value is not allowed, or two contradict.
    """
    entries: list[tuple[str, str, Any]] = []  # (where it was set, section.key, value)
    if path is not None:
        for section, table in _read_toml(path).items():
            if not isinstance(table, dict):
                raise ConfigError(
                    f"{path}: {section} = {table!r} stands outside of a section; {_sections_text()}"
                )
            entries += [(str(path), f"{section}.{key}", value) for key, value in table.items()]
    entries += [(_COMMAND_LINE, key, value) for key, value in _pairs(overrides, warn)]
    found: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    known = fields()
    for source, dotted, value in entries:
        if dotted in _REMOVED:
            raise ConfigError(f"{source}: {dotted}: {_REMOVED[dotted]}")
        if dotted not in known:
            raise ConfigError(f"{source}: {dotted}: unknown key{_suggestion(dotted, list(known))}")
        section, key = dotted.split(".")
        found.setdefault(section, {})[key] = _converted(source, dotted, value, *known[dotted])
        sources[dotted] = source
    if found.get("loss", {}).get("dialect"):
        _take_dialect(found["loss"], sources, known)
    config = Config(**{name: sections()[name](**values) for name, values in found.items()})
    check(config, sources)
    for key, why in ignored(config):
        if key in sources and not sources[key].startswith(_OF_A_DIALECT):
            section, name = key.split(".")
            warn(f"{sources[key]}: {key} = {getattr(getattr(config, section), name)!r} has no effect: {why}")
    return config


def _take_dialect(loss: dict[str, Any], sources: dict[str, str], known: Mapping[str, Any]) -> None:
    """Puts a dialect's values where nothing was set."""
    from grpo_core.learn.dialects import dialect

    source = sources["loss.dialect"]
    try:
        values = dialect(loss["dialect"]).settings
    except ConfigError as error:
        raise ConfigError(f"{source}: loss.dialect: {error}") from error
    for key, value in values.items():
        if f"loss.{key}" not in known:
            raise ConfigError(f"{source}: loss.dialect: it has the key {key}")
        if key not in loss:
            loss[key] = _converted(source, f"loss.{key}", value, *known[f"loss.{key}"])
            sources[f"loss.{key}"] = f"{_OF_A_DIALECT} {loss['dialect']}"


def _read_toml(path: Path) -> dict[str, Any]:
    from grpo_core.records.given import read

    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        return tomllib.loads(read(path).decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a TOML file with settings") from error
    except ValueError as error:  # a pipe, a device, no UTF-8, or another language
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _pairs(arguments: list[str], warn: Callable[[str], None]) -> list[tuple[str, str]]:
    """`--a.b value` and `--a.b=value` as (key, value); of a key that is repeated the last counts, which is said."""
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
    return pairs


def sections() -> dict[str, type]:
    """By name."""
    return typing.get_type_hints(Config)


def _sections_text() -> str:
    return "sections are " + ", ".join(f"[{name}]" for name in sections())


def fields() -> dict[str, tuple[type, dataclasses.Field[Any]]]:
    """`section.key` -> its type and field."""
    return {
        f"{section}.{field.name}": (typing.get_type_hints(cls)[field.name], field)
        for section, cls in sections().items()
        for field in dataclasses.fields(cls)
    }


def allowed(field: dataclasses.Field[Any]) -> tuple[Any, ...] | None:
    """The values that a field may have, where they are listed; engines are, where they are built."""
    choices = field.metadata["choices"]
    if choices != "engines":
        return choices  # type: ignore[no-any-return]
    from grpo_core.rollout.build import ENGINES

    return tuple(ENGINES)


def _suggestion(dotted: str, known: list[str]) -> str:
    close = difflib.get_close_matches(dotted, known, n=1, cutoff=0.5)
    same_name = [key for key in known if key.split(".")[1] == dotted.rpartition(".")[2]]
    if same_name or close:
        return f"; did you mean {(same_name or close)[0]}?"
    return f"; {_sections_text()} (see train --help-settings)"


def _converted(source: str, dotted: str, value: Any, kind: type, field: dataclasses.Field[Any]) -> Any:
    """The value in the field's type, if it is allowed."""
    is_text = source == _COMMAND_LINE and isinstance(
        value, str
    )  # a dialect named there has values of its own
    converted: Any = _from_text(value, kind) if is_text else value
    if kind is float and type(converted) is int:
        converted = float(converted)
    if kind in _LISTS and isinstance(converted, list):
        item = _LISTS[kind]
        converted = tuple(float(x) if item is float and type(x) is int else x for x in converted)
    wrong = any(type(x) is not _LISTS[kind] for x in converted) if type(converted) is tuple else None
    if wrong or (wrong is None and type(converted) is not kind):
        raise ConfigError(f"{source}: {dotted} = {value!r}: expected {_NAMES[kind]}")
    low, above, high, choices = *(field.metadata[key] for key in ("low", "above", "high")), allowed(field)
    if choices is not None and converted not in choices:
        expected = ", ".join(map(repr, choices))
        raise ConfigError(f"{source}: {dotted} = {value!r}: expected one of {expected}")
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ConfigError(f"{source}: {dotted} = {value!r}: expected a finite number")
    if low is not None and converted < low:
        raise ConfigError(f"{source}: {dotted} = {value!r}: expected at least {low}")
    if above is not None and converted <= above:
        raise ConfigError(f"{source}: {dotted} = {value!r}: expected more than {above}")
    if high is not None and converted > high:
        raise ConfigError(f"{source}: {dotted} = {value!r}: expected at most {high}")
    return converted


def _from_text(text: str, kind: type) -> Any:
    if kind in _LISTS:
        return [_from_text(part.strip(), _LISTS[kind]) for part in text.split(",") if part.strip()]
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


_LISTS: dict[Any, type] = {tuple[str, ...]: str, tuple[float, ...]: float}
_NAMES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: "a list of strings (on the command line: a,b)",
    tuple[float, ...]: "a list of numbers (on the command line: 1,0.5)",
}
