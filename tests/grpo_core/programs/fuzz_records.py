"""Feeds the readers of others' dumps and records damaged and hostile ones, as the readers of diagnostics are fed.

`python -m tests.grpo_core.programs.fuzz_records COUNT [SEED [READER...]]`
"""

import copy
import hashlib
import json
import math
import os
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load, save

from evaluation.hostile.fuzz_readers import HOSTILE, as_json, damaged, main, refusing, spoiled
from grpo_core import settings
from grpo_core.config import RecordError
from grpo_core.records.recording import SCHEMA, SCHEMA_2, Recorder, read_step
from grpo_core.types import Completion, Prompt, Request, Sample


def records(numbers, folder):
    """A recorded step, with a file that may be named anywhere."""
    (folder / "run" / "rollouts").mkdir(parents=True)
    (folder / "secret").write_bytes(b"secret")
    entry = {
        "schema": numbers.choice((SCHEMA, SCHEMA_2)),
        "step": 1,
        "file": numbers.choice(("rollouts/a", "../secret", "/etc/hostname", "rollouts/../../secret")),
        "sha256": "0" * 64,
    }
    (folder / "run" / "rollouts.jsonl").write_bytes(as_json(numbers, entry) + b"\n")
    with refusing(RecordError):
        try:
            read_step(folder / "run", 1)
        except RecordError as error:
            if "secret: torn" in str(error) or "hostname: torn" in str(error):
                raise AssertionError("a file outside of the run was read") from error
            raise


_RECORDED = []
_NUMBERS = (-1, 0, 1, 2**31, 2**62, -(2**63), 0.5, math.nan, math.inf, -math.inf, 1e308)
_KINDS = (
    torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64, torch.float16, torch.bfloat16,
)  # fmt: skip


def _recorded():
    """Steps as they are recorded: an entry, and its numbers."""
    if not _RECORDED:
        for _ in range(3):
            samples = []
            for place in range(4):
                size = place + 1
                asked = Prompt(f"p{place // 2}", "text", (7, 8, 9)[: 2 + place // 2], {"answer": [None]})
                one = (f"{place}", tuple(range(size)), (-0.5,) * size, (3,) * size, "stop")
                answer = Completion(*one)
                judged = (asked, answer, "it", place / 3, 0.2, {"letters": 0.5})
                samples.append(Sample(*judged))
            requests = [Request(one.completion.request_id, one.prompt.ids, 2**62) for one in samples]
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder)
                Recorder(run, settings.load(None, [])).write(1, 3, samples, requests, {"loss": 0.1})
                entry = json.loads((run / "rollouts.jsonl").read_text())
                _RECORDED.append((entry, load((run / entry["file"]).read_bytes())))
    return _RECORDED


def _other(numbers, values):
    """A tensor with something else in it, of another type, shape or length."""
    what = numbers.randrange(6)
    if what == 0 and values.numel():
        values = values.clone()
        kind = int if not values.is_floating_point() else float
        flat, place = values.flatten(), numbers.randrange(values.numel())
        try:
            flat[place] = kind(numbers.choice(_NUMBERS))
        except (ValueError, OverflowError, RuntimeError):
            flat[place] = 1
        return flat.reshape(values.shape)
    if what == 1:
        return values.to(numbers.choice(_KINDS))
    if what == 2:
        return values.reshape(numbers.choice(((-1,), (1, -1), (-1, 1), (1, 1, -1))))
    if what == 3 and values.dim():
        return values[: numbers.randrange(len(values) + 1)].clone()
    if what == 4 and values.dim():
        return torch.cat([values, values])
    return torch.tensor(numbers.choice((0, 1.5, True)))


def _spoiled_numbers(numbers, found):
    found = dict(found)
    for _ in range(numbers.choice((0, 1, 1, 2))):
        name = numbers.choice(sorted(found))
        what = numbers.randrange(8)
        if what == 0:
            del found[name]
        elif what == 1:
            found[numbers.choice(("sampled", "token_advantages", "experts", "x" * 500))] = found[name].clone()
        else:
            found[name] = _other(numbers, found[name])
        if not found:
            break
    return found


def _put(numbers, folder, name, data):
    """A record's numbers where its line says; sometimes something else that has the same content."""
    path = folder / "run" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = numbers.randrange(20)
    if kind == 0:
        (folder / "elsewhere").write_bytes(data)
        path.symlink_to(folder / "elsewhere")
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.mkdir()
    else:
        path.write_bytes(data)
    return kind == 0


def rehashed(numbers, folder):
    """A record changed by somebody who then writes the checksum of what he made: the checksum always fits."""
    entry, tensors = copy.deepcopy(numbers.choice(_recorded()))
    data = save(_spoiled_numbers(numbers, tensors))
    if numbers.random() < 0.3:
        data = damaged(numbers, data)
    name = entry["file"]
    if numbers.random() < 0.1:
        name = numbers.choice(
            ("rollouts/a/b", "rollouts/../rollouts/a", "./rollouts/x", "rollouts/\u202e", "other/a")
        )
    outside = _put(numbers, folder, name, data)
    if numbers.random() < 0.6:
        entry = spoiled(numbers, entry)
    if numbers.random() < 0.1 and isinstance(entry.get("prompts"), list) and entry["prompts"]:
        entry["prompts"][0] = {"id": numbers.choice(HOSTILE), "text": numbers.choice(HOSTILE), "columns": {}}
    # What leads to the numbers always fits; what stands behind them is what is tried.
    entry |= {"step": 1, "file": name, "sha256": hashlib.sha256(data).hexdigest()}
    entry["schema"] = numbers.choice((SCHEMA, SCHEMA_2))
    text = json.dumps(entry).encode("utf-8", "replace")
    (folder / "run" / "rollouts.jsonl").write_bytes(text + b"\n")
    with refusing(RecordError):
        found = read_step(folder / "run", 1)
    assert not outside, "a link out of the run was followed"
    assert not name.startswith("other"), "a file beside the rollouts was read"
    _whole(found)


def _whole(found):
    """What was not refused is a step: of the right types, everything beside everything else."""
    assert found.samples
    for one in found.samples:
        answer = one.completion
        assert len(answer.ids) == len(answer.logprobs) == len(answer.versions)
        for value in (one.prompt.id, one.prompt.text, one.text, answer.request_id, answer.finish_reason):
            assert isinstance(value, str), value
        for each in (one.prompt.ids, answer.ids, answer.versions):
            assert all(type(value) is int and value >= 0 for value in each), each
        for value in (*answer.logprobs, one.reward, one.advantage, *getattr(one, "advantages", ())):
            assert type(value) is float, value
        assert all(type(mark) is bool for mark in getattr(answer, "sampled", ()))
        assert isinstance(one.scores, dict)
        assert isinstance(one.prompt.columns, dict)
        assert type(one.trained) is bool


READERS = {records: 1, rehashed: 6}

if __name__ == "__main__":
    sys.exit(main(READERS, *sys.argv[1:]))
