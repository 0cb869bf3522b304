"""Record runs of grpo_core's trainer, and write their samples in the format of grpo_core, verl, ms-swift or TRL.

`train_run` trains and records. A writer in `WRITERS` returns the folder; verl, ms-swift and TRL themselves do not run
here. Only grpo_core's format has tokens. Further helpers change token streams of samples.
"""

import hashlib
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import torch
from pyarrow import parquet
from safetensors.torch import save

from diagnostics.audit.recorded import run_audit
from diagnostics.audit.recorded.run_data import Tokens, group_samples
from diagnostics.audit.results import FAULT

ROOT = Path(__file__).resolve().parents[3]


def train_run(folder, seed=0, steps=10, *options):
    """Run grpo_core's trainer in this process with additional options; return the run's folder."""
    from grpo_core.run import train
    from grpo_core.settings import load

    fixed = (
        "--sampling.group_size=8 --sampling.max_tokens=12 --train.prompts_per_step=8 --output.record_every=1"
        " --checkpoint.every=2 --checkpoint.keep=50"
    )
    varied = [
        f"--train.steps={steps}",
        f"--train.seed={seed}",
        f"--output.dir={folder}",
        f"--output.name=run-{seed}",
    ]
    config = load(None, [*fixed.split(), *varied, *options])
    train(config, lambda _: None)
    return Path(folder) / f"run-{seed}"


def fault_families(audit):
    """Return the families of the faults in an audit."""
    return {result.family for result in audit.select(FAULT)}


def rows_of(folder):
    """Return the samples that grpo_core's trainer recorded."""
    (recording,) = run_audit.read_run(folder / "rollouts.jsonl").recordings
    return list(recording.rows)


def with_trainer_logprobs(rows, noise=1e-7, seed=0):
    """Add trainer log-probs to the rows: the engine's log-probs with rounding noise."""
    generator = random.Random(seed)
    streams = (
        tuple(None if p is None else p + generator.gauss(0, noise) for p in row.tokens.engine_logprobs)
        for row in rows
    )
    return [with_streams(row, trainer_logprobs=trainer) for row, trainer in zip(rows, streams, strict=True)]


def with_streams(row, **streams):
    """Return a copy of a row with other token streams, such as `engine_logprobs` or `in_loss`."""
    tokens = row.tokens
    values = {name: getattr(tokens, name) for name in Tokens.__slots__}
    return replace(row, tokens=Tokens(**(values | streams)))


def steps_of(rows):
    """Group the rows by step."""
    steps = {}
    for row in rows:
        steps.setdefault(row.step, []).append(row)
    return steps


def write_rollouts(rows, folder):
    """Write the rows in grpo_core's rollout format, with completion ids and both log-probs.

    `trained` is one flag per completion: whether any token is in the loss. Prompt ids and policy versions are
    placeholders.
    """
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    with (folder / "rollouts.jsonl").open("w") as file:
        for step, of_step in steps_of(rows).items():
            name = f"rollouts/step-{step:06d}.safetensors"
            data = save(_tensors(of_step))
            (folder / name).write_bytes(data)
            entry = {
                "schema": "grpo-doctor.rollout.v1",
                "step": step,
                "file": name,
                "sha256": hashlib.sha256(data).hexdigest(),
                "prompts": [
                    {"text": group[0].prompt, "columns": dict(group[0].columns)}
                    for group in group_samples(of_step)
                ],
                "texts": [row.completion for row in of_step],
                "scores": [dict(row.scores) for row in of_step],
                "requests": [f"{step}.{index}" for index in range(len(of_step))],
                "finish_reasons": [row.tokens.finish_reason or "stop" for row in of_step],
            }
            file.write(json.dumps(entry) + "\n")
    return folder


def _tensors(rows):
    groups = group_samples(rows)
    index = {id(row): place for place, group in enumerate(groups) for row in group}
    entries = [row.tokens for row in rows]
    flat = {
        "prompt_ids": [0 for _ in groups],
        "prompt_lengths": [1 for _ in groups],
        "prompt_index": [index[id(row)] for row in rows],
        "completion_lengths": [len(tokens.ids) for tokens in entries],
        "completion_ids": [token for tokens in entries for token in tokens.ids],
        "policy_versions": [0] * sum(len(tokens.ids) for tokens in entries),
        "trained": [any(tokens.in_loss) for tokens in entries],
        "rewards": [row.reward for row in rows],
        "advantages": [math.nan if row.advantage is None else row.advantage for row in rows],
    }
    streams = {"behaviour_logprobs": "engine_logprobs", "proximal_logprobs": "trainer_logprobs"}
    for name, stream in streams.items():
        values = [value for tokens in entries for value in getattr(tokens, stream)]
        flat[name] = [0.0 if value is None else value for value in values]
    floats = {"rewards", "advantages", "behaviour_logprobs", "proximal_logprobs"}
    return {
        name: torch.tensor(values, dtype=torch.float64 if name in floats else torch.int64)
        for name, values in flat.items()
    }


def write_verl(rows, folder):
    """Write the rows as verl's rollout dumps, one JSONL file per step."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, of_step in steps_of(rows).items():
        lines = [
            {"input": row.prompt, "output": row.completion, "score": row.reward, "step": step}
            | {"gts": row.columns.get("answer")}
            for row in of_step
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _table(rows, reward, advantage):
    """Return the columns of a table of completions, in the layout of TRL and ms-swift."""
    fields = {name: name for name in ("step", "prompt", "completion")}
    fields |= {reward: "reward", advantage: "advantage"}
    return {name: [getattr(row, field) for row in rows] for name, field in fields.items()}


def write_swift(rows, folder):
    """Write the rows as ms-swift's completions.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "completions.jsonl").open("w") as file:
        for step, of_step in steps_of(rows).items():
            more = {
                "step": [str(step)] * len(of_step),
                "solution": [row.columns.get("answer") for row in of_step],
            }
            file.write(json.dumps(_table(of_step, "Exact", "advantages") | more) + "\n")
    return folder


def write_parquet(rows, folder):
    """Write the rows as TRL's completion tables, one Parquet file per step."""
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    for step, of_step in steps_of(rows).items():
        path = folder / "completions" / f"completions_{step:05d}.parquet"
        parquet.write_table(pa.table(_table(of_step, "reward_fn", "advantage")), path)
    return folder


WRITERS = {"rollouts": write_rollouts, "verl": write_verl, "swift": write_swift, "parquet": write_parquet}
FORMATS_WITH_TOKENS = ("rollouts",)
