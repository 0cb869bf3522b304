"""Which settings a program has compared in value and gradient: those that made a difference to what was compared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

SEEN: dict[str, set[Any]] = defaultdict(set)


def note(name: str, value: object) -> None:
    """Record a value of a setting that the comparison covers."""
    SEEN[name].add(value)


def note_advantages(options: object) -> None:
    """Record all settings of advantages, which have no gradient to compare."""
    for name, value in vars(options).items():
        if name.startswith("advantage_"):
            note(name, value)


def note_loss(options: Any, found: Any, again: Callable[[Any], Any]) -> None:
    """Record the settings used by a loss: `found` is its value and gradient, `again` computes both with other settings.

    A setting that could as well have been left at its default has not been compared.
    """
    for entry in fields(options):
        value = getattr(options, entry.name)
        if entry.name.startswith("advantage_") or value in SEEN[entry.name]:
            continue
        if value != entry.default:
            without = again(replace(options, **{entry.name: entry.default}))
            if all(torch.equal(first, second) for first, second in zip(found, without)):  # noqa: B905 - Python 3.10
                continue
        note(entry.name, value)


def left_out(case: str, when: object) -> bool:
    """Whether a case is not compared; docs/results/comparison.md has a line that begins with its name."""
    del case
    return bool(when)


def used_settings() -> dict[str, list[str]]:
    """All of it, for JSON."""
    return {name: sorted(map(str, values)) for name, values in sorted(SEEN.items())}
