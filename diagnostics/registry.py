"""Registry of rules, checks, layers and repros, by their code or name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Named entries in the order in which they were added.

    >>> checks = Registry[object]("check")
    >>> @checks.add("driver")
    ... def driver(): ...
    >>> list(checks.names)
    ['driver']
    """

    def __init__(self, kind: str) -> None:
        """Args: kind: What the entries are, for error messages: "rule", "layer"."""
        self._kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str) -> Callable[[Any], Any]:
        """Return a decorator that adds an entry under a name; a name is used once."""

        def decorate(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self._kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return decorate

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._entries)

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)
