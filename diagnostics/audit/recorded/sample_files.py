"""Read recorded samples: TRL's Parquet files, ms-swift's and verl's JSON lines, and grpo_core's rollouts.

`detect_format` recognises JSON lines; `read_samples` reads the files of one format. Parquet needs pyarrow. Damaged
files, and files over the size limits, are added to the budget's `unread`. The last 200 files are read, until the
budget has no rows left; `Recording.files` has the numbers of files found and read.

The formats were read in the sources of TRL 1.16.0 (GRPOTrainer.log), ms-swift 4.6.0.dev0 (GRPOTrainer.log) and verl
0.10.0.dev (RayPPOTrainer._log_rollout_data). Their texts lack special tokens. Only grpo_core records ids and log-probs.
"""

import hashlib
import importlib.metadata
import importlib.util
import io
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.version import Version

from diagnostics import safe_io
from diagnostics.audit.checkpoint_validation import memory_limit
from diagnostics.audit.recorded import run_data, safetensors
from diagnostics.audit.recorded.run_data import ReadBudget, Recording, Sample, number, text_of, whole_number
from diagnostics.cpu_limit import CpuLimitError, cpu_limit, ends_in_time

_TABLE_COLUMNS = {"step", "prompt", "completion"}
# Columns of TRL's and ms-swift's tables that are no reward, and those that are neither reward nor data.
_NO_REWARDS = {"solution", "image", "images"}
_NO_DATA = _TABLE_COLUMNS | {"advantage", "advantages", "entropy", "rollout_infos"}
_VERL_COLUMNS = {"input", "output", "score", "step"}
_STREAM_NAMES = ("completion_ids", "behaviour_logprobs", "proximal_logprobs", "policy_versions")
# Limits of reading a Parquet file: rows that are unpacked at once, bytes of memory, processor time. Its footer may
# understate the size of a page, and a text that is stored once may be repeated in each row.
_BATCH_ROWS, _PARQUET_BYTES, _UNPACK_S = 8, safe_io.GIB, 20.0
_OLDEST_PYARROW = "14.0.1"  # earlier ones unpickle what a file's schema contains
_ROLLOUT_SCHEMA = "grpo-doctor.rollout.v1"


def detect_format(entry: dict[str, Any]) -> str:
    """Return the format of a JSON line: rollouts, completions, verl, swift, or empty for others, such as metrics.

    `completions` is grpo_core's completions.jsonl, for which there is no reader.
    """
    if entry.get("schema") == _ROLLOUT_SCHEMA:
        return "rollouts"
    if {"request", "prompt_ids", "logprobs", "completion"} <= entry.keys():
        return "completions"
    if {"input", "output", "score"} <= entry.keys():
        return "verl"
    is_swift = all(isinstance(entry.get(name), list) for name in ("prompt", "completion", "step"))
    return "swift" if is_swift else ""


def read_samples(kind: str, paths: Sequence[Path], budget: ReadBudget) -> Recording | None:
    """Read the files of one format: `parquet`, `rollouts`, `verl` or `swift`; None if no sample can be read.

    The last 200 files, or steps of rollouts, are read in the order of their numbers, until the budget is spent.
    """
    if kind == "parquet" and not _has_pyarrow():
        budget.unread.add(f"{paths[0].parent}/*.parquet", f"reading Parquet takes pyarrow>={_OLDEST_PYARROW}")
        return None
    if kind == "rollouts":
        parts = _rollout_steps(paths[0], budget)
    else:
        read = _parquet_samples if kind == "parquet" else partial(_line_samples, kind)
        parts = [(str(path), partial(read, path)) for path in sorted(paths, key=run_data.step_in_name)]
    rows: list[Sample] = []
    files = 0
    for place, read_part in parts[-run_data.MAX_FILES :]:
        if budget.rows <= 0:
            break
        try:
            with cpu_limit("reading it", run_data.READ_S):
                samples = read_part(budget)
        except (Exception, CpuLimitError) as error:  # noqa: BLE001 - pyarrow's errors have no common class
            budget.unread.add(place, error)
            continue
        rows += samples
        files += 1
        budget.rows -= len(samples)
    return Recording(_FORMAT_NAMES[kind], tuple(rows), (len(parts), files)) if rows else None


