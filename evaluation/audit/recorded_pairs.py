"""Run artifacts with two faults, one of which may hide the other: count which are reported.

    python benchmarks/audit_recorded_pairs.py [--models N] [--first-seed N] [--only NAME] [--toy]

A law of sampling with a second law, with samples that are copies or with rewards that are all the same, and truncation
with rewards that are all the same. Models, seeds and values are drawn; no value stands on a grid. Prints Markdown,
shares with Wilson's interval of 95 %. `--toy` shows that it runs and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.recorded.stats import share_interval
from diagnostics.audit.results import FAULT, MASKED, NOT_DECIDED, Audit
from tests.diagnostics.audit_recorded import faults, runs, sampled

# Identical samples have no spread: that is not another fault.
FOLLOW = {"rewards/no_spread", "rewards/constant"}
STATES = ("named", "said to be hidden", "named otherwise", "not decided", "missed")
COPIES, SAME = (
    next(fault.put for fault in faults.ROWS if fault.family == family)
    for family in ("samples/identical", "rewards/constant")
)
ALL_CUT = next(put for _, family, put in faults.FILES if family == "metrics/all_cut")


@dataclass(frozen=True)
class Pair:
    """Two faults.

    Attributes:
        name: What the table calls them.
        families: What the audit is to answer.
        how: The law, of the values that were drawn.
        put: Changes the samples, by a seed; None: the second fault is in the law.
    """

    name: str
    families: tuple[str, str]
    how: tuple[str, ...]
    put: object = None


TEXTS = (
    Pair("texts: temperature, top-p", ("text/temperature", "text/top_p"), ("temperature", "top_p")),
    Pair("texts: temperature, top-k", ("text/temperature", "text/top_k"), ("temperature", "top_k")),
    Pair("texts: temperature, rewards all the same", ("text/temperature", "rewards/constant"), ("temperature",), SAME),
    Pair("texts: top-p, rewards all the same", ("text/top_p", "rewards/constant"), ("top_p",), SAME),
    Pair("texts: temperature, copies", ("text/temperature", "samples"), ("temperature",), COPIES),
)  # fmt: skip
STREAMS = (
    Pair("log-probs: temperature, top-p", ("streams/temperature", "streams/nucleus"), ("temperature", "top_p")),
    Pair("log-probs: temperature, repetition penalty", ("streams/temperature", "streams/repetition"),
         ("temperature", "repetition_penalty")),
    Pair("log-probs: top-p, repetition penalty", ("streams/nucleus", "streams/repetition"),
         ("top_p", "repetition_penalty")),
    Pair("log-probs: temperature, copies", ("streams/temperature", "samples/identical"), ("temperature",), COPIES),
    Pair("log-probs: top-p, copies", ("streams/nucleus", "samples/identical"), ("top_p",), COPIES),
    Pair("log-probs: repetition penalty, copies", ("streams/repetition", "samples/identical"),
         ("repetition_penalty",), COPIES),
    Pair("log-probs: temperature, rewards all the same", ("streams/temperature", "rewards/constant"), ("temperature",),
         SAME),
)  # fmt: skip
WEIGHED = tuple(
    Pair(f"log-probs and weights: {', '.join(laws)}", tuple(f"sampling/{law}" for law in laws), laws)
    for laws in (
        ("temperature", "top_p"),
        ("temperature", "top_k"),
        ("temperature", "min_p"),
        ("temperature", "repetition_penalty"),
        ("top_p", "repetition_penalty"),
        ("top_k", "repetition_penalty"),
    )
)
TRUNCATED = Pair("truncation, rewards all the same", ("metrics/all_cut", "rewards/constant"), ())


@dataclass
class Table:
    """Verdicts on each pair of faults, and estimates next to the true values."""

    rows: dict[str, Counter[str]] = field(default_factory=dict)
    off: dict[str, list[float]] = field(default_factory=dict)

    def judge(self, pair: Pair, audit: Audit, how: dict[str, float]) -> None:
        """One audit."""
        count = self.rows.setdefault(pair.name, Counter())
        states = [state_of(family, audit) for family in pair.families]
        count["runs"] += 1
        count["both"] += states == ["named", "named"]
        for family, state in zip(pair.families, states, strict=True):
            count[f"{family} {state}"] += 1
        families = {answer.family for answer in audit.results if answer.outcome == FAULT}
        heads = {family.partition("/")[0] for family in pair.families}
        unexpected = {
            family for family in families - FOLLOW - {*pair.families} if family.partition("/")[0] not in heads
        }
        count["beside"] += bool(unexpected)
        estimates = {
            estimate.name: estimate.value for answer in audit.results for estimate in answer.estimates
        }
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
            if name in how and name in estimates and pair in (*TEXTS, *WEIGHED):
                self.off.setdefault(f"{pair.name}: {name}", []).append(
                    abs(float(estimates[name]) - how[name])
                )
        print(pair.name, how, states, sorted(families), file=sys.stderr, flush=True)

    def print(self) -> None:
        """Print the table as Markdown."""
        print(f"| pair | runs | both named | of each: {', '.join(STATES)} | another beside |")
        print("|---|---|---|---|---|")
        for name, count in self.rows.items():
            pair = next(
                candidate for candidate in (*TEXTS, *STREAMS, *WEIGHED, TRUNCATED) if candidate.name == name
            )
            estimate_summary = "; ".join(
                f"`{family}` {', '.join(str(count[f'{family} {state}']) for state in STATES)}"
                for family in pair.families
            )
            print(f"| {name} | {count['runs']} | {count['both']} | {estimate_summary} | {count['beside']} |")
        totals = sum(self.rows.values(), Counter())
        low, high = share_interval(totals["both"], totals["runs"])
        print(
            f"\nBoth named: {totals['both']} of {totals['runs']} ({100 * low:.3g} % to {100 * high:.3g} %)."
        )
        named_count = sum(count for key, count in totals.items() if key.endswith(" named"))
        low, high = share_interval(named_count, 2 * totals["runs"])
        print(
            f"Faults named: {named_count} of {2 * totals['runs']} ({100 * low:.3g} % to {100 * high:.3g} %).\n"
        )
        print("| value | runs | largest error | mean error |\n|---|---|---|---|")
        for name, off in self.off.items():
            print(f"| {name} | {len(off)} | {max(off):.4f} | {sum(off) / len(off):.4f} |")


def state_of(family: str, audit: Audit) -> str:
    """Return the outcome of one fault of a pair."""
    outcomes = {answer.family: answer.outcome for answer in audit.results}
    if outcomes.get(family) == FAULT:
        return "named"
    head = family.partition("/")[0]
    same_head = [outcome for family, outcome in outcomes.items() if family.partition("/")[0] == head]
    if outcomes.get(family) in (NOT_DECIDED, MASKED):
        return "not decided"
    # A law of texts has an answer of its own; of log-probs and samples there is one answer, and that of log-probs says
    # that it tells one law alone.
    if head != "text" and FAULT in same_head:
        return "said to be hidden" if head == "streams" else "named otherwise"
    return "not decided" if {NOT_DECIDED, MASKED} & {*same_head} else "missed"


def drawn_law(drawn: random.Random) -> dict[str, float]:
    """Draw sampling parameters for this model, not on a grid."""
    return {
        "temperature": drawn.choice((drawn.uniform(0.6, 0.88), drawn.uniform(1.13, 1.3))),
        "top_p": round(drawn.uniform(0.85, 0.97), 4),
        "top_k": drawn.randrange(4, 14),
        "repetition_penalty": drawn.uniform(1.1, 1.4),
        "min_p": drawn.uniform(0.02, 0.15),
    }


def audited(folder: Path, **how: object) -> object:
    """Without a word."""
    with contextlib.redirect_stderr(io.StringIO()):
        return audit_run(folder, **how)


def of_model(table: Table, seed: int, folder: Path, only: str, *, toy: bool) -> None:
    """All pairs of laws of a model whose name has something."""
    numbers = random.Random(seed)
    model = sampled.model(seed, numbers.choice((96, 300)), numbers.uniform(6, 30))
    checkpoint = sampled.save_model(model, folder / f"model-{seed}")
    values = drawn_law(numbers)
    for pair in (pair for pairs in (TEXTS, STREAMS, WEIGHED) for pair in pairs[: 1 if toy else None]):
        if only not in pair.name:
            continue
        how = {name: values[name] for name in pair.how}
        texts = pair in TEXTS
        size = 4 if toy else 33 if texts else 16
        rows = sampled.sample_rows(model, seed=numbers.randrange(10**6), groups=size, **how)
        rows = pair.put(rows, seed) if pair.put else rows
        if pair in WEIGHED:
            audit = audited(runs.as_rollouts(rows, folder / "pair"), checkpoint=checkpoint)
        elif texts:
            place = runs.as_parquet(sampled.as_texts(rows), folder / "pair")
            audit = audited(place, checkpoint=checkpoint)
        else:
            audit = audited(runs.as_rollouts(rows, folder / "pair"))
        table.judge(pair, audit, how)
        shutil.rmtree(folder / "pair")
    shutil.rmtree(checkpoint)


def of_run(table: Table, seed: int, folder: Path) -> None:
    """Truncation in the metrics of a run of ours, and the same reward for all in its samples."""
    run = runs.train_run(folder, seed, 6, "--model.layers=2")
    rows = SAME(runs.with_trainer(runs.rows_of(run), seed=seed), seed)
    ALL_CUT(run, seed)
    place = runs.as_swift(rows, folder / "cut")
    shutil.copy(run / "metrics.jsonl", place)
    table.judge(TRUNCATED, audited(place), {})
    shutil.rmtree(place)
    shutil.rmtree(run)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description="Which of two recorded faults are named.")
    parser.add_argument("--models", type=int, default=12, help="models that are sampled from (default: 12)")
    parser.add_argument("--first-seed", type=int, default=7000, help="of models and runs (default: 7000)")
    parser.add_argument("--only", default="", help="pairs whose name has this")
    parser.add_argument("--toy", action="store_true", help="so little that nothing is measured")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    table = Table()
    with tempfile.TemporaryDirectory() as name:
        for seed in range(options.first_seed, options.first_seed + options.models):
            of_model(table, seed, Path(name), options.only, toy=options.toy)
            if options.only in TRUNCATED.name:
                of_run(table, seed, Path(name))
    table.print()


if __name__ == "__main__":
    main()
