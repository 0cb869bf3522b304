"""What TRL's client for vLLM says to a server, answered by ours.

Two protocols. TRL 0.16 to 1.10 speaks to its own `trl vllm-serve`, whose paths end with a slash
(trl/scripts/vllm_serve.py of 0.17.0, 0.24.0 and 0.29.1). TRL 1.11 to 1.16 speaks to `vllm serve`, by
/v1/completions with token ids (trl/generation/vllm_client.py of 1.16.0). Sampling options that the engines here
don't have are refused by name: what TRL asks for is what it gets. Weights come over NCCL in both, which this
server doesn't take.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import grpo_core.types as core
from grpo_core.config import ConfigError
from grpo_core.rollout.serve.app import Ids, TokenId, sampled
from grpo_core.rollout.serve.guard import shortly
from grpo_core.tasks.model import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fastapi import FastAPI

    from grpo_core.rollout.serve.owner import Owner

_MOST = 4096  # completions in one call
_LONGEST_TEXT = 2**18  # characters of one prompt
_NEUTRAL: dict[str, tuple[float, ...]] = {  # what an option that isn't here may be all the same
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logprobs": (0,),
    "stream": (False,),
}
_NO_NCCL = (
    "this server takes no weights over NCCL; upload them by POST /weights (safetensors with a checksum), as "
    "grpo_core.rollout.http.remote.RemoteEngine does"
)
_NO_MESSAGES = (
    "this server samples from token ids or text; render messages, and send their ids to /v1/completions"
)
_NO_SCORING = "this server gives log-probs of what it samples, not of given tokens"
_REFUSED = {
    "/init_weight_transfer_engine": _NO_NCCL,
    "/start_weight_update": _NO_NCCL,
    "/update_weights": _NO_NCCL,
    "/finish_weight_update": _NO_NCCL,
    "/init_communicator/": _NO_NCCL,
    "/update_named_param/": _NO_NCCL,
    "/chat/": _NO_MESSAGES,
    "/v1/chat/completions": _NO_MESSAGES,
    "/v1/chat/completions/render": _NO_MESSAGES,
    "/inference/v1/generate": _NO_MESSAGES,
    "/get_sequence_logprobs/": _NO_SCORING,
}

Texts = Annotated[list[str], Field(fail_fast=True)]
Prompts = Annotated[
    Texts | Annotated[list[Ids], Field(fail_fast=True)], Field(min_length=1, max_length=_MOST)
]


class SamplingBody(BaseModel):
    """The options of both protocols; any other is let in here, to be refused by its name."""

    model_config = ConfigDict(extra="allow")

    n: Annotated[int, Field(ge=1, le=_MOST)] = 1
    max_tokens: Annotated[int, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**62)] | None = None
    logprobs: int | None = None


class CompletionsBody(SamplingBody):
    """vLLM's /v1/completions; token ids are returned whether asked for or not."""

    prompt: str | Annotated[list[TokenId], Field(fail_fast=True, min_length=1)] | Prompts
    model: str | None = None
    return_token_ids: bool = True
    return_tokens_as_token_ids: bool = True


class TrlGenerateBody(SamplingBody):
    """TRL's own /generate/."""

    prompts: Prompts
    generation_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True)
