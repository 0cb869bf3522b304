"""HNG010: a server has nothing to do, and owes an answer."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module

from repro.drivers import hangs, served_engine, standing

TRAINER = ("the trainer",)
TRL_CLIENT = "trl.generation.vllm_client"
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


def trl_client(mitigation: str) -> None:
    """TRL's own client asks a real `vllm serve`, which `trl vllm-serve` runs, while that is paused for an update."""
    engine, _, port = served_engine.start()
    client = import_module(TRL_CLIENT).VLLMClient(base_url=f"http://127.0.0.1:{port}")
    standing.say("guilty", "the engine's server", engine.pid)
    served_engine.ask(port, "/pause", None, {})
    standing.say("ready", *TRAINER)
    if mitigation == "resume":
        served_engine.ask(port, "/resume", None, {})
    client.generate([served_engine.ASKED["prompt"]], max_tokens=4)
    standing.say("done", *TRAINER)


TRIGGERS = {
    "task_lost": hangs.Standing(task_lost, TRAINER, ("fastapi", "uvicorn")),
    "engine_paused": hangs.Standing(
        engine_paused, TRAINER, ("vllm",), ("the trainer: a client of ours; the model is tiny",)
    ),
    "trl_client": hangs.Standing(
        trl_client,
        TRAINER,
        ("vllm", TRL_CLIENT),
        ("the trainer: nothing but TRL's client; the model is tiny",),
    ),
}
REPRO = hangs.repro(
    "HNG010",
    "A server has nothing to do, and owes an answer",
    triggers=TRIGGERS,
    counted="trainers went on",
    helps={"ask_again": "a limit of 2 s at the client", "resume": "POST /resume"},
    only={"ask_again": ("task_lost", "engine_paused"), "resume": ("engine_paused", "trl_client")},
    simulated=("trainer and server: a client and a route of ours, under FastAPI and uvicorn",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
