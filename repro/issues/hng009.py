"""HNG009: what runs on a server's event loop waits without await: nothing else is answered, nor what it waits for."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any
from urllib.request import urlopen

from repro.drivers import hangs, standing

TRAINER = ("the trainer",)


def own_health(mitigation: str) -> None:
    """An endpoint asks its own server's /health before it answers; the loop is asyncio's."""
    _server(mitigation, "asyncio")


def own_health_uvloop(mitigation: str) -> None:
    """The same under uvloop, whose frames no reader of Python's stacks sees."""
    _server(mitigation, "uvloop")


def get_in_actor(mitigation: str) -> None:
    """A method of an async actor calls ray.get: its loop stands, and with it the method that the other one needs."""
    ray = hangs.start_ray(3)

    class Judge:
        def __init__(self, engine: Any) -> None:
            self.engine = engine

        async def score(self) -> int:
            return int(await self.engine.process.remote())

    class Engine:
        async def process(self) -> int:
            return os.getpid()

        async def update(self, judge: Any) -> int:
            asked = judge.score.remote()
            return int(await asked if mitigation == "to_thread" else ray.get(asked))

    engine = ray.remote(Engine).remote()
    judge = ray.remote(Judge).remote(engine)
    standing.say("guilty", "the engine", ray.get(engine.process.remote()))
    standing.say("ready", *TRAINER)
    ray.get(engine.update.remote(judge))
    standing.say("done", *TRAINER)


def _server(mitigation: str, loop: str) -> None:
    fastapi, uvicorn = import_module("fastapi"), import_module("uvicorn")
    app, port = fastapi.FastAPI(), hangs.free_port()

    def health() -> dict[str, str]:
        return {}

    def wait_for_it() -> dict[str, str]:
        with urlopen(f"http://127.0.0.1:{port}/health") as answer:
            answer.read()
        return {}

    async def blocking() -> dict[str, str]:
        return wait_for_it()

    app.add_api_route("/health", health)
    app.add_api_route("/update", wait_for_it if mitigation == "to_thread" else blocking)
    if not os.fork():
        standing.say("guilty", "the server")
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", loop=loop)
    _up(port)
    standing.say("ready", *TRAINER)
    with urlopen(f"http://127.0.0.1:{port}/update") as answer:
        answer.read()
    standing.say("done", *TRAINER)


def _up(port: int) -> None:
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health"):
                return
        except OSError:
            time.sleep(0.1)


TRIGGERS = {
    "own_health": hangs.Standing(own_health, TRAINER, ("fastapi", "uvicorn")),
    "own_health_uvloop": hangs.Standing(own_health_uvloop, TRAINER, ("fastapi", "uvicorn", "uvloop")),
    "get_in_actor": hangs.Standing(
        get_in_actor, TRAINER, ("ray",), ("trainer, engine and judge: a driver and two actors of ours",)
    ),
}
REPRO = hangs.repro(
    "HNG009",
    "A server's event loop is blocked by a call",
    triggers=TRIGGERS,
    counted="trainers got their answer",
    helps={"to_thread": "the endpoint is `def`, which FastAPI runs in a thread; the actor awaits"},
    simulated=("trainer and server: a client and two routes of ours, under FastAPI and uvicorn",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
