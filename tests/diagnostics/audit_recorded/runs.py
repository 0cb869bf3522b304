"""Real runs, and their samples written down again as other trainers write theirs.

Our own trainer and TRL's run as they are. verl, ms-swift, NeMo-RL and prime-rl do not run here: what they would have
written is made of a real run's samples, in the format that their source has.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

from diagnostics.audit.recorded import found
from diagnostics.audit.recorded.rows import Tokens

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).parent / "programs" / "trl_run.py"


def own(folder, seed=0, steps=10, *more):
    """Runs our trainer in this process; returns the run's folder."""
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
            *more,
        ],
    )
    train(config, lambda _: None)
    return Path(folder) / f"run-{seed}"


def trl(python, folder, seed, steps=6, **settings):
    """Runs TRL's trainer in a cell; returns its folder."""
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    subprocess.run(
        [python, PROGRAM, folder, str(seed), str(steps), *words],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
        timeout=1500,
    )
    return Path(folder)


def rows_of(folder):
    """The samples of a run of ours."""
    (recording,) = found.remains(folder / "rollouts.jsonl").recordings
    return list(recording.rows)


def with_trainer(rows, noise=1e-7, seed=0):
    """The rows with a trainer's stream: what a right trainer computes is the engine's, up to rounding."""
    import random

    drawn = random.Random(seed)
    return [
        having(
            row, trainer=tuple(None if e is None else e + drawn.gauss(0, noise) for e in row.tokens.engine)
        )
        for row in rows
    ]


def having(row, **streams):
    """A row with other streams."""
    held = row.tokens
    kept = {name: getattr(held, name) for name in Tokens.__slots__}
    return replace(row, tokens=Tokens(**(kept | streams)))


def steps_of(rows):
    """The rows by their step, in the order of their first."""
    steps = {}
    for row in rows:
        steps.setdefault(row.step, []).append(row)
    return steps


def as_prime(rows, folder):
    """prime-rl's token exports."""
    for step, of_step in steps_of(rows).items():
        path = folder / "token_exports" / f"step_{step}" / "rank_0.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(_exported(row)) + "\n" for row in of_step))
    return folder


def _exported(row):
    held = row.tokens
    zero = [0.0] * len(held.ids)
    return {
        "schema_version": 1,
        "step": row.step,
        "token_ids": list(held.ids),
        "position_ids": list(range(len(held.ids))),
        "loss_mask": list(held.trained),
        "advantages": [row.advantage if place >= held.prompt else 0.0 for place in range(len(held.ids))],
        "rewards": [row.reward] * len(held.ids),
        "inference_logprobs": [0.0 if each is None else each for each in held.engine],
        "trainer_logprobs": [0.0 if each is None else each for each in held.trainer or zero],
        "entropy": zero,
        "is_masked": [False] * len(held.ids),
    }


def as_nemo(rows, folder):
    """NeMo-RL's train_data files, padded."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, of_step in steps_of(rows).items():
        longest = max(len(row.tokens.ids) for row in of_step)
        lines = [json.dumps(_trained(row, longest)) + "\n" for row in of_step]
        (folder / f"train_data_step{step}.jsonl").write_text("".join(lines))
    return folder


def _trained(row, longest):
    held = row.tokens
    rest = longest - len(held.ids)
    return {
        "content": [row.prompt, row.completion],
        "rewards": row.reward,
        "input_lengths": len(held.ids),
        "token_ids": [*held.ids, *[0] * rest],
        "token_loss_mask": [*map(int, held.trained), *[0] * rest],
        "sample_loss_mask": 1.0,
        "advantages": [row.advantage] * longest,
        "generation_logprobs": [*(0.0 if each is None else each for each in held.engine), *[0.0] * rest],
        "prev_logprobs": [*(0.0 if each is None else each for each in held.trainer), *[0.0] * rest],
    }


def as_verl(rows, folder):
    """verl's rollout dumps."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, of_step in steps_of(rows).items():
        lines = [
            {"input": row.prompt, "output": row.completion, "gts": row.columns.get("answer"), "score": row.reward,
             "step": step}
            for row in of_step
        ]  # fmt: skip
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def as_swift(rows, folder):
    """ms-swift's completions.jsonl."""
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
    """TRL's completions."""
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


WRITERS = {
    "prime": as_prime,
    "nemo": as_nemo,
    "verl": as_verl,
    "swift": as_swift,
    "parquet": as_parquet,
}
TOKENS = ("prime", "nemo")
