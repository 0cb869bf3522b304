"""`python -m evaluation.audit.peers RUN WORLD PYTHON`: what other tools and thresholds see of the same faults.

RUN is a healthy run of TRL (evaluation/audit/trl_run.py), WORLD trained models (tiny_model.py),
PYTHON one that has rldoctor, rlprobe and rlwatch. Each fault is put into what it changes: the metrics that TRL logs,
the completions, or the engine; then curve tools are given the metrics, the gates of trainers the log-probs of engine
and trainer of 2,000 sampled tokens, and the audit what it asks for. What a tool says of the healthy run, too, counts as
nothing. Prints Markdown.
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

from diagnostics.audit.checkpoint_validation import load_tokenizer
from diagnostics.audit.live.probe_plan import LiveAuditOptions, audit_server
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.sampling_distribution import Sampling
from diagnostics.audit.recorded.run_audit import audit_run, read_run
from diagnostics.audit.results import FAULT
from evaluation.audit.live_bench import mixed, off
from tests.diagnostics.audit.standin import Engine, ServerFaults, load_rounded, serving
from tests.diagnostics.audit.tiny_model import corpus
from tests.diagnostics.audit_recorded import faults, runs

TOOLS = Path(__file__).parent / "peer_tools.py"
NAME = "checkpoint-300"
TOKENS = 2000
GATES = ("prime-rl", "NeMo-RL", "verl")

# Faults that change TRL's logged metrics, from the beginning or from the middle on.
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
    "advantages shifted by a row",
    "one seed for all of a group",
    "a resume that goes back",
    "the prompt in the completion",
)


def engines(folder: Path) -> dict[str, tuple[str, str, ServerFaults]]:
    """Return engine faults: name -> expected family, weights folder, and the fault."""
    return {
        "temperature 0.8": ("sampling/temperature", NAME, ServerFaults(law={"temperature": 0.8})),
        "top-p 0.95": ("sampling/top_p", NAME, ServerFaults(law={"top_p": 0.95})),
        "repetition penalty 1.1": (
            "sampling/repetition_penalty",
            NAME,
            ServerFaults(law={"repetition_penalty": 1.1}),
        ),
        "weights one checkpoint old": ("weights/version", "checkpoint-280", ServerFaults()),
        "a layer not synced": ("weights/partial", mixed(folder, "layer 1"), ServerFaults()),
        "weights 1 % off": ("weights/unknown", off(folder, 900), ServerFaults()),
        "log-probs shifted": ("logprobs/shift", NAME, ServerFaults(shift=1)),
        "a second BOS": ("ids/special", NAME, ServerFaults(double_bos=True)),
        "stale keys in the cache": (
            "cache/stale",
            NAME,
            ServerFaults(stale_cache=load_rounded(folder / "checkpoint-20", "bfloat16")),
        ),
    }


def history(run: Path, change: Any = None, engine: dict[str, float] | None = None) -> list[dict[str, Any]]:
    """TRL's own lines of metrics, changed."""
    state = max(run.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_size)
    entries = [entry for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]
    records = [{**entry, **(engine or {})} for entry in entries]
    return [
        change(entry, place > len(records) // 2) if change else entry for place, entry in enumerate(records)
    ]


def curves(python: str, entries: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Run the three tools on metrics; return the faults each one names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        done = subprocess.run(
            [python, TOOLS, path], capture_output=True, text=True, check=True, cwd=folder, timeout=500
        )
    return {tool: set(names) for tool, names in json.loads(done.stdout.splitlines()[-1]).items()}


def mismatch_metrics(folder: Path, held: str, wrong: ServerFaults) -> dict[str, float]:
    """Compute the trainers' mismatch metrics from the engine's and the trainer's log-probs of sampled tokens."""
    reference, words = Reference(folder / NAME), load_tokenizer(folder / NAME)
    engine = Engine(folder / held, "bfloat16", wrong, 5)
    text = words(corpus()[2000:9000])["input_ids"]
    engine_side, trainer_side = [], []
    for start in range(0, len(text), 90):
        if len(engine_side) >= TOKENS:
            break
        prompt = [int(words.bos_token_id), *text[start : start + 20]]
        ids, values, _ = engine.sample([prompt], 64, Sampling(**wrong.law))[0]
        logits = next(reference.logits([[*prompt, *ids]], "float32")).double()
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        engine_side += values
        trainer_side += rows.gather(1, torch.tensor([ids]).T)[:, 0].tolist()
    return mismatch(engine_side, trainer_side)


def mismatch(engine: list[float], trainer: list[float]) -> dict[str, float]:
    """Compute mismatch metrics by the trainers' own formulas."""
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


def gates(seen: dict[str, float]) -> set[str]:
    """prime-rl's CI (mismatch KL below 0.01), NeMo-RL's (1.05), verl's warnings (weights 0.5 to 2, ESS 0.3)."""
    verdicts = {
        "prime-rl": seen["mismatch_kl"] >= 0.01,
        "NeMo-RL": seen["mult_error"] > 1.05,
        "verl": not 0.5 <= seen["is_mean"] <= 2.0 or seen["ess"] < 0.3,
    }
    return {name for name, alarms in verdicts.items() if alarms}


def print_row(name: str, seen: dict[str, set[str]], healthy: dict[str, set[str]], ours: str) -> None:
    """One fault."""
    columns = []
    for tool in ("rldoctor", "rlprobe", "rlwatch"):
        more = sorted(seen.get(tool, set()) - healthy.get(tool, set())) if seen else []
        columns.append(", ".join(more) or "-")
    columns += ["alarm" if gate in seen.get("gates", set()) else "-" for gate in GATES]
    print(f"| {name} | {' | '.join(columns)} | {ours} |", flush=True)


def families(audit: Any, wanted: str = "") -> str:
    """Return the fault families that an audit names, as text, with the expected one if it is missing."""
    families = sorted({answer.family for answer in audit.results if answer.outcome == FAULT})
    listed = ", ".join(f"`{family}`" for family in families) or "-"
    return listed if not wanted or wanted in families else f"{listed} (wanted `{wanted}`)"


def main() -> None:
    """The table."""
    run, folder, python = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    right = mismatch_metrics(folder, NAME, ServerFaults())
    logged = {f"sampling/sampling_logp_difference/{name}": right[name] for name in ("mean", "max")}
    base = history(run, engine=logged)
    healthy = curves(python, base)
    print(f"On the healthy run: { ({tool: sorted(names) for tool, names in healthy.items()}) }; {right}\n")
    print(f"| fault | rldoctor | rlprobe | rlwatch | {' | '.join(GATES)} | audit |")
    print("|---|---|---|---|---|---|---|---|")
    print_row("nothing wrong", healthy | {"gates": gates(right)}, healthy, families(audit_run(run)))
    for name, change in METRICS.items():
        entries = history(run, change, logged)
        with tempfile.TemporaryDirectory() as aside:
            path = Path(aside) / "metrics.jsonl"
            path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
            print_row(name, curves(python, entries), healthy, families(audit_run(path)))
    of_samples(run, healthy)
    for name, (family, served, wrong) in engines(folder).items():
        detected = mismatch_metrics(folder, served, wrong)
        entries = history(
            run, engine={f"sampling/sampling_logp_difference/{key}": detected[key] for key in ("mean", "max")}
        )
        with serving(Engine(folder / served, "bfloat16", wrong, 3)) as url:
            ours = families(audit_server(LiveAuditOptions(url, folder / NAME, timeout_s=500)), family)
        print_row(
            f"engine: {name} (KL {detected['mismatch_kl']:.2g})",
            curves(python, entries) | {"gates": gates(detected)},
            healthy,
            ours,
        )


def of_samples(run: Path, healthy: dict[str, set[str]]) -> None:
    """Print a row for each fault of samples, which metrics may not show."""
    rows = list(next(iter(read_run(run).recordings)).rows)
    for fault in faults.ROWS:
        if fault.name not in SAMPLES:
            continue
        with tempfile.TemporaryDirectory() as aside:
            place = Path(aside) / "run"
            try:
                runs.as_parquet(fault.put(rows, 1), place)
                ours = families(audit_run(place), fault.family)
            except (AttributeError, TypeError):
                continue  # of tokens, which TRL does not dump
            shutil.rmtree(place)
        print_row(fault.name, {}, healthy, ours)


if __name__ == "__main__":
    main()
