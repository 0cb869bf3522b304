"""The table `[breadth]` of the matrix file: which pairs are generated, and what is expected of them by rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from diagnostics.matrix.plan.expectations import expectation_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.matrix.plan.verdicts import Expectation
    from diagnostics.tables import Table


@dataclass(frozen=True)
class BreadthRule:
    """What is expected of a layer in all generated cells of two ranges of versions."""

    layer: str
    trl: SpecifierSet
    vllm: SpecifierSet
    expectation: Expectation

    def holds(self, layer: str, trl: str, vllm: str) -> bool:
        """Tells whether it speaks of this layer of this pair."""
        return layer == self.layer and self.trl.contains(trl) and self.vllm.contains(vllm)


@dataclass(frozen=True)
class Breadth:
    """The table `[breadth]`."""

    python: str
    trl_since: str
    vllm_since: str
    aside: int
    """vLLM releases looked at on each side of what TRL allows."""
    resolved: int
    """How many of the allowed releases of a TRL are resolved; all of them are read."""
    days: int
    """Days after the later upload of a pair at which its date cut lies."""
    rules: tuple[BreadthRule, ...]


def settings(table: Table, layers: Sequence[str]) -> Breadth | None:
    """Reads the table, whose rules speak of these layers; None if there is none.

    Raises:
        TableError: one line naming the value and what was expected.
    """
    if not table.values:
        return None
    found = Breadth(
        python=table.take("python", str, required=True),
        trl_since=_version(table, "trl_since"),
        vllm_since=_version(table, "vllm_since"),
        aside=_count(table, "aside", 2),
        resolved=_count(table, "resolved", 6),
        days=_count(table, "days", 14),
        rules=tuple(_rule(item, layers) for item in table.items("expect")),
    )
    table.close()
    return found


def _version(table: Table, key: str) -> str:
    text: str = table.take(key, str, required=True)
    try:
        Version(text)
    except InvalidVersion:
        raise table.refuse(key, "a version, as '0.14'") from None
    return text


def _count(table: Table, key: str, default: int) -> int:
    number: int = table.take(key, int, default)
    if number < 0:
        raise table.refuse(key, "a number from 0 on")
    return number


def _rule(table: Table, layers: Sequence[str]) -> BreadthRule:
    layer = table.take("layer", str, required=True)
    if layer not in layers:
        raise table.refuse("layer", f"one of {', '.join(layers)}")
    rule = BreadthRule(layer, _range(table, "trl"), _range(table, "vllm"), expectation_of(table))
    table.close()
    return rule


def _range(table: Table, key: str) -> SpecifierSet:
    try:
        return SpecifierSet(table.take(key, str, ">=0"))
    except InvalidSpecifier:
        raise table.refuse(key, "a range of versions, as '>=0.12,<0.14'") from None