class ServedModel:
    """The model as TRL's client sees it.

    Attributes:
        name: What it is called: its folder.
        max_model_len: Longest prompt and completion together, in tokens.
        end_ids: The model's own end tokens, where a completion stops.
        tokenizer: Of the folder; None without one, and then `no_text` says why text is refused.
        no_text: One sentence.
        random: Seeds of calls that bring none.
        tokenizing: Held by whoever uses the tokenizer.
    """

    name: str
    max_model_len: int
    end_ids: tuple[int, ...]
    tokenizer: Any
    no_text: str
    random: random.Random
    tokenizing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, model_dir: str, max_model_len: int, seed: int) -> ServedModel:
        """Reads the folder."""
        try:
            tokenizer, no_text = load_tokenizer(model_dir), ""
        except ConfigError as error:
            tokenizer, no_text = None, f"text prompts need a tokenizer, and {error}; send token ids"
        return cls(
            model_dir, max_model_len, _end_ids(Path(model_dir)), tokenizer, no_text, random.Random(seed)
        )

    async def ids(self, prompts: Sequence[str | list[int]]) -> list[tuple[int, ...]]:
        """Token ids of prompts, with the tokenizer's special tokens, as vLLM adds them.

        Raises:
            HTTPException: 422: text, and no tokenizer; or a text so long that reading it would hold everybody up.
        """
        if not isinstance(prompts[0], str):
            return [tuple(ids) for ids in prompts if not isinstance(ids, str)]
        if self.no_text:
            raise HTTPException(422, self.no_text)
        longest = max(map(len, prompts))
        if longest > _LONGEST_TEXT:
            raise HTTPException(422, f"a prompt of {longest} characters; send its token ids")
        # One call after the other, each in a thread: a tokenizer is not to be called by two.
        async with self.tokenizing:
            return await asyncio.to_thread(
                lambda: [tuple(self.tokenizer(text)["input_ids"]) for text in prompts]
            )


def add_routes(app: FastAPI, owner: Owner, model_dir: str, max_model_len: int, seed: int) -> None:
    """Adds what TRL's client calls to the application; `seed` is of the seeds of calls that bring none."""
    served = ServedModel.of(model_dir, max_model_len, seed)
    _add_native(app, owner, served)
    _add_older(app, owner, served)
    for path, why in _REFUSED.items():
        app.add_api_route(
            path, _refusal(why), methods=["POST"], name="refused", description=f"Refused: {why}."
        )


