"""HNG013: a trainer waits for its server's answer, and the server for what the trainer sends after it."""

from __future__ import annotations

import os
import selectors

from repro.drivers import hangs, standing

NAMES = ("the trainer", "the server")
LIMIT_S = 2.0


def answer_before_weights(mitigation: str) -> None:
    """The server answers when it has the weights; the trainer sends them when it has the answer."""
    to_server, to_trainer = os.pipe(), os.pipe()
    limit = LIMIT_S if mitigation == "limit" else None
    trainer = os.fork()
    if trainer == 0:
        standing.say("ready", NAMES[0])
        if mitigation == "one_direction":
            os.write(to_server[1], b"w")
        if _waited(to_trainer[0], limit) and mitigation != "one_direction":
            os.write(to_server[1], b"w")
        standing.say("done", NAMES[0])
        os._exit(0)
    standing.say("ready", NAMES[1])
    if _waited(to_server[0], limit):
        os.write(to_trainer[1], b"a")
    standing.say("done", NAMES[1])
    os.waitpid(trainer, 0)


def _waited(descriptor: int, limit: float | None) -> bool:
    """Waits for a byte; False where the limit passed first."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(limit)) and bool(os.read(descriptor, 1))


PROGRAMS = {"answer_before_weights": answer_before_weights}

REPRO = hangs.repro(
    "HNG013",
    "Processes wait for each other in a circle",
    programs=PROGRAMS,
    names=NAMES,
    counted="processes went on",
    helps={
        "one_direction": "the trainer sends, and fetches the answer later",
        "limit": "a limit of 2 s on each wait: both go on, with an error",
    },
    simulated=("trainer and server: two processes of ours, and pipes for their connection",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
