"""Compare how the reference trainer learns in every mode with TRL: reward curves over several seeds.

    python -m evaluation.trainer.learning [--seeds 5] [--steps 170] [--arms colocate,async,server,trl] [--trl PYTHON]

grpo_core runs by its public command line, TRL by `trl_learning.py` in an environment that has it. An arm is a mode of
grpo_core, or TRL. Finished runs are kept in `--results` and not repeated, so an interrupted comparison can be
continued. Exit codes: 0: every run of grpo_core met the criterion. 1: a run did not. 2: a run failed. 130: interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CELL = "vllm-0.31.0+trl-1.16.0"
MODES = ("colocate", "async", "server")
PARALLEL_RUNS = 2
CRITERION = 0.75  # minimum of the mean reward over the last tenth of the steps, for every seed and mode

# All settings that affect the results, so that they do not change with a default.
SETTINGS: dict[str, Any] = {
    "task.kind": "repeat",
    "task.letters": "abcdefghij",
    "task.min_length": 3,
    "task.max_length": 3,
    "model.hidden_size": 64,
    "model.layers": 1,
    "rollout.engine": "transformers",
    "rollout.max_staleness": 1,  # async alone
    "sampling.group_size": 16,
    "sampling.max_tokens": 6,
    "sampling.temperature": 1.0,
    "train.prompts_per_step": 16,
    "train.micro_batch": 256,
    "train.iterations": 1,
    "train.learning_rate": 1.5e-3,
    "train.warmup_updates": 10,
    "train.weight_decay": 0.0,
    "train.max_grad_norm": 1.0,
    "train.threads": 1,
    "loss.advantage_baseline": "group",
    "loss.advantage_scale": "group",
    "loss.advantage_ddof": 1,
    "loss.advantage_epsilon": 1e-4,
    "loss.ratio": "token",
    "loss.surrogate": "clip",
    "loss.aggregation": "token",
    "loss.correction": "truncate",  # has an effect in async alone
    "loss.correction_level": "token",
    "loss.correction_cap": 2.0,
    "loss.clip_low": 0.2,
    "loss.clip_high": 0.2,
    "loss.kl_coefficient": 0.0,
    "output.completions_every": 0,
    "checkpoint.every": 0,
}


class RunFailedError(RuntimeError):
    """Raised when a run ended without a result; names its log."""


def settings_of_run(arm: str, seed: int, steps: int) -> list[str]:
    """Return the settings of one run as command-line options of grpo_core."""
    mode = "colocate" if arm == "trl" else arm
    values = {**SETTINGS, "rollout.mode": mode, "train.steps": steps, "train.seed": seed}
    return [f"--{key}={value}" for key, value in values.items()]


def load_or_run(arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the saved result of a run with the same settings, or run it and save the result."""
    run_settings = settings_of_run(arm, seed, options.steps)
    result_path = options.results / f"{arm}-{seed}.json"
    if result_path.exists():
        result: dict[str, Any] = json.loads(result_path.read_text(encoding="utf-8"))
        if result["settings"] == run_settings:
            return result
    started = time.perf_counter()
    run_arm = _run_trl if arm == "trl" else _run_grpo_core
    result = {"arm": arm, "seed": seed, "settings": run_settings, **run_arm(arm, seed, run_settings, options)}
    result["wall_s"] = time.perf_counter() - started
    partial = result_path.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(result_path)
    print(
        f"{arm}, seed {seed}: {final_reward(result):.3f}, {result['wall_s']:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return result


def _run_grpo_core(
    arm: str, seed: int, run_settings: list[str], options: argparse.Namespace
) -> dict[str, Any]:
    folder = options.results / f"{arm}-{seed}"
    where = [f"--output.dir={folder.parent}", f"--output.name={folder.name}"]
    command = [sys.executable, "-m", "grpo_core", "train", *run_settings, *where, "--json"]
    document = json.loads(_output(command, folder.with_suffix(".log")))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    weights = (folder / "model" / "model.safetensors").read_bytes()
    return {
        "curve": [json.loads(line)["reward/mean"] for line in lines],
        "weights": sha256(weights).hexdigest(),
        "max_staleness": document["max_staleness"],
    }


def _run_trl(arm: str, seed: int, run_settings: list[str], options: argparse.Namespace) -> dict[str, Any]:
    answer = options.results / f"{arm}-{seed}.answer"
    program = Path(__file__).with_name("trl_learning.py")
    _output(
        [str(options.trl), "-P", str(program), str(answer), *run_settings],
        options.results / f"{arm}-{seed}.log",
    )
    result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink()
    if not result["same_prompts"]:
        raise RunFailedError(f"{arm}, seed {seed}: TRL did not train on the prompts it was given")
    return result


def _output(command: list[str], log: Path) -> str:
    """Run a program and return its standard output; standard error goes to the log.

    Raises:
        RunFailedError: The program failed.
        KeyboardInterrupt: The program was interrupted.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("w", encoding="utf-8") as errors:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, check=False
        )
    if done.returncode in (130, -signal.SIGINT):  # a terminal's Ctrl-C reaches the runs too, perhaps first
        raise KeyboardInterrupt
    if done.returncode:
        raise RunFailedError(f"{' '.join(command[:4])} ... ended with {done.returncode}; see {log}")
    return done.stdout


def final_reward(result: dict[str, Any]) -> float:
    """Return the mean reward over the last tenth of the steps."""
    curve = result["curve"]
    return fmean(curve[-max(len(curve) // 10, 1) :])


def mean_reward(result: dict[str, Any]) -> float:
    """Return the mean reward over all steps, which is higher for a run that learns earlier."""
    return fmean(result["curve"])


def student_t(freedom: float) -> float:
    """Return the bound b such that 95 % of Student's t distribution is between -b and b.

    >>> round(student_t(4), 3), round(student_t(19), 3)
    (2.776, 2.093)
    """
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2

    def integrate_to(bound: float) -> float:  # Simpson's rule, from 0
        parts = 2000
        step = bound / parts
        heights = [(1 + (step * i) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(parts + 1)]
        ends, odd, even = heights[0] + heights[-1], sum(heights[1:-1:2]), sum(heights[2:-1:2])
        return 2 * math.exp(log_scale) * step / 3 * (ends + 4 * odd + 2 * even)

    low, high = 0.0, 64.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if integrate_to(middle) < 0.95 else (low, middle)
    return high


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean over seeds.

    >>> [round(bound, 3) for bound in interval([1.0, 2.0, 3.0, 4.0, 5.0])]
    [1.037, 4.963]
    """
    half = student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def welch_interval(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Return Welch's 95 % confidence interval of the difference of the means (ours minus theirs)."""
    a, b = stdev(ours) ** 2 / len(ours), stdev(theirs) ** 2 / len(theirs)
    if a + b == 0:
        return fmean(ours) - fmean(theirs), fmean(ours) - fmean(theirs)
    freedom = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(theirs) - 1))
    half = student_t(freedom) * math.sqrt(a + b)
    return fmean(ours) - fmean(theirs) - half, fmean(ours) - fmean(theirs) + half


