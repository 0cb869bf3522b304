r"""What a command prints whose output a script uses, for the few that can be known: where the script lies, and counts.

`$(cd "$(dirname "$0")/.." && pwd)`, `$(echo $GPUS | tr ',' '\n' | wc -l)`. Nothing is run.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from diagnostics.lint.sources.shell_words import Lexer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from diagnostics.lint.sources.shell_words import Token

_MARKS = re.compile("[\0-\6]")
_COUNTS = re.compile(
    r"""\|\s*(?:
        tr\s+(?:-s\s+)?['"]?,['"]?\s+['"](?:\\n|\n|\s)['"]\s*\|\s*wc\s+-[lw]
      | awk\s+-F\s*['"]?,['"]?\s+['"]\{\s*print\s+NF;?\s*\}['"]
    )\s*$""",
    re.VERBOSE,
)
_PRINTS = re.compile(r"\s*(?:echo|printf\s+['\"]%s(?:\\n)?['\"])\s+(?:-[ne]\s+)?(.*)$", re.DOTALL)
_SEPARATOR = re.compile(r"\s*(?:local\s+)?IFS=['\"]?(.)['\"]?\s*;")
_LONGEST = 2000


def printed(inside: str, expanded: Callable[[Token], str]) -> str | None:
    """What the command prints; None where only running it would tell.

    Args:
        inside: The command, as in `$(...)`.
        expanded: The text of a word, with its marks.
    """
    if len(inside) > _LONGEST:
        return None
    counted = _COUNTS.search(inside)
    shown = _PRINTS.match(inside[: counted.start()] if counted else inside)
    if counted and shown:
        text = _only(shown[1], expanded)
        # A default may count as another number in a real run, which its mark says.
        return None if text is None else _soft(text) + str(_clean(text).count(",") + 1)
    separator = _SEPARATOR.match(inside)
    if separator and (shown := _PRINTS.match(inside[separator.end() :])):
        text = _only(shown[1], expanded)
        return None if text is None else text.replace(" ", separator[1])
    return _path(inside, expanded)


def _soft(text: str) -> str:
    return "\1" if "\1" in text else ""


def _clean(text: str) -> str:
    return text.replace("\1", "").strip()


def _only(text: str, expanded: Callable[[Token], str]) -> str | None:
    """The text of the one word that stands there."""
    tokens = Lexer(text, "").tokens()
    if len(tokens) != 1 or tokens[0].kind != "word":
        return None
    word = expanded(tokens[0])
    return None if "\0" in word else word


def _path(inside: str, expanded: Callable[[Token], str]) -> str | None:  # noqa: PLR0911 - one line a case
    folder: str | None = None
    for words in _statements(inside):
        texts = [expanded(word) for word in words]
        name, rest = texts[0], [text for text in texts[1:] if text not in {"--", "-P", "-f", "-e", "-m"}]
        if name == "pwd" and folder is not None and not rest:
            return folder
        if len(rest) != 1 or _MARKS.search(rest[0]):
            return None
        if name == "cd":
            folder = os.path.normpath(os.path.join(folder or "", rest[0]))  # noqa: PTH118 - the text of a path
            if not os.path.isabs(folder):  # noqa: PTH117
                return None
        elif name == "dirname" and folder is None:
            return os.path.dirname(rest[0]) or "."  # noqa: PTH120
        elif name in {"realpath", "readlink"} and folder is None and rest[0].startswith("/"):
            return os.path.normpath(rest[0])
        else:
            return None
    return None


def _statements(inside: str) -> Iterator[list[Token]]:
    """The words of each command; what is sent to /dev/null is left out."""
    words: list[Token] = []
    skips = False
    for token in Lexer(inside, "").tokens():
        if token.kind == "operator" and token.text in {">", ">>", "&>", ">&"}:
            if words and "".join(piece.text for piece in words[-1].pieces) in {"1", "2"}:
                words.pop()
            skips = True
        elif token.kind == "operator":
            if words:
                yield words
            words = []
        elif skips:
            skips = False
        else:
            words.append(token)
    if words:
        yield words