def _add_native(app: FastAPI, owner: Owner, served: ServedModel) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model served."""
        entry = {"id": served.name, "object": "model", "max_model_len": served.max_model_len}
        return {"object": "list", "data": [entry]}

    @app.get("/get_world_size")
    async def get_world_size() -> dict[str, int]:
        """Processes that hold the model."""
        return {"world_size": 1}

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        """What of vLLM's configuration TRL looks at: log-probs after the temperature, and no way for NCCL."""
        model = {"model": served.name, "max_model_len": served.max_model_len}
        model["logprobs_mode"] = "processed_logprobs"
        return {"vllm_config": {"model_config": model, "weight_transfer_config": None}}

    @app.post("/v1/completions")
    async def completions(body: CompletionsBody) -> JSONResponse:
        """Samples `n` completions a prompt; `versions` has the policy version that sampled each token."""
        if body.model not in (None, served.name):
            raise HTTPException(422, f"model = {shortly(body.model)}: this server has {served.name!r}")
        given: Any = body.prompt
        several = isinstance(given, list) and not isinstance(given[0], int)
        prompts = await served.ids(given if several else [given])
        answers = await _sample(owner, served, prompts, body)
        choices = [
            {"index": index, "prompt_token_ids": prompts[index // body.n]}
            | _choice(completion, served, with_logprobs=body.logprobs is not None)
            for index, completion in enumerate(answers)
        ]
        counts = {
            "prompt_tokens": sum(map(len, prompts)),
            "completion_tokens": sum(len(completion.ids) for completion in answers),
        }
        answer = {"object": "text_completion", "created": int(time.time()), "model": served.name}
        usage = {**counts, "total_tokens": sum(counts.values())}
        return JSONResponse({**answer, "choices": choices, "usage": usage})


def _add_older(app: FastAPI, owner: Owner, served: ServedModel) -> None:
    @app.get("/health/")
    async def health() -> dict[str, str]:
        """Answers without asking the engine."""
        return {"status": "ok"}

    @app.get("/get_world_size/")
    @app.get("/get_tensor_parallel_size/")
    async def get_world_size() -> dict[str, int]:
        """Processes that hold the model, under both names that this had."""
        return {"world_size": 1, "tensor_parallel_size": 1}

    @app.post("/generate/")
    async def generate(body: TrlGenerateBody) -> JSONResponse:
        """Samples `n` completions a prompt."""
        options = _merged(body)
        prompts = await served.ids(body.prompts)
        answers = await _sample(owner, served, prompts, options)
        answer: dict[str, Any] = {"prompt_ids": prompts, "completion_ids": [c.ids for c in answers]}
        if "logprobs" in body.model_fields_set:  # TRL 0.29 on: a list for each token
            answer["logprobs"] = [[[value] for value in c.logprobs] for c in answers]
            answer["logprob_token_ids"] = [[[token] for token in c.ids] for c in answers]
        else:
            answer["logprobs"] = [c.logprobs for c in answers]
        return JSONResponse(answer)

    @app.post("/reset_prefix_cache/")
    async def reset_prefix_cache() -> dict[str, str]:
        """As without the slash."""
        await owner.call(lambda engine: engine.reset_prefix_cache())
        return {"message": "the prefix cache is empty"}

    @app.post("/close_communicator/")
    async def close_communicator() -> dict[str, str]:
        """Nothing to close: none was opened."""
        return {"message": "there is no communicator"}


async def _sample(
    owner: Owner, served: ServedModel, prompts: list[tuple[int, ...]], body: SamplingBody
) -> list[core.Completion]:
    """`n` completions a prompt, prompt by prompt. Of a given seed each has its own, as vLLM gives them: seed + k.

    Raises:
        HTTPException: 422: an option that isn't here, or the engine refused. 503: an abort cut the call short.
    """
    _refuse_options(body)
    if len(prompts) * body.n > _MOST:
        raise HTTPException(
            422, f"n = {body.n}: {len(prompts)} prompts ask for more than {_MOST} completions"
        )
    requests = []
    for place, ids in enumerate(prompts):
        for k in range(body.n):
            seed = served.random.randrange(2**62) if body.seed is None else body.seed + k
            requests.append(core.Request(f"{place}.{k}", ids, seed))
    params = core.SamplingParams(body.max_tokens, body.temperature, served.end_ids)
    completions: list[core.Completion] = await owner.call(lambda engine: sampled(engine, requests, params))
    if any(completion.finish_reason == "abort" for completion in completions):
        # TRL would train on what there is, as if it were whole; but asks again by itself after a 503.
        raise HTTPException(503, "the call was ended by an abort; ask again")
    return completions


def _refuse_options(body: SamplingBody) -> None:
    """Names the first option that would change what is sampled, or returned, and isn't here."""
    for name, value in {**(body.model_extra or {}), "logprobs": body.logprobs}.items():
        neutral = _NEUTRAL.get(name, ())
        if value is not None and value not in neutral:
            only = " or ".join(map(str, neutral))
            shown = name if name.isidentifier() and len(name) <= 80 else shortly(name)
            raise HTTPException(
                422,
                f"{shown} = {shortly(value)}: this server doesn't have that option; leave it "
                f"{f'at {only}' if only else 'out'}",
            )


def _merged(body: TrlGenerateBody) -> SamplingBody:
    """`generation_kwargs` go over the other options, as in TRL."""
    options = {**body.model_dump(exclude={"prompts", "generation_kwargs"}), **(body.generation_kwargs or {})}
    try:
        merged: SamplingBody = SamplingBody.model_validate(options)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    return merged


def _choice(completion: core.Completion, served: ServedModel, *, with_logprobs: bool) -> dict[str, Any]:
    """One completion as vLLM writes it, tokens as token ids."""
    tokens = [f"token_id:{token}" for token in completion.ids]
    pairs = zip(tokens, completion.logprobs, strict=True)
    logprobs = {
        "tokens": tokens,
        "token_logprobs": completion.logprobs,
        "top_logprobs": [{token: value} for token, value in pairs],
    }
    decode = served.tokenizer.decode if served.tokenizer is not None else lambda *_, **__: ""
    return {
        "text": decode(list(completion.ids), skip_special_tokens=True),
        "token_ids": completion.ids,
        "logprobs": logprobs if with_logprobs else None,
        "finish_reason": completion.finish_reason,
        "versions": completion.versions,
    }


def _end_ids(model_dir: Path) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, else of config.json: one, several or none."""
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.exists() else None
        if found is not None:
            return (found,) if isinstance(found, int) else tuple(found)
    return ()


def _refusal(why: str) -> Callable[[], Awaitable[None]]:
    async def refused() -> None:
        raise HTTPException(422, why)

    return refused
