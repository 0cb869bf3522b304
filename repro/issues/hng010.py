"""HNG010: a server has nothing to do, and owes an answer."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module

from repro.drivers import hangs, served_engine, standing

TRAINER = ("the trainer",)
LIMIT_S = 2.0


def task_lost(mitigation: str) -> None:
    """An endpoint awaits what a background task would set; the task raised, and nobody was told."""
    fastapi, uvicorn = import_module("fastapi"), import_module("uvicorn")
    app, port = fastapi.FastAPI(), hangs.free_port()

    async def generate() -> dict[str, str]:
        finished = asyncio.Event()

        async def run() -> None:
            float("no number")
            finished.set()

        task = asyncio.create_task(run())
        await finished.wait()
        return {"task": str(task)}

    app.add_api_route("/generate", generate)
    if not os.fork():
        standing.say("guilty", "the server")
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", loop="asyncio")
    served_engine.wait_for(port, "/docs")
    standing.say("ready", *TRAINER)
    served_engine.ask(port, "/generate", LIMIT_S if mitigation == "ask_again" else None)
    standing.say("done", *TRAINER)


def engine_paused(mitigation: str) -> None:
    """A real `vllm serve` is paused for a weight update that does not come, and then asked for a completion."""
    engine, folder, port = served_engine.start()
    standing.say("guilty", "the engine's server", engine.pid)
    served_engine.ask(port, "/pause", None, {})
    standing.say("ready", *TRAINER)
    if mitigation == "resume":
        served_engine.ask(port, "/resume", None, {})
    limit = LIMIT_S if mitigation == "ask_again" else None
    served_engine.ask(port, "/v1/completions", limit, {"model": folder} | served_engine.ASKED)
    standing.say("done", *TRAINER)


TRIGGERS = {
    "task_lost": hangs.Standing(task_lost, TRAINER, ("fastapi", "uvicorn")),
    "engine_paused": hangs.Standing(
        engine_paused, TRAINER, ("vllm",), ("the trainer: a client of ours; the model is tiny",)
    ),
}
REPRO = hangs.repro(
    "HNG010",
    "A server has nothing to do, and owes an answer",
    triggers=TRIGGERS,
    counted="trainers went on",
    helps={"ask_again": "a limit of 2 s at the client", "resume": "POST /resume"},
    only={"resume": ("engine_paused",)},
    simulated=("trainer and server: a client and a route of ours, under FastAPI and uvicorn",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
