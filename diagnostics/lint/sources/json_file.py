"""JSON with line numbers, read token by token: bounded in depth and size, huge integers kept as text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from diagnostics.lint.sources.tree import MAX_DEPTH, MAX_NODES, UnreadableError
from diagnostics.lint.values import Place, Value, scalar

_TOKEN = re.compile(r'[ \t\r\n]*+(?:("(?:[^"\\\n]|\\.)*+")|([\[\]{}:,])|([^\s\[\]{}:,"]++))')
_BLANK = re.compile(r"\s*+")


def read(text: str, file: str) -> Any:
    """Reads a JSON text into dicts, lists and Values.

    Raises:
        UnreadableError: It is no JSON, or deeper or larger than a config is.
    """
    return _JsonReader(text, file).read()


class _JsonReader:
    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.position, self.line = 0, 1

    def refuse(self, problem: str) -> UnreadableError:
        return UnreadableError(f"{self.file}:{self.line}: {problem}")

    def token(self) -> tuple[str, Any]:
        """The next token: (kind, value), kinds `string`, `word`, `end` and the punctuation itself."""
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            blank = _BLANK.match(self.text, self.position)
            if blank and blank.end() == len(self.text):
                return "end", None
            raise self.refuse("not JSON")
        self.line += self.text.count("\n", self.position, match.end())
        self.position = match.end()
        if match[1] is not None:
            try:
                return "string", json.loads(match[1], strict=False)
            except ValueError:
                raise self.refuse("not JSON: a broken string") from None
        return (match[2], None) if match[2] else ("word", scalar(match[3]))

    def read(self) -> Any:
        """The whole document; an empty table or list is a Value of an empty list."""
        stack: list[_Open] = []
        for _ in range(MAX_NODES * 2):
            kind, data = self.token()
            if kind in {"{", "["}:
                if len(stack) >= MAX_DEPTH:
                    raise self.refuse(f"nested more than {MAX_DEPTH} deep: no config is")
                stack.append(_Open({} if kind == "{" else []))
            elif kind == "," and stack:
                continue
            elif kind == "string" and stack and stack[-1].wants_key:
                if self.token()[0] != ":":
                    raise self.refuse("not JSON: expected a colon")
                stack[-1].key = str(data)
            else:
                node = self._node(kind, data, stack)
                if not stack:
                    return node
                if not stack[-1].put(node):
                    raise self.refuse("not JSON: expected a key")
        raise self.refuse(f"more than {MAX_NODES} values: no config has them")

    def _node(self, kind: str, data: Any, stack: list[_Open]) -> Any:
        if kind in {"string", "word"}:
            return Value(data, Place(self.file, self.line))
        if stack and kind == ("}" if isinstance(stack[-1].node, dict) else "]"):
            return stack.pop().node or Value([], Place(self.file, self.line))
        raise self.refuse("not JSON")


@dataclass
class _Open:
    """A table or list that is being read, and the key whose value comes next."""

    node: Any
    key: str | None = None

    @property
    def wants_key(self) -> bool:
        return isinstance(self.node, dict) and self.key is None

    def put(self, node: Any) -> bool:
        """Adds a value; False where a table has no key for it."""
        if isinstance(self.node, list):
            self.node.append(node)
            return True
        if self.key is None:
            return False
        self.node[self.key] = node
        self.key = None
        return True
