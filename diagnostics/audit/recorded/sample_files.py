"""Read recorded samples: TRL's Parquet files, ms-swift's and verl's JSON lines, and grpo_core's rollouts.

The formats were read in the sources of TRL 1.16.0 (GRPOTrainer.log), ms-swift 4.6.0.dev0 (GRPOTrainer.log) and verl
0.10.0.dev (RayPPOTrainer._log_rollout_data). Their texts lack special tokens. Only grpo_core records ids and log-probs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.recorded import run_data, safetensors

_PARQUET_COLUMNS = {"step", "prompt", "completion"}
_PARQUET_OTHERS = _PARQUET_COLUMNS | {"advantage", "solution", "image", "images"}
_SWIFT_OTHERS = {"step", "prompt", "completion", "advantages", "entropy", "rollout_infos"}
_VERL_OTHERS = {"input", "output", "score", "step"}
_ROLLOUT_SCHEMA = "grpo-doctor.rollout.v1"


def detect_format(entry: dict[str, Any]) -> str:
    """Return the format of a JSON line: rollouts, completions, verl, swift, or empty for metrics."""
    if entry.get("schema") == _ROLLOUT_SCHEMA:
        return "rollouts"
    if {"request", "prompt_ids", "logprobs", "completion"} <= entry.keys():
        return "completions"
    if {"input", "output", "score"} <= entry.keys():
        return "verl"
    is_swift = all(isinstance(entry.get(name), list) for name in ("prompt", "completion", "step"))
    return "swift" if is_swift else ""


def read_samples(kind: str, paths: Sequence[Path], budget: run_data.ReadBudget) -> run_data.Recording | None:
    """Read the files of one format: `parquet`, `rollouts`, `verl` or `swift`; None if there is no sample."""
    if kind == "parquet":
        return read_parquet(paths, budget)
    if kind == "rollouts":
        return _read_rollouts(paths[0], budget)
    rows: list[run_data.Sample] = []
    files = 0
    for path in sorted(paths, key=run_data.step_in_name)[-run_data.MAX_FILES :]:
        try:
            budget.spend(path.stat().st_size if kind == "verl" else 0)
            for line, entry in run_data.read_json_lines(
                path, budget.unread, min(run_data.MAX_FILE, budget.bytes)
            ):
                if detect_format(entry) == kind and budget.rows > 0:
                    samples = _LINE_PARSERS[kind](entry, f"{path.name}:{line}", run_data.step_in_name(path))
                    rows += samples
                    budget.rows -= len(samples)
            files += 1
        except run_data.READ_ERRORS as error:
            budget.unread.add(path, error)
    name = {"verl": "step.jsonl", "swift": "completions.jsonl"}[kind]
    return run_data.Recording(name, tuple(rows), (len(paths), files)) if rows else None


def _verl_samples(entry: dict[str, Any], place: str, step: int) -> list[run_data.Sample]:
    own_step, score = run_data.whole_number(entry.get("step")), run_data.number(entry["score"])
    return [
        run_data.Sample(
            step if own_step is None else own_step,
            run_data.text_of(entry["input"]),
            run_data.text_of(entry["output"]),
            score,
            run_data.number(entry.get("advantage")),
            {"score": score},
            columns=_without(entry, _VERL_OTHERS),
            place=place,
        )
    ]


def _without(entry: dict[str, Any], *names: set[str] | dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if not any(name in group for group in names)}


def _swift_samples(entry: dict[str, Any], place: str, _step: int) -> list[run_data.Sample]:
    size = min(len(entry[name]) for name in ("prompt", "completion", "step"))
    lists = {name: value for name, value in entry.items() if isinstance(value, list) and len(value) >= size}
    rewards = {
        name: run_data.numbers(value)
        for name, value in _without(lists, _SWIFT_OTHERS, {"solution"}).items()
        if all(item is None or isinstance(item, (int, float)) for item in value)
    }
    columns = _without(lists, _SWIFT_OTHERS, rewards)
    advantages = run_data.numbers(entry.get("advantages"))
    samples = []
    for index in range(size):
        scores = {name: values[index] for name, values in rewards.items()}
        samples.append(
            run_data.Sample(
                run_data.whole_number(entry["step"][index]) or 0,
                run_data.text_of(entry["prompt"][index]),
                run_data.text_of(entry["completion"][index]),
                _single_score(scores),
                advantages[index] if index < len(advantages) else None,
                scores,
                columns={name: value[index] for name, value in columns.items()},
                place=f"{place}[{index}]",
            )
        )
    return samples


def _single_score(scores: dict[str, float | None]) -> float | None:
    """Return the score of a single function; None for several, because their weights are not recorded."""
    return next(iter(scores.values())) if len(scores) == 1 else None


def read_parquet(paths: Sequence[Path], budget: run_data.ReadBudget) -> run_data.Recording | None:
    """Read TRL's `completions_*.parquet` files, of which each has one log event; None if there is no sample."""
    if importlib.util.find_spec("pyarrow") is None:
        budget.unread.add(f"{paths[0].parent}/*.parquet", "reading Parquet takes pyarrow")
        return None
    rows: list[run_data.Sample] = []
    files = 0
    for path in sorted(paths, key=run_data.step_in_name)[-run_data.MAX_FILES :]:
        try:
            rows += _parquet_rows(path, budget)
            files += 1
        except Exception as error:  # noqa: BLE001 - pyarrow's errors have no common class
            budget.unread.add(path, error)
    return run_data.Recording("completions.parquet", tuple(rows), (len(paths), files)) if rows else None


