"""An engine that is `trl vllm-serve` by its own protocol, of TRL 0.16 to 1.10; from 1.11 on it runs `vllm serve`.

Read in trl/scripts/vllm_serve.py of TRL 0.17.0, 0.24.0, 0.29.1 and 1.10.0. Only releases from 0.29.1 on take token
ids, so only those can be sampled from. Weights reach it by NCCL alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import Capabilities, EngineError, check_answers, check_requests
from grpo_core.rollout.http_client import SERVERS, HttpClient, identify
from grpo_core.rollout.vllm_requests import SLICES, asked_tokens, check_temperature, ended, pinned
from grpo_core.rollout.vllm_serve.engine import UNKNOWN, VllmServerEngine
from grpo_core.types import Completion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import torch

    from grpo_core.types import Request, SamplingParams

NAME = "trl vllm-serve"
# What the protocol has names of its own for.
_OWN = ("n", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "max_tokens", "logprobs")


def connect(
    host: str,
    port: int,
    *,
    timeout_s: float,
    token: str | None = None,
    folder: Path | None = None,
    sync: str = "auto",
) -> TrlServerEngine | VllmServerEngine:
    """The engine for either protocol, whichever is spoken; the arguments are `VllmServerEngine`'s.

    Raises:
        EngineError: Nobody there, or neither.
    """
    http = HttpClient(NAME, host, port, timeout_s=timeout_s, token=token)
    found = identify(http)
    if found == "grpo-core":
        raise EngineError(f"{http.where('')}: expected `trl vllm-serve`, but {SERVERS[found]} answers")
    if found == "trl":
        return TrlServerEngine(host, port, timeout_s=timeout_s, token=token)
    return VllmServerEngine(host, port, timeout_s=timeout_s, token=token, folder=folder, sync=sync, name=NAME)


class TrlServerEngine:
    """Samples by the old protocol. One call a completion: a call has one seed, and the server takes one at a time."""

    name = NAME

    def __init__(self, host: str, port: int, *, timeout_s: float, token: str | None = None) -> None:
        """Asks the server what it can be asked with.

        Raises:
            EngineError: Nobody there, or not this protocol.
        """
        self._http = HttpClient(self.name, host, port, timeout_s=timeout_s, token=token)
        schema = self._http.json("GET", "/openapi.json", repeat=True)
        try:
            schemas = schema["components"]["schemas"]
            self._fields = dict(schemas["GenerateRequest"]["properties"])
            answers = dict(schemas["GenerateResponse"]["properties"])
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self._http.where('/openapi.json')}: expected the protocol of TRL 0.16 to 1.10: {error!r}"
            ) from error
        lacks = _lacking(self._fields, answers)
        self._capabilities = Capabilities(
            seeds="seeds" not in lacks, fingerprint=False, sleep=False, update=False, why_not=lacks
        )
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What this release's protocol allows."""
        return self._capabilities

    @property
    def policy_version(self) -> int:
        """-1: no weights can be sent."""
        return -1

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests, one after another."""
        where = f"{self.name} engine, generate"
        if self._closed:
            raise EngineError(f"{where}: the engine is closed")
        for lack in ("generate", "seeds", "logprobs"):
            if lack in self._capabilities.why_not:
                raise EngineError(f"{where}: {self._capabilities.why_not[lack]}")
        # The server doesn't say how long its model's prompts may be, nor how many ids it knows: vLLM checks that.
        check_requests(requests, params, engine=self.name, vocabulary=UNKNOWN, max_model_len=UNKNOWN)
        check_temperature(params, self.name)
        deadline = self._http.deadline()
        completions = []
        for request in requests:
            body = _question(request, params)
            answer = self._http.json("POST", "/generate/", body, deadline=deadline, repeat=True)
            completions.append(_completion(answer, request, params, self._http.where("/generate/")))
        return check_answers(completions, requests, self.name)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Refused: see `capabilities.why_not`."""
        del tensors, version
        raise EngineError(f"{self.name} engine, update_weights: {self._capabilities.why_not['update']}")

    def fingerprint(self) -> str | None:
        """None: it can't be asked."""
        return None

    def abort(self) -> None:
        """Refused: see `capabilities.why_not`."""
        raise EngineError(f"{self.name} engine, abort: {self._capabilities.why_not['abort']}")

    def reset_prefix_cache(self) -> None:
        """Has the server forget cached keys and values."""
        told = self._http.json("POST", "/reset_prefix_cache/").get("message", "")
        if not str(told).endswith("True"):
            raise EngineError(
                f"{self._http.where('/reset_prefix_cache/')}: the cache was not dropped: {told!r}"
            )

    def close(self) -> None:
        """Nothing is held between calls; further ones are refused."""
        self._closed = True


def _lacking(fields: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, str]:
    """What a release of the old protocol can't do, from its own description."""
    lacks = {
        "update": "TRL's server takes weights by NCCL alone, from a trainer with a CUDA device; use `vllm serve`, or "
        "`python -m grpo_core serve`",
        "abort": "its protocol has no call for it",
        "fingerprint": "its protocol has no call for it",
        "sleep": "its protocol has no call for it",
        "slices": SLICES,
    }
    if '"integer"' not in json.dumps(fields.get("prompts", {})):
        lacks["generate"] = "it takes prompts as text alone; token ids are taken from TRL 0.29.1 on"
    if "generation_kwargs" not in fields:
        lacks["seeds"] = "it takes no seed; from TRL 0.19 on it does"
    if "logprob_token_ids" not in answers:
        lacks["logprobs"] = "it doesn't say which ids its log-probs are of; from TRL 0.29 on it does"
    return lacks


def _question(request: Request, params: SamplingParams) -> dict[str, Any]:
    """One completion: `generation_kwargs` go to vLLM's SamplingParams as they are."""
    options = pinned(params, request)
    own = {name: options.pop(name) for name in _OWN}
    return {
        "prompts": [[*request.prompt_ids, *request.prefix]],
        **own,
        "generation_kwargs": {**options, "detokenize": False},
    }


def _completion(
    answer: Mapping[str, Any], request: Request, params: SamplingParams, where: str
) -> Completion:
    """The answer to one call; why it ended is not told, and follows from the ids."""
    where = f"{where}: request {request.id}"
    try:
        (prompt,), (ids,) = answer["prompt_ids"], answer["completion_ids"]
        (values,), (named,) = answer["logprobs"], answer["logprob_token_ids"]
        ids, prompt = tuple(int(token) for token in ids), tuple(prompt)
        logprobs = tuple(float(value) for (value,) in values)
        of = tuple(token for (token,) in named)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{where}: the answer is not one completion: {error!r}") from error
    if prompt != request.prompt_ids + request.prefix or of != ids or len(logprobs) != len(ids):
        raise EngineError(f"{where}: the answer is to another request, or its log-probs are of other ids")
    asked = asked_tokens(request, params)
    if ids and ids[-1] in params.stop_ids:
        reason = "stop"
    elif len(ids) == asked:
        reason = ended("length", ids, request, params)
    else:
        raise EngineError(f"{where}: it ended after {len(ids)} of {asked} ids, on none of the stop ids")
    return Completion(request.id, ids, logprobs, (-1,) * len(ids), reason)  # type: ignore[arg-type]
