"""Define the run plan: the settings of a run under the same names for all frameworks. Rules read only the run plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.lint.values import Settings, Value, parse_count
from diagnostics.lint.versions import Versions

# Every name that a plan may contain, with its meaning. The catalog's [[config]] uses the same names.
VOCABULARY = msgspec.toml.decode(
    Path(__file__).with_name("vocabulary.toml").read_bytes(), type=dict[str, str]
)
# The number of training processes, which every run has, set or not.
PROCESSES = "devices.train"
_OFF = (False, None, 0, "", "no")


@dataclass
class RunPlan:
    """The plan of a training run, or of a server for one.

    Attributes:
        framework: The framework's name.
        settings: The settings that were read, under the framework's own option names.
        values: Names of VOCABULARY with their values; a missing name is not known.
        versions: The releases for which the run is checked.
        unknown: Names that a rule read and whose values are unknown although the run sets them; None for the number
            of processes if the run does not set it.
        source: The file that was given to lint or found in a folder, or `command line`.
        explicit: Whether the file was named on the command line, rather than found in a folder.
        needs_arguments: Whether the run is a script that expects the model among its own arguments ("$@").
    """

    framework: str
    settings: Settings
    values: dict[str, Value] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    unknown: dict[str, Value | None] = field(default_factory=dict)
    source: str = ""
    explicit: bool = True
    needs_arguments: bool = False

    @property
    def releases(self) -> Mapping[str, str]:
        """The known releases by package."""
        return self.versions.releases

    @property
    def role(self) -> str:
        """`train`, or `serve` for a server that only samples."""
        return self.settings.role

    @property
    def first_line(self) -> int:
        """The line of the file on which the run starts."""
        return self.settings.place.line

    @property
    def options(self) -> dict[str, Value]:
        """The framework's own options."""
        return self.settings.options

    @property
    def own_copy(self) -> bool:
        """Whether the project contains a copy of the framework, which may differ from any release."""
        return self.framework in self.versions.copies

    def get(self, name: str) -> Any:
        """Return the value of a name; None if it is unknown, which is recorded for the report.

        Raises:
            KeyError: The vocabulary has no such name: a mistake in a rule.
        """
        if name not in VOCABULARY:
            raise KeyError(name)
        value = self.values.get(name)
        if value is None:
            # Every run has some number of processes; any other name that is not set has its default.
            if name == PROCESSES:
                self.unknown[name] = None
            return None
        if not value.known:
            self.unknown[name] = value
            return None
        return value.data

    def whole_number(self, name: str) -> int | None:
        """Return the value of a name if it is known and a whole number, else None."""
        data = self.get(name)
        return data if isinstance(data, int) and not isinstance(data, bool) else None

    def put(self, name: str, value: Value | None) -> None:
        """Set a name of the vocabulary, unless the value is None."""
        if value is not None:
            if name not in VOCABULARY:
                raise KeyError(name)
            self.values[name] = value

    def derive(self, name: str, source: Value | None, function: Callable[[Any], Any]) -> None:
        """Set a name to a function of a value if the value is known."""
        if source is not None and source.known:
            self.put(name, source.derive(function(source.data)))

    def evidence(self, *names: str) -> list[Value]:
        """Return the values of those names that are set."""
        return [self.values[name] for name in names if name in self.values]

    def option(self, *keys: str) -> Value | None:
        """Return the first of these options that is set; None if none is set."""
        return self.settings.first(*keys)

    def enabled(self, *keys: str) -> Value | None:
        """Return the first of these options that is set if it is known, and not false, null, 0, "no" or empty."""
        value = self.option(*keys)
        return value if value is not None and value.known and value.data not in _OFF else None

    def disabled(self, *keys: str) -> bool:
        """Return whether these options are certainly unset, null, false or empty; no unread source may set them."""
        if self.settings.has_unread_options or self.settings.orphaned or self.needs_arguments:
            return False
        value = self.option(*keys)
        return value is None or (value.known and value.data in (None, False, ""))

    def processes_on_a_node(self) -> Value | None:
        """Return the number of training processes on each node, from the launcher or the environment; None if unset."""
        launcher = self.settings.launcher
        per_node = launcher.get("processes_per_node") or self.settings.env.get("NPROC_PER_NODE")
        if (
            per_node is None
            and parse_count(launcher.get("nodes")) in {None, 1}
            and "nodes" not in self.settings.env
        ):
            name = launcher.get("launcher")
            per_node = launcher.get("processes") if name is not None and name.data == "accelerate" else None
        return per_node
