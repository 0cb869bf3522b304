"""HNG013: a trainer waits for its server's answer, and the server for what the trainer sends after it."""

from __future__ import annotations

import contextlib
import os
import selectors
from typing import Any

from repro.drivers import hangs, standing

NAMES = ("the trainer", "the server")
LIMIT_S = 2.0


def answer_before_weights(mitigation: str) -> None:
    """The server answers when it has the weights; the trainer sends them when it has the answer."""
    to_server, to_trainer = os.pipe(), os.pipe()
    limit = LIMIT_S if mitigation == "limit" else None
    trainer = os.fork()
    if trainer == 0:
        standing.say("guilty", NAMES[0])
        standing.say("ready", NAMES[0])
        if mitigation == "one_direction":
            os.write(to_server[1], b"w")
        if _waited(to_trainer[0], limit) and mitigation != "one_direction":
            os.write(to_server[1], b"w")
        standing.say("done", NAMES[0])
        os._exit(0)
    standing.say("guilty", NAMES[1])
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


def actors(mitigation: str) -> None:
    """Two actors of Ray wait in ray.get for each other: a trainer for its collector's rollouts, that for weights."""
    ray = hangs.start_ray(3)

    class Party:
        def process(self) -> int:
            return os.getpid()

        def meet(self, other: Any) -> None:
            asked = other.process.remote()
            if mitigation == "one_direction":
                return  # the answer is fetched later
            with contextlib.suppress(ray.exceptions.GetTimeoutError):
                ray.get(asked, timeout=LIMIT_S if mitigation == "limit" else None)

    trainer, collector = (ray.remote(Party).remote() for _ in range(2))
    for each, name in ((trainer, "the trainer"), (collector, "the collector")):
        standing.say("guilty", name, ray.get(each.process.remote()))
    standing.say("ready", "the driver")
    ray.get([trainer.meet.remote(collector), collector.meet.remote(trainer)])
    standing.say("done", "the driver")


TRIGGERS = {
    "answer_before_weights": hangs.Standing(answer_before_weights, NAMES),
    "actors": hangs.Standing(
        actors,
        ("the driver",),
        ("ray",),
        ("trainer and collector: two actors of ours, in a cluster of Ray's own",),
    ),
}
REPRO = hangs.repro(
    "HNG013",
    "Processes wait for each other in a circle",
    triggers=TRIGGERS,
    counted="processes went on",
    helps={
        "one_direction": "one of them fetches the answer later",
        "limit": "a limit of 2 s on each wait: both go on, with an error",
    },
    simulated=("trainer and server: two processes of ours, and pipes for their connection",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
