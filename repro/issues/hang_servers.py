"""Repros of server hangs: a blocked event loop, and a missing response."""

from __future__ import annotations

import asyncio
import os
import time
from importlib import import_module
from typing import Any
from urllib.request import urlopen

from repro.drivers import hangs, served_engine


@hangs.trigger("HNG009", hangs.TRAINER, ("fastapi", "uvicorn"))
def own_health(mitigation: str) -> None:
    """An endpoint asks its own server's /health before it answers; the loop is asyncio's."""
    _server(mitigation, "asyncio")


@hangs.trigger("HNG009", hangs.TRAINER, ("fastapi", "uvicorn", "uvloop"))
def own_health_uvloop(mitigation: str) -> None:
    """Block the server in its own health request under uvloop, whose frames no Python stack reader shows."""
    _server(mitigation, "uvloop")


@hangs.trigger(
    "HNG009", hangs.TRAINER, ("ray",), "trainer, engine and judge: a driver and two actors of ours"
)
def get_in_actor(mitigation: str) -> None:
    """A method of an async actor calls ray.get: its loop is blocked, and so is the method that the other needs."""
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
            requests = judge.score.remote()
            return int(await requests if mitigation == "to_thread" else ray.get(requests))

    engine = ray.remote(Engine).remote()
    judge = ray.remote(Judge).remote(engine)
    hangs.report("guilty", "the engine", ray.get(engine.process.remote()))
    hangs.report("ready", *hangs.TRAINER)
    ray.get(engine.update.remote(judge))
    hangs.report("done", *hangs.TRAINER)


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
        hangs.report("guilty", "the server")
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", loop=loop)
    _up(port)
    hangs.report("ready", *hangs.TRAINER)
    with urlopen(f"http://127.0.0.1:{port}/update") as answer:
        answer.read()
    hangs.report("done", *hangs.TRAINER)


def _up(port: int) -> None:
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health"):
                return
        except OSError:
            time.sleep(0.1)


hangs.repro(
    "HNG009",
    counted="trainers got their answer",
    changes={"to_thread": "the endpoint is `def`, which FastAPI runs in a thread; the actor awaits"},
    simulated=("trainer and server: a client and two routes of ours, under FastAPI and uvicorn",),
)


TRL_CLIENT = "trl.generation.vllm_client"


@hangs.trigger("HNG010", hangs.TRAINER, ("fastapi", "uvicorn"))
def task_lost(mitigation: str) -> None:
    """An endpoint awaits a value from a background task; the task raised, and the error was not reported."""
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
        hangs.report("guilty", "the server")
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", loop="asyncio")
    served_engine.wait_for(port, "/docs")
    hangs.report("ready", *hangs.TRAINER)
    served_engine.request_status(port, "/generate", hangs.wait_limit(mitigation, "ask_again"))
    hangs.report("done", *hangs.TRAINER)


@hangs.trigger("HNG010", hangs.TRAINER, ("vllm",), "the trainer: a client of ours; the model is tiny")
def engine_paused(mitigation: str) -> None:
    """A real `vllm serve` is paused for a weight update that does not come, and gets a completion request."""
    engine, folder, port = served_engine.start()
    hangs.report("guilty", "the engine's server", engine.pid)
    served_engine.request_status(port, "/pause", None, {})
    hangs.report("ready", *hangs.TRAINER)
    if mitigation == "resume":
        served_engine.request_status(port, "/resume", None, {})
    limit = hangs.wait_limit(mitigation, "ask_again")
    served_engine.request_status(port, "/v1/completions", limit, {"model": folder} | served_engine.ASKED)
    hangs.report("done", *hangs.TRAINER)


@hangs.trigger(
    "HNG010", hangs.TRAINER, ("vllm", TRL_CLIENT), "the trainer: nothing but TRL's client; the model is tiny"
)
def trl_client(mitigation: str) -> None:
    """TRL's own client sends a request to a real `trl vllm-serve` that is paused for an update."""
    engine, _, port = served_engine.start()
    client = import_module(TRL_CLIENT).VLLMClient(base_url=f"http://127.0.0.1:{port}")
    hangs.report("guilty", "the engine's server", engine.pid)
    served_engine.request_status(port, "/pause", None, {})
    hangs.report("ready", *hangs.TRAINER)
    if mitigation == "resume":
        served_engine.request_status(port, "/resume", None, {})
    client.generate([served_engine.ASKED["prompt"]], max_tokens=4)
    hangs.report("done", *hangs.TRAINER)


hangs.repro(
    "HNG010",
    counted="trainers went on",
    changes={"ask_again": "a limit of 2 s at the client", "resume": "POST /resume"},
    simulated=("trainer and server: a client and a route of ours, under FastAPI and uvicorn",),
)


if __name__ == "__main__":
    hangs.main()