def _has_pyarrow() -> bool:
    found = importlib.util.find_spec("pyarrow") is not None
    return found and Version(importlib.metadata.version("pyarrow")) >= Version(_OLDEST_PYARROW)


def _line_samples(kind: str, path: Path, budget: ReadBudget) -> list[Sample]:
    """Read the JSON lines of verl or ms-swift; of a file of ms-swift that is too large, the beginning."""
    samples: list[Sample] = []
    size, limit = path.stat().st_size, min(run_data.MAX_FILE, budget.bytes)
    budget.spend(size if kind == "verl" else min(size, limit))
    for line, entry in run_data.read_json_lines(path, budget.unread, limit):
        place = f"{path.name}:{line}"
        if detect_format(entry) != kind or len(samples) >= budget.rows:
            continue
        if kind == "verl":
            samples.append(_verl_sample(entry, place, run_data.step_in_name(path)))
        else:
            samples += _table_samples(entry, place, (int, float))
    return samples


def _verl_sample(entry: dict[str, Any], place: str, step: int) -> Sample:
    """Return the sample of one of verl's lines; `step` is used if the line has none."""
    own_step, score = whole_number(entry.get("step")), number(entry["score"])
    step = step if own_step is None else own_step
    prompt, completion = text_of(entry["input"]), text_of(entry["output"])
    advantage, scores = number(entry.get("advantage")), {"score": score}
    columns = {name: value for name, value in entry.items() if name not in _VERL_COLUMNS}
    return Sample(step, prompt, completion, score, advantage, scores, columns=columns, place=place)


def _table_samples(
    table: dict[str, Any], place: str, reward_types: type | tuple[type, ...], first: int = 0
) -> list[Sample]:
    """Return the samples of a table with a list for each column.

    With several reward functions the total reward is None, because their weights are not recorded.

    Args:
        table: The columns; a column of numbers that is not in _NO_REWARDS or _NO_DATA has scores of a reward function.
        place: Location of the table.
        reward_types: Types of the numbers.
        first: Number of the first row.
    """
    size = min(len(table[name]) for name in _TABLE_COLUMNS)
    if size > run_data.MAX_ROWS:
        raise ValueError(f"{size} samples in one table: over the size limit")
    columns = {
        name: values
        for name, values in table.items()
        if name not in _NO_DATA and isinstance(values, list) and len(values) >= size
    }
    scores = {
        name: run_data.numbers(values)
        for name, values in columns.items()
        if name not in _NO_REWARDS and all(item is None or isinstance(item, reward_types) for item in values)
    }
    advantages = (*run_data.numbers(table.get("advantages", table.get("advantage"))), *(None,) * size)
    samples = []
    for index, advantage in zip(range(size), advantages, strict=False):
        step = whole_number(table["step"][index]) or 0
        prompt, completion = (text_of(table[name][index]) for name in ("prompt", "completion"))
        row_scores = {name: values[index] for name, values in scores.items()}
        # The weights of several functions are not recorded.
        reward = next(iter(row_scores.values())) if len(scores) == 1 else None
        data = {name: values[index] for name, values in columns.items() if name not in scores}
        sample = Sample(step, prompt, completion, reward, advantage, row_scores, columns=data)
        samples.append(replace(sample, place=f"{place}[{first + index}]"))
    return samples


def _parquet_samples(path: Path, budget: ReadBudget) -> list[Sample]:
    """Read one of TRL's `completions_*.parquet` files; TRL writes a file at each log event."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve as many addresses as the limit has
    from pyarrow import parquet

    data = safe_io.read_bytes(path, run_data.MAX_FILE)
    with memory_limit("unpacking", _PARQUET_BYTES):
        return _unpack(parquet, data, path.name, budget)


def _unpack(parquet: Any, data: bytes, name: str, budget: ReadBudget) -> list[Sample]:
    """Return the samples of a Parquet file; raise ValueError if it is over a size limit or lacks a column."""
    file = parquet.ParquetFile(io.BytesIO(data))
    metadata = file.metadata
    unpacked = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if unpacked > run_data.MAX_FILE or metadata.num_rows > min(run_data.MAX_ROWS, budget.rows):
        raise ValueError(f"{metadata.num_rows} rows of {unpacked // safe_io.MIB} MiB: over the size limit")
    if missing := _TABLE_COLUMNS - set(file.schema_arrow.names):
        raise ValueError(f"no column {', '.join(sorted(missing))}")
    budget.spend(spent := max(unpacked, len(data)))
    read = partial(file.iter_batches, batch_size=_BATCH_ROWS, use_threads=False)
    if not ends_in_time(lambda: deque(read(), maxlen=0), _UNPACK_S):  # one call of C may unpack many pages
        raise ValueError(f"unpacking takes more than {_UNPACK_S:g} s")
    rows: list[Sample] = []
    size = 0
    for batch in read():
        table = batch.to_pydict()
        size += _memory_size(table)  # more than `unpacked` if texts are repeated
        budget.spend(max(size - spent, 0))
        spent = max(size, spent)
        rows += _table_samples(table, name, float, len(rows))
    return rows


def _memory_size(value: object) -> int:
    """Return about how many bytes nested data takes in memory."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return 64 + sum(map(_memory_size, value))
    return len(value) if isinstance(value, (str, bytes)) else 32


