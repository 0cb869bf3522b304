"""Query a rollout server with the API of `vllm serve`, which TRL's server has since TRL 1.11.

`Server` reads settings and cache hits, scores given ids, returns likely next ids, samples, and tokenizes. An answer of
another structure becomes a one-line error. `check_awake` refuses a server that is asleep, paused or being updated. No
call changes weights or settings.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from diagnostics.audit.live.http_client import Client
from diagnostics.audit.live.reference import Sequences
from diagnostics.audit.live.sampling_distribution import Completion
from diagnostics.audit.results import AuditError, NotAvailableError
from diagnostics.fixes import one_line

_MAX_TEXT, _MAX_SHOWN_MODELS = 200, 100
_INT_LIMIT = 2**31
_UPDATE = re.compile(r"(?m)^vllm:rl_weight_update_operations_in_flight\{.*\} [1-9]\d{0,14}(?:\.0)?$")
_HIT_METRICS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_Answer = TypeVar("_Answer")
# Errors of reading an answer of another structure.
_WRONG_TYPES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def _explain_malformed_answers(method: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """Turn the errors that an answer of another structure causes into an AuditError that names the server."""

    @functools.wraps(method)
    def call(server: Server, *arguments: Any, **options: Any) -> _Answer:
        try:
            return method(server, *arguments, **options)
        except _WRONG_TYPES as error:
            problem = f"its answer differs from vllm serve's: {type(error).__name__}: {_short_text(error)}"
            raise server.error(problem) from error

    return call


class Server:
    """Client of a `vllm serve` of vLLM 0.10 or newer, for one of its models.

    Its methods raise AuditError for a failed call or an answer of another structure.
    """

    def __init__(self, client: Client, model: str = "") -> None:
        """Choose the named model, or the first served model for an empty name.

        Raises:
            AuditError: The server has another API, or does not serve this model.
        """
        self.client = client
        models = _object(client.call("/v1/models")).get("data")
        if not isinstance(models, list):
            raise self.error("not vllm serve, nor trl vllm-serve of TRL 1.11 or newer")
        entries = [entry for entry in models if isinstance(entry, dict)] or [{}]
        self._longest = entries[0].get("max_model_len")
        names = [str(entry.get("id", "")) for entry in entries]
        if model and model not in names:
            listed = ", ".join(one_line(_short_text(name)) for name in names[:_MAX_SHOWN_MODELS])
            raise AuditError(f"--model {model}: {client.address} serves {listed}")
        self.model = model or names[0]
        if not self.model:
            raise self.error("/v1/models lists no model")

    def error(self, problem: str) -> AuditError:
        """Return an error that names the server."""
        return AuditError(f"{self.client.address}: {problem}")

    @_explain_malformed_answers
    def settings(self) -> dict[str, Any]:
        """Return settings from /v1/models, /version and /server_info; missing ones are left out."""
        settings: dict[str, Any] = {}
        if isinstance(self._longest, int) and abs(self._longest) < _INT_LIMIT:
            settings["max_model_len"] = self._longest
        info = _object(self.client.try_call("/server_info?config_format=json"))
        model = _object(_object(info.get("vllm_config", info)).get("model_config"))
        for key in ("dtype", "logprobs_mode"):
            if model.get(key) is not None:
                settings[key] = _short_text(model[key]).removeprefix("torch.")
        release = _object(self.client.try_call("/version")).get("version")
        return settings | ({"release": _short_text(release)} if isinstance(release, str) else {})

    @_explain_malformed_answers
    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log-prob of each id but the first, by `prompt_logprobs`; one token is sampled and dropped.

        Sampling parameters and cached keys have no effect on these log-probs.
        """
        body = {"prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        entries = self._complete(body, len(ids) + 1)[0].get("prompt_logprobs")
        if not isinstance(entries, list) or len(entries) != len(ids):
            raise self.error("its answer has no prompt_logprobs: it cannot score given ids")
        return [_prompt_logprob(entry, token) for entry, token in zip(entries[1:], ids[1:], strict=True)]

    @_explain_malformed_answers
    def sample(
        self, prompts: Sequences, tokens: int, request: dict[str, Any], copies: int = 1
    ) -> list[Completion]:
        """Sample `copies` completions of at most `tokens` tokens for each prompt in one call."""
        body = {
            "prompt": [list(prompt) for prompt in prompts], "max_tokens": tokens, "n": copies, "logprobs": 0,
            "return_token_ids": True, "return_tokens_as_token_ids": True, **request,
        }  # fmt: skip
        choices = self._complete(body, sum(len(prompt) + copies * tokens for prompt in prompts))
        if len(choices) != len(prompts) * copies:
            raise self.error(f"{len(choices)} samples instead of {len(prompts) * copies}")
        owners = [tuple(prompt) for prompt in prompts for _ in range(copies)]
        return [
            self._completion(choice, prompt, tokens) for choice, prompt in zip(choices, owners, strict=True)
        ]

    def _completion(self, choice: dict[str, Any], prompt: tuple[int, ...], tokens: int) -> Completion:
        entry = choice.get("logprobs") or {}
        values, names = entry.get("token_logprobs"), entry.get("tokens")
        if not values or not names:
            raise self.error("its samples have no log-probs: start it with log-probs allowed")
        reported = tuple(map(_token_id, names))
        ids = _token_ids(choice.get("token_ids") or reported)
        if not len(ids) == len(reported) == len(values) <= tokens:
            raise ValueError(f"{len(ids)} ids with {len(values)} log-probs, at most {tokens} were requested")
        reason = _short_text(choice.get("finish_reason") or "")
        stop = choice.get("stop_reason")
        if not isinstance(stop, str | int | None):
            raise TypeError("stop_reason is neither a text nor an id")
        return Completion(prompt, ids, tuple(map(_finite, values)), reported, reason, stop)

    @_explain_malformed_answers
    def next_ids(self, ids: Sequence[int], salt: str = "") -> dict[int, float]:
        """Return the likeliest next ids with their log-probs; cached keys are used unless `salt` bypasses them."""
        body = {
            "prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
            "repetition_penalty": 1.0, "logprobs": 20, "return_tokens_as_token_ids": True,
        }  # fmt: skip
        choice = self._complete(body | ({"cache_salt": salt} if salt else {}), len(ids) + 1)[0]
        top = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
        return {_token_id(name): _finite(value) for name, value in top[0].items()}

    @_explain_malformed_answers
    def cache_hits(self) -> float | None:
        """Return the number of prefix cache hits so far, in tokens; None if unknown."""
        text = self.client.try_call("/metrics")
        lines = text.splitlines() if isinstance(text, str) else []
        hits = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(_HIT_METRICS)]
        return sum(hits) if hits else None

    @_explain_malformed_answers
    def tokenize(self, text: str | list[dict[str, str]]) -> list[int] | None:
        """Tokenize a text or a chat with the endpoint /tokenize; None if the server lacks it."""
        chat = {"messages": text, "add_generation_prompt": True}
        body = {"prompt": text} if isinstance(text, str) else chat
        answer = _object(self.client.try_call("/tokenize", {"model": self.model, **body}))
        return list(_token_ids(answer["tokens"])) if "tokens" in answer else None

    def _complete(self, body: dict[str, Any], cost: int) -> list[dict[str, Any]]:
        """Post to /v1/completions and return the choices in the order of the prompts."""
        answer = self.client.call("/v1/completions", {"model": self.model, **body})
        self.client.tokens += cost
        choices = _object(answer).get("choices")
        if not isinstance(choices, list) or not choices:
            raise self.error("its answer has no choices")
        return sorted(choices, key=lambda choice: int(choice.get("index", 0)))


