"""Record runs of our trainer, and write their samples in the formats of verl, ms-swift and TRL.

verl and ms-swift do not run here, so their files are written in the format that their source code defines.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save

from diagnostics.audit.recorded import run_audit
from diagnostics.audit.recorded.run_data import Tokens, group_samples

ROOT = Path(__file__).resolve().parents[3]


def train_run(folder, seed=0, steps=10, *options):
    """Run our trainer in this process with more options; return the run's folder."""
    from grpo_core.run import train
    from grpo_core.settings import load

    config = load(
        None,
        [
            f"--train.steps={steps}",
            f"--train.seed={seed}",
            "--sampling.group_size=8",
            "--sampling.max_tokens=12",
            "--train.prompts_per_step=8",
            f"--output.dir={folder}",
            f"--output.name=run-{seed}",
            "--output.record_every=1",
            "--checkpoint.every=2",
            "--checkpoint.keep=50",
            *options,
        ],
    )
    train(config, lambda _: None)
    return Path(folder) / f"run-{seed}"


def rows_of(folder):
    """Read the samples that our trainer recorded."""
    (recording,) = run_audit.read_run(folder / "rollouts.jsonl").recordings
    return list(recording.rows)


def with_trainer(rows, noise=1e-7, seed=0):
    """Add the trainer's log-probs to the rows: those of the engine with rounding noise."""
    import random

    generator = random.Random(seed)
    return [
        with_streams(
            row,
            trainer=tuple(None if e is None else e + generator.gauss(0, noise) for e in row.tokens.engine),
        )
        for row in rows
    ]


def with_streams(row, **streams):
    """Return a copy of a row with other token streams (engine, trainer, trained)."""
    tokens = row.tokens
    values = {name: getattr(tokens, name) for name in Tokens.__slots__}
    return replace(row, tokens=Tokens(**(values | streams)))


def steps_of(rows):
    """Group the rows by step."""
    steps = {}
    for row in rows:
        steps.setdefault(row.step, []).append(row)
    return steps


def as_rollouts(rows, folder):
    """Write the rows in our rollout format, with token ids, masks and both log-probs."""
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
                "finish_reasons": [row.tokens.ended or "stop" for row in of_step],
            }
            file.write(json.dumps(entry) + "\n")
    return folder


def _tensors(rows):
    groups = group_samples(rows)
    index = {id(row): place for place, group in enumerate(groups) for row in group}
    entries = [row.tokens for row in rows]
    prompts = [group[0].tokens for group in groups]
    flat = {
        "prompt_ids": [token for tokens in prompts for token in tokens.ids[: tokens.prompt_length]],
        "prompt_lengths": [tokens.prompt_length for tokens in prompts],
        "prompt_index": [index[id(row)] for row in rows],
        "completion_lengths": [len(tokens.ids) - tokens.prompt_length for tokens in entries],
        "completion_ids": [token for tokens in entries for token in tokens.ids[tokens.prompt_length :]],
        "policy_versions": [0] * sum(len(tokens.ids) - tokens.prompt_length for tokens in entries),
        "trained": [any(tokens.trained) for tokens in entries],
        "rewards": [row.reward for row in rows],
        "advantages": [math.nan if row.advantage is None else row.advantage for row in rows],
    }
    for name, stream in (("behaviour_logprobs", "engine"), ("proximal_logprobs", "trainer")):
        values = [value for tokens in entries for value in getattr(tokens, stream)[tokens.prompt_length :]]
        flat[name] = [0.0 if value is None else value for value in values]
    floats = {"rewards", "advantages", "behaviour_logprobs", "proximal_logprobs"}
    return {
        name: torch.tensor(values, dtype=torch.float64 if name in floats else torch.int64)
        for name, values in flat.items()
    }


def as_verl(rows, folder):
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


def as_swift(rows, folder):
    """Write the rows as ms-swift's completions.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "completions.jsonl").open("w") as file:
        for step, of_step in steps_of(rows).items():
            entry = {
                "step": [str(step)] * len(of_step),
                "prompt": [row.prompt for row in of_step],
                "completion": [row.completion for row in of_step],
                "Exact": [row.reward for row in of_step],
                "advantages": [row.advantage for row in of_step],
                "solution": [row.columns.get("answer") for row in of_step],
            }
            file.write(json.dumps(entry) + "\n")
    return folder


def as_parquet(rows, folder):
    """Write the rows as TRL's completion tables, one Parquet file per step."""
    import pyarrow as pa
    from pyarrow import parquet

    (folder / "completions").mkdir(parents=True, exist_ok=True)
    for step, of_step in steps_of(rows).items():
        table = pa.table(
            {
                "step": [step] * len(of_step),
                "prompt": [row.prompt for row in of_step],
                "completion": [row.completion for row in of_step],
                "reward_fn": [row.reward for row in of_step],
                "advantage": [row.advantage for row in of_step],
            }
        )
        parquet.write_table(table, folder / "completions" / f"completions_{step:05d}.parquet")
    return folder


WRITERS = {"rollouts": as_rollouts, "verl": as_verl, "swift": as_swift, "parquet": as_parquet}
TOKENS = ("rollouts",)
