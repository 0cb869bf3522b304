"""Bodies of calls other than uploads: read whole before the endpoint, with a deadline and a limit for all together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# Of one body: what is parsed at one go takes memory, and everybody's time, by these and not by its bytes.
MOST_VALUES, MOST_CONTAINERS = 2**21, 2**17


class BodyError(Exception):
    """Raised when a body is not taken; carries a status and why."""


class Bodies:
    """What is held of all of them."""

    def __init__(self, most_bytes: int, timeout_s: float) -> None:
        """`most_bytes` of all that are held at a time; `timeout_s` for one to arrive."""
        self._most, self._timeout_s, self._held = most_bytes, timeout_s, 0

    def admit(self, size: int) -> None:
        """Takes the place of one, until `release`.

        Raises:
            BodyError: 503: there is no room.
        """
        if self._held + size > self._most:
            raise BodyError(503, "the bodies of other calls take all the room; try again later")
        self._held += size

    def release(self, size: int) -> None:
        """Gives it back."""
        self._held -= size

    async def read(self, receive: Receive, size: int) -> Receive:
        """Reads one of a known size, and gives what tells it to an application.

        Raises:
            BodyError: 408: it was too slow. 413: it has too many parts.
        """
        body, came = bytearray(), asyncio.get_running_loop().time()
        ended: Message | None = None
        while len(body) < size and ended is None:
            left = came + self._timeout_s - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(left, 0))
            except (TimeoutError, asyncio.TimeoutError) as error:
                detail = f"{len(body)} of {size} bytes came in {self._timeout_s:g} s"
                raise BodyError(408, detail) from error
            if message["type"] != "http.request":
                ended = message
                break
            body += message.get("body", b"")
        _check_parts(body)
        told: list[Any] = [{"type": "http.request", "body": bytes(body), "more_body": ended is not None}]
        if ended is not None:
            told.append(ended)

        async def again() -> Any:
            return told.pop(0) if told else await receive()

        return again


def _check_parts(body: bytearray) -> None:
    values, containers = body.count(b","), body.count(b"[") + body.count(b"{")
    if values > MOST_VALUES or containers > MOST_CONTAINERS:
        raise BodyError(
            413,
            f"the body has {values} commas and {containers} brackets, at most {MOST_VALUES} and {MOST_CONTAINERS} "
            "are read; ask in several calls",
        )
