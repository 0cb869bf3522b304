"""What a pickle holds, where that is numbers, texts and containers: nothing is named, nothing run, nothing hashed.

The library's own reader, allowed no names, still does what 140 bytes say: a key of tuples in tuples takes twice as
long to hash for each of them, a list that holds itself twice is told at twice the length, a place in its memory of two
to the power of 31 is made. Here a key is a text or a number, a container is finished before another holds it, and what
is held is counted as often as it is held.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Callable

# A recorder of 20,000 collectives holds half of it.
MOST_ITEMS = 4_000_000


class PickledError(ValueError):
    """Raised for what no recorder writes; the text says what."""


class _Reading:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        # Of each container, by its identity: how much is in it, and whether another holds it.
        self.sizes: dict[int, int] = {}
        self.held: set[int] = set()
        self.items = 0

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if len(taken) < size:
            raise PickledError("it ends in the middle")
        self.at += size
        return taken

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def push(self, value: Any, size: int = 1) -> None:
        self.items += size
        if self.items > MOST_ITEMS:
            raise PickledError("it holds more than a recorder does")
        if isinstance(value, (dict, list, tuple)):
            self.sizes[id(value)] = size
            # A value that a second one under its key put out may have stood at the same place.
            self.held.discard(id(value))
        self.stack.append(value)

    def popped(self, count: int) -> list[Any]:
        if count > len(self.stack) - (self.marks[-1] if self.marks else 0):
            raise PickledError("it takes what is not there")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def marked(self) -> list[Any]:
        if not self.marks:
            raise PickledError("it takes what is not there")
        taken = self.popped(len(self.stack) - self.marks[-1])
        self.marks.pop()
        return taken

    def hold(self, items: list[Any]) -> int:
        """Those go into a container and change no more; how much they hold."""
        self.held.update(id(item) for item in items if id(item) in self.sizes)
        return sum(self.sizes.get(id(item), 1) for item in items)

    def target(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind or id(self.stack[-1]) in self.held:
            raise PickledError("it fills what is not open")
        return self.stack[-1]

    def append(self, items: list[Any]) -> None:
        target = self.target(list)
        self.sizes[id(target)] += self.hold(items)
        target.extend(items)

    def fill(self, items: list[Any]) -> None:
        target = self.target(dict)
        if len(items) % 2 or not all(isinstance(key, (str, bytes, int, float)) for key in items[::2]):
            raise PickledError("a key is neither text nor number")
        self.sizes[id(target)] += self.hold(items)
        target.update(zip(items[::2], items[1::2], strict=True))

    def row(self, items: list[Any]) -> None:
        # What is in it was counted where it was made; it is a thing of its own even where it is empty.
        self.push((*items,))
        self.sizes[id(self.stack[-1])] = 1 + self.hold(items)

    def keep(self, at: int) -> None:
        if not self.stack:
            raise PickledError("it takes what is not there")
        self.memo[at] = self.stack[-1]

    def again(self, at: int) -> None:
        if at not in self.memo:
            raise PickledError("it takes what is not there")
        value = self.memo[at]
        size = self.sizes.get(id(value), 1)
        self.push(value, size)
        if id(value) in self.sizes:
            self.held.add(id(value))

    def text(self, form: str) -> None:
        self.push(self.take(self.number(form)).decode("utf-8", "replace"))

    def named(self) -> None:
        module, _, rest = self.data[self.at : self.at + 400].partition(b"\n")
        name = rest.partition(b"\n")[0]
        raise PickledError(
            f"it names {module.decode(errors='replace')}.{name.decode(errors='replace')}; {_NOT_RUN}"
        )

    def named_above(self) -> None:
        raise PickledError(
            f"it names {'.'.join(cut(str(part), 200) for part in self.stack[-2:])}; {_NOT_RUN}"
        )


def _outside(_: _Reading) -> None:
    raise PickledError("it refers to something outside of it")


_NOT_RUN = "nothing of it was run"
_DOES: dict[bytes, Callable[[_Reading], Any]] = {
    b"\x80": lambda reading: reading.take(1),
    b"\x95": lambda reading: reading.take(8),
    b"}": lambda reading: reading.push({}),
    b"]": lambda reading: reading.push([]),
    b")": lambda reading: reading.row([]),
    b"(": lambda reading: reading.marks.append(len(reading.stack)),
    b"N": lambda reading: reading.push(None),
    b"\x88": lambda reading: reading.push(True),
    b"\x89": lambda reading: reading.push(False),
    b"K": lambda reading: reading.push(reading.number("<B")),
    b"M": lambda reading: reading.push(reading.number("<H")),
    b"J": lambda reading: reading.push(reading.number("<i")),
    b"G": lambda reading: reading.push(reading.number(">d")),
    b"\x8a": lambda reading: reading.push(
        int.from_bytes(reading.take(reading.number("<B")), "little", signed=True)
    ),
    b"X": lambda reading: reading.text("<I"),
    b"\x8c": lambda reading: reading.text("<B"),
    b"\x8d": lambda reading: reading.text("<Q"),
    b"U": lambda reading: reading.text("<B"),
    b"T": lambda reading: reading.text("<I"),
    b"C": lambda reading: reading.push(reading.take(reading.number("<B"))),
    b"B": lambda reading: reading.push(reading.take(reading.number("<I"))),
    b"q": lambda reading: reading.keep(reading.number("<B")),
    b"r": lambda reading: reading.keep(reading.number("<I")),
    b"\x94": lambda reading: reading.keep(len(reading.memo)),
    b"h": lambda reading: reading.again(reading.number("<B")),
    b"j": lambda reading: reading.again(reading.number("<I")),
    b"a": lambda reading: reading.append(reading.popped(1)),
    b"e": lambda reading: reading.append(reading.marked()),
    b"s": lambda reading: reading.fill(reading.popped(2)),
    b"u": lambda reading: reading.fill(reading.marked()),
    b"t": lambda reading: reading.row(reading.marked()),
    b"\x85": lambda reading: reading.row(reading.popped(1)),
    b"\x86": lambda reading: reading.row(reading.popped(2)),
    b"\x87": lambda reading: reading.row(reading.popped(3)),
    b"c": _Reading.named,
    b"\x93": _Reading.named_above,
    b"P": _outside,
    b"Q": _outside,
}


def load(data: bytes) -> Any:
    r"""The one value that a pickle of protocol 1 to 5 holds.

    Raises:
        PickledError: It names something, or holds what no recorder writes.

    >>> load(b"\x80\x02}X\x01\x00\x00\x00aK\x07s.")
    {'a': 7}
    """
    reading = _Reading(data)
    while (step := reading.take(1)) != b".":
        does = _DOES.get(step)
        if does is None:
            raise PickledError(f"a step that no recorder writes: {step!r}")
        does(reading)
    if len(reading.stack) != 1 or reading.marks:
        raise PickledError("it ends in the middle")
    return reading.stack[0]
