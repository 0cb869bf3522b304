"""Faults to inject into a recorded run: `ROWS` change its samples, `FILES` its metrics or checkpoints on disk.

A fault changes what the real fault would change; for example, other rewards also change the advantages. An entry of
`FILES` has a name, the family that the audit must report, and a function of the run's folder and a seed.
"""

import json
import math
import random
import string
from dataclasses import dataclass, replace

from safetensors.torch import load_file, save_file

from diagnostics.audit.recorded.run_data import group_samples
from tests.diagnostics.audit_recorded.runs import FORMATS_WITH_TOKENS, steps_of, with_streams

ALL_TRAINERS = ("parquet", "swift", "verl")


@dataclass(frozen=True)
class Fault:
    """A fault in recorded samples.

    Attributes:
        name: Name in the result tables.
        family: Family that the audit must report.
        inject: Function of rows and seed that returns the rows with the fault.
        formats: Recording formats in which the fault is visible.
    """

    name: str
    family: str
    inject: object
    formats: tuple[str, ...] = ("parquet", "swift")


def _by_step(rows, change):
    """Apply `change` to the rows of each step."""
    return [row for step_rows in steps_of(rows).values() for row in change(step_rows)]


def _advantages(rows, compute):
    """Replace the advantages of each step by `compute(rows of the step)`."""

    def change(step_rows):
        values = compute(step_rows)
        return [replace(row, advantage=value) for row, value in zip(step_rows, values, strict=True)]

    return _by_step(rows, change)


def _normalise(rewards):
    """Return GRPO's advantages of one group."""
    center = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - center) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - center) / (deviation + 1e-4) if deviation else 0.0 for reward in rewards]


def _interleaved(step_rows):
    """Return advantages computed over every n-th row instead of over consecutive rows."""
    count = len(group_samples(step_rows))
    values = [0.0] * len(step_rows)
    for first in range(count):
        values[first::count] = _normalise([row.reward for row in step_rows[first::count]])
    return values


def _rolled(values, by):
    return values[-by:] + values[:-by]


def _rewards(rows, reward):
    """Replace the rewards, and recompute the correct advantages."""
    changed = [replace(row, reward=reward(row)) for row in rows]

    def recompute(step_rows):
        values = {}
        for group in group_samples(step_rows):
            values |= dict(zip(map(id, group), _normalise([row.reward for row in group]), strict=True))
        return [values[id(row)] for row in step_rows]

    return _advantages(changed, recompute)


def _streams(new_logprob):
    """Return a function that replaces the engine's log-probs by `new_logprob(row, log-prob, random generator)`."""

    def inject(rows, seed):
        generator = random.Random(seed)
        change = lambda row, value: None if value is None else new_logprob(row, value, generator)  # noqa: E731
        streams = [tuple(change(row, value) for value in row.tokens.engine_logprobs) for row in rows]
        return [with_streams(row, engine_logprobs=stream) for row, stream in zip(rows, streams, strict=True)]

    return inject


def _repeat_steps(rows, seed):
    """Repeat two steps under new numbers with other completions, like a resume from an older checkpoint."""
    steps = list(steps_of(rows).values())
    generator = random.Random(seed)
    middle = len(steps) // 2 + generator.randrange(2)
    again = [
        [replace(row, completion="".join(generator.choices(string.ascii_lowercase, k=5))) for row in step]
        for step in steps[middle - 2 : middle]
    ]
    numbered = enumerate(steps[:middle] + again + steps[middle:], 1)
    return [replace(row, step=number) for number, step in numbered for row in step]


def _copy_first(rows, _seed):
    """Replace every sample of a group by its first, like one seed for all samples."""

    def change(step_rows):
        return [replace(group[0], place=row.place) for group in group_samples(step_rows) for row in group]

    return _by_step(rows, change)


def _echo_prompt(rows, _seed):
    """Extend each prompt, and repeat the original prompt in its completion."""
    prefixed = [replace(row, prompt=f"What follows {row.prompt}") for row in rows]
    return [replace(row, completion=f"{row.prompt} is {row.completion}") for row in prefixed]


