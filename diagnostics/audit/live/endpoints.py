"""What can be asked of which server: samples, scores of given ids, ids of a text; one class each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from diagnostics.audit.errors import AuditError, NotAskedError
from diagnostics.audit.live import settings
from diagnostics.audit.live.client import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.client import Client

# Smaller is earlier; a trainer's own requests have 0.
_LAST = 1 << 20
_COUNTED = "vllm:rl_weight_update_operation_duration_seconds_count{"


@dataclass(frozen=True)
class Drawn:
    """A sample of the engine.

    Attributes:
        prompt: Ids that it was given.
        ids: Ids that it sampled.
        logprobs: What it reports for each of them.
        reported: The ids beside which these log-probs stand, where the endpoint tells them apart.
        ended: Why it stopped: stop, length.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reported: tuple[int, ...] = ()
    ended: str = ""


class Endpoint(Protocol):
    """A server as an audit sees it.

    Attributes:
        name: What it is called.
        why_not: For what it can't be asked (scores, ids, cache), what would let it.
    """

    name: str
    why_not: dict[str, str]
    client: Client

    def settings(self) -> dict[str, Any]:
        """What it says of itself: model, dtype, logprobs_mode, max_model_len; what is not known is not there."""

    def score(self, ids: Sequence[int], salt: str = "") -> list[float]:
        """The log-prob of each id but the first, given those before it."""

    def draw(
        self, prompts: Sequence[Sequence[int]], tokens: int, law: dict[str, Any], copies: int = 1
    ) -> list[Drawn]:
        """Samples, `copies` of each prompt, in the order of the prompts."""

    def ids_of(self, text: str) -> list[int] | None:
        """The ids of a text, with what the server puts before it; None where it does not tell."""

    def ids_of_chat(self, messages: list[dict[str, str]]) -> list[int] | None:
        """The ids of a chat by the server's template; None where it does not tell."""


