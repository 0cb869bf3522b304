"""YAML with line numbers, by libyaml's events: no tags, no objects, bounded in depth and size.

Aliases are counted each time they are used, so that a file which doubles itself with every line is refused rather
than unfolded.
"""

from __future__ import annotations

from typing import Any

import yaml

from diagnostics.lint.sources.tree import MAX_DEPTH, MAX_NODES, UnreadableError
from diagnostics.lint.values import Place, Value, scalar

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# YAML 1.1, as PyYAML and so Transformers' own parser reads it.
_WORDS = {"yes": True, "on": True, "no": False, "off": False, "": None}


def read(text: str, file: str) -> list[Any]:
    """Reads the documents of a YAML text into dicts, lists and Values.

    Raises:
        UnreadableError: It is no YAML, or deeper or larger than a config is.
    """
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, UnreadableError):
            raise
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or "not YAML"
        raise UnreadableError(f"{file}:{line}: {problem}") from None
    return builder.documents


class _Builder:
    """Builds trees out of events, without recursion."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.documents: list[Any] = []
        self.stack: list[tuple[Any, list[Any], str | None]] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.nodes = 0

    def take(self, event: Any) -> None:
        """Takes one event of the parser."""
        line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event, line), event.anchor, line)
        elif isinstance(event, yaml.AliasEvent):
            node, size = self.anchors.get(event.anchor, (Value(None, Place(self.file, line)), 1))
            self._count(size, line)
            self._add(node, None, line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if len(self.stack) >= MAX_DEPTH:
                raise UnreadableError(f"{self.file}:{line}: nested more than {MAX_DEPTH} deep: no config is")
            self._count(1, line)
            container: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            self.stack.append((container, [self.nodes, line], event.anchor))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            container, (before, started, *_), anchor = self.stack.pop()
            if anchor:
                self.anchors[anchor] = (container, self.nodes - before + 1)
            self._add(container, None, started, counted=True)

    def _scalar(self, event: Any, line: int) -> Value:
        place = Place(self.file, line)
        if not event.implicit[0]:
            return Value(event.value, place)
        lowered = event.value.lower()
        return Value(_WORDS[lowered] if lowered in _WORDS else scalar(event.value), place)

    def _count(self, size: int, line: int) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            raise UnreadableError(f"{self.file}:{line}: more than {MAX_NODES} values: no config has them")

    def _add(self, node: Any, anchor: str | None, line: int, *, counted: bool = False) -> None:
        if not counted and isinstance(node, Value):
            self._count(1, line)
        if anchor:
            self.anchors[anchor] = (node, 1)
        if not self.stack:
            self.documents.append(node)
            return
        container, state, _anchor = self.stack[-1]
        if isinstance(container, list):
            container.append(node)
        elif len(state) == 2:
            state.append(node)
        else:
            key = state.pop()
            self._put(container, key, node)

    @staticmethod
    def _put(container: dict[str, Any], key: Any, node: Any) -> None:
        if not isinstance(key, Value):
            return
        if key.data == "<<" and isinstance(node, dict):
            for name, value in node.items():
                container.setdefault(name, value)
            return
        # An empty list stands for itself, with its line.
        container[str(key.data)] = key.but([]) if node == [] else node
