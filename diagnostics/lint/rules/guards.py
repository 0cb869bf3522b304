"""Rule about the framework's own checks: the options of a run pass the guards in the source of its release.

A guard is a `raise` or `assert`. The API index has its conditions; `lint.conditions` evaluates them with the options of
the run and the defaults of the release. A condition that depends on an unknown value is not reported, nor one whose
options an earlier finding has. If the release is unknown, the newest is assumed, and the finding is a warning.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from diagnostics.api_index.guard_lookup import PlacedGuard, is_in_all_companions, start_guards
from diagnostics.api_index.options import declared_default, is_declared
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.query import Release
from diagnostics.findings import Severity
from diagnostics.frameworks import FRAMEWORKS, parser_of
from diagnostics.lint.conditions import UnknownValueError, condition_result, names_in, unmarked
from diagnostics.lint.rules.registry import INDEXED, Problem, rule
from diagnostics.lint.run_plan import PROCESSES, RunPlan
from diagnostics.lint.values import Value, format_value

CHECK = "checks of the framework"
# The names of the options' object in a function that is no method of its class.
_ROOTS = re.compile(r"(?:self\.)?(?:config|args|training_args)\.")
_NESTED = re.compile(r"^\w+_config\.")
_WORLD_SIZE = {"self.world_size", "args.world_size"}


@rule("CFG111", check=CHECK, frameworks=INDEXED, role="any")
def guards_of_the_release_pass(plan: RunPlan) -> Iterator[Problem]:
    """The options pass the checks that the framework itself makes at the start of a run of this release."""
    name = plan.option_package
    if plan.own_copy or name not in PACKAGES:
        return
    release = plan.release_of(plan.versions.known.get(name))
    for placed in start_guards(release):
        # Other programs of verl have trainers of their own, and may have other workers.
        is_main = plan.role == "other" or plan.settings.target in {"", *FRAMEWORKS[name].entries}
        if placed.prefix is None and not is_main:
            continue
        options, guard_conditions = _Options(plan, placed, release), placed.guard.conditions
        if placed.component is not None and not options.use(placed.component.when):
            continue
        # The last condition decides; if the run sets nothing in it, those before it.
        keys_by_condition = [
            [options.key(name) for name in names_in(item)] for item in guard_conditions[::-1]
        ]
        keys = next(
            (
                option_keys
                for option_keys in keys_by_condition
                if not plan.options.keys().isdisjoint(option_keys)
            ),
            [],
        )
        keys = keys or [
            key for option_keys in keys_by_condition[:1] for key in option_keys if key.endswith("world_size")
        ]
        # Most guards read no option that the run sets, and their conditions need not be evaluated.
        if keys and all(condition_result(item, options.lookup) for item in guard_conditions):
            deciding = [options.used[key] for key in keys if key in options.used]
            if deciding and plan.reported.isdisjoint(value.key for value in deciding):
                problem = _problem(options, placed, deciding)
                doubtful = placed.component is not None and not is_main
                yield replace(problem, severity=Severity.WARNING) if doubtful else problem


class _Options:
    """Values of the options in the conditions of a guard; `used` has those that were looked up and are set."""

    def __init__(self, plan: RunPlan, placed: PlacedGuard, release: Release) -> None:
        self._plan, self._placed, self._release = plan, placed, release
        self.used: dict[str, Value] = {}
        # Whether it is a Hydra config without its command, which sets what is null.
        self._is_base = parser_of(plan.framework) == "hydra" and not plan.settings.target
        # Whether the release of the guard is the run's; that of another package, such as transformers, is assumed.
        self.is_certain = release.package in plan.versions.known and (
            placed.release.package == release.package or is_in_all_companions(placed, release)
        )

    def key(self, name: str) -> str:
        """Return the option that a name in a condition stands for; empty if none."""
        prefix, component = self._placed.prefix, self._placed.component
        if prefix is not None and component is None and name.startswith("self."):
            name = name.removeprefix("self.")
            # VllmConfig holds the other config objects, whose fields are the options.
            return _NESTED.sub("", name) if self._placed.only_set else f"{prefix}{name}"
        match = _ROOTS.match(name) if prefix is None or component is not None else None
        return f"{prefix or ''}{name[match.end() :]}" if match else ""

    def use(self, when: Mapping[str, str]) -> bool:
        """Return whether options certainly have these values; they are noted as used."""
        try:
            return all(self._option(key) == data for key, data in when.items())
        except UnknownValueError:
            return False

    def lookup(self, name: str) -> object:
        """Return the value of a name in a condition.

        Raises:
            UnknownValueError: It is not known.
        """
        for attribute, needed in self._placed.set_elsewhere:
            excluded = (condition_result(item, self._initial_value) is False for item in needed)
            if name == attribute and not any(excluded):
                raise UnknownValueError
        return self._initial_value(name)

    def _initial_value(self, name: str) -> object:
        """Return the value of a name as the run or the release sets it, whatever the methods of its class change."""
        if name == "__name__":
            return "__main__"
        if (member := self._placed.enum_value(name)) is not None:
            return member
        component, processes = self._placed.component, self._plan.values.get(PROCESSES)
        if component is not None and name in component.names:
            return component.names[name]
        if name in _WORLD_SIZE and processes is not None:
            return self._used_data(self.key(name) or name, processes)
        return self._option(self.key(name))

    def _option(self, key: str) -> object:
        """Return the value of an option, or its default; raise UnknownValueError if neither is known."""
        if value := self._plan.options.get(key):
            return self._used_data(key, value)
        if self._placed.only_set or not self._plan.disabled(key) or not is_declared(self._release, key):
            raise UnknownValueError
        data = declared_default(self._release, key)
        if data is ... or (data is None and self._is_base):
            raise UnknownValueError
        return data

    def _used_data(self, key: str, value: Value) -> object:
        if not value.known or (value.data is None and self._is_base):
            raise UnknownValueError
        self.used[key] = value
        return value.data


def _problem(options: _Options, placed: PlacedGuard, deciding: list[Value]) -> Problem:
    """Return the problem of a guard that stops the run; `deciding` are the settings in its last condition."""
    guard, release = placed.guard, placed.release
    condition = unmarked(guard.conditions[-1])
    for name in sorted(names_in(condition), key=len, reverse=True):
        condition = condition.replace(name, options.key(name) or name)
    required = condition.removeprefix("not ") if condition.startswith("not ") else ""
    settings = ", ".join(dict.fromkeys(f"{value.key} {format_value(value.data)}" for value in deciding))
    # The settings are named before, so the message's own list of values is left out.
    reason = guard.message.replace("{}", "…").partition(", but found")[0].partition(", Current value")[0] or (
        f"it requires {required}" if required else f"it refuses {condition}"
    )
    place = f"{placed.module}, {guard.function or 'the main program'}"
    test = f"unless {required}" if required else f"if {condition}"
    names = " or ".join(dict.fromkeys(value.key for value in deciding))
    return Problem(
        f"{release} refuses {settings}: {reason.rstrip('.')}. It raises {guard.exception} in {place}, {test}.",
        [*deciding, *(value for value in options.used.values() if value not in deciding)],
        fix=f"Change {names}{f', so that {required}' if required else ''}.",
        applies=True if options.is_certain else None,
        package=release.package,
        fix_is_complete=True,
        known_by="static",
    )
