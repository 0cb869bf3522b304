"""Compare a server's settings with those of the trainer (P0), and its tokenizer with that of the checkpoint (P10).

`check_settings` makes the first comparison, `check_tokenization` the second, which includes the chat template. This
costs no tokens. `read_trainer_settings` reads the file of `--trainer-config`: sampling parameters, lengths, prompts.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.live.checkpoint_tokenizer import Tokenizer
from diagnostics.audit.live.probe_inputs import CHAT, TEXTS
from diagnostics.audit.live.sampling_distribution import NAMES, Sampling
from diagnostics.audit.live.vllm_server import Server
from diagnostics.audit.results import AuditError, Result, clean, fault, note, skipped

_LENGTHS, _MAX_NUMBER = ("max_completion_length", "max_prompt_length"), 1e9


@dataclass(frozen=True)
class TrainerSettings:
    """The trainer's settings, as far as the audit needs them.

    Attributes:
        request: Sampling parameters of the trainer's requests; the server uses its defaults for the rest.
        sampling: Parameters with which the trainer computes log-probs: the temperature, as in known trainers.
        length: Longest prompt and completion together, in tokens; 0 if unknown.
        prompts: Texts that may be in the engine's prefix cache.
    """

    request: dict[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    sampling: Sampling = field(default_factory=Sampling)
    length: int = 0
    prompts: tuple[str, ...] = ()


def read_trainer_settings(path: Path | None) -> TrainerSettings:
    """Read the settings from JSON or TOML; they may be nested, and None gives the defaults.

    Names are vLLM's for sampling parameters, and TRL's for lengths (max_prompt_length, max_completion_length).

    Raises:
        AuditError: The file is unreadable or neither JSON nor TOML, or a value is not allowed.
    """
    if path is None:
        return TrainerSettings()
    source = f"--trainer-config {path}"
    try:
        text = safe_io.read_text(path, safe_io.METADATA_LIMIT, pipes=True)
        document = safe_io.parse_toml(text) if path.suffix == ".toml" else safe_io.parse_json(text)
    except (OSError, ValueError) as error:
        raise AuditError(f"{source}: {error}") from error
    if not isinstance(document, dict):
        raise AuditError(f"{source}: expected settings by name")
    settings = _flatten(document)
    numbers = {name: settings[name] for name in (*NAMES, *_LENGTHS) if settings.get(name) is not None}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_NUMBER:
            raise AuditError(f"{source}: {name} = {value!r}: expected a number")
    request = {"temperature": 1.0} | {name: numbers[name] for name in NAMES if name in numbers}
    if request["temperature"] <= 0:
        raise AuditError(f"{source}: temperature {request['temperature']:g}: expected above 0")
    if "top_k" in request:
        request["top_k"] = max(0, int(request["top_k"]))
    prompts, sampling = settings.get("prompts"), Sampling(temperature=request["temperature"])
    texts = tuple(map(str, prompts)) if isinstance(prompts, list) else ()
    length = sum(int(numbers.get(name, 0)) for name in _LENGTHS)
    return TrainerSettings(request, sampling, length, texts)


def _flatten(document: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return the settings of up to 9 levels by the last part of their dotted names; an outer one wins over an inner."""
    settings = {key.rpartition(".")[2]: item for key, item in document.items() if not isinstance(item, dict)}
    for value in document.values():
        if isinstance(value, dict) and depth < 8:
            settings = _flatten(value, depth + 1) | settings
    return settings


def check_settings(settings: dict[str, Any], trainer: TrainerSettings) -> list[Result]:
    """Return faults: raw log-probs at a temperature other than 1, a maximum length below the trainer's.

    Without a fault, return one result: clean, or skipped if the server does not report its logprobs_mode.
    """
    results: list[Result] = []
    mode, values = str(settings.get("logprobs_mode", "")), {"temperature": trainer.sampling.temperature}
    if mode.startswith("raw") and trainer.sampling.temperature != 1:
        results.append(fault("settings/logprobs_mode", values | {"mode": mode}))
    longest = settings.get("max_model_len")
    if isinstance(longest, int) and 0 < longest < trainer.length:
        results.append(fault("settings/length", {"engine": longest, "trainer": trainer.length}))
    if results:
        return results
    return [clean("settings") if mode else skipped("settings", "server_info")]


def check_tokenization(server: Server, tokenizer: Tokenizer | None, problem: str) -> list[Result]:
    """Check that server and checkpoint tokenize a text and a chat to the same ids.

    Skipped without a tokenizer, /tokenize or a chat template.

    Args:
        server: The audited server.
        tokenizer: Tokenizer of the checkpoint; None if it cannot be read.
        problem: Why the tokenizer cannot be read; empty if it can.
    """
    if tokenizer is None:
        return [skipped("ids", "tokenizer_unread", decisive=True, problem=problem)]
    served = server.tokenize(TEXTS[0])
    if served is None:
        return [skipped("ids", "endpoint_lacks")]
    return [_check_text(tokenizer.encode(TEXTS[0]), served), _check_chat(server, tokenizer)]


def _check_text(expected: list[int], served: list[int]) -> Result:
    """Compare the ids of a text; ids that the server puts before it are special tokens."""
    if served == expected:
        return clean("ids", count=len(expected), decisive=True)
    count = next((count for count in range(1, 4) if served[count:] == expected), 0)
    if count:
        values = {"count": count, "ids": ", ".join(map(str, served[:count]))}
        return fault("ids/special", values, count=len(expected), decisive=True)
    return fault("ids/text", _difference(expected, served), count=len(expected), decisive=True)


def _check_chat(server: Server, tokenizer: Tokenizer) -> Result:
    """Compare the ids of a conversation, which the chat templates of server and checkpoint make."""
    if not tokenizer.has_chat_template:
        return skipped("ids/template", "no_template")
    messages = [dict(message) for message in CHAT]
    served = server.tokenize(messages)
    if served is None:
        return skipped("ids/template", "endpoint_lacks:chat")
    try:
        expected = tokenizer.chat_ids(messages)
    except AuditError as error:
        return skipped("ids/template", "tokenizer_unread", decisive=True, problem=str(error))
    if served == expected:
        return clean("ids/template", count=len(expected))
    values = _difference(expected, served)
    start = max(0, values["place"] - 2)
    texts = [tokenizer.decode(ids[start : start + 8]) for ids in (expected, served)]
    fact = note("template_differs", ours=texts[0], theirs=texts[1])
    return fault("ids/template", values, evidence=(fact,), count=len(expected))


def _difference(expected: list[int], served: list[int]) -> dict[str, int]:
    """Return both lengths and the first position that differs: the shorter length if one is the start of the other."""
    pairs = enumerate(zip(expected, served, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(expected), len(served)))
    return {"place": place, "ours": len(expected), "theirs": len(served)}
