"""Hold the variables of a shell script at one point, with marks for unknown text and for defaults.

`Scope.merge_branch` decides what is still known after a branch that may or may not run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from diagnostics.lint.values import UNKNOWN, Place, Value

# Marks inside a word; no script can contain these characters. HOLE is unknown text, SOFT marks a default.
HOLE, SOFT = "\0", "\1"
# "$@" of the script itself: unknown, and empty unless the user passes arguments.
SCRIPT_ARGUMENTS = "\6" + HOLE


@dataclass(frozen=True)
class Word:
    """A word of a command after expansion, with its marks."""

    text: str
    line: int

    @property
    def clean(self) -> str:
        """The text without the marks of defaults."""
        return self.text.replace(SOFT, "")

    @property
    def is_unknown(self) -> bool:
        """Whether nothing of it is known, not even that it is one word."""
        return self.text in {HOLE, SCRIPT_ARGUMENTS}

    def to_value(self, file: str, text: str | None = None) -> Value:
        """Return the word, or a part of it, as a Value of text."""
        text = self.text if text is None else text
        data = UNKNOWN if HOLE in text else text.replace(SOFT, "")
        return Value(data, Place(file, self.line), soft=SOFT in text, outside=SOFT in text)


@dataclass
class Scope:
    """Variables as text with marks, arrays as lists of words, and what is exported."""

    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    exported: dict[str, Value] = field(default_factory=dict)

    def copy(self) -> Scope:
        """Return a copy for a branch."""
        return Scope(dict(self.variables), dict(self.arrays), dict(self.exported))

    def merge_branch(self, branch: Scope, *, on_arguments: bool = False) -> None:
        """Merge what a branch changed that may or may not run.

        It is unknown afterwards; if the branch runs only if the script gets arguments, the value before is a default.
        """
        for name, text in branch.variables.items():
            before = self.variables.get(name)
            if before != text:
                default = on_arguments and before is not None and HOLE not in before
                self.variables[name] = mark_default(before or "") if default else HOLE
        for name, words in branch.arrays.items():
            items = self.arrays.get(name, [])
            if words != items:
                added = words[len(items) :] if words[: len(items)] == items else words
                unknown = [Word(_unknown_value(word.text), word.line) for word in added]
                if on_arguments:
                    unknown = [Word(SCRIPT_ARGUMENTS, words[-1].line if words else 0)]
                self.arrays[name] = [*items, *unknown]
        for name, value in branch.exported.items():
            if self.exported.get(name) != value:
                unset = replace(value, data=UNKNOWN)
                default_value = replace(self.exported.get(name, unset), soft=True, outside=True)
                self.exported[name] = default_value if on_arguments else unset


def mark_default(text: str) -> str:
    """Mark a text as a default that the environment of a run may replace."""
    return text if SOFT in text else SOFT + text


def _unknown_value(text: str) -> str:
    key, equals, _value = text.partition("=")
    return f"{key}={HOLE}" if equals else HOLE
