"""Compare the audit with other tools and thresholds on the same injected faults, and print a Markdown table.

usage: python -m evaluation.audit.peers RUN WORLD PYTHON

RUN is a healthy run of TRL (evaluation/audit/trl_run.py), WORLD a folder of trained models (tiny_model.py), PYTHON an
interpreter with rldoctor, rlprobe and rlwatch. A fault is injected into the metrics that TRL logs, into the
completions, or into the engine. rldoctor, rlprobe and rlwatch get the metrics. The thresholds of trainers (GATES) get
the log-probs of 2,000 sampled tokens from engine and trainer. The audit gets the run or the server. A finding that a
tool also reports for the healthy run does not count.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from diagnostics.audit.live.checkpoint_tokenizer import Tokenizer
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.sampling_distribution import Sampling
from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.recorded.run_audit import audit_run, read_run
from diagnostics.audit.results import FAULT
from evaluation.audit.bench_server import BenchEngine, BenchFaults
from evaluation.audit.live_bench import write_mixed_checkpoint, write_noisy_checkpoint
from tests.diagnostics.audit.fake_vllm_server import load_rounded, serving
from tests.diagnostics.audit.tiny_model import corpus
from tests.diagnostics.audit_recorded import faults, runs

TOOLS = Path(__file__).parent / "peer_tools.py"
NAME = "checkpoint-300"
TOKENS = 2000
GATES = ("prime-rl", "NeMo-RL", "verl")

# Faults that change TRL's logged metrics; the second argument is true in the second half of the run.
METRICS: dict[str, Any] = {
    "a learning rate of 0": lambda entry, _: entry | {"learning_rate": 0.0},
    "a gradient of 0": lambda entry, _: entry | {"grad_norm": 0.0},
    "NaN in the gradient's norm": lambda entry, late: entry | ({"grad_norm": math.nan} if late else {}),
    "all cut at the limit": lambda entry, _: (
        entry | {"completions/clipped_ratio": 1.0, "completions/mean_terminated_length": 0.0}
    ),
    "no spread of rewards": lambda entry, _: (
        entry | {"frac_reward_zero_std": 1.0, "reward_std": 0.0, "loss": 0.0, "grad_norm": 0.0}
    ),
    "another reference": lambda entry, _: entry | {"kl": 0.2},
}
SAMPLES = (
    "advantages of interleaved groups",
    "advantages of the other sign",
    "one seed for all of a group",
    "a resume that goes back",
    "the prompt in the completion",
)


def engine_faults(folder: Path) -> dict[str, tuple[str, str, BenchFaults]]:
    """Return the engine faults by name: expected family, folder of the weights, and the fault of the server."""
    return {
        "temperature 0.8": ("sampling/temperature", NAME, BenchFaults(sampling={"temperature": 0.8})),
        "top-p 0.95": ("sampling/top_p", NAME, BenchFaults(sampling={"top_p": 0.95})),
        "repetition penalty 1.1": (
            "sampling/repetition_penalty",
            NAME,
            BenchFaults(sampling={"repetition_penalty": 1.1}),
        ),
        "weights one checkpoint old": ("weights/version", "checkpoint-280", BenchFaults()),
        "a layer not synced": ("weights/partial", write_mixed_checkpoint(folder, "layer 1"), BenchFaults()),
        "weights 1 % off": ("weights/unknown", write_noisy_checkpoint(folder, 900), BenchFaults()),
        "log-probs shifted": ("sampling/law", NAME, BenchFaults(shift=1)),
        "a second BOS": ("ids/special", NAME, BenchFaults(double_bos=True)),
        "stale keys in the cache": (
            "cache/stale",
            NAME,
            BenchFaults(stale_cache=load_rounded(folder / "checkpoint-20", "bfloat16")),
        ),
    }


def read_metrics(
    run: Path, change: Any = None, engine: dict[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return the metrics that TRL logged in a run, after adding `engine` and applying `change` to each entry."""
    state = max(run.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_size)
    entries = [entry for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]
    records = [{**entry, **(engine or {})} for entry in entries]
    return [
        change(entry, place > len(records) // 2) if change else entry for place, entry in enumerate(records)
    ]


def run_peer_tools(python: str, entries: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Run the three tools on metrics; return the names of the detectors that triggered, by tool."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        done = subprocess.run(
            [python, TOOLS, path], capture_output=True, text=True, check=True, cwd=folder, timeout=500
        )
    return {tool: set(names) for tool, names in json.loads(done.stdout.splitlines()[-1]).items()}


def mismatch_metrics(folder: Path, served: str, wrong: BenchFaults) -> dict[str, float]:
    """Sample at least TOKENS tokens from an engine with a fault; return the mismatch metrics of their log-probs."""
    reference, words = Reference(folder / NAME), Tokenizer(folder / NAME)
    engine = BenchEngine(folder / served, "bfloat16", wrong, 5)
    text = words.encode(corpus()[2000:9000])
    engine_side, trainer_side = [], []
    for start in range(0, len(text), 90):
        if len(engine_side) >= TOKENS:
            break
        prompt = [*words.bos, *text[start : start + 20]]
        ids, values, _ = engine.sample([prompt], 64, Sampling(**wrong.sampling))[0]
        logits = next(reference.logits([[*prompt, *ids]], "float32")).double()
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        engine_side += values
        trainer_side += rows.gather(1, torch.tensor([ids]).T)[:, 0].tolist()
    return compute_mismatch(engine_side, trainer_side)


def compute_mismatch(engine: list[float], trainer: list[float]) -> dict[str, float]:
    """Compute the mismatch metrics of prime-rl, NeMo-RL, verl and TRL from log-probs of engine and trainer."""
    differences = [b - a for a, b in zip(engine, trainer, strict=True)]
    ratios = [math.exp(max(-20.0, min(20.0, difference))) for difference in differences]
    return {
        "mismatch_kl": statistics.fmean(
            ratio - difference - 1 for ratio, difference in zip(ratios, differences, strict=True)
        ),
        "mult_error": statistics.fmean(math.exp(min(20.0, abs(difference))) for difference in differences),
        "is_mean": statistics.fmean(ratios),
        "ess": statistics.fmean(ratios) ** 2 / statistics.fmean(ratio**2 for ratio in ratios),
        "mean": statistics.fmean(map(abs, differences)),
        "max": max(map(abs, differences)),
    }


def alarming_gates(metrics: dict[str, float]) -> set[str]:
    """Return the trainers of GATES whose threshold raises an alarm.

    prime-rl: mismatch KL of at least 0.01. NeMo-RL: multiplicative error above 1.05. verl: mean importance weight
    outside 0.5 to 2, or relative effective sample size below 0.3.
    """
    verdicts = {
        "prime-rl": metrics["mismatch_kl"] >= 0.01,
        "NeMo-RL": metrics["mult_error"] > 1.05,
        "verl": not 0.5 <= metrics["is_mean"] <= 2.0 or metrics["ess"] < 0.3,
    }
    return {name for name, alarms in verdicts.items() if alarms}


def print_row(name: str, findings: dict[str, set[str]], healthy: dict[str, set[str]], ours: str) -> None:
    """Print the row of a fault: new findings of the three tools, thresholds with an alarm, and the audit's answer."""
    columns = []
    for tool in ("rldoctor", "rlprobe", "rlwatch"):
        more = sorted(findings.get(tool, set()) - healthy.get(tool, set())) if findings else []
        columns.append(", ".join(more) or "-")
    columns += ["alarm" if gate in findings.get("gates", set()) else "-" for gate in GATES]
    print(f"| {name} | {' | '.join(columns)} | {ours} |", flush=True)


def format_families(audit: Any, wanted: str = "") -> str:
    """Return the fault families that an audit names, as text; add `wanted` in brackets if it is missing."""
    families = sorted({answer.family for answer in audit.results if answer.outcome == FAULT})
    listed = ", ".join(f"`{family}`" for family in families) or "-"
    return listed if not wanted or wanted in families else f"{listed} (wanted `{wanted}`)"


def main() -> None:
    """Print the table: the healthy run, then faults of metrics, of samples and of the engine."""
    run, folder, python = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    right = mismatch_metrics(folder, NAME, BenchFaults())
    logged = {f"sampling/sampling_logp_difference/{name}": right[name] for name in ("mean", "max")}
    base = read_metrics(run, engine=logged)
    healthy = run_peer_tools(python, base)
    print(f"On the healthy run: { ({tool: sorted(names) for tool, names in healthy.items()}) }; {right}\n")
    print(f"| fault | rldoctor | rlprobe | rlwatch | {' | '.join(GATES)} | audit |")
    print("|---|---|---|---|---|---|---|---|")
    print_row(
        "nothing wrong", healthy | {"gates": alarming_gates(right)}, healthy, format_families(audit_run(run))
    )
    for name, change in METRICS.items():
        entries = read_metrics(run, change, logged)
        with tempfile.TemporaryDirectory() as aside:
            path = Path(aside) / "metrics.jsonl"
            path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
            print_row(name, run_peer_tools(python, entries), healthy, format_families(audit_run(path)))
    print_sample_faults(run, healthy)
    for name, (family, served, wrong) in engine_faults(folder).items():
        detected = mismatch_metrics(folder, served, wrong)
        entries = read_metrics(
            run, engine={f"sampling/sampling_logp_difference/{key}": detected[key] for key in ("mean", "max")}
        )
        with serving(BenchEngine(folder / served, "bfloat16", wrong, 3)) as url:
            ours = format_families(audit_server(url, folder / NAME, timeout_s=500), family)
        print_row(
            f"engine: {name} (KL {detected['mismatch_kl']:.2g})",
            run_peer_tools(python, entries) | {"gates": alarming_gates(detected)},
            healthy,
            ours,
        )


def print_sample_faults(run: Path, healthy: dict[str, set[str]]) -> None:
    """Print a row for each fault of SAMPLES; only the audit is run, because metrics do not have the samples."""
    rows = list(next(iter(read_run(run).recordings)).rows)
    for fault in faults.ROWS:
        if fault.name not in SAMPLES:
            continue
        with tempfile.TemporaryDirectory() as aside:
            place = Path(aside) / "run"
            try:
                runs.write_parquet(fault.inject(rows, 1), place)
                ours = format_families(audit_run(place), fault.family)
            except (AttributeError, TypeError):
                continue  # the fault needs token ids, which TRL does not dump
            shutil.rmtree(place)
        print_row(fault.name, {}, healthy, ours)


if __name__ == "__main__":
    main()
