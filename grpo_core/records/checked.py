"""Whether a recorded step is one: its checksum says that it is whole, and whoever changed it wrote that, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FINISHED = ("stop", "length", "abort")
# Name -> type and dimensions of the numbers, as docs/rollout-format.md has them; what has an end in `?` may be missing.
_NUMBERS = {
    "prompt_ids": (int, 1),
    "prompt_lengths": (int, 1),
    "prompt_index": (int, 1),
    "completion_ids": (int, 1),
    "completion_lengths": (int, 1),
    "behaviour_logprobs": (float, 1),
    "proximal_logprobs?": (float, 1),
    "policy_versions": (int, 1),
    "seeds": (int, 1),
    "rewards": (float, 1),
    "advantages": (float, 1),
    "trained": (bool, 1),
}
_SIGNED = {"seeds"}
_LINE = {"policy_version": int, "prompts": list, "settings": dict, "result": dict, "scores": list}


def check(entry: dict[str, Any], numbers: dict[str, Any]) -> None:
    """Refuses what no program writes that follows the format.

    Args:
        entry: The step's line.
        numbers: Name -> what its tensor holds, as lists.

    Raises:
        ValueError: Something is of another type or out of its bounds; one line that says what.
        LookupError: Something is missing.
    """
    for problem in (*_of_numbers(numbers), *_of_line(entry)):
        raise ValueError(problem)
    asked = numbers["prompt_index"]
    if asked and max(asked) >= len(entry["prompts"]):
        raise ValueError(f"prompt_index: {max(asked)} of {len(entry['prompts'])} prompts")
    if 0 in numbers["completion_lengths"] or 0 in numbers["prompt_lengths"]:
        raise ValueError("a prompt or a completion without a token")


def _of_numbers(numbers: dict[str, Any]) -> Iterator[str]:
    for key, (kind, dimensions) in _NUMBERS.items():
        name = key.removesuffix("?")
        if name not in numbers and name != key:
            continue
        values = numbers[name]
        for _ in range(dimensions - 1):
            values = [value for part in _listed(values) for value in _listed(part)]
        if not isinstance(values, list) or any(type(value) is not kind for value in values):
            yield f"{name}: expected {kind.__name__} in {dimensions} dimensions"
        elif kind is int and name not in _SIGNED and min(values, default=0) < 0:
            yield f"{name}: below 0"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [None]


def _of_line(entry: dict[str, Any]) -> Iterator[str]:
    for key, kind in _LINE.items():
        if type(entry[key]) is not kind:
            yield f"{key}: expected {kind.__name__}"
    for key in ("requests", "finish_reasons", "texts"):
        if type(entry[key]) is not list or not all(isinstance(value, str) for value in entry[key]):
            yield f"{key}: expected strings"
    if not set(entry["finish_reasons"]) <= set(FINISHED):
        yield f"finish_reasons: expected {', '.join(FINISHED)}"
    if not all(map(_is_prompt, entry["prompts"])):
        yield "prompts: expected id and text, strings, and columns, a table"
    for scores in entry["scores"]:
        if not isinstance(scores, dict) or not all(map(_is_score, scores.values())):
            yield "scores: expected function -> number or null"


def _is_prompt(row: dict[str, Any]) -> bool:
    named = isinstance(row["id"], str) and isinstance(row["text"], str)
    return named and isinstance(row.get("columns", {}), dict)


def _is_score(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
