"""Define the run plan: the settings of a run under names that are the same for all frameworks. Rules read run plans.

VOCABULARY has these names. A plan records which unknown values rules read (`RunPlan.get`), for the report.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.api_index import store
from diagnostics.api_index.query import Release
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.values import Settings, Value, parse_count
from diagnostics.lint.versions import Versions

# Names that a plan may contain -> meaning. The catalog's [[config]] tables use the same names.
VOCABULARY = msgspec.toml.decode(
    Path(__file__).with_name("vocabulary.toml").read_bytes(), type=dict[str, str]
)
# The name of the number of training processes.
PROCESSES = "devices.train"
_OFF = (False, None, 0, "", "no")


@dataclass
class RunPlan:
    """The plan of a training run, of a server for one, or of a run of another method (`role`).

    Attributes:
        framework: The framework's name.
        settings: The settings that were read, under the framework's own option names.
        values: Name of VOCABULARY -> value; a name that is missing has no value.
        versions: The releases for which the run is checked.
        unknown: Names that a rule read although the value is unknown -> the unknown value. None for the number of
            processes if the run does not set it.
        reported: Keys of the settings in findings so far.
        source: The file that was given to lint or found in a folder, or `command line`.
        explicit: Whether the file was named on the command line, rather than found in a folder.
        needs_arguments: Whether the run is a script that expects the model among its own arguments ("$@").
    """

    framework: str
    settings: Settings
    values: dict[str, Value] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    unknown: dict[str, Value | None] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    source: str = ""
    explicit: bool = True
    needs_arguments: bool = False

    @property
    def releases(self) -> Mapping[str, str]:
        """The known releases by package."""
        return self.versions.releases

    @property
    def role(self) -> str:
        """`train`, `serve` for a server that only samples, or `other` for a run of another method, such as SFT."""
        return self.settings.role

    @property
    def options(self) -> dict[str, Value]:
        """The framework's own options."""
        return self.settings.options

    @property
    def option_package(self) -> str:
        """The package whose releases declare the options: TRL for unsloth, which extends it."""
        return DIALECTS[self.framework].extends or self.framework

    def release_of(self, version: object) -> Release:
        """Return this release of `option_package`, or without a version its newest, with the run's command."""
        known = version or "".join(store.load_options(self.option_package).releases[-1:])
        return Release(self.option_package, str(known), self.settings.command)

    @property
    def own_copy(self) -> bool:
        """Whether the project contains a copy of the framework, which may differ from any release."""
        return self.framework in self.versions.copies

    def get(self, name: str) -> Any:
        """Return the value of a name; None if it is missing or unknown. An unknown value is recorded for the report.

        Raises:
            KeyError: The vocabulary has no such name: a mistake in a rule.
        """
        if name not in VOCABULARY:
            raise KeyError(name)
        value = self.values.get(name)
        if value is None:
            # Any other missing name has its default; the number of processes has none.
            if name == PROCESSES:
                self.unknown[name] = None
            return None
        if not value.known:
            self.unknown[name] = value
            return None
        return value.data

    def whole_number(self, name: str) -> int | None:
        """Return the value of a name if it is a known whole number, else None."""
        data = self.get(name)
        return data if isinstance(data, int) and not isinstance(data, bool) else None

    def put(self, name: str, value: Value | None) -> None:
        """Set a name of the vocabulary, unless the value is None; raise KeyError for another name."""
        if value is not None:
            if name not in VOCABULARY:
                raise KeyError(name)
            self.values[name] = value

    def derive(self, name: str, source: Value | None, function: Callable[[Any], Any]) -> None:
        """Set a name to `function(data of the source)` if the source is known."""
        if source is not None and source.known:
            self.put(name, source.derive(function(source.data)))

    def evidence(self, *names: str) -> list[Value]:
        """Return the values of these names; missing names are left out."""
        return [self.values[name] for name in names if name in self.values]

    def option(self, *keys: str) -> Value | None:
        """Return the first of these options that is set; None if none is set."""
        return next((self.options[key] for key in keys if key in self.options), None)

    def enabled(self, *keys: str) -> Value | None:
        """Return the first of these options that is set; None if it is unknown, false, null, 0, "no" or empty."""
        value = self.option(*keys)
        return value if value is not None and value.known and value.data not in _OFF else None

    def disabled(self, *keys: str) -> bool:
        """Return whether these options are certainly unset, null, false or empty.

        False if a source that could not be read may set them.
        """
        if self.settings.has_unread_options or self.settings.orphaned or self.needs_arguments:
            return False
        value = self.option(*keys)
        return value is None or (value.known and value.data in (None, False, ""))

    def processes_on_a_node(self) -> Value | None:
        """Return the number of training processes on one node, from the launcher or the environment; None if unset."""
        launcher = self.settings.launcher
        per_node = launcher.get("processes_per_node") or self.settings.env.get("NPROC_PER_NODE")
        if per_node is None and parse_count(launcher.get("nodes")) in {None, 1}:
            name = launcher.get("launcher")
            per_node = launcher.get("processes") if name is not None and name.data == "accelerate" else None
        return per_node
