"""The reference rollout server: one engine over HTTP, token ids in and out.

One thread owns the engine, so calls of several clients wait for each other and none is ever inside it at the
same time as another.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import hashlib
import hmac
import math
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Security
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field

import grpo_core.types as core
from grpo_core.config import LOOPBACK
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.http_client import PROTOCOL
from grpo_core.rollout.server.engine_queue import EngineQueue, Stamped
from grpo_core.rollout.server.guard import REFUSALS, Callers, Guard, Limits, explain_refusals
from grpo_core.rollout.server.weight_routes import add_announcements, add_upload
from grpo_core.rollout.wire import encode_capabilities, encode_completions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from grpo_core.rollout.engine import Engine

TokenId = Annotated[int, Field(ge=0, strict=True)]  # a text is not taken for its number
# The first that is none ends the look at a list: a word for each of a million would take gigabytes.
# One Field a field: pydantic 2.9 takes a field for optional where one is put around another.
Ids = Annotated[list[TokenId], Field(fail_fast=True)]


class RequestBody(BaseModel):
    """One completion that is asked for."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    prompt_ids: Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    prefix: Ids = []
    budget: Annotated[int, Field(ge=0)] = 0


class ParamsBody(BaseModel):
    """How to sample: everything is said, nothing has a default."""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
    stop_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=64)]


class GenerateBody(BaseModel):
    """A batch of requests with one set of parameters."""

    requests: Annotated[list[RequestBody], Field(fail_fast=True, min_length=1, max_length=4096)]
    params: ParamsBody


class CompletionAnswer(BaseModel):
    """What was sampled for one request; `versions` has, for each id, the policy version that sampled it."""

    request_id: str
    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: core.FinishReason


class GenerateAnswer(BaseModel):
    """One completion a request, in the order of the requests; `weights` is the stamp of the update they rest on."""

    completions: list[CompletionAnswer]
    weights: str


class InfoAnswer(BaseModel):
    """Who serves."""

    model_config = {"protected_namespaces": ()}

    protocol: Annotated[str, Field(alias="schema")]
    engine: str
    policy_version: int
    capabilities: dict[str, bool | dict[str, str]]
    on_update: str
    calls: int
    limits: dict[str, float]


def create_app(
    engine: Engine,
    thread: Executor,
    *,
    token: str | None,
    limits: Limits,
    on_update: str = "wait",
    host: str = LOOPBACK[0],
) -> FastAPI:
    """The application around an engine that was built in `thread`'s one worker; `on_update` as for `EngineQueue`."""
    app = FastAPI(
        title="grpo-doctor reference rollout server",
        version="1",
        responses=REFUSALS,
        redirect_slashes=False,
        # Pages with scripts of another site, run where the server's answers can be read.
        docs_url=None,
        redoc_url=None,
        dependencies=[Security(HTTPBearer(auto_error=False))] if token else [],
    )
    app.add_middleware(Guard, callers=Callers(token, host), limits=limits)
    explain_refusals(app)
    stamped: Any = Stamped(engine)
    engines = EngineQueue(stamped, thread, limits.waiting, call_s=limits.call_s, on_update=on_update)
    app.state.engines = engines
    _add_state(app, engines, stamped, {"on_update": on_update, "limits": vars(limits)})
    _add_sampling(app, engines, stamped)
    add_upload(app, engines)
    add_announcements(app, engines, limits)
    return app


def _add_state(app: FastAPI, engines: EngineQueue, engine: Any, policy: dict[str, Any]) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answers without asking the engine."""
        return {"status": "ok"}

    @app.get("/info", response_model=InfoAnswer)
    async def info() -> JSONResponse:
        """Who serves, which policy version it holds, and how many calls run or wait."""
        answer = {
            "schema": PROTOCOL,
            "engine": engine.name,
            "policy_version": engine.policy_version,
            "capabilities": encode_capabilities(engine.capabilities),
            "calls": engines.calls,
            **policy,
        }
        return JSONResponse(answer)

    @app.get("/fingerprint")
    async def fingerprint() -> dict[str, str | None]:
        """The digest of the weights held, computed now, null where the engine can't read them; and their stamp."""
        digest, weights = await engines.call(lambda _: (engine.fingerprint(), engine.weights))
        return {"fingerprint": digest, "weights": weights}


def _add_sampling(app: FastAPI, engines: EngineQueue, engine: Any) -> None:
    @app.post("/generate", response_model=GenerateAnswer)
    async def generate(
        body: GenerateBody,
        request: Request,
        x_content_sha256: Annotated[str | None, Header(pattern="^[0-9a-fA-F]{64}$")] = None,
    ) -> JSONResponse:
        """Samples one completion a request; checks the body's checksum if there is one, and gives its own."""
        if x_content_sha256 is not None:
            _check_sum(await request.body(), x_content_sha256)
        given = body.params
        params = core.SamplingParams(given.max_tokens, given.temperature, tuple(given.stop_ids))
        requests = [
            core.Request(entry.id, tuple(entry.prompt_ids), entry.seed, tuple(entry.prefix), entry.budget)
            for entry in body.requests
        ]
        completions, weights = await engines.call(
            lambda _: (sampled(engine, requests, params), engine.weights)
        )
        answer = JSONResponse({**encode_completions(completions), "weights": weights})
        answer.headers["X-Content-SHA256"] = hashlib.sha256(answer.body).hexdigest()
        return answer

    @app.post("/abort")
    async def abort() -> dict[str, bool]:
        """Makes the running call end with what it has, reason `abort`; when none runs, nothing happens."""
        engines.abort()
        return {"aborted": True}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, bool]:
        """Makes the engine forget cached keys and values; new weights do so by themselves."""
        await engines.call(lambda engine: engine.reset_prefix_cache())
        return {"reset": True}


def _check_sum(body: bytes, expected: str) -> None:
    found = hashlib.sha256(body).hexdigest()
    if not hmac.compare_digest(found.encode(), expected.lower().encode()):
        raise HTTPException(
            400, f"checksum: {len(body)} bytes with SHA-256 {found} came, {expected} was announced"
        )


def sampled(
    engine: Engine, requests: Sequence[core.Request], params: core.SamplingParams
) -> list[core.Completion]:
    """The engine's completions, if their log-probs are numbers: JSON has no others.

    Raises:
        EngineError: The engine refused, or holds weights that are none.
    """
    completions = engine.generate(requests, params)
    for completion in completions:
        if not all(map(math.isfinite, completion.logprobs)):
            raise EngineError(
                f"{engine.name} engine, generate: request {completion.request_id} has log-probs that are no "
                f"numbers: the weights of version {engine.policy_version} hold NaN or infinity"
            )
    return completions
