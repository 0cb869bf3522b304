"""HNG009: an `async def` endpoint of FastAPI waits for an answer of its own server, and blocks the event loop."""

from __future__ import annotations

import threading
import time
from importlib import import_module
from urllib.request import urlopen

from repro.drivers import hangs, standing

NAMES = ("the trainer",)


def own_health(mitigation: str) -> None:
    """An endpoint asks its own server's /health before it answers."""
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
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    standing.say("ready", NAMES[0])
    with urlopen(f"http://127.0.0.1:{port}/update") as answer:
        answer.read()
    standing.say("done", NAMES[0])


PROGRAMS = {"own_health": own_health}

REPRO = hangs.repro(
    "HNG009",
    "A server's event loop is blocked by a call",
    programs=PROGRAMS,
    names=NAMES,
    counted="trainers got their answer",
    helps={"to_thread": "the endpoint is `def`, which FastAPI runs in a thread"},
    needs=("fastapi", "uvicorn"),
    simulated=("trainer and server: a client and two routes of ours, under FastAPI and uvicorn",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