def _rollout_steps(path: Path, budget: ReadBudget) -> list[tuple[str, Callable[[ReadBudget], list[Sample]]]]:
    """Return place and reader of each step in grpo_core's `rollouts.jsonl`; of a step's lines the last one is used."""
    entries: dict[int, dict[str, Any]] = {}
    try:
        with cpu_limit("reading it", run_data.READ_S):
            for _, entry in run_data.read_json_lines(path, budget.unread):
                step = whole_number(entry.get("step"))
                if detect_format(entry) == "rollouts" and step is not None:
                    entries[step] = entry
    except (OSError, CpuLimitError) as error:
        budget.unread.add(path, error)
    return [
        (f"{path}: step {step}", partial(_rollout_samples, path.parent, entries[step]))
        for step in sorted(entries)
    ]


def _rollout_samples(folder: Path, entry: dict[str, Any], budget: ReadBudget) -> list[Sample]:
    """Read the safetensors file of a step, whose SHA-256 must be the recorded one."""
    name = str(entry["file"])
    data = safe_io.read_bytes(folder / name, run_data.MAX_FILE, inside=folder)
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{name}: torn or altered: its SHA-256 is not the recorded one")
    stored = safetensors.parse(data)
    # A number takes 16 bytes and more in memory, and only one in the file if it is small.
    budget.spend(max(4 * len(data), 16 * sum(tensor.size for tensor in stored.values())))
    tensors = {key: safetensors.elements(tensor) for key, tensor in stored.items() if key != "prompt_ids"}
    prompts = [
        (text_of(prompt.get("text")), dict(prompt.get("columns") or {})) for prompt in entry["prompts"]
    ]
    lengths = tensors["completion_lengths"]
    streams = {key: _split(tensors[key], lengths) for key in _STREAM_NAMES if key in tensors}
    samples = []
    for index, owner in enumerate(tensors["prompt_index"]):
        prompt, columns = prompts[owner]
        stream = {key: tuple(values[index]) for key, values in streams.items()}
        tokens = run_data.Tokens(
            stream["completion_ids"],
            (bool(tensors["trained"][index]),) * len(stream["completion_ids"]),
            stream["behaviour_logprobs"],
            stream.get("proximal_logprobs", ()),
            stream["policy_versions"],
            str(entry["finish_reasons"][index]),
        )
        texts = prompt, text_of(entry["texts"][index])
        reward, advantage = (number(tensors[name][index]) for name in ("rewards", "advantages"))
        scores = {key: number(value) for key, value in entry["scores"][index].items()}
        place = f"step {entry['step']}, {entry['requests'][index]}"
        sample = Sample(int(entry["step"]), *texts, reward, advantage, scores, str(owner), columns)
        samples.append(replace(sample, tokens=tokens, place=place))
    return samples


def _split(values: list[Any], lengths: list[Any]) -> list[list[Any]]:
    """Split values into lists of these lengths; raise ValueError if they do not add up."""
    if sum(lengths) != len(values) or min(lengths, default=0) < 0:
        raise ValueError(f"{len(values)} numbers, but the lengths add up to {sum(lengths)}")
    rest = iter(values)
    return [list(islice(rest, int(length))) for length in lengths]


_FORMAT_NAMES = {
    "parquet": "completions_*.parquet", "rollouts": "rollouts.jsonl", "verl": "STEP.jsonl",
    "swift": "completions.jsonl",
}  # fmt: skip
