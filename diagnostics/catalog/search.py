"""Search catalog entries (known issues, check codes) by a description in words, with BM25 over weighted fields.

English text is indexed by stems without common words, identifiers also by their parts, Chinese text by pairs of
characters; synonyms are replaced. `CatalogSearch.search` answers a user's description, `most_similar` ranks entries for
a failed log.
"""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from diagnostics.catalog.model import CheckCode, Issue

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MAX_RESULTS = 3
# Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, section 3.5 (BM25F).
_SATURATION = 2.0
_LENGTH = 0.8
"""How much a long text lowers the weight of each of its words, from 0 to 1; not applied to the fields in _NAMES."""
_WEIGHTS: dict[str, float] = _TABLE["weights"]
_NAMES = ("symptoms", "title", "aliases")
# Share of the query's weight that a result must contain: in general, and with two terms in its names. A term that is
# not in the names counts half.
_MIN_COVERAGE, _MIN_COVERAGE_OF_TWO = 0.48, 0.28
_MIN_OF_BEST = 0.4
"""A result needs this share of the best result's score."""
# Relative weight of an unknown word, and of an unknown pair of Chinese characters: most such pairs span two words.
_UNKNOWN, _UNKNOWN_PAIR = 1.0, 0.15
_WORD = re.compile(_TABLE["word"], re.ASCII)
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STOP, _SYNONYMS = frozenset(_TABLE["stop_words"].split()), _TABLE["synonyms"]
_ENDINGS = ("ations", "ation", "ing", "ies", "ied", "ed", "es", "ly", "s", "e")
_MIN_STEM = 3


def stem(word: str) -> str:
    """Return a word in lower case without its English ending and a doubled last consonant, except l and s.

    Example:
        >>> [stem(word) for word in ("updates", "updated", "updating", "update", "stopped", "weights")]
        ['updat', 'updat', 'updat', 'updat', 'stop', 'weight']
    """
    word = word.lower()
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM:
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > _MIN_STEM and word[-1] == word[-2] and word[-1] not in "aeiousl" else word


def terms(text: str) -> Iterator[str]:
    """Yield the search terms of a text: stems, parts of identifiers, pairs of Chinese characters.

    Example:
        >>> list(terms("max_model_len 显存不足"))
        ['maxmodellen', 'max', 'model', 'len', '显存', '存不', '不足']
    """
    for word in _WORD.findall(text):
        yield from _terms_of(word)


@cache
def _terms_of(word: str) -> tuple[str, ...]:
    """Return the terms of a word: the word and its parts, or their synonyms, as stems without stop words."""
    if word[0] > "\u2fff":
        return tuple(word[start : start + 2] for start in range(max(1, len(word) - 1)))
    word = "0" if word.startswith("0.") else word  # shares such as 0.9 count as one term
    parts = _PART.findall(word)
    joined = word.replace("_", "").replace("-", "")
    items = [joined, *parts] if len(parts) > 1 else [joined]
    synonyms = [synonym for item in items for synonym in _SYNONYMS.get(item.lower(), item).split()]
    return tuple(stem(item) for item in synonyms if item.lower() not in _STOP and len(item) > 1)


class CatalogSearch:
    """A BM25 index of catalog entries; a term weighs more if few entries have it."""

    def __init__(self, entries: Mapping[str, Issue | CheckCode]) -> None:
        counts = {
            code: {field: Counter(terms(text)) for field, text in _fields(entry).items()}
            for code, entry in entries.items()
        }
        total = max(1, len(entries))
        mean = {
            field: max(1.0, sum(entry[field].total() for entry in counts.values()) / total)
            for field in _WEIGHTS
        }
        self._frequencies = {code: _frequencies(entry, mean) for code, entry in counts.items()}
        names = ((code, [entry[field] for field in _NAMES]) for code, entry in counts.items())
        self._names = {code: frozenset().union(*fields) for code, fields in names}
        containing = Counter(term for entry in self._frequencies.values() for term in entry)
        self._rarity = {
            term: math.log(1 + (total - count + 0.5) / (count + 0.5)) for term, count in containing.items()
        }
        self._unknown = math.log(1 + 2 * total)

    def search(self, text: str) -> list[str]:
        """Return at most MAX_RESULTS codes of entries that fit a user's description, best first; empty if none fits."""
        query = self._query(text)
        total = sum(query.values())

        def describes(code: str) -> bool:
            in_names = query.keys() & self._names[code]
            known = query.keys() & self._frequencies[code].keys()
            coverage = sum(query[term] * (1 if term in in_names else 0.5) for term in known)
            return coverage >= total * (_MIN_COVERAGE_OF_TWO if len(in_names) > 1 else _MIN_COVERAGE)

        ranked = [(score, code) for score, code in self._rank(query) if describes(code)][:MAX_RESULTS]
        return [code for score, code in ranked if score >= _MIN_OF_BEST * ranked[0][0]]

    def most_similar(self, text: str) -> list[str]:
        """Return at most MAX_RESULTS codes of the entries most similar to a log's failures, best first."""
        return [code for _, code in self._rank(self._query(text))[:MAX_RESULTS]]

    def _rank(self, query: Mapping[str, float]) -> list[tuple[float, str]]:
        """Return the score and code of each entry with a term of the query, best first."""
        scores = []
        for code, entry in self._frequencies.items():
            if known := query.keys() & entry.keys():
                scores.append((sum(query[term] * entry[term] for term in known), code))
        return sorted(scores, key=lambda item: (-item[0], item[1]))

    def _query(self, text: str) -> dict[str, float]:
        """Return the weights of a query's terms; an unknown identifier without digits counts by its parts only."""
        query: dict[str, float] = {}
        for word in _WORD.findall(text):
            for index, term in enumerate(word_terms := _terms_of(word)):
                if term in self._rarity:
                    query[term] = self._rarity[term]
                elif term[0] > "\u2fff":
                    query[term] = _UNKNOWN_PAIR * self._unknown
                elif (index or len(word_terms) == 1 or re.search(r"\d", term)) and not term.isdecimal():
                    query[term] = _UNKNOWN * self._unknown
        return query


def _frequencies(entry: Mapping[str, Counter[str]], mean: Mapping[str, float]) -> dict[str, float]:
    """Return how often each term is in an entry, weighted by the field and by the field's length, and saturated."""
    result: dict[str, float] = {}
    for field, words in entry.items():
        length = 1.0 if field in _NAMES else 1 - _LENGTH + _LENGTH * words.total() / mean[field]
        scale = _WEIGHTS[field] / length
        for term, count in words.items():
            result[term] = result.get(term, 0.0) + scale * count
    return {term: count * (_SATURATION + 1) / (count + _SATURATION) for term, count in result.items()}


def _fields(entry: Issue | CheckCode) -> dict[str, str]:
    names = {
        "symptoms": "\n".join(entry.symptoms), "title": entry.title, "aliases": "\n".join(entry.aliases),
    }  # fmt: skip
    if isinstance(entry, CheckCode):
        causes = "\n".join(item.cause for item in entry.causes)
        return dict.fromkeys(_WEIGHTS, "") | names | {"cause": entry.about, "mitigations": causes}
    samples = entry.signature.samples if entry.signature else ()
    return names | {
        "cause": entry.cause,
        "detail": entry.detail,
        "triggers": "\n".join(trigger.about for trigger in entry.triggers),
        "samples": "\n".join(sample.text for sample in samples if sample.matches),
        "scope": " ".join((*entry.components, *entry.frameworks)),
        "mitigations": "\n".join(mitigation.description for mitigation in entry.mitigations),
    }
