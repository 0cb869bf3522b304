"""Define `Value`, a setting with its location and certainty, and `Settings`, the settings of one run.

`parse_scalar` and `parse_count` parse words, `format_value` formats a value for messages, `has_type` tests its type.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from diagnostics.findings import NotChecked
from diagnostics.output.redact import remember_secret, truncate

# Numbers with more digits stay text: no setting has so many digits, and arithmetic on them takes long.
_MAX_DIGITS = 18
_MAX_SHOWN = 80
# Suffixes of files whose values have types; the words of a shell command are texts.
TYPED_FILES = (".py", ".yaml", ".yml", ".json")
_SIMPLE_TYPES = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}


UNKNOWN: Any = object()
"""The `data` of a value that a file does not determine, such as an outer variable or a function call."""


@dataclass(frozen=True)
class Place:
    """A line of a file; `line` is 0 if there is none, such as for a default value."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Value:
    """A setting as it was read.

    Attributes:
        data: The value: a str, int, float, bool, None, a list of these, a dict, or UNKNOWN.
        place: Location of the setting.
        key: Name of the option in its framework, such as `vllm_gpu_memory_utilization`.
        soft: Whether the value is only a default, of the framework or of a shell variable; a run may use another one.
        outside: Whether something outside the files may replace the value: the environment in `${X:-8}`, or arguments.
        written: The value in the file if `data` was derived from it, else UNKNOWN.
        factors: For a product, the settings that were multiplied.
        replaced: The value under the same key earlier in the same table of a YAML or JSON file.
    """

    data: Any
    place: Place
    key: str = ""
    soft: bool = False
    outside: bool = False
    written: Any = UNKNOWN
    factors: tuple[Value, ...] = ()
    replaced: Value | None = None

    def __post_init__(self) -> None:
        """Remember a secret, which other settings may contain by a variable or an anchor."""
        if self.key:
            remember_secret(self.key, self.data)

    @property
    def known(self) -> bool:
        """Whether the value could be read."""
        return self.data is not UNKNOWN

    @property
    def as_text(self) -> str:
        """Key and value as in the file, on one line."""
        return f"{self.key} = {format_value(self.shown)}"

    @property
    def shown(self) -> Any:
        """The value as in the file."""
        return self.data if self.written is UNKNOWN else self.written

    def with_key(self, key: str) -> Value:
        """Return the same value under another key."""
        # `replace` would take several times as long, and a config may have 100,000 values.
        return Value(
            self.data, self.place, key, self.soft, self.outside, self.written, self.factors, self.replaced
        )

    def derive(self, data: Any) -> Value:
        """Return a setting with other data that follows from this setting; `written` keeps the value in the file."""
        return replace(self, data=data, written=self.data if self.written is UNKNOWN else self.written)


