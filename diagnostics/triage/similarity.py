"""Known issues that are similar to an unknown failure, by words and frames: suggestions, never a verdict."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from diagnostics.catalog.model import Issue
from diagnostics.logs.tracebacks import Traceback, short_path

MAX_SIMILAR = 3
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_COMMON = frozenset([
    "the", "and", "for", "not", "that", "with", "was", "are", "but", "from", "has", "have", "its", "one", "all",
    "any", "been", "can", "more", "than", "this", "which", "who", "will", "you", "file", "line", "opt", "env",
    "lib", "python", "site", "packages", "usr", "local", "home", "user", "return", "self", "args", "kwargs",
    "none", "true", "false", "raise", "error", "runtimeerror", "valueerror", "typeerror", "info", "warning",
    "debug", "error_", "in_", "most", "recent", "call", "last", "traceback",
])  # fmt: skip
# Weights of the words of an entry: its messages, its title, its explanation.
_PRINTED, _TITLED, _EXPLAINED = 3.0, 2.0, 1.0
_INNERMOST = 4
_MIN_SCORE = 0.10
# Words that Python and its libraries print for any failure.
_GENERIC = frozenset([
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
# Score of a similar message, and its lead over the messages of other entries.
_MIN_MESSAGE_SCORE, _MIN_LEAD = 0.42, 0.10
_MIN_WORDS = 3
_MESSAGE = 300


def split_words(text: str) -> list[str]:
    """Return the words of a text; names also in parts.

    Example:
        >>> split_words("GRPOConfig got num_iterations")
        ['grpoconfig', 'grpo', 'config', 'got', 'num_iterations', 'num', 'iterations']
    """
    result = []
    for match in _WORD.finditer(text):
        parts = _PARTS.findall(match[0])
        for part in [match[0], *(parts if len(parts) > 1 else ())]:
            lowered = part.lower()
            if len(lowered) > 2 and lowered not in _COMMON:
                result.append(lowered)
    return result


def traceback_words(traceback: Traceback) -> list[str]:
    """Return the words of an exception and of its innermost frames, which are the most specific."""
    result = split_words(traceback.type) + split_words(traceback.message)
    for path, function in traceback.frames[-_INNERMOST:]:
        result += split_words(short_path(path).removesuffix(".py").replace("/", " ")) + split_words(function)
    return result


class WordIndex:
    """The entries by their words; a word that few entries have counts more."""

    def __init__(self, issues: Mapping[str, Issue]) -> None:
        weights = {code: _word_weights(issue) for code, issue in issues.items()}
        frequency = Counter(word for entry in weights.values() for word in entry)
        self._rarity = {word: math.log(1 + len(weights) / count) for word, count in frequency.items()}
        self._entries: dict[str, dict[str, float]] = {}
        for code, entry in weights.items():
            scaled = {word: weight * self._rarity[word] for word, weight in entry.items()}
            length = math.sqrt(sum(value * value for value in scaled.values())) or 1.0
            for word, value in scaled.items():
                self._entries.setdefault(word, {})[code] = value / length

    def similar(self, words: Iterable[str]) -> list[str]:
        """Return the codes of the most similar entries; none if no entry is similar enough."""
        counts = Counter(word for word in words if word in self._rarity)
        query = {word: (1 + math.log(count)) * self._rarity[word] for word, count in counts.items()}
        length = math.sqrt(sum(value * value for value in query.values())) or 1.0
        scores: dict[str, float] = {}
        for word, value in query.items():
            for code, weight in self._entries[word].items():
                scores[code] = scores.get(code, 0.0) + value / length * weight
        ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        return [code for code, score in ordered[:MAX_SIMILAR] if score >= _MIN_SCORE]


class MessageIndex:
    """Messages of root causes by their specific words: other releases use other words for the same failure."""

    def __init__(self, messages: Iterable[tuple[str, str]]) -> None:
        """Index (code, message)."""
        entries = ((code, message, _specific_words(message)) for code, message in messages)
        self._messages = [entry for entry in entries if len(entry[2]) >= _MIN_WORDS]
        by_code: dict[str, set[str]] = {}
        self._positions: dict[str, list[int]] = {}
        for position, (code, _, words) in enumerate(self._messages):
            by_code.setdefault(code, set()).update(words)
            for word in words:
                self._positions.setdefault(word, []).append(position)
        frequency = Counter(word for words in by_code.values() for word in words)
        self._rarity = {word: math.log(1 + len(by_code) / count) ** 2 for word, count in frequency.items()}
        self._new_word = math.log(1 + len(by_code)) ** 2

    def similar(self, messages: Iterable[str]) -> tuple[str, str, str] | None:
        """Return the one entry whose message is similar to one of these: code, its message, the given message."""
        best: dict[str, tuple[float, str, str]] = {}
        for message in messages:
            words = _specific_words(message[:_MESSAGE])
            if len(words) < _MIN_WORDS:
                continue
            shared: dict[int, float] = {}
            for word in words:
                for position in self._positions.get(word, ()):
                    shared[position] = shared.get(position, 0.0) + self._rarity[word]
            for position, weight in shared.items():
                code, known_message, known_words = self._messages[position]
                score = weight / math.sqrt(self._total(words) * self._total(known_words))
                best[code] = max(best.get(code, (0.0, "", "")), (score, known_message, message))
        ordered = sorted(best, key=lambda code: (-best[code][0], code))
        second = best[ordered[1]][0] if len(ordered) > 1 else 0.0
        if not ordered or best[ordered[0]][0] < max(_MIN_MESSAGE_SCORE, second + _MIN_LEAD):
            return None
        return ordered[0], *best[ordered[0]][1:]

    def _total(self, words: Iterable[str]) -> float:
        return sum(self._rarity.get(word, self._new_word) for word in words)


def _specific_words(message: str) -> frozenset[str]:
    return frozenset(split_words(message)) - _GENERIC


def _word_weights(issue: Issue) -> dict[str, float]:
    """Return the words of an entry with their weights: the highest weight of its texts, times a log count."""
    messages = []
    if issue.signature:
        messages = [sample.text for sample in issue.signature.samples if sample.matches]
        messages += [f"{frame.path} {frame.function}" for frame in issue.signature.frames]
        messages += list(issue.signature.any)
    explanation = f"{issue.cause} {issue.detail}"
    texts = ((_PRINTED, " ".join(messages)), (_TITLED, issue.title), (_EXPLAINED, explanation))
    weights: dict[str, float] = {}
    for weight, text in texts:
        for word, count in Counter(split_words(text)).items():
            weights[word] = max(weights.get(word, 0.0), weight * (1 + 0.3 * math.log(count)))
    return weights