def _insert_other_prompt(rows, _seed):
    """Replace the prompts by long ones, and begin each completion with the prompt of the group before."""

    def change(step_rows):
        prompts = [f"Please write the word {row.columns['answer']} once more." for row in step_rows]
        rotated = _rolled(prompts, len(group_samples(step_rows)[0]))
        return [
            replace(row, prompt=prompt, completion=f"{other} {row.completion}")
            for row, prompt, other in zip(step_rows, prompts, rotated, strict=True)
        ]

    return _by_step(rows, change)


ROWS = (
    Fault("advantages of interleaved groups", "advantages/grouping",
          lambda rows, _s: _advantages(rows, _interleaved)),
    Fault("advantages of the other sign", "advantages/sign",
          lambda rows, _s: _advantages(rows, lambda step: [-row.advantage for row in step])),
    Fault("advantages all 0", "advantages/zero",
          lambda rows, _s: _advantages(rows, lambda step: [0.0] * len(step))),
    Fault("reward the same for all", "rewards/constant", lambda rows, _s: _rewards(rows, lambda _: 0.0), ALL_TRAINERS),
    Fault("groups all right or all wrong", "rewards/no_spread",
          lambda rows, s: _rewards(rows, lambda row: float(sum(map(ord, row.prompt)) % (2 + s % 3) == 0)),
          ALL_TRAINERS),
    Fault("one seed for all of a group", "samples/identical", _copy_first, FORMATS_WITH_TOKENS),
    Fault("a resume that goes back", "data/repeated", _repeat_steps, ALL_TRAINERS),
    Fault("the prompt in the completion", "pairing/echo", _echo_prompt, ALL_TRAINERS),
    Fault("another prompt in the completion", "pairing/other", _insert_other_prompt, ALL_TRAINERS),
    Fault("no token in the loss", "masks/nothing",
          lambda rows, _s: [with_streams(row, in_loss=(False,) * len(row.tokens.ids)) for row in rows],
          FORMATS_WITH_TOKENS),
    Fault("other weights, no trace", "streams/unlike",
          _streams(lambda _row, value, draw: value + draw.gauss(0, 0.15)), FORMATS_WITH_TOKENS),
    Fault("a truncated distribution", "streams/nucleus",
          _streams(lambda _row, value, draw: value + draw.choice((0.0, 0.1, 0.2))), FORMATS_WITH_TOKENS),
)  # fmt: skip


def _metrics(change):
    """Return a function that updates each line of metrics.jsonl with `change(line number)`."""

    def inject(folder, _seed):
        path = folder / "metrics.jsonl"
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        changed = [entry | change(place) for place, entry in enumerate(entries)]
        path.write_text("".join(json.dumps(entry) + "\n" for entry in changed))

    return inject


def _checkpoints(folder):
    return sorted((folder / "checkpoints").glob("step-*/policy.safetensors"))


def _freeze(choose):
    """Return a function that resets the chosen tensors of each checkpoint to their values in the first."""

    def inject(folder, _seed):
        first, *later = _checkpoints(folder)
        frozen = {name: tensor for name, tensor in load_file(first).items() if choose(name)}
        for path in later:
            save_file(load_file(path) | frozen, path)

    return inject


def _put_nan(folder, _seed):
    path = _checkpoints(folder)[-1]
    tensors = load_file(path)
    next(tensor for name, tensor in tensors.items() if "mlp" in name)[0] = math.nan
    save_file(tensors, path)


def _lose_updates(folder, _seed):
    """Add the same update to bfloat16 weights at each step, which changes only the small ones."""
    paths = _checkpoints(folder)
    tensors = {name: (10 * tensor).bfloat16() for name, tensor in load_file(paths[0]).items()}
    for path in paths:
        save_file(tensors, path)
        tensors = {name: tensor + 1e-4 for name, tensor in tensors.items()}


FILES = (
    ("NaN in the gradient's norm", "metrics/nan", _metrics(lambda place: {"grad_norm": math.nan} if place > 3 else {})),
    ("a learning rate of 0", "metrics/rate_zero", _metrics(lambda _: {"lr": 0.0})),
    ("weights that do not move", "moved/nothing", _freeze(lambda _name: True)),
    ("a layer that does not move", "moved/part", _freeze(lambda name: "layers.1" in name)),
    ("weights that are no numbers", "moved/nan", _put_nan),
    ("updates that bfloat16 loses", "moved/lost", _lose_updates),
)  # fmt: skip
