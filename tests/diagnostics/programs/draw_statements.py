"""Draws statements out of what the tool says and its pages claim, for somebody to check one by one.

    python -m tests.diagnostics.programs.draw_statements [SEED [COUNT]]

Kinds are drawn in equal parts: ranges with their source, sentences of causes, words of mitigations, claims of pages,
and what commands print. What stands in docs/results/statements.md was drawn before, and is left out.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
# A claim names something that can be looked up.
_NAMES = re.compile(
    r"\b(?:vLLM|TRL|verl|swift|OpenRLHF|EasyR1|Ray|PyTorch|transformers|NCCL|Hydra|accelerate)\b|\d\.\d|_"
)
# A pattern for lines of a log is no statement.
_PATTERN = re.compile(r"\(\?[:!=<P]|\[\^|\\[bdswS]|\w\|\w")
_END = re.compile(r"(?<=[.:;])\s+(?=[A-Z`])")
_SHORT = 40
# As a row of an earlier draw has it, which leaves off what is long.
_ROW = re.compile(r"^\| \d+ \| \w+ \| ([^|]*?) \| (.*)")
_SHOWN, _WORDS = 60, 5
_PARTS = ("doctor", "lint", "triage", "hang", "audit", "report")


def statements() -> Iterator[tuple[str, str, str]]:
    """Each statement: its kind, where it stands, and itself."""
    for issue in catalog.load().values():
        for claim in issue.affected:
            yield "range", issue.code, f"{claim.package} {claim.versions} ({claim.evidence}): {claim.source}"
        for sentence in _END.split(" ".join(issue.cause.split())):
            yield "cause", issue.code, sentence
        for mitigation in issue.mitigations:
            for framework, edit in mitigation.edits:
                yield "mitigation", issue.code, f"{mitigation.name}, {framework}: {edit}"
    yield from _elsewhere()


def _elsewhere() -> Iterator[tuple[str, str, str]]:
    """Those that are in no entry of the catalogue: what commands print, and the pages."""
    for part in _PARTS:
        for path in sorted((ROOT / "diagnostics" / part).rglob("*.py")):
            for sentence in _printed(ast.parse(path.read_text(encoding="utf-8"))):
                yield "printed", path.relative_to(ROOT / "diagnostics").as_posix(), sentence
    docs = ROOT / "docs"
    for page in sorted([ROOT / "README.md", *docs.glob("*.md"), *docs.glob("how-to/*.md")]):
        text = re.sub(
            r"```.*?```|<!--.*?-->|^\|.*?$|^#.*?$",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL | re.MULTILINE,
        )
        for sentence in _END.split(" ".join(text.split())):
            if _NAMES.search(sentence):
                yield "page", page.name, sentence


def _printed(tree: ast.Module) -> Iterator[str]:
    """Sentences among a module's strings; what is filled in is an ellipsis.

    >>> list(_printed(ast.parse("A = re.compile('One two three four five six seven.')")))
    []
    >>> list(_printed(ast.parse("a = f'One two three four five six {7}.'")))
    ['One two three four five six ….']
    """
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    said |= {id(part) for node in _unsaid(tree) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in said:
            said |= set(map(id, node.values))
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            text = node.value
        else:
            continue
        for sentence in _END.split(" ".join(text.split())):
            if sentence[:1].isupper() and sentence.count(" ") > _WORDS and not _PATTERN.search(sentence):
                yield sentence


def _unsaid(tree: ast.Module) -> Iterator[ast.AST]:
    """What a program reads by or sends, and does not say: patterns, how lines begin, texts that ids are made of."""
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func.value) in {"re", "re2"}:
                yield from node.args
            elif node.func.attr in {"startswith", "endswith"}:
                read |= _named(node)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "'input_ids'":
            read |= _named(node)
        elif isinstance(node, ast.Dict) and {"'role'", "'content'"} <= {
            ast.unparse(key) for key in node.keys if key
        }:
            yield node
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and {each.id for each in node.targets if isinstance(each, ast.Name)} & read
        ):
            yield node.value


def _named(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _drawn() -> set[tuple[str, str]]:
    """Where each statement of an earlier draw stood, and how it began."""
    rows = map(_ROW.match, (ROOT / "docs/results/statements.md").read_text(encoding="utf-8").splitlines())
    return {(row[1], _beginning(row[2].replace("\\|", "|"))) for row in rows if row}


def _beginning(text: str) -> str:
    return text.partition(" | ")[0].partition("...")[0][:_SHOWN].strip()


def main() -> int:
    """Prints the draw."""
    given = [int(each) for each in sys.argv[1:3]]
    seed, count = (*given, *(14, 60)[len(given) :])
    kinds: dict[str, list[tuple[str, str, str]]] = {}
    drawn = _drawn()
    for found in statements():
        if len(found[2]) >= _SHORT and (found[1], _beginning(found[2])) not in drawn:
            kinds.setdefault(found[0], []).append(found)
    numbers = random.Random(seed)
    for kind in sorted(kinds):
        for _kind, where, text in numbers.sample(sorted(set(kinds[kind])), count // len(kinds)):
            print(f"{kind}\t{where}\t{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