def _parquet_rows(path: Path, budget: run_data.ReadBudget) -> list[run_data.Sample]:
    from pyarrow import parquet

    data = safe_io.read_bytes(path, run_data.MAX_FILE)
    file = parquet.ParquetFile(io.BytesIO(data))
    metadata = file.metadata
    unpacked = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if unpacked > run_data.MAX_FILE or metadata.num_rows > min(run_data.MAX_ROWS, budget.rows):
        raise ValueError(f"{metadata.num_rows} rows of {unpacked // safe_io.MIB} MiB: over the size limit")
    if missing := _PARQUET_COLUMNS - set(file.schema_arrow.names):
        raise ValueError(f"no column {', '.join(sorted(missing))}")
    budget.spend(max(unpacked, len(data)))
    rows: list[run_data.Sample] = []
    size = 0
    # A text that is stored once may be repeated in every row when it is unpacked, so batches are small.
    batch_size = max(1, min(1024, 4 * run_data.MAX_FILE // max(unpacked, 1)))
    for batch in file.iter_batches(batch_size=batch_size, use_threads=False):
        entries = batch.to_pylist()
        size += _text_size(entries)
        if size > run_data.MAX_RUN:
            raise ValueError(f"more than {run_data.MAX_RUN // safe_io.MIB} MiB of text")
        rows += [
            _parquet_sample(entry, f"{path.name}:{place}") for place, entry in enumerate(entries, len(rows))
        ]
    budget.rows -= len(rows)
    return rows


def _text_size(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return sum(map(_text_size, value))
    return len(value) if isinstance(value, (str, bytes)) else 8


def _parquet_sample(entry: dict[str, Any], place: str) -> run_data.Sample:
    scores = {
        name: run_data.number(value)
        for name, value in _without(entry, _PARQUET_OTHERS).items()
        if value is None or isinstance(value, float)
    }
    return run_data.Sample(
        run_data.whole_number(entry["step"]) or 0,
        run_data.text_of(entry["prompt"]),
        run_data.text_of(entry["completion"]),
        _single_score(scores),
        run_data.number(entry.get("advantage")),
        scores,
        columns=_without(entry, _PARQUET_COLUMNS, scores),
        place=place,
    )


def _read_rollouts(path: Path, budget: run_data.ReadBudget) -> run_data.Recording | None:
    """Read grpo_core's `rollouts.jsonl` with its safetensors files; a later line of a step replaces an earlier one."""
    entries: dict[int, dict[str, Any]] = {}
    try:
        for _, entry in run_data.read_json_lines(path, budget.unread):
            if (
                detect_format(entry) == "rollouts"
                and (step := run_data.whole_number(entry.get("step"))) is not None
            ):
                entries[step] = entry
    except OSError as error:
        budget.unread.add(path, error)
        return None
    rows: list[run_data.Sample] = []
    files = 0
    for step in sorted(entries)[-run_data.MAX_FILES :]:
        if budget.rows <= 0:
            break
        try:
            samples = _rollout_samples(path.parent, entries[step], budget)
        except run_data.READ_ERRORS as error:
            budget.unread.add(f"{path}: step {step}", error)
            continue
        rows += samples
        files += 1
        budget.rows -= len(samples)
    return run_data.Recording("rollouts.jsonl", tuple(rows), (len(entries), files)) if rows else None


def _rollout_samples(
    folder: Path, entry: dict[str, Any], budget: run_data.ReadBudget
) -> list[run_data.Sample]:
    name = str(entry["file"])
    data = safe_io.read_bytes(folder / name, run_data.MAX_FILE, inside=folder)
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{name}: torn or altered: its SHA-256 is not the recorded one")
    budget.spend(4 * len(data))
    tensors = {key: safetensors.elements(tensor) for key, tensor in safetensors.parse(data).items()}
    prompt_ids = _split(tensors["prompt_ids"], tensors["prompt_lengths"])
    streams = {
        key: _split(tensors[key], tensors["completion_lengths"])
        for key in ("completion_ids", "behaviour_logprobs", "proximal_logprobs", "policy_versions")
        if key in tensors
    }
    samples = []
    for index, owner in enumerate(tensors["prompt_index"]):
        prompt, ids = entry["prompts"][owner], tuple(prompt_ids[owner])
        stream = {key: tuple(values[index]) for key, values in streams.items()}
        none, trainer = (None,) * len(ids), stream.get("proximal_logprobs")
        is_trained = (bool(tensors["trained"][index]),) * len(stream["completion_ids"])
        tokens = run_data.Tokens(
            (*ids, *stream["completion_ids"]),
            len(ids),
            (False,) * len(ids) + is_trained,
            none + stream["behaviour_logprobs"],
            none + trainer if trainer else (),
            (0,) * len(ids) + stream["policy_versions"],
            str(entry["finish_reasons"][index]),
        )
        samples.append(
            run_data.Sample(
                int(entry["step"]),
                run_data.text_of(prompt.get("text")),
                run_data.text_of(entry["texts"][index]),
                run_data.number(tensors["rewards"][index]),
                run_data.number(tensors["advantages"][index]),
                {key: run_data.number(value) for key, value in entry["scores"][index].items()},
                str(owner),
                prompt.get("columns") or {},
                tokens,
                f"step {entry['step']}, {entry['requests'][index]}",
            )
        )
    return samples


def _split(values: list[Any], lengths: list[Any]) -> list[list[Any]]:
    if sum(lengths) != len(values) or min(lengths, default=0) < 0:
        raise ValueError(f"{len(values)} numbers, but the lengths add up to {sum(lengths)}")
    rest = iter(values)
    return [list(islice(rest, int(length))) for length in lengths]


# Parsers; each takes a JSON line, its location, and the step in the file's name.
_LINE_PARSERS = {"verl": _verl_samples, "swift": _swift_samples}
