"""The variables of a shell script at one point: words with unknown parts, scopes, and branches that may have run."""

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

    def merge_branch(self, branch: Scope) -> None:
        """Mark as unknown what a branch changed that may or may not run."""
        for name, text in branch.variables.items():
            if self.variables.get(name) != text:
                self.variables[name] = HOLE
        for name, words in branch.arrays.items():
            before = self.arrays.get(name, [])
            if words != before:
                added = words[len(before) :] if words[: len(before)] == before else words
                self.arrays[name] = before + [Word(_unknown_value(word.text), word.line) for word in added]
        for name, value in branch.exported.items():
            if self.exported.get(name) != value:
                self.exported[name] = replace(value, data=UNKNOWN)

    def merge_argument_branch(self, branch: Scope) -> None:
        """Mark as a default what a branch changed that runs only if the script gets arguments."""
        for name, text in branch.variables.items():
            before = self.variables.get(name)
            if before != text:
                self.variables[name] = HOLE if before is None or HOLE in before else mark_default(before)
        for name, words in branch.arrays.items():
            before_words = self.arrays.get(name, [])
            if words != before_words:
                self.arrays[name] = [*before_words, Word(SCRIPT_ARGUMENTS, words[-1].line if words else 0)]
        for name, value in branch.exported.items():
            if self.exported.get(name) != value:
                before_value = self.exported.get(name, replace(value, data=UNKNOWN))
                self.exported[name] = replace(before_value, soft=True, outside=True)


def mark_default(text: str) -> str:
    """Mark a text as a default that the environment of a run may replace."""
    return text if SOFT in text else SOFT + text


def _unknown_value(text: str) -> str:
    key, equals, _value = text.partition("=")
    return f"{key}={HOLE}" if equals else HOLE
