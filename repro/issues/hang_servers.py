"""Reproduce trainers that wait forever for a server or an actor: unmodified FastAPI, Ray, vLLM and TRL's client.

HNG009: a server blocks its own event loop. HNG010: a server never answers a request. Each decorated function is a
trigger; its name is the trigger's name, and its argument the name of a mitigation to apply, or "".
"""

import asyncio
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from repro.drivers import hangs, served_engine


@hangs.trigger("HNG009", needs=("fastapi", "uvicorn"))
def own_health(mitigation: str) -> None:
    """An endpoint requests its own server's /health before it answers; the loop is asyncio's."""
    _request_own_health(mitigation, "asyncio")


@hangs.trigger("HNG009", needs=("fastapi", "uvicorn", "uvloop"))
def own_health_uvloop(mitigation: str) -> None:
    """An endpoint requests its own server's /health under uvloop, whose loop is compiled and has no Python frames."""
    _request_own_health(mitigation, "uvloop")


def _request_own_health(mitigation: str, loop: str) -> None:
    """Run a server whose endpoint requests the server's own /health; `to_thread` runs the endpoint in a thread."""
    port = hangs.free_port()

    def health() -> dict[str, str]:
        return {}

    def wait_for_health() -> dict[str, str]:
        served_engine.request_status(port, "/health")
        return {}

    async def block_loop() -> dict[str, str]:
        return wait_for_health()

    update = wait_for_health if mitigation == "to_thread" else block_loop
    _serve(port, {"/health": health, "/update": update}, loop)
    with hangs.report_wait():
        served_engine.request_status(port, "/update")


def _serve(port: int, routes: dict[str, Callable[[], object]], loop: str = "asyncio") -> None:
    """Run a FastAPI application with uvicorn in a forked process, and wait until it answers."""
    fastapi, uvicorn = import_module("fastapi"), import_module("uvicorn")
    app = fastapi.FastAPI()
    for path, endpoint in routes.items():
        app.add_api_route(path, endpoint)
    if not os.fork():
        hangs.report("blocking", "the server")
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", loop=loop)
    served_engine.wait_for_server(port, "/docs")


@hangs.trigger("HNG009", needs=("ray",), simulated="trainer, engine and judge: a driver and two small actors")
def get_in_actor(mitigation: str) -> None:
    """A method of an async actor calls ray.get: it blocks the event loop, on which the awaited method would run."""
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
            reference = judge.score.remote()
            return int(await reference if mitigation == "to_thread" else ray.get(reference))

    engine = ray.remote(Engine).remote()
    judge = ray.remote(Judge).remote(engine)
    hangs.report("blocking", "the engine", ray.get(engine.process.remote()))
    with hangs.report_wait():
        ray.get(engine.update.remote(judge))


hangs.repro("HNG009", "trainer and server: a client and two routes, under FastAPI and uvicorn")


TRL_CLIENT = "trl.generation.vllm_client"


@hangs.trigger("HNG010", needs=("fastapi", "uvicorn"))
def task_lost(mitigation: str) -> None:
    """An endpoint awaits a value from a background task; the task raised, and the error was not reported."""

    async def generate() -> dict[str, str]:
        finished = asyncio.Event()

        async def run() -> None:
            float("no number")
            finished.set()

        task = asyncio.create_task(run())
        await finished.wait()
        return {"task": str(task)}

    port = hangs.free_port()
    _serve(port, {"/generate": generate})
    with hangs.report_wait():
        served_engine.request_status(port, "/generate", hangs.wait_limit(mitigation, "ask_again"))


@hangs.trigger("HNG010", needs=("vllm",), simulated=served_engine.CLIENT_SIMULATED)
def engine_paused(mitigation: str) -> None:
    """A real `vllm serve` is paused for a weight update that does not come, and gets a completion request."""
    folder, port = _start_paused_engine()
    with hangs.report_wait():
        if mitigation == "resume":
            served_engine.request_status(port, "/resume", document={})
        served_engine.request_completion(port, folder, hangs.wait_limit(mitigation, "ask_again"))


@hangs.trigger("HNG010", needs=("vllm", TRL_CLIENT), simulated="the trainer: TRL's client; the model is tiny")
def trl_client(mitigation: str) -> None:
    """TRL's own client sends a request to a real `vllm serve` that is paused for an update."""
    _, port = _start_paused_engine()
    client = import_module(TRL_CLIENT).VLLMClient(base_url=f"http://127.0.0.1:{port}")
    with hangs.report_wait():
        if mitigation == "resume":
            served_engine.request_status(port, "/resume", document={})
        client.generate([served_engine.REQUEST["prompt"]], max_tokens=4)


def _start_paused_engine() -> tuple[str, int]:
    """Start a real `vllm serve` and pause it; return the model's folder and the port."""
    engine, folder, port = served_engine.start()
    hangs.report("blocking", "the engine's server", engine.pid)
    served_engine.request_status(port, "/pause", document={})
    return folder, port


hangs.repro("HNG010", "trainer and server: a client and a route, under FastAPI and uvicorn")


if __name__ == "__main__":
    hangs.main()