def render_table(results: dict[str, list[dict[str, Any]]], steps: int) -> str:
    """Render a Markdown table of each arm's rewards and interval, for both measures, each with its verdicts."""
    lines = []
    for measure, name in (
        (final_reward, f"mean reward, last {max(steps // 10, 1)} steps"),
        (mean_reward, f"mean reward, all {steps} steps"),
    ):
        seeds = " | ".join(f"seed {result['seed']}" for result in next(iter(results.values())))
        lines += [f"| {name} | {seeds} | mean | 95 % interval |", "|---" * (seeds.count("|") + 4) + "|"]
        for arm, runs in results.items():
            values = [measure(run) for run in runs]
            low, high = interval(values)
            cells = " | ".join(f"{value:.3f}" for value in values)
            lines.append(f"| {arm} | {cells} | {fmean(values):.3f} | {low:.3f} to {high:.3f} |")
        lines += ["", *_verdicts(results, measure), ""]
    return "\n".join(lines)


def _verdicts(results: dict[str, list[dict[str, Any]]], measure: Any) -> list[str]:
    if "trl" not in results:
        return []
    theirs = [measure(run) for run in results["trl"]]
    lines = []
    for arm in (arm for arm in results if arm != "trl"):
        ours = [measure(run) for run in results[arm]]
        low, high = welch_interval(ours, theirs)
        lines.append(
            f"- {arm}: TRL's mean is {_within_bounds(fmean(theirs), interval(ours))} our interval, "
            f"ours {_within_bounds(fmean(ours), interval(theirs))} TRL's; "
            f"ours less TRL's: {low:+.3f} to {high:+.3f} (Welch), {_within_bounds(0.0, (low, high), of='0')}."
        )
    return lines


def _within_bounds(value: float, bounds: tuple[float, float], of: str = "") -> str:
    within = bounds[0] <= value <= bounds[1]
    if of:
        return f"{of} {'is' if within else 'is not'} in it"
    return "in" if within else "NOT in"


