"""What a shell knows at one point of a script: variables, arrays, what is exported; and a branch that may have run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from diagnostics.lint.sources.shell_words import GIVEN, HOLE, SOFT
from diagnostics.lint.values import UNKNOWN, Place, Value


@dataclass(frozen=True)
class Word:
    """A word of a command after expansion, with its marks."""

    text: str
    line: int

    @property
    def clean(self) -> str:
        """The text without marks."""
        return self.text.replace(SOFT, "")

    @property
    def unknown(self) -> bool:
        """Tells whether nothing of it is known, not even that it is one word."""
        return self.text in {HOLE, GIVEN}

    def value(self, file: str, text: str | None = None) -> Value:
        """The word, or a part of it, as a Value of text."""
        text = self.text if text is None else text
        data = UNKNOWN if HOLE in text else text.replace(SOFT, "")
        return Value(data, Place(file, self.line), soft=SOFT in text, outside=SOFT in text)


@dataclass
class Scope:
    """The variables at one point; text with marks, arrays as lists of words."""

    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    exported: dict[str, Value] = field(default_factory=dict)

    def copy(self) -> Scope:
        """For a branch, which may leave it as it is."""
        return Scope(dict(self.variables), dict(self.arrays), dict(self.exported))

    def merge(self, branch: Scope) -> None:
        """Takes over from a branch that may or may not have run what it changed, as unknown."""
        for name, text in branch.variables.items():
            if self.variables.get(name) != text:
                self.variables[name] = HOLE
        for name, words in branch.arrays.items():
            mine = self.arrays.get(name, [])
            if words != mine:
                added = words[len(mine) :] if words[: len(mine)] == mine else words
                self.arrays[name] = mine + [Word(_maybe(word.text), word.line) for word in added]
        for name, value in branch.exported.items():
            if self.exported.get(name) != value:
                self.exported[name] = value.but(UNKNOWN)

    def merge_unasked(self, branch: Scope) -> None:
        """Takes over from a branch that runs where the script is given arguments: what was is kept, as a default is."""
        for name, text in branch.variables.items():
            before = self.variables.get(name)
            if before != text:
                self.variables[name] = HOLE if before is None or HOLE in before else _default(before)
        for name, words in branch.arrays.items():
            mine = self.arrays.get(name, [])
            if words != mine:
                self.arrays[name] = [*mine, Word(GIVEN, words[-1].line if words else 0)]
        for name, value in branch.exported.items():
            if self.exported.get(name) != value:
                was = self.exported.get(name, value.but(UNKNOWN))
                self.exported[name] = replace(was, soft=True, outside=True)


def _default(text: str) -> str:
    return text if SOFT in text else SOFT + text


def _maybe(text: str) -> str:
    key, equals, _value = text.partition("=")
    return f"{key}={HOLE}" if equals else HOLE
