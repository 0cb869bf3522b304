"""Check a run with a fault by its files and the server's log, independently of the trainer.

`missing_parts`, `sampling_problems` and `differences` check one rule each. An error message must name server, call and
fix. Each trained completion must be one that a server sampled for its prompt from the recorded weights. A run must
equal the reference run bit for bit.
"""

import functools
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from tests.grpo_core.conftest import read_lines
from tests.grpo_core.faults.killable_servers import hashes

# A fault may cause an error only at a later call, so the error may name any of these calls.
_CALLS = ("/info", "/version", "/openapi.json", "/weights", "/fingerprint", "generate", "weight sync")


def missing_parts(error: str, port: int) -> list[str]:
    """Return what an error message lacks: the server, the call, or the fix."""
    missing = []
    if f"127.0.0.1:{port}" not in error:
        missing.append("the server")
    if not any(call in error for call in _CALLS):
        missing.append("the call")
    if "--resume" not in error:
        missing.append("the fix")
    return [f"the error does not name {what}: {error}" for what in missing]


def read_log(path: Path, start: int = 0) -> list[dict[str, Any]]:
    """Return the samples in a server log, from an offset on."""
    with path.open("rb") as file:
        file.seek(start)
        return [json.loads(line) for line in file]


def sampling_problems(folder: Path, model_dir: Path, log: list[dict[str, Any]]) -> list[str]:
    """Return problems of trained completions that no server sampled for this prompt from these weights.

    Args:
        folder: The run's folder, with every step recorded and every checkpoint kept.
        model_dir: The weights of version 0.
        log: The samples of the servers during the run.
    """
    sampled: dict[tuple, list[dict[str, str]]] = {}
    for call in log:
        for request, prompt, ids, logprobs in call["answers"]:
            key = (request, tuple(prompt), tuple(ids), tuple(logprobs))
            sampled.setdefault(key, []).append(call["weights"])
    problems = []
    weights = functools.cache(lambda version: weight_hashes(folder, model_dir, version))
    for step, version, key, versions in recorded_completions(folder):
        sources, claimed = sampled.get(key), weights(version)
        problem = ""
        if set(versions) != {version}:
            problem = f"tokens of {set(versions)} train version {version}"
        elif sources is None:
            problem = "no server sampled this completion for this prompt"
        elif not any(claimed.items() <= weights_there.items() for weights_there in sources):
            problem = f"not sampled from the weights of version {version}"
        if problem:
            problems.append(f"step {step}, request {key[0]}: {problem}")
    return problems


def recorded_completions(folder: Path):
    """Yield (step, version, (request, prompt ids, ids, log-probs), versions) of every recorded completion."""
    path = folder / "rollouts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    # A later line of a step, written after a restart, replaces the earlier one.
    for entry in {line["step"]: line for line in map(json.loads, lines)}.values():
        numbers = {name: value.tolist() for name, value in load_file(folder / entry["file"]).items()}
        prompts = list(_split(numbers["prompt_ids"], numbers["prompt_lengths"]))
        streams = [
            _split(numbers[name], numbers["completion_lengths"])
            for name in ("completion_ids", "behaviour_logprobs", "policy_versions")
        ]
        for request, place, ids, logprobs, versions in zip(
            entry["requests"], numbers["prompt_index"], *streams, strict=True
        ):
            yield entry["step"], entry["policy_version"], (request, prompts[place], ids, logprobs), versions


def weight_hashes(folder: Path, model_dir: Path, version: int) -> dict[str, str]:
    """Return the weight hashes of a policy version; with one update per step, step n saves version n."""
    saved = folder / "checkpoints" / f"step-{version:08d}" / "policy.safetensors"
    tensors = load_file(saved if version else model_dir / "model.safetensors")
    return hashes({name.removeprefix("causal."): value for name, value in tensors.items()})


def differences(folder: Path, reference: Path, steps: int) -> list[str]:
    """Return where a run differs bit for bit from one without a fault; wall times are ignored."""
    problems = []
    for name in ("metrics", "completions"):
        ours, theirs = read_lines(folder / f"{name}.jsonl"), read_lines(reference / f"{name}.jsonl")
        if len(ours) != len(theirs):
            problems.append(f"{len(ours)} lines of {name}, not {len(theirs)}")
        problems += [
            f"{name}, line {place + 1}: {key} is {a.get(key)}, not {b.get(key)}"
            for place, (a, b) in enumerate(zip(ours, theirs, strict=False))
            for key in sorted(a.keys() | b.keys())
            if a.get(key) != b.get(key)
        ]
    last = Path("checkpoints", f"step-{steps:08d}", "policy.safetensors")
    if not (folder / last).exists():
        problems.append("no checkpoint of the last step")
    elif (folder / last).read_bytes() != (reference / last).read_bytes():
        problems.append("other parameters at the end")
    return problems


def _split(values: list, lengths: list[int]):
    """Yield tuples of these lengths."""
    start = 0
    for length in lengths:
        yield tuple(values[start : start + length])
        start += length
