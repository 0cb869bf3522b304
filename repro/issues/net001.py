"""NET001: send requests to a FastAPI application with the unmodified Prometheus middleware, which raises an error.

From FastAPI 0.137 on, `include_router` leaves an object without a path among the application's routes. Up to release
8.0.0, the Prometheus middleware that vLLM's servers use reads the path of each route at each request. A server answers
500 then, also at `/health`, and so it never counts as ready.
"""

from importlib import import_module, metadata
from typing import Any

from repro.registry import Tally, Trigger, repro

_NAMES = ("prometheus-fastapi-instrumentator",)
PATHS = ("/health", "/v1/models", "/generate")


def build_application(mitigation: str | None) -> Any:
    """Build an application like vLLM's API server: routes in a router, and the middleware around all routes.

    A mitigation adds the routes to the application, excludes them from the middleware, or leaves the middleware out.
    """
    fastapi = import_module("fastapi")
    app = fastapi.FastAPI()
    routes = app if mitigation == "routes_on_app" else fastapi.APIRouter()
    for path in PATHS:
        routes.add_api_route(path, lambda: None)
    if routes is not app:
        app.include_router(routes)
    if mitigation == "no_middleware":
        app.mount("/metrics", import_module("prometheus_client").make_asgi_app())
    else:
        excluded = list(PATHS) if mitigation == "excluded_handlers" else []
        metrics = import_module("prometheus_fastapi_instrumentator").Instrumentator
        metrics(excluded_handlers=excluded).add().instrument(app).expose(app)
    return app


def _count_answered(mitigation: str | None) -> Tally:
    """Request each path of the application without a network; count the answers with status 200."""
    client = import_module("fastapi.testclient").TestClient(build_application(mitigation))
    passed = {path: client.get(path).status_code == 200 for path in PATHS}
    return Tally.of_checks(passed, "requests are answered with 200")


def inapplicable_reason() -> str | None:
    """Return the reason why the failure cannot occur with the installed packages; None if it can."""
    try:
        fastapi, middleware = (metadata.version(name) for name in ("fastapi", *_NAMES))
    except metadata.PackageNotFoundError as error:
        return f"{error.name} is not installed here"
    if _numbers(fastapi) < (0, 137):
        return f"FastAPI {fastapi} copies a router's routes into the application"
    if _numbers(middleware) >= (8, 0, 1):
        return f"{_NAMES[0]} {middleware} passes over routes without a path"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


repro(
    "NET001",
    assertion="route_name = route.path",
    raises="AttributeError",
    function="_get_route_name",
    distributions=_NAMES,
    modules=("fastapi.testclient", "prometheus_fastapi_instrumentator"),
    simulated=("the server: empty routes, put together by the calls that vLLM's server makes",),
    triggers=[Trigger("router", _count_answered)],
    inapplicable_reason=inapplicable_reason,
)
