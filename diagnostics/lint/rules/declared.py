"""Load the rules that are data, entries of `declared.toml`, register them, and check runs by their conditions.

The expressions in an entry are Python; `evaluate` runs them with the run's values as names. `is_one_of` compares
values, and does not take True for 1.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec
from msgspec import Struct

from diagnostics.findings import Severity
from diagnostics.lint.derivation import read_source
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.option_index import surely_within
from diagnostics.lint.rules.registry import Problem, Rule, add_rule
from diagnostics.lint.run_plan import PROCESSES, RunPlan
from diagnostics.lint.values import Value, format_value

PATH = Path(__file__).with_name("declared.toml")
EXPRESSION = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")


class DeclaredRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule as data; it reports a run if all conditions hold. In names of options, `a|b` means the first that is set.

    Attributes:
        name: Name of the rule.
        message: Message of the problem, with expressions in braces.
        fix: Fix of the problem, with expressions in braces; `nearest` is the most similar choice of the last option in
            `differs`.
        frameworks: Frameworks that the rule checks; empty for all.
        check: Group of rules to which the rule belongs.
        code: Code of the finding.
        role: `train`, `serve`, or empty for both.
        severity: Severity of the finding.
        releases: Range of releases that refuse the run.
        unknown_release: Effect of an unknown release: `warn`, `assume` (that it is in the range) or `skip`.
        package: Package to whose releases the range refers; empty for the framework.
        keeps_config_tables: Whether the [[config]] tables of the code's entry are checked as well.
        certain: Whether to report only if no value in `values` is a default.
        triggers: Triggers of the code's entry that the run has.
        known_by: Evidence level of the rule; empty for that of the code's entry.
        enabled: Condition: options that are set to a value other than false, 0, null, "no" and an empty text.
        unset: Condition: options that are unset, null, false or empty, in a run without options that could not be read.
        absent: Condition: options that no readable source sets, except to null; `a.*` are all options with the prefix.
        equal: Condition: options that have one of these values.
        differs: Condition: options that are set to a value other than null and these values.
        plan: Condition: values of the run plan.
        values: Names for `where`: values of the run plan, options (`option:a|b`) or variables (`env:NAME`);
            `devices.train=1` gives a default.
        where: Condition: expression that is true if the run is wrong. Its names are those of `values`, and `run`, a
            dict of the plan's known values.
        targets: Condition: modules or scripts that the run starts; empty for all.
        release: Releases for the example command lines.
        wrong: Example command lines that the rule reports.
        right: Example command lines that the rule accepts.
    """

    name: str
    message: str
    fix: str
    frameworks: tuple[str, ...] = ()
    check: str = "options"
    code: str = "CFG111"
    role: str = "train"
    severity: str = "error"
    releases: str = ""
    unknown_release: str = "warn"
    package: str = ""
    keeps_config_tables: bool = False
    certain: bool = False
    triggers: tuple[str, ...] = ()
    known_by: str = ""
    enabled: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    equal: dict[str, list[Any]] = {}
    differs: dict[str, list[Any]] = {}
    plan: dict[str, Any] = {}
    values: dict[str, str] = {}
    where: str = ""
    targets: tuple[str, ...] = ()
    release: str = ""
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()

    def find_problems(self, plan: RunPlan) -> Iterator[Problem]:
        """Yield the problem of a run, if all conditions hold."""
        options = self._matching_options(plan)
        if options is None or (self.targets and plan.settings.target not in self.targets):
            return
        values: dict[str, Value] = {}
        data: dict[str, Any] = {}
        unknown: list[str] = []
        for name, source in self.values.items():
            key, _, default = source.partition("=")
            value = read_source(plan, key)
            if value is not None and value.known and value.data is not None:
                values[name], data[name] = value, value.data
            elif value is None and default:
                data[name] = int(default)
            elif key == PROCESSES or key in plan.values:
                unknown.append(key)
            else:
                return  # an option that is not set cannot be wrong
        run = {name: value.data for name, value in plan.values.items() if value.known}
        if not evaluate(self.where or "True", {**data, "run": run}):
            return
        for key in unknown:
            plan.get(key)  # records what the rule needed and does not know
        package = self.package or plan.framework
        applies = plan.versions.within(package, self.releases)
        weak = self.certain and any(value.soft for value in values.values())
        skips = self.unknown_release == "skip" and not surely_within(plan, package, self.releases)
        if unknown or weak or (applies is None and skips):
            return
        data |= {f"v{number}": format_value(value.data) for number, value in enumerate(options)}
        data |= {"nearest": _nearest_choice(str(options[-1].data), self.differs)} if self.differs else {}
        data |= {
            f"{name}_key": _option_of(plan, name, source, values) for name, source in self.values.items()
        }
        yield Problem(
            spell_options(plan, _fill_placeholders(self.message, data)),
            # The wrong value comes before the options that make it count.
            [
                *values.values(),
                *options[len(self.enabled) :],
                *options[: len(self.enabled)],
                *plan.evidence(*self.plan),
            ],
            fix=spell_options(plan, _fill_placeholders(self.fix, data)),
            severity=Severity[self.severity.upper()],
            applies=applies is not False if self.unknown_release == "assume" else applies,
            package=self.package,
            fix_is_complete=self.code == "CFG111",
            triggers=self.triggers,
            known_by=self.known_by,
        )

    def _matching_options(self, plan: RunPlan) -> list[Value] | None:
        """Return the options that meet the conditions; None if a condition does not hold."""
        values = [plan.enabled(*names.split("|")) for names in self.enabled]
        conditions = [(names, data, True) for names, data in self.equal.items()]
        conditions += [(names, data, False) for names, data in self.differs.items()]
        for names, data, expected in conditions:
            value = plan.option(*names.split("|"))
            is_set = value is not None and value.known and value.data is not None
            values.append(value if value and is_set and is_one_of(value.data, data) is expected else None)
        complete = [value for value in values if value is not None]
        holds = (
            len(complete) == len(values)
            and all(plan.disabled(*names.split("|")) for names in self.unset)
            and all(_is_absent(plan, names) for names in self.absent)
            and all(name in plan.values for name in self.plan)
            and all(is_one_of(plan.get(name), [data]) for name, data in self.plan.items())
        )
        return complete if holds else None


