"""Faults injected into the samples of a real run; each changes only what the real fault would.

`ROWS` change samples, which are then written in any format; `FILES` change files of a run's folder.
"""

from __future__ import annotations

import json
import math
import random
import struct
from dataclasses import dataclass, replace

from diagnostics.audit.recorded.run_data import group_samples
from tests.diagnostics.audit_recorded.runs import TOKENS, steps_of, with_streams


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: What it is called in the table.
        family: What the audit is to answer.
        put: The rows with the fault, by a seed.
        formats: Where it can be seen.
    """

    name: str
    family: str
    put: object
    formats: tuple[str, ...] = ("parquet", "swift")


def _by_step(rows, change):
    return [row for of_step in steps_of(rows).values() for row in change(of_step)]


def _advantages(rows, compute):
    def change(of_step):
        return [replace(row, advantage=value) for row, value in zip(of_step, compute(of_step), strict=True)]

    return _by_step(rows, change)


def _normed(rewards):
    middle = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((item - middle) ** 2 for item in rewards) / (len(rewards) - 1))
    return [(item - middle) / (deviation + 1e-4) if deviation else 0.0 for item in rewards]


def _interleaved(of_step):
    many = len(group_samples(of_step))
    built = [0.0] * len(of_step)
    for first in range(many):
        places = range(first, len(of_step), many)
        for place, value in zip(places, _normed([of_step[item].reward for item in places]), strict=True):
            built[place] = value
    return built


def _rolled(values, by):
    return values[-by:] + values[:-by]


def _settle(rows, reward):
    """The rewards replaced, and the advantages that a right trainer makes of them."""
    changed = [replace(row, reward=reward(row)) for row in rows]

    def recompute(of_step):
        built = {}
        for group in group_samples(of_step):
            built |= dict(zip(map(id, group), _normed([row.reward for row in group]), strict=True))
        return [built[id(row)] for row in of_step]

    return _advantages(changed, recompute)


def _tokens(change):
    """Change each row's tokens, with a separate random generator."""

    def inject(rows, seed):
        generator = random.Random(seed)
        return [change(row, generator) for row in rows]

    return inject


def _streams(offset):
    """The engine's stream moved at each sampled token: by row, place, what it was, and a generator."""

    def change(row, drawn):
        tokens = row.tokens
        engine = [
            None if item is None else offset(row, place, item, drawn)
            for place, item in enumerate(tokens.engine)
        ]
        return with_streams(row, engine=tuple(engine))

    return _tokens(change)


def _shifted_stream(row, _drawn):
    tokens = row.tokens
    reported = [item for item in tokens.engine if item is not None]
    return with_streams(
        row, engine=(*[None] * (len(tokens.engine) - len(reported)), *reported[1:], reported[0])
    )


def _unmasked(row, _drawn):
    return with_streams(row, trained=(False,) * len(row.tokens.ids))


def _repeated(rows, seed):
    """A resume that goes back: behind the middle step come the two before it again, under new numbers."""
    steps = list(steps_of(rows).values())
    generator = random.Random(seed)
    middle = len(steps) // 2 + generator.randrange(2)
    again = steps[:middle] + steps[middle - 2 : middle] + steps[middle:]
    letters = "abcdefghij"
    # Other completions: the prompts come again, the samples do not.
    return [
        replace(
            row,
            step=number,
            completion="".join(generator.choices(letters, k=5)) if again_now else row.completion,
        )
        for number, of_step in enumerate(again, 1)
        for again_now in (middle < number <= middle + 2,)
        for row in of_step
    ]


def _copied(rows, seed):
    """One seed for all: of a group every completion is its first."""

    def change(of_step):
        return [replace(group[0], place=row.place) for group in group_samples(of_step) for row in group]

    return _by_step(rows, change)


def _echoed(rows, _seed):
    hosts = "What follows"
    return [
        replace(row, prompt=f"{hosts} {row.prompt}", completion=f"{hosts} {row.prompt} is {row.completion}")
        for row in rows
    ]


def _in_words(row):
    """The row with a prompt and an answer in words, as a larger model's would be."""
    reported = row.columns["answer"]
    return replace(
        row,
        prompt=f"Please write the word {reported} once more, and nothing else than {reported}.",
        completion=f"The word that was asked for is {reported} , so here it is: {row.completion}",
    )


def _paired(rows, seed):
    """Completions of the next prompt of the step."""
    by = random.Random(seed).choice((1, 2))

    def change(of_step):
        groups = group_samples([_in_words(row) for row in of_step])
        neighbour = _rolled(groups, by)
        return [
            replace(row, completion=second.completion)
            for group, rest in zip(groups, neighbour, strict=True)
            for row, second in zip(group, rest, strict=True)
        ]

    return _by_step(rows, change)


def _other_inside(rows, _seed):
    def change(of_step):
        worded = [_in_words(row) for row in of_step]
        prompts = [row.prompt for row in worded]
        return [
            replace(row, completion=f"{second} {row.completion}")
            for row, second in zip(worded, _rolled(prompts, len(group_samples(of_step)[0])), strict=True)
        ]

    return _by_step(rows, change)


def _near_engine(row, place, each, drawn):
    return each + drawn.gauss(0, 0.15)


def _stood_before(row, place):
    return row.tokens.ids[place] in row.tokens.ids[:place]


