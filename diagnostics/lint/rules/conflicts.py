"""Options that a framework refuses together, or without another: `conflicts.toml` lists them, this checks them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.rules.batches import as_list
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.values import format_value
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Value


@dataclass(frozen=True)
class Conflict:
    """One refusal of a framework. `a|b` are two names of one option; all conditions have to hold.

    Attributes:
        releases: The releases whose source has the check, as read in every tag.
        enabled: Options that are set, and not to false, 0 or null.
        unset: Options that are certainly not set.
        equal: Options that have one of these values.
        differs: Options that are set to something else than null and these values.
        contains: Options whose list has this item.
        plan: Values of the run plan.
        targets: The modules that make the check; empty for all.
        assume: An unknown release counts as one of these.
        wrong, right: Command lines that it refuses and accepts, for `release`.
    """

    name: str
    frameworks: tuple[str, ...]
    message: str
    fix: str
    code: str = "CFG111"
    severity: str = "error"
    releases: str = ""
    assume: bool = False
    enabled: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    equal: dict[str, list[Any]] = field(default_factory=dict)
    differs: dict[str, list[Any]] = field(default_factory=dict)
    contains: dict[str, str] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    release: str = ""
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()

    def find_values(self, plan: RunPlan) -> list[Value] | None:
        """Return the settings that conflict; None if they do not."""
        if self.targets and plan.settings.target not in self.targets:
            return None
        values: list[Value | None] = [plan.enabled(*names.split("|")) for names in self.enabled]
        for names, allowed in self.equal.items():
            values.append(_chosen(plan, names, lambda data, allowed=allowed: _among(data, allowed)))
        for names, allowed in self.differs.items():
            values.append(_chosen(plan, names, lambda data, allowed=allowed: _differs(data, allowed)))
        for names, item in self.contains.items():
            values.append(_chosen(plan, names, lambda data, item=item: item in as_list(data)))
        if any(value is None for value in values) or not all(plan.disabled(*names.split("|")) for names in self.unset):
            return None
        for name, wanted in self.plan.items():
            if name not in plan.values:
                return None
            data = plan.get(name)
            if data != wanted or isinstance(data, bool) != isinstance(wanted, bool):
                return None
            values.append(plan.values[name])
        return [value for value in values if value is not None]


def _chosen(plan: RunPlan, names: str, holds: Any) -> Value | None:
    value = plan.option(*names.split("|"))
    return value if value is not None and value.known and holds(value.data) else None


def _among(data: Any, allowed: list[Any]) -> bool:
    return any(data == each and isinstance(data, bool) == isinstance(each, bool) for each in allowed)


def _differs(data: Any, allowed: list[Any]) -> bool:
    return data is not None and not _among(data, allowed)


def _load() -> tuple[Conflict, ...]:
    text = Path(__file__).with_name("conflicts.toml").read_text(encoding="utf-8")
    lists = {"frameworks", "enabled", "unset", "targets", "wrong", "right"}
    return tuple(
        Conflict(**{key: tuple(value) if key in lists else value for key, value in entry.items()})
        for entry in tomllib.loads(text)["conflict"]
    )


CONFLICTS = _load()


@rule("CFG111", "CFG113", check="options", role="train")
def conflicting_options(plan: RunPlan) -> Iterator[Problem]:
    """A framework refuses options together, or one without another."""
    for conflict in CONFLICTS:
        values = conflict.find_values(plan) if plan.framework in conflict.frameworks else None
        if values is None:
            continue
        applies = plan.versions.within(plan.framework, conflict.releases)
        shown = {f"v{number}": format_value(value.data) for number, value in enumerate(values)}
        yield Problem(
            conflict.message.format_map(shown), values,
            fix=spell_options(plan, conflict.fix),
            severity=Severity[conflict.severity.upper()], code=conflict.code,
            applies=applies is not False if conflict.assume else applies, fix_is_complete=conflict.code == "CFG111",
        )  # fmt: skip


def spell_options(plan: RunPlan, text: str) -> str:
    """Write a text's options as the run spells them: flat if one of its own is."""
    flat = DIALECTS[plan.framework].flat_flags
    if not set(flat.values()) & set(plan.options):
        return text
    for dotted in sorted(flat, key=len, reverse=True):
        text = text.replace(f"--{dotted}", f"--{flat[dotted]}")
    return text
