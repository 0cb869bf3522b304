"""Search known issues by words that describe a failure: BM25 over stems, with weights for the parts of an entry.

Titles and triggers weigh more than explanations, and common words lead to the terms that entries use.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from diagnostics.catalog.model import FAMILIES, Issue

MAX_RESULTS = 3
# Words, and numbers with a meaning, such as 137 and 500.
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]+(?:_[A-Za-z0-9]+)*|\b\d{3}\b")
_STOP = frozenset([
    "a", "an", "and", "are", "as", "at", "be", "been", "but", "by", "can", "do", "does", "for", "from", "get",
    "gets", "has", "have", "how", "in", "into", "is", "it", "its", "me", "my", "no", "not", "of", "off", "on",
    "one", "or", "so", "than", "that", "the", "them", "then", "there", "this", "to", "was", "what", "when", "which",
    "who", "why", "will", "with", "you", "your", "after", "all", "always", "another", "any", "because", "before",
    "both", "cannot", "each", "every", "only", "other", "same", "still", "such", "they", "too", "very", "error",
    "fail", "fails", "failed", "failing", "problem", "issue", "run", "runs",
])  # fmt: skip
_ENDINGS = (
    "ations",
    "ation",
    "ingly",
    "ings",
    "ing",
    "ies",
    "ied",
    "edly",
    "ed",
    "ers",
    "er",
    "es",
    "ly",
    "s",
    "e",
)
_ROOT = 3
_TITLE, _TRIGGER, _CAUSE, _PRINTED, _DETAIL, _HELPS = 3.0, 2.0, 1.6, 1.4, 0.8, 0.5
_FAMILY = 4.0
# Common words and the terms that entries use for them.
_SYNONYMS = {
    "logprob": "log-prob",
    "logprobs": "log-prob",
    "oom": "memory",
    "ram": "memory host",
    "vram": "gpu memory",
    "hang": "wait",
    "hangs": "wait",
    "hung": "wait",
    "stuck": "wait",
    "freeze": "wait",
    "frozen": "wait",
    "deadlock": "wait collective",
    "deadlocks": "wait collective",
    "straggler": "rank wait",
    "timeout": "time answer collective",
    "nccl": "collective rank",
    "old": "earlier stale",
    "outdated": "earlier stale",
    "stale": "earlier",
    "updated": "weights earlier stale arrive",
    "synced": "weights earlier arrive",
    "hit": "cut limit",
    "hits": "cut limit",
    "differ": "differ other compute",
    "mismatch": "differ other compute",
    "disagree": "differ other compute",
    "kl": "ratio log-prob reference",
    "ratio": "log-prob",
    "nan": "number nan",
    "inf": "number",
    "zero": "zero worth spread differ",
    "flat": "spread differ",
    "constant": "spread differ",
    "identical": "spread differ",
    "truncated": "cut length limit",
    "max": "limit",
    "maximum": "limit",
    "eos": "end token",
    "entropy": "entropy chance",
    "collapse": "chance",
    "collapses": "chance",
    "gpus": "gpu",
    "crash": "crash died",
    "oomkilled": "killed memory",
    "gradient": "gradient grad",
    "grad": "gradient",
    "signature": "arguments",
    "parameters": "arguments",
    "slow": "wait",
    "slowest": "rank wait",
    "unreachable": "answer reach",
    "reachable": "answer reach",
}
_SYNONYM_WEIGHT = 0.5


def stem(word: str) -> str:
    """Return a word without its ending.

    Example:
        >>> [stem(word) for word in ("updates", "updated", "updating", "update", "stopped", "weights")]
        ['updat', 'updat', 'updat', 'updat', 'stop', 'weight']
    """
    word = word.lower()
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _ROOT:
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > _ROOT and word[-1] == word[-2] and word[-1] not in "aeiousl" else word


def _stems(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text.replace("log-prob", "logprob")):
        full = match[0]
        for record in {full, *full.split("_")}:
            if record.lower() not in _STOP and len(record) > 1:
                yield stem(record)


class IssueSearch:
    """An index of the entries by the stems of their words; a rare word weighs more."""

    def __init__(self, issues: Mapping[str, Issue]) -> None:
        self._weights = {code: _weights(issue) for code, issue in issues.items()}
        counts = Counter(word for entry in self._weights.values() for word in entry)
        self._rarity = {word: math.log(1 + len(issues) / count) for word, count in counts.items()}
        mean = sum(map(len, self._weights.values())) / max(1, len(issues))
        self._length = {code: 0.75 + 0.25 * len(entry) / mean for code, entry in self._weights.items()}

    def search(self, text: str) -> list[str]:
        """Return the codes of the most similar entries, best first; none if no word of the text is known."""
        query: dict[str, float] = {}
        for match in _WORD.finditer(text):
            for term in _stems(_SYNONYMS.get(match[0].lower(), "")):
                query.setdefault(term, _SYNONYM_WEIGHT)
        query |= dict.fromkeys(_stems(text), 1.0)
        scores: dict[str, float] = {}
        for code, weights in self._weights.items():
            for word, boost in query.items():
                if word in weights:
                    weight = weights[word]
                    score = boost * self._rarity[word] * weight / (weight + self._length[code])
                    scores[code] = scores.get(code, 0.0) + score
        return [
            code for code, _ in sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:MAX_RESULTS]
        ]


def _weights(issue: Issue) -> dict[str, float]:
    printed = [sample.text for sample in issue.signature.samples if sample.matches] if issue.signature else []
    texts = (
        (_TITLE, issue.title),
        (_FAMILY, FAMILIES[issue.code[:3]]),
        (_TRIGGER, " ".join(trigger.about for trigger in issue.triggers)),
        (_CAUSE, issue.cause),
        (_PRINTED, " ".join(printed)),
        (_DETAIL, issue.detail),
        (_HELPS, " ".join(mitigation.about for mitigation in issue.mitigations)),
    )
    result: dict[str, float] = {}
    for weight, text in texts:
        for word in _stems(text):
            result[word] = max(result.get(word, 0.0), weight)
    return result