@dataclass
class Settings:
    """The settings of a config file, a Python call or a command, under the framework's own option names.

    Attributes:
        framework: A name in `frameworks.FRAMEWORKS`, or `accelerate`, `deepspeed` or `launcher`.
        place: Location of the file, call or command.
        role: `train`, `serve` for a server that only samples, or `other` for a run of another method, such as SFT.
        command: The command whose options it has, as in `IndexedPackage.commands`; empty for a GRPO run.
        options: The settings by option name. If a name is set twice, the last value is stored.
        env: Environment variables that the files or the command set.
        launcher: The launcher's settings: processes, nodes, addresses.
        has_unread_options: Whether more options may be set that cannot be read, by `**kwargs` or a missing file.
        forwards_arguments: Whether the script passes its own arguments on, by "$@".
        framework_parser: Whether the framework's own parser reads the options, and so refuses unknown names.
        target: The module, script or class that was recognised.
        forwarded: In Python, keyword -> the expression with the script's own option that gives its value, as `args.y`.
        script_options: Options that the user's script declares.
        prefixes: Key of a Hydra override -> its prefix, such as `+`.
        not_checked: Inputs that could not be read or understood.
        orphaned: Options after the end of the command (a missing backslash), which the command never receives.
        repeated: Values that the same command replaces later, because it gives the option again with another value.
        split: Assignments with a blank beside `=`, which the shell or Hydra takes for several words.
        unexported: Assigned variables that do not reach the command; see `shell.Command`.
        files: Other files that were read for the settings.
    """

    framework: str
    place: Place
    role: str = "train"
    command: str = ""
    options: dict[str, Value] = field(default_factory=dict)
    env: dict[str, Value] = field(default_factory=dict)
    launcher: dict[str, Value] = field(default_factory=dict)
    has_unread_options: bool = False
    forwards_arguments: bool = False
    framework_parser: bool = False
    target: str = ""
    forwarded: dict[str, Value] = field(default_factory=dict)
    script_options: frozenset[str] = frozenset()
    prefixes: dict[str, str] = field(default_factory=dict)
    not_checked: list[NotChecked] = field(default_factory=list)
    orphaned: list[Value] = field(default_factory=list)
    repeated: list[Value] = field(default_factory=list)
    split: list[Value] = field(default_factory=list)
    unexported: tuple[Value, ...] = ()
    files: set[str] = field(default_factory=set)

    def set(self, key: str, value: Value, *, notes_repeated: bool = False) -> None:
        """Set an option; if `notes_repeated`, add a value of the same file that it replaces to `repeated`."""
        old = self.options.get(key)
        if notes_repeated and old is not None and old.known and value.known and old.data != value.data:
            self.repeated += [old] if old.place.file == value.place.file else []
        self.options[key] = value.with_key(key)


def parse_scalar(text: str) -> Any:
    """Parse a word as null, a boolean or a number; other words stay text.

    >>> parse_scalar("true"), parse_scalar("1e-6"), parse_scalar("8"), parse_scalar("null"), parse_scalar("a8")
    (True, 1e-06, 8, None, 'a8')
    """
    lowered = text.strip().lower()
    if lowered in {"true", "false"}:
        return lowered == "true"
    if lowered in {"null", "none", "~"}:
        return None
    if len(lowered) > _MAX_DIGITS + 8 or not lowered or lowered[-1] not in "0123456789.":
        return text
    try:
        if lowered.lstrip("+-").isdecimal():
            return int(lowered) if len(lowered.lstrip("+-")) <= _MAX_DIGITS else text
        return float(lowered) if lowered[0] in "+-.0123456789" else text
    except ValueError:
        return text


def parse_count(value: Value | None) -> int | None:
    """Return a number or its text as an integer of at most 9 digits; None for any other value."""
    if value is None or not value.known or isinstance(value.data, bool):
        return None
    text = str(value.data)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def format_value(data: Any) -> str:
    """Return a value as one line of at most 80 characters; secrets are masked if the text is cut."""
    if data is UNKNOWN:
        return "(set at run time)"
    if isinstance(data, bool) or data is None:
        return str(data).lower() if data is not None else "null"
    text = ",".join(map(str, data)) if isinstance(data, list) else str(data)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else truncate(text, _MAX_SHOWN - 3) + "..."


def has_type(value: Value, types: Collection[str]) -> bool:
    """Return whether a parser may read a value as one of these types.

    True for an unknown value, for null, for types other than bool, int, float and str, and for any text.

    >>> has_type(Value(True, Place("run.yaml")), {"str"}), has_type(Value(8, Place("run.sh")), {"str"})
    (False, True)
    """
    if not value.known or value.data is None or not set(types) <= _SIMPLE_TYPES.keys():
        return True
    # A command line has only texts, except switches without a value.
    is_text = isinstance(value.data, str) or not value.place.file.endswith(TYPED_FILES)
    if is_text and not isinstance(value.data, bool):
        return True
    return type(value.data) in {kind for name in types for kind in _SIMPLE_TYPES[name]}
