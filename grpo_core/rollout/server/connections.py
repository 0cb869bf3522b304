"""One client's connection: what it may hold, and for how long, before and between its calls.

uvicorn waits for ever for the rest of a request's head, and for a client to read its answer. `http_protocol` is
uvicorn's own class for a connection with the limits that it lacks, that also tells the application of itself
(`EXTENSION` in the scope), as `grpo_core.rollout.server.weight_routes` reads around it.
"""

# mypy: disable-error-code="misc"
from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

EXTENSION = "grpo_core.connection"


@dataclass(frozen=True)
class ConnectionLimits:
    """What a connection may take.

    Attributes:
        most: Connections at a time. Another one takes the place of that which has waited longest for a call.
        head_s: Seconds until a call's head is here, from the connection's begin or the end of the call before; also
            those in which a client has to take some of an answer.
        head_bytes: Largest head.
        pipelined: Calls that may be sent before the first is answered.
        send_s: Seconds that a part of an answer may take.
    """

    most: int = 256
    head_s: float = 10.0
    head_bytes: int = 64 * 2**10
    pipelined: int = 16
    send_s: float = 120.0


class _Connections:
    """Those of one server, each since when: dictionaries keep their order."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.here: dict[_Limited, None] = {}
        self.waiting: dict[_Limited, None] = {}  # on which no call runs


class _Limited(asyncio.Protocol):
    """What is put before uvicorn's class."""

    held: _Connections
    transport: Any
    loop: Any
    cycle: Any
    flow: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._inner: Any = self.app  # type: ignore[has-type]
        self.app = self._called
        self._timer: asyncio.TimerHandle | None = None
        self._calls = self._head = 0
        self._unsent = -1

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.held.here[self] = None
        self._wait()
        if len(self.held.here) > self.held.limits.most:
            next(iter(self.held.waiting)).drop()  # at worst this one

    def data_received(self, data: bytes) -> None:
        before, limits = self.cycle, self.held.limits
        super().data_received(data)
        self._head = self._head + len(data) if self.cycle is before and not self._calls else 0
        # httptools has no limits of its own for either.
        if self._head > limits.head_bytes or len(getattr(self, "pipeline", ())) > limits.pipelined:
            self.drop()
        elif self.transport.is_closing() and self.cycle is not None:
            # uvicorn has refused the rest of a call whose begin it has let in: nobody is there for its answer.
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        super().connection_lost(error)

    def drop(self) -> None:
        """Ends it at once; what was not sent is not."""
        self._forget()
        self.transport.abort()

    async def _called(self, scope: Any, receive: Any, send: Any) -> None:
        """The application, while no clock of the connection runs."""
        self._calls += 1
        self._unwait()

        async def sent(message: Any) -> None:
            if (
                self.transport.is_closing()
            ):  # the client is gone, of which uvicorn is told later: uvloop raises
                send.__self__.disconnected = True
            if not self.flow.write_paused:
                await send(message)
                return
            try:
                await asyncio.wait_for(send(message), self.held.limits.send_s)
            except (TimeoutError, asyncio.TimeoutError):  # two classes on Python 3.10
                self.drop()

        scope["extensions"] = {**(scope.get("extensions") or {}), EXTENSION: self}
        try:
            await self._inner(scope, receive, sent)
        finally:
            self._calls -= 1
            if not self._calls and self in self.held.here:
                self._wait()

    def _wait(self) -> None:
        self._unsent, self.held.waiting[self] = -1, None
        self._timer = self.loop.call_later(self.held.limits.head_s, self._late)

    def _unwait(self) -> None:
        self.held.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget(self) -> None:
        self._unwait()
        self.held.here.pop(self, None)

    def _late(self) -> None:
        """No call came. Where an answer is still on its way the client has time, while it takes some of it."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent != self._unsent:
            self._unsent = unsent
            self._timer = self.loop.call_later(self.held.limits.head_s, self._late)
        else:
            self.drop()


def http_protocol(limits: ConnectionLimits | None = None) -> type[asyncio.Protocol]:
    """For `uvicorn.Config(http=...)`; the limits hold for all connections of one server together."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    held = _Connections(limits or ConnectionLimits())
    return type("LimitedConnection", (_Limited, AutoHTTPProtocol), {"held": held})
