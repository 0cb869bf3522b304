"""What the trainer samples with, and computes with, out of a file of its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.errors import AuditError
from diagnostics.audit.live.law import NAMES, NEUTRAL, Law

if TYPE_CHECKING:
    from pathlib import Path

_LENGTHS = ("max_completion_length", "max_prompt_length")


@dataclass(frozen=True)
class TrainerSide:
    """What is known of the trainer.

    Attributes:
        request: The sampling parameters that its requests carry; all others are left to the server.
        computes: The law by which it computes log-probs: of trainers the temperature alone.
        length: Tokens that a prompt with its completion may have; 0: not known.
        max_staleness: How many checkpoints older the engine's weights may be.
        prompts: Texts that it samples for, which may be in the engine's cache.
    """

    request: dict[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    computes: Law = field(default_factory=Law)
    length: int = 0
    max_staleness: int = 0
    prompts: tuple[str, ...] = ()


def read(path: Path | None) -> TrainerSide:
    """Reads JSON or TOML; sampling parameters may stand at any depth, under the names that vLLM has for them.

    Raises:
        AuditError: It is neither, or a value is no number.
    """
    if path is None:
        return TrainerSide()
    try:
        text = given.text(path, given.METADATA, pipes=True)
        told = given.parsed_toml(text) if path.suffix == ".toml" else given.parsed(text)
    except (OSError, ValueError) as error:
        raise AuditError(f"--trainer-config {path}: {error}") from error
    if not isinstance(told, dict):
        raise AuditError(f"--trainer-config {path}: expected settings by name")
    found = _flat(told)
    request = {name: _number(path, name, found[name]) for name in NAMES if found.get(name) is not None}
    request.setdefault("temperature", 1.0)
    if request["temperature"] <= 0:
        raise AuditError(f"--trainer-config {path}: temperature {request['temperature']:g}: expected above 0")
    if "top_k" in request:
        request["top_k"] = max(0, int(request["top_k"]))
    prompts = found.get("prompts")
    return TrainerSide(
        request,
        Law(temperature=request["temperature"]),
        sum(int(_number(path, name, found.get(name) or 0)) for name in _LENGTHS),
        int(_number(path, "max_staleness", found.get("max_staleness") or 0)),
        tuple(str(each) for each in prompts) if isinstance(prompts, list) else (),
    )


def hidden(defaults: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """The server's own defaults that change what is sampled, of those that a request leaves to it."""
    return {
        name: defaults[name]
        for name in NAMES
        if name not in request and defaults.get(name) is not None and defaults[name] != NEUTRAL[name]
        and not (name == "top_k" and defaults[name] < 0)
    }  # fmt: skip


def _flat(given: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """All settings by the last part of their names; what stands higher up goes first."""
    found = {key.rpartition(".")[2]: value for key, value in given.items() if not isinstance(value, dict)}
    for value in given.values():
        if isinstance(value, dict) and depth < 8:
            found = _flat(value, depth + 1) | found
    return found


def _number(path: Path, name: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuditError(f"--trainer-config {path}: {name} = {value!r}: expected a number")
    number: int | float = value
    return number
