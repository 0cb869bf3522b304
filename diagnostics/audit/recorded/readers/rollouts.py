"""Our own: `rollouts.jsonl` (grpo-doctor.rollout.v1, v2) with its safetensors, `completions.jsonl` of `train`."""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.recorded.readers import plain, safetensors
from diagnostics.audit.recorded.rows import Recording, Row, Tokens, Unread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KIND, TEXTS = "rollouts.jsonl", "own completions.jsonl"
SCHEMAS = ("grpo-doctor.rollout.v1", "grpo-doctor.rollout.v2")


def is_one(entry: dict[str, Any]) -> bool:
    """Whether an object is a line of rollouts.jsonl."""
    return entry.get("schema") in SCHEMAS


def is_text(entry: dict[str, Any]) -> bool:
    """Whether an object is a line of our completions.jsonl."""
    return {"request", "prompt_ids", "logprobs", "completion"} <= entry.keys()


def read(path: Path, budget: plain.Budget, unread: list[Unread]) -> Recording | None:
    """The recorded steps; of two lines of a step the later counts."""

    def bad(why: str) -> None:
        unread.append(Unread(str(path), why))

    entries: dict[int, dict[str, Any]] = {}
    try:
        for _, entry in plain.lines(path, bad):
            if is_one(entry) and (step := plain.whole(entry.get("step"))) is not None:
                entries[step] = entry
    except OSError as error:
        bad(str(error))
        return None
    steps = sorted(entries)
    kept = plain.chosen(steps)
    rows: list[Row] = []
    settings: dict[str, Any] = {}
    files = 0
    for step in kept:
        entry = entries[step]
        try:
            found = _step(path.parent, entry, budget)
        except plain.UNREADABLE as error:
            unread.append(Unread(f"{path}: step {step}", str(error)))
            continue
        settings = entry.get("settings") or settings
        rows += found
        files += 1
        budget.rows -= len(found)
        if budget.rows <= 0:
            break
    return Recording(KIND, tuple(rows), _flat(settings), files=(len(steps), files)) if rows else None


def read_texts(path: Path, budget: plain.Budget, unread: list[Unread]) -> Recording | None:
    """The samples of our completions.jsonl."""

    def bad(why: str) -> None:
        unread.append(Unread(str(path), why))

    rows: list[Row] = []
    try:
        for line, entry in plain.lines(path, bad, min(plain.FILE, budget.left)):
            if is_text(entry) and budget.rows > 0:
                rows.append(of_text(entry, f"{path.name}:{line}"))
                budget.rows -= 1
    except plain.UNREADABLE as error:
        bad(str(error))
    return Recording(TEXTS, tuple(rows), files=(1, 1)) if rows else None


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by `section.key`."""
    return {
        f"{section}.{key}": value
        for section, keys in settings.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    }


def _step(folder: Path, entry: dict[str, Any], budget: plain.Budget) -> list[Row]:
    name = str(entry["file"])
    data = given.read(folder / name, plain.FILE, inside=folder)
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{name}: torn or altered: not the recorded SHA-256")
    if not budget.spend(4 * len(data)):
        raise ValueError("more than is read of one run")
    tensors = {key: safetensors.values(each) for key, each in safetensors.of(data).items()}
    prompts = _cut(tensors["prompt_ids"], tensors["prompt_lengths"])
    streams = {
        key: _cut(tensors[key], tensors["completion_lengths"])
        for key in ("completion_ids", "behaviour_logprobs", "proximal_logprobs", "policy_versions", "sampled")
        if key in tensors
    }
    count = len(tensors["prompt_index"])
    return [_sample(entry, tensors, prompts, streams, each) for each in range(count)]


def _sample(
    entry: dict[str, Any],
    tensors: dict[str, list[Any]],
    prompts: list[list[Any]],
    streams: dict[str, list[list[Any]]],
    each: int,
) -> Row:
    asked = tensors["prompt_index"][each]
    prompt = entry["prompts"][asked]
    ids = prompts[asked]
    none = (None,) * len(ids)
    answer = streams["completion_ids"][each]
    trained = bool(tensors["trained"][each])
    near = streams.get("proximal_logprobs")
    marks = (
        [bool(mark) for mark in streams["sampled"][each]] if "sampled" in streams else [True] * len(answer)
    )
    return Row(
        int(entry["step"]),
        plain.text_of(prompt.get("text")),
        plain.text_of(entry["texts"][each]),
        float(tensors["rewards"][each]),
        float(tensors["advantages"][each]),
        {key: plain.number(value) for key, value in entry["scores"][each].items()},
        str(asked),
        columns=prompt.get("columns") or {},
        tokens=Tokens(
            (*ids, *answer),
            len(ids),
            (False,) * len(ids) + tuple(trained and mark for mark in marks),
            none + _sampled(streams["behaviour_logprobs"][each], marks),
            none + _sampled(near[each], marks) if near else (),
            (0,) * len(ids) + tuple(streams["policy_versions"][each]),
            str(entry["finish_reasons"][each]),
        ),
        place=f"step {entry['step']}, {entry['requests'][each]}",
    )


def of_text(entry: dict[str, Any], place: str) -> Row:
    """The sample of a line of our completions.jsonl."""
    ids, answer = entry["prompt_ids"], entry["ids"]
    return Row(
        plain.whole(entry.get("step")) or 0,
        plain.text_of(entry.get("prompt")),
        plain.text_of(entry["completion"]),
        plain.number(entry.get("reward")),
        plain.number(entry.get("advantage")),
        group=str(entry["request"]).rpartition(".")[0],
        tokens=Tokens(
            (*ids, *answer),
            len(ids),
            engine=(None,) * len(ids) + _sampled(plain.numbers(entry["logprobs"]), entry.get("sampled")),
            versions=(0,) * len(ids) + tuple(entry.get("versions", ())),
            ended=str(entry.get("finish_reason", "")),
        ),
        place=place,
    )


def _sampled(values: Sequence[Any], marks: Sequence[bool] | None) -> tuple[Any, ...]:
    """A stream that says nothing of tokens which no model sampled."""
    if marks is None:
        return tuple(values)
    return tuple(value if mark else None for value, mark in zip(values, marks, strict=True))


def _cut(values: list[Any], lengths: list[Any]) -> list[list[Any]]:
    if sum(lengths) != len(values) or min(lengths, default=0) < 0:
        raise ValueError(f"{len(values)} numbers, but the lengths add up to {sum(lengths)}")
    rest = iter(values)
    return [list(islice(rest, int(length))) for length in lengths]
