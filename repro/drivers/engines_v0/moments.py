"""Logits processors, with which vLLM's user acts within a step: they hold it, interrupt it, or fail in it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

# An attempt has its own limit; this one keeps a thread from waiting for ever if the other failed.
_LONGEST_S = 600


def simulated(what: str) -> tuple[str, ...]:
    """Names what is not real in an attempt whose moment is made by such a processor."""
    return (f"the moment: a logits processor, vLLM's own callback for its users, {what}",)


HOLDS = simulated("holds the prefill's step until the other caller has acted")
INTERRUPTS = simulated("raises SIGINT, as Ctrl-C does, in the prefill's step")
FAILS = simulated("raises in the prefill's step, as a user's faulty one would")


class Hold:
    """Holds the first step that calls it.

    Attributes:
        inside: set once that step is held.
        go: lets it go on when set.
    """

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()
        self._held = False

    def __call__(self, _tokens: Any, logits: Any) -> Any:
        """Is called by the sampler for each token of its request."""
        if not self._held:
            self._held = True
            self.inside.set()
            self.go.wait(_LONGEST_S)
        return logits


class FaultyProcessorError(Exception):
    """A user's logits processor failed."""


class Once:
    """Does something within the first step that calls it, and nothing from then on.

    Args:
        what: is done there.
    """

    def __init__(self, what: Callable[[], object]) -> None:
        self._what: Callable[[], object] | None = what

    def __call__(self, _tokens: Any, logits: Any) -> Any:
        """Is called by the sampler for each token of its request."""
        what, self._what = self._what, None
        if what:
            what()
        return logits


def interrupt() -> Once:
    """Has the kernel send this process SIGINT, whose handler in Python raises KeyboardInterrupt."""
    return Once(lambda: signal.raise_signal(signal.SIGINT))


def fail() -> Once:
    """Raises."""
    return Once(_fail)


def _fail() -> None:
    raise FaultyProcessorError("of a shape it did not expect")
