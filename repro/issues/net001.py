"""NET001: every request to an OpenAI-style server ends with 500, `/health` too, and the server never gets ready.

From FastAPI 0.137 on, `include_router` leaves an object without a path among the application's routes. The Prometheus
middleware that vLLM's servers use reads the path of each route it meets, up to its release 8.0.0, at each request.
"""

from __future__ import annotations

import asyncio
from importlib import import_module, metadata
from typing import Any

from repro.base import OTHER_RELEASE, Trigger, Work, repro

_NAMES = ("prometheus-fastapi-instrumentator",)
ASSERTION, FUNCTION = "route_name = route.path", "_get_route_name"
PATHS = ("/health", "/v1/models", "/generate")


def application(mitigation: str | None) -> Any:
    """Build an application as vLLM's API server does: routes in a router, then the metrics around it all."""
    fastapi = import_module("fastapi")
    app = fastapi.FastAPI()
    routes = app if mitigation == "routes_on_app" else fastapi.APIRouter()
    for path in PATHS:
        routes.add_api_route(path, _empty_answer)
    if routes is not app:
        app.include_router(routes)
    if mitigation == "no_middleware":
        app.mount("/metrics", import_module("prometheus_client").make_asgi_app())
    else:
        excluded = list(PATHS) if mitigation == "excluded_handlers" else []
        metrics = import_module("prometheus_fastapi_instrumentator").Instrumentator
        metrics(excluded_handlers=excluded).add().instrument(app).expose(app)
    return app


def _empty_answer() -> dict[str, str]:
    return {}


async def _get(app: Any, path: str) -> int:
    """Request a path from the application, without a network, and return the status; what it raises passes through."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
    }
    scope |= {"method": "GET", "path": path, "raw_path": path.encode(), "root_path": ""}
    scope |= {"query_string": b"", "headers": [], "client": ("test", 1), "server": ("test", 80)}
    await app(scope, receive, send)
    return statuses[0]


def _carry_out(mitigation: str | None) -> Work:
    app = application(mitigation)
    result = {path: asyncio.run(_get(app, path)) for path in PATHS}
    received = [(path, 1) for path, status in result.items() if status == 200]
    return Work(dict.fromkeys(PATHS, 1), received, counted="requests are answered with 200")


def inapplicable() -> str | None:
    """Return why it can't happen with the installed packages, or None."""
    try:
        result = {name: metadata.version(name) for name in ("fastapi", *_NAMES)}
    except metadata.PackageNotFoundError as error:
        return f"{error.name} is not installed here"
    if _numbers(result["fastapi"]) < (0, 137):
        return f"FastAPI {result['fastapi']} copies a router's routes into the application"
    if _numbers(result[_NAMES[0]]) >= (8, 0, 1):
        return f"{_NAMES[0]} {result[_NAMES[0]]} passes over routes without a path"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


repro(
    "NET001",
    assertion=ASSERTION,
    raises="AttributeError",
    function=FUNCTION,
    distributions=_NAMES,
    modules=("fastapi", "prometheus_fastapi_instrumentator"),
    simulated=("the server: routes of ours, put together by the calls that vLLM's server makes",),
    triggers=[Trigger("router", _carry_out)],
    mitigations={
        "newer_middleware": "prometheus-fastapi-instrumentator 8.0.1 or newer",
        "older_fastapi": ("FastAPI below 0.137", "NovaSky-AI/SkyRL#1810"),
        "no_middleware": "metrics mounted without the middleware",
        "routes_on_app": "routes on the application, no router",
        "excluded_handlers": "the paths excluded from the metrics",
    },
    untried=dict.fromkeys(("newer_middleware", "older_fastapi"), OTHER_RELEASE),
    inapplicable=inapplicable,
)