def _object(answer: Any) -> dict[str, Any]:
    """Return a JSON object; an empty one for any other answer."""
    return answer if isinstance(answer, dict) else {}


def _short_text(value: object) -> str:
    """Return a server's text, or only its length if it is long, because masking takes seconds for each megabyte."""
    text = str(value)
    return text if len(text) <= _MAX_TEXT else f"a text of {len(text)} characters"


def _token_id(name: object) -> int:
    return _token_ids([int(str(name).removeprefix("token_id:"))])[0]


def _token_ids(values: Sequence[Any]) -> tuple[int, ...]:
    """Return token ids; raise ValueError for anything else."""
    if not all(type(value) is int and 0 <= value < _INT_LIMIT for value in values):
        raise ValueError(f"no token ids: {_short_text(values)}")
    return tuple(values)


def _prompt_logprob(entry: Any, token: int) -> float:
    value = _object(_object(entry).get(str(token)))
    if "logprob" not in value:
        raise AuditError(f"prompt_logprobs without id {token}: the server scored other ids than it was given")
    return _finite(value["logprob"])


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"a log-prob is {number}")
    return number


def check_awake(client: Client) -> str:
    """Check that a server is not paused, asleep or in a weight update; return its weight version or an empty text.

    Raises:
        NotAvailableError: The server is in one of these states, in which calls would hang or be wrong.
    """
    for key, state in (("is_sleeping", "asleep"), ("is_paused", "paused")):
        if _object(client.try_call(f"/{key}")).get(key) is True:
            raise NotAvailableError(f"{client.address}: it is {state} (/{key}); audit again when it samples")
    text = client.try_call("/metrics")
    if isinstance(text, str) and _UPDATE.search(text):
        reason = "its weights are being updated (/metrics); audit again when it samples"
        raise NotAvailableError(f"{client.address}: {reason}")
    version = _object(client.try_call("/weight_info")).get("weight_version")
    return "" if version is None else _short_text(version)
