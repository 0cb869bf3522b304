"""Measure step time and tokens per second of grpo_core and TRL on a GPU.

`python -m benchmarks.gpu [--device cuda|cpu] [--trl PYTHON] [--vllm] [--rounds N] [--json] [--toy]` measures:

- training steps of grpo_core, with random weights and the layer sizes of a 0.5B Llama;
- with --trl, an interpreter with TRL: the same steps with TRL, and the ratio; --vllm then adds TRL with vLLM.

The trainers take steps alternately. Times are wall time, because CPU time does not include the work of the GPU.
The values are medians with 95 % bootstrap intervals. With --json, the lines go to standard error and one JSON
document to standard output. On a CPU, or with --toy, the sizes are tiny, which only shows that the benchmark runs.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Program, interval, step_in_turns
from benchmarks.programs.benchmark_inputs import write_large_vocab_model

Measurement = dict[str, Any]


def measurement(name: str, values: list[float], unit: str) -> Measurement:
    """Return a measurement as a dict: name, unit, median of the values (`value`), its 95 % interval (`low`, `high`)."""
    middle, low, high = interval(values)
    return {"name": name, "value": middle, "low": low, "high": high, "unit": unit}


def start_programs(folder: Path, options: argparse.Namespace) -> dict[str, Program]:
    """Start grpo_core's trainer and, with --trl, TRL's; return the running programs by name."""
    size = {
        "train.prompts_per_step": options.prompts, "sampling.group_size": options.group, "model.dtype": "bfloat16",
        "sampling.max_tokens": options.tokens, "train.device": options.device, "rollout.device": options.device,
        "rollout.dtype": "bfloat16", "rollout.sync_tolerance": 0.5, "train.micro_batch": 16,
        "model.float32_parts": "norms",
    }  # fmt: skip
    settings = [f"--{key}={value}" for key, value in size.items()]
    command = ("-m", "benchmarks.programs.grpo_core_trainer", str(folder), *settings)
    programs = {"grpo_core": Program(sys.executable, *command)}
    samples = options.prompts * options.group
    trl = {
        "use_cpu": options.device == "cpu", "bf16": True,
        "num_generations": options.group, "max_completion_length": options.tokens,
        "per_device_train_batch_size": min(samples, 16), "gradient_accumulation_steps": max(1, samples // 16),
    }  # fmt: skip
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
    engines = {"TRL + transformers": {}, **({"TRL + vLLM": vllm} if options.vllm else {})}
    for name, engine in engines.items() if options.trl else ():
        program = ("-m", "benchmarks.programs.trl_trainer", str(folder), str(samples))
        programs[name] = Program(options.trl, *program, json.dumps(trl | engine))
    return programs


def time_steps(folder: Path, options: argparse.Namespace) -> list[Measurement]:
    """Step the trainers alternately; return step times, tokens per second, and the ratio of grpo_core to each TRL."""
    programs = start_programs(folder, options)
    rounds = step_in_turns([*programs.values()], options.rounds)
    measurements, core_s = [], [reports[0]["wall_s"] for reports in rounds]
    for name, reports in zip(programs, zip(*rounds, strict=True), strict=True):
        seconds = [report["wall_s"] for report in reports]
        rates = [report["tokens"] / report["wall_s"] for report in reports]
        measurements.append(measurement(f"step, {name}", seconds, "s"))
        measurements.append(measurement(f"sampled tokens, {name}", rates, "tokens/s"))
        if name != "grpo_core":
            ratios = [core / peer_s for core, peer_s in zip(core_s, seconds, strict=True)]
            measurements.append(measurement(f"step, grpo_core / {name}", ratios, "ratio"))
    return measurements


def main() -> None:
    """Measure the steps and print a line for each measurement; with --json also print the JSON document."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--trl", help="the Python of an environment with TRL")
    parser.add_argument("--vllm", action="store_true", help="also measure TRL with vLLM in its process")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--rounds", type=int, help="measured steps of each trainer")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    toy = options.toy or options.device == "cpu"
    options.prompts, options.group, options.tokens, rounds = (2, 2, 4, 2) if toy else (16, 8, 256, 15)
    options.rounds = options.rounds or rounds
    device_name = torch.cuda.get_device_name(0) if options.device == "cuda" else "the CPU"
    stream = sys.stderr if options.json else sys.stdout
    print(f"on {device_name}{', at a size that is too small to measure' if toy else ''}", file=stream)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_large_vocab_model(folder, layers=1 if toy else 24, toy=toy)
        figures = time_steps(folder, options)
    for entry in figures:
        between = f"[{entry['low']:.4g}, {entry['high']:.4g}]"
        print(f"{entry['name']:38} {entry['value']:10.4g} {between} {entry['unit']}", file=stream, flush=True)
    if options.json:
        print(json.dumps({"device": options.device, "toy": toy, "figures": figures}))


if __name__ == "__main__":
    main()
