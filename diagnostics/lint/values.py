"""A value that was read from somebody's file: what it is, where it stood, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from diagnostics.output.findings import NotJudged

# More digits than any setting has; beyond that a number is text that nobody can use.
_DIGITS = 18


class _Unknown:
    """What can't be known from the file: a variable from outside, a call, another file."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Place:
    """A line of a file; line 0 where there is no line, as for a default."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Value:
    """A setting as it was read.

    Attributes:
        data: str, int, float, bool, None, a list of these, a dict, or UNKNOWN.
        key: The name it has in that framework, as `vllm_gpu_memory_utilization`.
        soft: It is a default, of the framework or of a shell variable, and may be another one in a real run.
        outside: It is the default of a shell variable, so the environment of a run may say something else.
    """

    data: Any
    place: Place
    key: str = ""
    soft: bool = False
    outside: bool = False

    @property
    def known(self) -> bool:
        """Tells whether the value itself could be read."""
        return self.data is not UNKNOWN

    @property
    def told(self) -> str:
        """The setting as evidence: key and value."""
        return f"{self.key} = {shown(self.data)}"

    def named(self, key: str) -> Value:
        """The same value under another key."""
        return replace(self, key=key)

    def but(self, data: Any) -> Value:
        """Another value from the same place."""
        return replace(self, data=data)


@dataclass
class Settings:
    """What one file, one call or one command sets, in its framework's own words.

    Attributes:
        framework: One of `frameworks.CONFIGURED`, or accelerate or deepspeed.
        role: `train`, or `serve` for a server that only samples.
        items: The settings by their key, the last one set.
        environ: Variables of the environment that it sets.
        launch: What the launcher says: processes, nodes.
        open: More may be set where nobody can read it: `**kwargs`, a file that is not here.
        passes: It hands on what the script itself is given, by "$@": judged as it is without.
        exact: The framework's own parser takes them, so that a name it does not know is refused.
        handed: Of a config in Python: the script's option that a key gets its value from, as `x=args.y`.
        own: Options that the script itself declares.
        signs: Of Hydra's overrides: what stands before a key, as `+`.
        gaps: What of it could not be read or understood.
        lost: Options that stand after the end of the command, so that it never sees them.
    """

    framework: str
    place: Place
    role: str = "train"
    items: dict[str, Value] = field(default_factory=dict)
    environ: dict[str, Value] = field(default_factory=dict)
    launch: dict[str, Value] = field(default_factory=dict)
    open: bool = False
    passes: bool = False
    exact: bool = False
    handed: dict[str, str] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    signs: dict[str, str] = field(default_factory=dict)
    gaps: list[NotJudged] = field(default_factory=list)
    about: str = ""
    lost: list[Value] = field(default_factory=list)

    def set(self, key: str, value: Value) -> None:
        """Sets a key; a later one wins, as it does on every command line."""
        self.items[key] = value.named(key)


def scalar(text: str) -> Any:
    """Reads a word as programs do: null, a truth value, a number, or else the text itself.

    >>> scalar("true"), scalar("1e-6"), scalar("8"), scalar("null"), scalar("a8")
    (True, 1e-06, 8, None, 'a8')
    """
    lowered = text.strip().lower()
    if lowered in {"true", "false"}:
        return lowered == "true"
    if lowered in {"null", "none", "~"}:
        return None
    if len(lowered) > _DIGITS + 8 or not lowered or lowered[-1] not in "0123456789.":
        return text
    try:
        if lowered.lstrip("+-").isdecimal():
            return int(lowered) if len(lowered.lstrip("+-")) <= _DIGITS else text
        return float(lowered) if lowered[0] in "+-.0123456789" else text
    except ValueError:
        return text


def shown(data: Any) -> str:
    """A value as it is shown: short, one line."""
    if data is UNKNOWN:
        return "(not known from here)"
    if isinstance(data, bool) or data is None:
        return str(data).lower() if data is not None else "null"
    text = ",".join(map(str, data)) if isinstance(data, list) else str(data)
    text = " ".join(text.split())
    return text if len(text) <= 80 else cut(text, 77) + "..."