def _option_of(plan: RunPlan, name: str, source: str, values: dict[str, Value]) -> str:
    """Return the option that set a value; for a missing one the framework's option for it, empty if it has none."""
    names = DIALECTS[plan.framework].names.items()
    missing = next((option for option, key in names if key == source.partition("=")[0]), "")
    return values[name].key if name in values else missing


def _nearest_choice(text: str, choices: dict[str, list[Any]]) -> str:
    """Return the choice of the last option that is most similar to a text, even if it is hardly similar."""
    allowed = list(map(str, list(choices.values())[-1] or [""]))
    return difflib.get_close_matches(text, allowed, 1, 0.0)[0]


def _is_absent(plan: RunPlan, names: str) -> bool:
    if names.endswith("*"):
        return not any(key.startswith(names[:-1]) for key in plan.options)
    value = plan.option(*names.split("|"))
    return value is None or value.data is None


def is_one_of(data: Any, allowed: list[Any]) -> bool:
    """Return whether a value equals one of some values; unlike for `==`, True is not 1."""
    return any(data == choice and isinstance(data, bool) == isinstance(choice, bool) for choice in allowed)


@cache
def _compile(expression: str) -> CodeType:
    return compile(expression, str(PATH), "eval")


def evaluate(expression: str, names: dict[str, Any]) -> Any:
    """Evaluate an expression of declared.toml with these values of names.

    Return None for a wrong type or a division by zero, so the condition does not hold; True if a name is missing, so it
    may hold.
    """
    functions = {"count": lambda data: len(data if isinstance(data, list) else str(data).split()), "max": max}
    try:
        return eval(_compile(expression), {"__builtins__": functions}, names)  # noqa: S307 - our data, never a user's
    except NameError:
        return True
    except (TypeError, ZeroDivisionError):
        return None


def _fill_placeholders(text: str, names: dict[str, Any]) -> str:
    return EXPRESSION.sub(lambda match: format(evaluate(match[1], names), match[2] or ""), text)


def spell_options(plan: RunPlan, text: str) -> str:
    """Return a text with OpenRLHF's older flat option names if the run uses one of them, else the same text."""
    flat = DIALECTS[plan.framework].flat_flags
    if not set(flat.values()) & set(plan.options):
        return text
    for dotted in sorted(flat, key=len, reverse=True):
        text = text.replace(f"--{dotted}", f"--{flat[dotted]}")
    return text


DECLARED = msgspec.convert(tomllib.loads(PATH.read_text(encoding="utf-8"))["rule"], list[DeclaredRule])
_SHARED_FIELDS = ("name", "check", "frameworks", "role", "keeps_config_tables")
for _declared in DECLARED:
    _fields = {name: getattr(_declared, name) for name in _SHARED_FIELDS}
    _is_mild = _declared.severity in {"warning", "info"}
    add_rule(
        Rule(codes=(_declared.code,), function=_declared.find_problems, warnings_only=_is_mild, **_fields)
    )