def render_svg(results: dict[str, list[dict[str, Any]]]) -> str:
    """Render an SVG with a panel for each mode: its mean over seeds and TRL's, with bands from worst to best seed."""
    modes = [arm for arm in results if arm != "trl"]
    width, height, margin_left, top, gap, bottom = 330, 230, 44, 60, 20, 36
    total = margin_left + len(modes) * (width + gap)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {top + height + bottom}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{total}" height="{top + height + bottom}" fill="#fff"/>',
        f'<text x="{margin_left}" y="22" font-size="15">Mean reward per step over seeds; '
        "bands: worst to best seed</text>",
    ]
    for place, mode in enumerate(modes):
        x0 = margin_left + place * (width + gap)
        steps = len(results[mode][0]["curve"])
        for quarter in range(5):
            y = top + height * (1 - quarter / 4)
            parts.append(f'<line x1="{x0}" x2="{x0 + width}" y1="{y}" y2="{y}" stroke="#ddd"/>')
            if not place:
                parts.append(f'<text x="{x0 - 8}" y="{y + 4}" text-anchor="end">{quarter / 4:.2f}</text>')
        parts.append(f'<text x="{x0}" y="{top + height + 20}">step 1</text>')
        parts.append(f'<text x="{x0 + width}" y="{top + height + 20}" text-anchor="end">step {steps}</text>')
        curves = [("trl", "#b0561f"), (mode, "#0b6fa4")] if "trl" in results else [(mode, "#0b6fa4")]
        for row, (arm, colour) in enumerate(reversed(curves)):
            name = "TRL" if arm == "trl" else f"ours, {arm}"
            parts.append(
                f'<text x="{x0 + 130 * row}" y="{top - 14}" fill="{colour}" font-weight="bold">{name}</text>'
            )
        for arm, colour in curves:
            parts += _band([run["curve"] for run in results[arm]], colour, (x0, top, width, height))
    return "\n".join([*parts, "</svg>", ""])


def _band(curves: list[list[float]], colour: str, box: tuple[int, int, int, int]) -> list[str]:
    x0, top, width, height = box
    columns = list(zip(*curves, strict=True))

    def points(values: list[float]) -> list[str]:
        return [
            f"{x0 + width * i / max(len(values) - 1, 1):.1f},{top + height * (1 - value):.1f}"
            for i, value in enumerate(values)
        ]

    upper, lower = points([max(column) for column in columns]), points([min(column) for column in columns])
    mean = " ".join(points([fmean(column) for column in columns]))
    around = " ".join([*upper, *reversed(lower)])
    return [
        f'<polygon points="{around}" fill="{colour}" fill-opacity="0.13"/>',
        f'<polyline points="{mean}" fill="none" stroke="{colour}" stroke-width="2"/>',
    ]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; without an environment for TRL, the arm `trl` is removed."""
    parser = argparse.ArgumentParser(description="Reward curves of the reference trainer and of TRL.")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0; at least 2")
    parser.add_argument("--steps", type=int, default=170, help="optimizer steps per run")
    parser.add_argument(
        "--arms", default="colocate,async,server,trl", help="arms to run, separated by commas"
    )
    parser.add_argument(
        "--trl", type=Path, default=ROOT / ".matrix" / "environments" / CELL / "bin" / "python"
    )
    parser.add_argument(
        "--results", type=Path, default=ROOT / "runs" / "learning", help="folder of finished runs"
    )
    options = parser.parse_args(arguments)
    options.arms = [arm for arm in options.arms.split(",") if arm]
    unknown = sorted(set(options.arms) - {*MODES, "trl"})
    if unknown or not set(options.arms) & set(MODES) or options.seeds < 2 or options.steps < 1:
        parser.error(
            f"expected two or more seeds, one or more steps, and one or more of {', '.join(MODES)} beside trl"
        )
    if "trl" in options.arms and not options.trl.exists():
        print(
            f"TRL is left out: no {options.trl}. Build it: nox -s matrix -- --cells {CELL} --layers install, "
            "or give --trl PYTHON of an environment that has TRL 1.16.0",
            file=sys.stderr,
        )
        options.arms.remove("trl")
    options.results = options.results.resolve()
    return options


def main(arguments: list[str]) -> int:
    """Run the missing runs, then print and plot the results, and check the criterion."""
    options = parse_arguments(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    order = [(arm, seed) for seed in range(options.seeds) for arm in options.arms]
    with ThreadPoolExecutor(PARALLEL_RUNS) as pool:
        runs = [pool.submit(load_or_run, arm, seed, options) for arm, seed in order]
        try:
            done = [run.result() for run in runs]
        except (KeyboardInterrupt, RunFailedError) as error:
            pool.shutdown(wait=True, cancel_futures=True)
            print(
                f"{str(error) or 'interrupted'}; finished runs are kept in {options.results}", file=sys.stderr
            )
            return 2 if isinstance(error, RunFailedError) else 130
    results = {arm: [run for run in done if run["arm"] == arm] for arm in options.arms}
    unlike = [
        seed for seed in range(options.seeds) if len({r["weights"] for r in done if r["seed"] == seed}) != 1
    ]
    if unlike:
        print(f"initial weights differ between arms, for seeds {unlike}", file=sys.stderr)
        return 2
    (options.results / "learning.svg").write_text(render_svg(results), encoding="utf-8")
    (options.results / "learning.json").write_text(json.dumps(results), encoding="utf-8")
    worst = min((final_reward(run) for run in done if run["arm"] != "trl"), default=math.inf)
    print(render_table(results, options.steps))
    print(
        f"Criterion, every seed and mode of ours at least {CRITERION} in the last tenth: worst {worst:.3f}."
    )
    print(f"Curves: {options.results / 'learning.json'}, {options.results / 'learning.svg'}")
    return 0 if worst >= CRITERION else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
