"""OmegaConf's `${a.b}` in a config: replaced by the value it names; what nobody can know from the file is not known."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.lint.values import UNKNOWN, Value, scalar

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHOLE = re.compile(r"\$\{([^${}]{1,300})\}$")
_FUNCTION = re.compile(r"(oc\.env|oc\.select):([\w.]+)(?:,(.*))?$", re.DOTALL)
_STEPS = 20


def resolve(items: dict[str, Value]) -> None:
    """Replaces every interpolation by what it stands for, in place; chains are followed for a few steps."""
    for key, value in list(items.items()):
        if isinstance(value.data, str) and "${" in value.data:
            items[key] = _resolved(key, value, items)


def _resolved(key: str, value: Value, items: Mapping[str, Value]) -> Value:
    found = value
    for _ in range(_STEPS):
        if not isinstance(found.data, str) or "${" not in found.data:
            return replace(value, data=found.data, soft=found.soft, outside=found.outside)
        match = _WHOLE.match(found.data.strip())
        named = _named(match[1].strip(), key, items) if match else None
        if named is None:
            break
        found, key = named
    return value.but(UNKNOWN)


def _named(text: str, key: str, items: Mapping[str, Value]) -> tuple[Value, str] | None:
    """The value that an interpolation names, and its key; None where it is not in the file."""
    function = _FUNCTION.match(text)
    if function is None:
        path = _absolute(text, key)
        return (items[path], path) if path in items else None
    if function[1] == "oc.select" and function[2] in items:
        return items[function[2]], function[2]
    if function[3] is None:
        return None
    # The environment of a run may say something else than this default.
    return replace(items[key], data=scalar(function[3].strip()), soft=True, outside=True), key


def _absolute(text: str, key: str) -> str:
    """A path from the root: `.x` is beside the key, `..x` one table further up."""
    dots = len(text) - len(text.lstrip("."))
    if not dots:
        return text
    above = key.split(".")[:-dots]
    return ".".join((*above, text[dots:]))