ROWS = (
    Fault("advantages of interleaved groups", "advantages/grouping",
          lambda rows, _s: _advantages(rows, _interleaved)),
    Fault("advantages shifted by a row", "advantages/shifted",
          lambda rows, _s: _advantages(rows, lambda of_step: _rolled([row.advantage for row in of_step], 1))),
    Fault("advantages shifted by a group", "advantages/shifted",
          lambda rows, _s: _advantages(rows, lambda of_step: _rolled([row.advantage for row in of_step], 8))),
    Fault("advantages of the other sign", "advantages/sign",
          lambda rows, _s: _advantages(rows, lambda of_step: [-row.advantage for row in of_step])),
    Fault("advantages times a factor", "advantages/scaled",
          lambda rows, s: _advantages(
              rows, lambda of_step: [row.advantage * (0.2 + 0.05 * (s % 9)) for row in of_step])),
    Fault("advantages all 0", "advantages/zero",
          lambda rows, _s: _advantages(rows, lambda of_step: [0.0] * len(of_step))),
    Fault("reward the same for all", "rewards/constant", lambda rows, _s: _settle(rows, lambda _: 0.0),
          ("parquet", "swift", "verl")),
    Fault("groups all right or all wrong", "rewards/no_spread",
          lambda rows, s: _settle(rows, lambda row: float(sum(map(ord, row.prompt)) % (2 + s % 3) == 0)),
          ("parquet", "swift", "verl")),
    Fault("one seed for all of a group", "samples/identical", _copied, TOKENS),
    Fault("a resume that goes back", "data/repeated", _repeated, ("parquet", "swift", "verl")),
    Fault("the prompt in the completion", "pairing/echo", _echoed, ("parquet", "swift", "verl")),
    Fault("completions of another prompt", "pairing/shifted", _paired, ("parquet", "swift", "verl")),
    Fault("another prompt in the completion", "pairing/other", _other_inside, ("parquet", "swift", "verl")),
    Fault("no token in the loss", "masks/nothing", _tokens(_unmasked), TOKENS),
    Fault("log-probs shifted by a token", "streams/shifted", _tokens(_shifted_stream), TOKENS),
    Fault("other weights, no trace", "streams/unlike", _streams(_near_engine), TOKENS),
    Fault("some tokens far off", "streams/some",
          _streams(lambda _r, _p, each, drawn: each - 1.5 if drawn.random() < 0.04 else each), TOKENS),
    Fault("off behind a place", "streams/position",
          _streams(lambda row, p, each, drawn: each + drawn.gauss(0, 0.8)
                   if p - row.tokens.prompt >= 8 else each), TOKENS),
    Fault("older weights all along", "streams/stale",
          _streams(lambda row, _p, each, drawn: each + drawn.gauss(0, 0.02 * (row.step - 1))), TOKENS),
)  # fmt: skip


# Faults of a run folder ---------------------------------------------------------------------------------------------


def _history(change):
    """Change each line of metrics of a run of ours."""

    def inject(folder, seed):
        path = folder / "metrics.jsonl"
        generator = random.Random(seed)
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        changed = [change(entry, place, generator) for place, entry in enumerate(entries)]
        path.write_text("".join(json.dumps(entry) + "\n" for entry in changed))

    return inject


def tensors_of(path):
    """Header and bytes of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[: 8 + length], bytearray(data[8 + length :])


def _weights(choose, change=lambda _body, _stood_before, _start, _end: None):
    """Give the tensors of every checkpoint the bytes that they had in the first, or changes them otherwise."""

    def inject(folder, _seed):
        paths = sorted((folder / "checkpoints").glob("step-*/policy.safetensors"))
        header, _, first = tensors_of(paths[0])
        for path in paths[1:]:
            _, head, body = tensors_of(path)
            for name, entry in header.items():
                if name != "__metadata__" and choose(name):
                    start, end = entry["data_offsets"]
                    body[start:end] = first[start:end]
                    change(body, first, start, end)
            path.write_bytes(head + body)

    return inject


def _not_a_number(folder, _seed):
    path = sorted((folder / "checkpoints").glob("step-*/policy.safetensors"))[-1]
    header, head, body = tensors_of(path)
    start, _ = next(entry["data_offsets"] for name, entry in header.items() if "mlp" in name)
    body[start : start + 4] = struct.pack("<f", math.nan)
    path.write_bytes(head + body)


FILES = (
    ("NaN in the gradient's norm", "metrics/nan",
     _history(lambda entry, place, _d: entry | ({"grad_norm": math.nan} if place > 3 else {}))),
    ("another reference", "metrics/reference", _history(lambda entry, _p, d: entry | {"kl": 0.05 + d.random() / 5})),
    ("a gradient of 0", "metrics/no_gradient", _history(lambda entry, _p, _d: entry | {"grad_norm": 0.0})),
    ("a learning rate of 0", "metrics/rate_zero", _history(lambda entry, _p, _d: entry | {"lr": 0.0})),
    ("all cut at the limit", "metrics/all_cut",
     _history(lambda entry, _p, _d: entry
              | {"completions/clipped_ratio": 1.0, "completions/mean_terminated_length": 0.0})),
    ("weights that do not move", "moved/nothing", _weights(lambda _name: True)),
    ("a layer that does not move", "moved/part", _weights(lambda name: "layers.1" in name)),
    ("weights that are no numbers", "moved/nan", _not_a_number),
)  # fmt: skip