class VllmServe:
    """`vllm serve`, 0.10 and newer."""

    name = "vllm serve"

    def __init__(self, client: Client, models: list[Any], model: str = "") -> None:
        """Asks a model of those that it serves: the first, where none is named.

        Raises:
            AuditError: There is none of that name.
        """
        self.client, self._models = client, models
        names = [str(each.get("id", "")) for each in models] or [""]
        if model and model not in names:
            raise AuditError(f"--model {model}: {client.address} serves {', '.join(names)}")
        self.model = model or names[0]
        self.why_not: dict[str, str] = {}
        # Behind all that the trainer asks for, where the scheduler goes by priorities; else it says nothing.
        self._last: dict[str, int] = {"priority": _LAST}

    def settings(self) -> dict[str, Any]:
        """From /v1/models, and /server_info where it has one."""
        first = self._models[0] if self._models else {}
        found: dict[str, Any] = {
            "model": self.model,
            "models": [str(each.get("id")) for each in self._models],
        }
        if isinstance(first.get("max_model_len"), int):
            found["max_model_len"] = first["max_model_len"]
        info = self.client.tried("/server_info?config_format=json")
        config = info.get("vllm_config", info) if isinstance(info, dict) else {}
        if isinstance(config, str):
            config = {"model_config": settings.of_text(config)}
            found["info"] = "text"
        model = config.get("model_config", {}) if isinstance(config, dict) else {}
        if isinstance(model, dict):
            for key in ("dtype", "logprobs_mode", "quantization", "seed", "override_generation_config"):
                if model.get(key) not in (None, {}):
                    found[key] = model[key]
            if "dtype" in found:
                found["dtype"] = str(found["dtype"]).removeprefix("torch.")
        version = self.client.tried("/version")
        if isinstance(version, dict) and isinstance(version.get("version"), str):
            found["release"] = version["version"]
        return found

    def score(self, ids: Sequence[int], salt: str = "") -> list[float]:
        """By `prompt_logprobs`, whose values no sampling parameter and no cached key changes."""
        body = {"prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        choice = self._complete(body | ({"cache_salt": salt} if salt else {}), len(ids) + 1)[0]
        found = choice.get("prompt_logprobs")
        if not isinstance(found, list) or len(found) != len(ids):
            raise AuditError(
                f"{self.client.address}: no prompt_logprobs in its answer: scores of given ids can't be had there"
            )
        return [_of(each, token) for each, token in zip(found[1:], ids[1:], strict=True)]

    def draw(
        self, prompts: Sequence[Sequence[int]], tokens: int, law: dict[str, Any], copies: int = 1
    ) -> list[Drawn]:
        """By one call with many prompts."""
        body = {
            "prompt": [list(each) for each in prompts],
            "max_tokens": tokens,
            "n": copies,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **law,
        }
        cost = sum(len(each) + copies * tokens for each in prompts)
        choices = self._complete(body, cost)
        if len(choices) != len(prompts) * copies:
            raise AuditError(
                f"{self.client.address}: {len(choices)} samples where {len(prompts) * copies} were asked for"
            )
        return [self._drawn(each, tuple(prompts[place // copies])) for place, each in enumerate(choices)]

    def _drawn(self, choice: dict[str, Any], prompt: tuple[int, ...]) -> Drawn:
        told = choice.get("logprobs") or {}
        values, names = told.get("token_logprobs"), told.get("tokens")
        if not values or not names:
            raise AuditError(
                f"{self.client.address}: no log-probs beside its samples: start it with log-probs allowed"
            )
        reported = tuple(int(str(name).removeprefix("token_id:")) for name in names)
        ids = tuple(choice.get("token_ids") or reported)
        return Drawn(
            prompt, ids, tuple(float(one) for one in values), reported, str(choice.get("finish_reason") or "")
        )

    def after(self, ids: Sequence[int], salt: str = "") -> dict[int, float]:
        """The most likely next ids with their log-probs, from whatever keys are cached."""
        body = {
            "prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
            "repetition_penalty": 1.0, "logprobs": 20, "return_tokens_as_token_ids": True,
        }  # fmt: skip
        choice = self._complete(body | ({"cache_salt": salt} if salt else {}), len(ids) + 1)[0]
        top = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
        return {int(name.removeprefix("token_id:")): float(value) for name, value in top[0].items()}

    def cache_hits(self) -> float | None:
        """Tokens that were found in the prefix cache so far; None where nothing tells."""
        text = self.client.tried("/metrics")
        if not isinstance(text, str):
            return None
        found = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"))
        ]
        return sum(found) if found else None

    def ids_of(self, text: str) -> list[int] | None:
        """By /tokenize."""
        told = self.client.tried("/tokenize", {"model": self.model, "prompt": text})
        return list(told["tokens"]) if isinstance(told, dict) and "tokens" in told else None

    def ids_of_chat(self, messages: list[dict[str, str]]) -> list[int] | None:
        """By /tokenize with messages."""
        body = {"model": self.model, "messages": messages, "add_generation_prompt": True}
        told = self.client.tried("/tokenize", body)
        return list(told["tokens"]) if isinstance(told, dict) and "tokens" in told else None

    def _complete(self, body: dict[str, Any], cost: int) -> list[dict[str, Any]]:
        try:
            answer = self.client.post("/v1/completions", {"model": self.model, **self._last, **body})
        except RefusedError as error:
            if not self._last or error.status != 400 or "priority" not in str(error):
                raise
            self._last = {}
            answer = self.client.post("/v1/completions", {"model": self.model, **body})
        self.client.tokens += cost
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not choices:
            raise AuditError(f"{self.client.address}/v1/completions: no choices in its answer")
        return sorted(choices, key=lambda each: int(each.get("index", 0)))


class TrlServe:
    """`trl vllm-serve`: samples by /generate/; newer ones score, too."""

    name = "trl vllm-serve"

    def __init__(self, client: Client) -> None:
        self.client = client
        self.why_not = {
            "ids": "the server's /tokenize, which vllm serve has",
            "cache": "a cache_salt, which vllm serve has",
        }
        told = client.tried("/openapi.json")
        paths = told.get("paths", {}) if isinstance(told, dict) else {}
        if "/get_sequence_logprobs/" not in paths:
            self.why_not["scores"] = "its /get_sequence_logprobs/, which not every release has, or vllm serve"

    def settings(self) -> dict[str, Any]:
        """It tells nothing; whether its log-probs are raw depends on the release."""
        return {}

    def score(self, ids: Sequence[int], salt: str = "") -> list[float]:
        """By /get_sequence_logprobs/."""
        del salt
        body = {"sequences": [list(ids)], "prompt_lengths": [1], "top_logprobs": 1, "response_format": "json"}
        told = self.client.post("/get_sequence_logprobs/", body)
        self.client.tokens += len(ids)
        told = told if isinstance(told, dict) else {}
        rows, names = told.get("logprobs"), told.get("logprob_token_ids")
        if not rows or not names or len(rows[0]) != len(ids) - 1:
            raise AuditError(f"{self.client.address}/get_sequence_logprobs/: no log-prob for each id")
        # Of each place the likeliest ids, the given one among them, by rank.
        return [
            float(row[list(beside).index(token)])
            for row, beside, token in zip(rows[0], names[0], ids[1:], strict=True)
        ]

    def draw(
        self, prompts: Sequence[Sequence[int]], tokens: int, law: dict[str, Any], copies: int = 1
    ) -> list[Drawn]:
        """By /generate/, whose own defaults hold for what is not said."""
        body = {"prompts": [list(each) for each in prompts], "n": copies, "max_tokens": tokens, **law}
        if body.get("top_k") == 0:
            body["top_k"] = -1
        try:
            told = self.client.post("/generate/", body)
        except RefusedError as error:
            if error.status != 422:
                raise
            raise AuditError(
                f"{self.client.address}/generate/: it takes no ids: TRL 0.29.1 and newer do"
            ) from error
        self.client.tokens += sum(len(each) + copies * tokens for each in prompts)
        told = told if isinstance(told, dict) else {}
        ids, values = told.get("completion_ids"), told.get("logprobs")
        if not ids or not values or len(ids) != len(prompts) * copies:
            raise AuditError(
                f"{self.client.address}/generate/: no ids with log-probs: it takes TRL 0.23 or newer"
            )
        flat = [[one[0] if isinstance(one, list) else one for one in row] for row in values]
        named = told.get("logprob_token_ids")
        beside = (
            [[one[0] if isinstance(one, list) else one for one in row] for row in named] if named else ids
        )
        return [
            Drawn(
                tuple(prompts[place // copies]),
                tuple(row),
                tuple(map(float, flat[place])),
                tuple(beside[place]),
            )
            for place, row in enumerate(ids)
        ]

    def ids_of(self, text: str) -> list[int] | None:
        """It has no such endpoint."""
        del text
        return None

    def ids_of_chat(self, messages: list[dict[str, str]]) -> list[int] | None:
        """The same."""
        del messages
        return None


class OwnServe:
    """`python -m grpo_core serve`: samples at a temperature, and nothing else."""

    name = "grpo_core serve"

    def __init__(self, client: Client, info: dict[str, Any]) -> None:
        self.client, self._info, self._calls = client, info, 0
        self.why_not = {
            "scores": "prompt_logprobs, which vllm serve has",
            "ids": "the server's /tokenize, which vllm serve has",
            "cache": "a cache_salt, which vllm serve has",
        }

    def settings(self) -> dict[str, Any]:
        """Its engine; log-probs are those of the law that is sampled from."""
        return {"engine": str(self._info.get("engine", "")), "logprobs_mode": "processed_logprobs"}

    def score(self, ids: Sequence[int], salt: str = "") -> list[float]:
        """It can't."""
        del ids, salt
        raise AuditError(f"{self.client.address}: it scores no given ids")

    def draw(
        self, prompts: Sequence[Sequence[int]], tokens: int, law: dict[str, Any], copies: int = 1
    ) -> list[Drawn]:
        """By /generate, each sample with a seed of its own."""
        self._calls += 1
        asked: list[dict[str, Any]] = [
            {
                "id": f"audit-{place}-{copy}",
                "prompt_ids": list(prompt),
                "seed": 7919 * self._calls + 64 * place + copy,
            }
            for place, prompt in enumerate(prompts)
            for copy in range(copies)
        ]
        params = {"max_tokens": tokens, "temperature": law.get("temperature", 1.0), "stop_ids": []}
        told = self.client.post("/generate", {"requests": asked, "params": params})
        self.client.tokens += sum(len(each["prompt_ids"]) + tokens for each in asked)
        return [
            Drawn(
                tuple(each["prompt_ids"]), tuple(one["ids"]), tuple(one["logprobs"]), (), one["finish_reason"]
            )
            for each, one in zip(asked, told["completions"], strict=True)
        ]

    def ids_of(self, text: str) -> list[int] | None:
        """It has no such endpoint."""
        del text
        return None

    def ids_of_chat(self, messages: list[dict[str, str]]) -> list[int] | None:
        """The same."""
        del messages
        return None


def identified(client: Client, model: str = "") -> Endpoint:
    """Which server this is; `model` is the one to ask, where it serves several.

    Raises:
        AuditError: Nobody is there, or nothing that can be asked.
    """
    info = client.tried("/info")
    if isinstance(info, dict) and str(info.get("schema", "")).startswith("grpo-doctor."):
        return OwnServe(client, info)
    models = client.tried("/v1/models")
    if isinstance(models, dict) and isinstance(models.get("data"), list):
        return VllmServe(client, models["data"], model)
    if isinstance(told := client.tried("/get_engine_type/", {}), dict) and "engine_type" in told:
        # ms-swift's, which has this path beside TRL's: it samples for messages, and its own template makes the ids.
        raise AuditError(
            f"{client.address}: its /infer/ takes messages, not ids: audit what the run leaves, or `vllm serve`"
            " with the same weights"
        )
    if client.tried("/get_world_size/") is not None:
        return TrlServe(client)
    client.get("/v1/models")  # what it says to that is the error: a key that is missing, another server
    raise AuditError(f"{client.address}: neither vllm serve, nor trl vllm-serve, nor grpo_core serve")


def check_awake(client: Client) -> str:
    """A server that is paused, asleep or between two halves of an update is left alone: a call would hang, or lie.

    Returns:
        What it calls its weights' version; empty where it does not tell.

    Raises:
        NotAskedError: It is one of these.
    """
    for path, key in (("/is_sleeping", "is_sleeping"), ("/is_paused", "is_paused")):
        told = client.tried(path)
        if isinstance(told, dict) and told.get(key) is True:
            word = key.removeprefix("is_").replace("sleeping", "asleep")
            raise NotAskedError(f"{client.address}: it is {word} ({path}); ask again when it samples")
    text = client.tried("/metrics")
    if isinstance(text, str) and _updating(text):
        raise NotAskedError(
            f"{client.address}: its weights are being updated (/metrics); ask again when it samples"
        )
    told = client.tried("/weight_info")
    version = told.get("weight_version") if isinstance(told, dict) else None
    return "" if version is None else str(version)


def _updating(metrics: str) -> bool:
    """Whether a weight update was begun and not finished, by what vLLM counts of them.

    >>> _updating('vllm:rl_weight_update_operation_duration_seconds_count{operation="start"} 2.0')
    True
    """
    count = {"start": 0.0, "finish": 0.0}
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("vllm:rl_weight_update_operations_in_flight{") and float(value) > 0:
            return True
        for operation in count:
            if name.startswith(_COUNTED) and f'operation="{operation}"' in name:
                count[operation] += float(value)
    return count["start"] > count["finish"]


def _of(entry: Any, token: int) -> float:
    """The log-prob of an id among those that stand at its place."""
    value = entry.get(str(token), {}) if isinstance(entry, dict) else {}
    if not isinstance(value, dict) or "logprob" not in value:
        raise AuditError(f"prompt_logprobs without id {token}: the server scored other ids than it was given")
    return float(value["logprob"])
