"""Draws statements out of what the tool says and its pages claim, for somebody to check one by one.

    python -m tests.diagnostics.programs.draw_statements [SEED [COUNT]]

Kinds are drawn in equal parts: ranges with their source, sentences of causes, words of mitigations, claims of pages,
and what lint's rules say of themselves.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import catalogue
from diagnostics.lint.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
# A claim names something that can be looked up.
_NAMES = re.compile(
    r"\b(?:vLLM|TRL|verl|swift|OpenRLHF|EasyR1|Ray|PyTorch|transformers|NCCL|Hydra|accelerate)\b|\d\.\d|_"
)
_END = re.compile(r"(?<=[.:;])\s+(?=[A-Z`])")
_SHORT = 40


def statements() -> Iterator[tuple[str, str, str]]:
    """Each statement: its kind, where it stands, and itself."""
    for issue in catalogue.load().values():
        for claim in issue.affected:
            yield "range", issue.code, f"{claim.package} {claim.versions} ({claim.evidence}): {claim.source}"
        for sentence in _END.split(" ".join(issue.cause.split())):
            yield "cause", issue.code, sentence
        for mitigation in issue.mitigations:
            for framework, edit in mitigation.edits:
                yield "mitigation", issue.code, f"{mitigation.name}, {framework}: {edit}"
    yield from _elsewhere()


def _elsewhere() -> Iterator[tuple[str, str, str]]:
    """Those that are in no entry of the catalogue: lint's rules and the pages."""
    for rules in RULES.values():
        for rule in rules:
            yield "rule", " ".join(rule.codes), " ".join((rule.judge.__doc__ or "").split())
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = re.sub(
            r"```.*?```|<!--.*?-->|^\|.*?$|^#.*?$",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL | re.MULTILINE,
        )
        for sentence in _END.split(" ".join(text.split())):
            if _NAMES.search(sentence):
                yield "page", page.name, sentence


def main() -> int:
    """Prints the draw."""
    given = [int(each) for each in sys.argv[1:3]]
    seed, count = (*given, *(14, 60)[len(given) :])
    kinds: dict[str, list[tuple[str, str, str]]] = {}
    for found in statements():
        if len(found[2]) >= _SHORT:
            kinds.setdefault(found[0], []).append(found)
    numbers = random.Random(seed)
    for kind in sorted(kinds):
        for _kind, where, text in numbers.sample(sorted(set(kinds[kind])), count // len(kinds)):
            print(f"{kind}\t{where}\t{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
