"""The known issues nearest to a failure that no entry describes: by words and frames. To look at, never a verdict."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from diagnostics.triage.tracebacks import short_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diagnostics.catalog.model import Issue
    from diagnostics.triage.tracebacks import Traceback

MOST_NEAR = 3
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_COMMON = frozenset(
    [
        "the",
        "and",
        "for",
        "not",
        "that",
        "with",
        "was",
        "are",
        "but",
        "from",
        "has",
        "have",
        "its",
        "one",
        "all",
        "any",
        "been",
        "can",
        "more",
        "than",
        "this",
        "which",
        "who",
        "will",
        "you",
        "file",
        "line",
        "opt",
        "env",
        "lib",
        "python",
        "site",
        "packages",
        "usr",
        "local",
        "home",
        "user",
        "return",
        "self",
        "args",
        "kwargs",
        "none",
        "true",
        "false",
        "raise",
        "error",
        "runtimeerror",
        "valueerror",
        "typeerror",
        "info",
        "warning",
        "debug",
        "error_",
        "in_",
        "most",
        "recent",
        "call",
        "last",
        "traceback",
    ]
)
# Words of the log count for the entry's texts in this order: what it prints, what it is called, why it happens.
_PRINTED, _TITLED, _EXPLAINED = 3.0, 2.0, 1.0
_INNERMOST = 4
_LEAST = 0.10
# What Python and its libraries say of anything that fails.
_ANYTHING = frozenset([
    "object", "attribute", "got", "unexpected", "keyword", "argument", "arguments", "positional", "required", "missing",
    "takes", "given", "init", "callable", "subscriptable", "iterable", "type", "module", "cannot", "import", "name",
    "invalid", "literal", "expected", "int", "str", "list", "dict", "tuple", "float", "bool", "key", "index", "range",
    "out", "failed", "exception", "nonetype", "value", "values", "base", "function", "method", "class", "find", "found",
    "such", "does", "exist", "must", "should", "call", "called", "run", "running", "ray", "pid", "actor", "repr", "exc",
    "exceptions", "keyerror", "attributeerror", "importerror", "indexerror", "oserror", "assertionerror", "errors",
    "notimplementederror", "modulenotfounderror", "filenotfounderror", "err", "data", "model", "number", "set", "use",
    "using", "see", "did", "mean", "instance", "process", "exit", "code", "server", "worker", "timeout", "timed",
    "mat1", "mat2", "size", "sizes", "shape", "dimension", "dim", "layer", "layers", "self_attn", "attn", "mlp",
    "weight", "bias", "proj", "q_proj", "k_proj", "v_proj", "http", "https", "url", "client", "request", "please",
])  # fmt: skip
# A message is much like another from here on, and by so much more than like any other entry's.
_ALIKE, _AHEAD = 0.42, 0.10
_FEW = 3
_MESSAGE = 300


def words(text: str) -> list[str]:
    """The words of a text, those of names in pieces, too.

    Example:
        >>> words("GRPOConfig got num_iterations")
        ['grpoconfig', 'grpo', 'config', 'got', 'num_iterations', 'num', 'iterations']
    """
    found = []
    for match in _WORD.finditer(text):
        whole = match[0]
        parts = _PARTS.findall(whole)
        for one in [whole, *(parts if len(parts) > 1 else ())]:
            lowered = one.lower()
            if len(lowered) > 2 and lowered not in _COMMON:
                found.append(lowered)
    return found


def words_of(traceback: Traceback) -> list[str]:
    """The words of an exception and of where it was raised; the innermost frames, which say most."""
    said = words(traceback.type) + words(traceback.message)
    for path, function in traceback.frames[-_INNERMOST:]:
        said += words(short_path(path).removesuffix(".py").replace("/", " ")) + words(function)
    return said


class Index:
    """The entries by their words, each word the more worth the fewer entries have it."""

    def __init__(self, issues: Mapping[str, Issue]) -> None:
        weights = {code: _weights(issue) for code, issue in issues.items()}
        having = Counter(word for each in weights.values() for word in each)
        self._worth = {word: math.log(1 + len(weights) / count) for word, count in having.items()}
        self._entries: dict[str, dict[str, float]] = {}
        for code, each in weights.items():
            scaled = {word: weight * self._worth[word] for word, weight in each.items()}
            length = math.sqrt(sum(value * value for value in scaled.values())) or 1.0
            for word, value in scaled.items():
                self._entries.setdefault(word, {})[code] = value / length

    def near(self, said: Iterable[str]) -> list[str]:
        """The codes of the nearest entries, the nearest first; none where nothing is near."""
        counts = Counter(word for word in said if word in self._worth)
        query = {word: (1 + math.log(count)) * self._worth[word] for word, count in counts.items()}
        length = math.sqrt(sum(value * value for value in query.values())) or 1.0
        scores: dict[str, float] = {}
        for word, value in query.items():
            for code, weight in self._entries[word].items():
                scores[code] = scores.get(code, 0.0) + value / length * weight
        ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        return [code for code, score in ordered[:MOST_NEAR] if score >= _LEAST]


class Messages:
    """The lines that show what failed, by their telling words: another release or library says it in others."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        """Keeps them.

        Args:
            lines: Code and line of each that shows a root.
        """
        told = ((code, line, _telling(line)) for code, line in lines)
        self._lines = [(code, line, said) for code, line, said in told if len(said) >= _FEW]
        by_code: dict[str, set[str]] = {}
        for code, _, said in self._lines:
            by_code.setdefault(code, set()).update(said)
        having = Counter(word for each in by_code.values() for word in each)
        self._worth = {word: math.log(1 + len(by_code) / count) ** 2 for word, count in having.items()}
        self._strange = math.log(1 + len(by_code)) ** 2
        self._places: dict[str, list[int]] = {}
        for place, (_, _, said) in enumerate(self._lines):
            for word in said:
                self._places.setdefault(word, []).append(place)

    def alike(self, messages: Iterable[str]) -> tuple[str, str, str] | None:
        """The one entry that a message is much like: code, its line, the message."""
        best: dict[str, tuple[float, str, str]] = {}
        for message in messages:
            said = _telling(message[:_MESSAGE])
            if len(said) < _FEW:
                continue
            shared: dict[int, float] = {}
            for word in said:
                for place in self._places.get(word, ()):
                    shared[place] = shared.get(place, 0.0) + self._worth[word]
            for place, worth in shared.items():
                code, line, words_of_line = self._lines[place]
                score = worth / math.sqrt(self._all(said) * self._all(words_of_line))
                best[code] = max(best.get(code, (0.0, "", "")), (score, line, message))
        ordered = sorted(best, key=lambda code: (-best[code][0], code))
        second = best[ordered[1]][0] if len(ordered) > 1 else 0.0
        if not ordered or best[ordered[0]][0] < max(_ALIKE, second + _AHEAD):
            return None
        return ordered[0], *best[ordered[0]][1:]

    def _all(self, said: Iterable[str]) -> float:
        return sum(self._worth.get(word, self._strange) for word in said)


def _telling(message: str) -> frozenset[str]:
    return frozenset(words(message)) - _ANYTHING


def _weights(issue: Issue) -> dict[str, float]:
    """Words of an entry, each with how much it counts: the most that any of its texts gives it, dampened."""
    printed = []
    if issue.signature:
        printed = [sample.text for sample in issue.signature.samples if sample.matches]
        printed += [f"{frame.path} {frame.function}" for frame in issue.signature.frames]
        printed += list(issue.signature.any)
    texts = (
        (_PRINTED, " ".join(printed)),
        (_TITLED, issue.title),
        (_EXPLAINED, f"{issue.cause} {issue.detail}"),
    )
    found: dict[str, float] = {}
    for weight, text in texts:
        for word, count in Counter(words(text)).items():
            found[word] = max(found.get(word, 0.0), weight * (1 + 0.3 * math.log(count)))
    return found
