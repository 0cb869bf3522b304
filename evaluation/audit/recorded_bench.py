"""Inject faults into the artifacts of real runs; count named, undecided and missed faults, and false alarms.

    python -m evaluation.audit.recorded_bench [--runs N] [--first-seed N] [--pairs N] [--seconds S] [--toy]

The runs are those of grpo_core's trainer, with seeds on which no threshold was chosen. Their samples are written in
four formats. Each fault is injected in one of the formats that can show it, alone and in pairs. Prints Markdown tables;
shares have Wilson's 95 % interval. `--toy` only checks that the program runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.results import FAULT, NOT_DECIDED, Audit
from tests.diagnostics.audit_recorded import faults, runs

# Other findings that a fault implies: identical samples have no spread, and so on.
IMPLIED = {"rewards/no_spread", "rewards/constant"}
# Faults that hide another: constant rewards make every advantage 0.
HIDES_OTHERS = {"rewards", "samples"}


class Table:
    """Counts of audit outcomes by fault, for pairs of faults, and for healthy runs."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[str]] = {}
        self.healthy = Counter[str]()
        self.pairs = Counter[str]()
        self.seconds: list[float] = []

    def audit(self, folder: Path, **how: object) -> Audit:
        """Audit a run without its output on stderr, and record the time."""
        began = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):
            audit = audit_run(folder, **how)
        self.seconds.append(time.perf_counter() - began)
        return audit

    def count_fault(self, name: str, family: str, audit: Audit) -> None:
        """Count the outcome of an audit of a run with one fault of a family."""
        families = {answer.family for answer in audit.results if answer.outcome == FAULT}
        open_ = {answer.family.partition("/")[0] for answer in audit.results if answer.outcome == NOT_DECIDED}
        count = self.rows.setdefault(name, Counter())
        if family in families:
            count["named"] += 1
        elif {name.partition("/")[0] for name in families} & {family.partition("/")[0]}:
            count["seen, named otherwise"] += 1
        elif family.partition("/")[0] in open_:
            count["not decided"] += 1
        else:
            count["missed"] += 1
        count["beside"] += bool(families - {family} - IMPLIED)

    def count_pair(self, names: tuple[str, str], families: tuple[str, str], audit: Audit) -> None:
        """Count the outcome of an audit of a run with two faults."""
        named_families = {answer.family for answer in audit.results if answer.outcome == FAULT}
        named_count = sum(family in named_families for family in families)
        self.pairs[("neither", "one", "both")[named_count]] += 1
        self.pairs["beside"] += bool(named_families - {*families} - IMPLIED)
        if named_count < 2:
            print(f"pair: {names}: told {sorted(named_families)}", file=sys.stderr, flush=True)

    def count_healthy(self, name: str, audit: Audit) -> None:
        """Count the outcome of an audit of a healthy run."""
        self.healthy["audits"] += 1
        self.healthy["with a false alarm"] += any(answer.outcome == FAULT for answer in audit.results)
        for answer in audit.results:
            if answer.outcome == FAULT:
                self.healthy["false alarms"] += 1
                self.healthy[f"false alarm: {name}: {answer.family}"] += 1
        self.healthy["not decided"] += audit.outcome == NOT_DECIDED

    def print(self) -> None:
        """Print the table as Markdown."""
        columns = ("named", "seen, named otherwise", "not decided", "missed", "beside")
        print(f"| fault | runs | {' | '.join(columns[:-1])} | another fault named beside it |")
        print("|---|---|---|---|---|---|---|")
        for name, count in self.rows.items():
            total = sum(count[column] for column in columns[:-1])
            print(f"| {name} | {total} | {' | '.join(str(count[column]) for column in columns)} |")
        totals = Counter[str]()
        for count in self.rows.values():
            totals.update(count)
        total = sum(totals[column] for column in columns[:-1])
        print(f"| **all** | {total} | {' | '.join(str(totals[column]) for column in columns)} |\n")
        print(f"Named: {share(totals['named'], total)}.")
        of_pairs = sum(self.pairs[outcome] for outcome in ("neither", "one", "both"))
        print(f"Pairs with both named: {share(self.pairs['both'], of_pairs)}.")
        print(f"One of them: {self.pairs['one']}; another fault beside them: {self.pairs['beside']}.")
        print(f"False alarms: {share(self.healthy['with a false alarm'], self.healthy['audits'])} audits.\n")
        print("| nothing wrong | |\n|---|---|")
        for name, count in self.healthy.items():
            print(f"| {name} | {count} |")
        middle = sorted(self.seconds)[len(self.seconds) // 2]
        print(f"\nSeconds an audit: {middle:.2f} in the middle, {max(self.seconds):.1f} most.")


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the share of `hits` among `count`; (0, 1) for none."""
    if not count:
        return 0.0, 1.0
    z, p = 1.96, hits / count
    center, width = p + z * z / (2 * count), z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return max(0.0, (center - width) / (1 + z * z / count)), min(1.0, (center + width) / (1 + z * z / count))


def share(hits: int, count: int) -> str:
    """Format a share with its 95 % interval.

    >>> share(9, 10)
    '9 of 10 (59.6 % to 98.2 %)'
    """
    low, high = share_interval(hits, count)
    return f"{hits} of {count} ({100 * low:.3g} % to {100 * high:.3g} %)"


def audit_runs(table: Table, seeds: range, folder: Path, until: float, *, pairs: int, toy: bool) -> None:
    """Audit runs of our trainer: healthy in every format; for every third run each fault in one format, and pairs."""
    for number, seed in enumerate(seeds):
        if time.monotonic() > until:
            return
        run = runs.train_run(folder, seed, 6, "--model.layers=2")
        rows = runs.with_trainer_logprobs(runs.rows_of(run), seed=seed)
        table.count_healthy("our run", table.audit(run))
        for form, write in itertools.islice(runs.WRITERS.items(), 1 if toy else None):
            place = write(rows, folder / f"fine-{form}-{seed}")
            table.count_healthy(form, table.audit(place))
            shutil.rmtree(place)
        if number % 3 == 0:
            audit_faults(table, run, rows, folder, seed, toy=toy)
        audit_pairs(table, run, rows, folder, seed, pairs)
        shutil.rmtree(run)
        print(f"run {number + 1} of {len(seeds)}", file=sys.stderr, flush=True)


def audit_faults(table: Table, run: Path, rows: list, folder: Path, seed: int, *, toy: bool) -> None:
    """Audit each fault of samples in one of its formats, and each fault of files in a copy of the run."""
    for fault in faults.ROWS[: 2 if toy else None]:
        form = fault.formats[seed // 3 % len(fault.formats)]
        place = runs.WRITERS[form](fault.inject(rows, seed), folder / "faulty")
        table.count_fault(fault.name, fault.family, table.audit(place))
        shutil.rmtree(place)
    for name, family, inject in faults.FILES[: 1 if toy else None]:
        place = shutil.copytree(run, folder / "broken")
        inject(place, seed)
        table.count_fault(name, family, table.audit(place))
        shutil.rmtree(place)


def audit_pairs(table: Table, run: Path, rows: list, folder: Path, seed: int, count: int) -> None:
    """Audit random pairs of faults of different classes: two of samples in one format, or two of the run's files."""
    numbers = random.Random(seed)
    for form, first, second in numbers.sample(PAIRS, min(count, len(PAIRS))):
        place = runs.WRITERS[form](second.inject(first.inject(rows, seed), seed), folder / "two")
        table.count_pair((first.name, second.name), (first.family, second.family), table.audit(place))
        shutil.rmtree(place)
    for first, second in numbers.sample(FILE_PAIRS, min(count // 3, len(FILE_PAIRS))):
        place = shutil.copytree(run, folder / "two")
        first[2](place, seed)
        second[2](place, seed)
        table.count_pair((first[0], second[0]), (first[1], second[1]), table.audit(place))
        shutil.rmtree(place)


def family_class(family: str) -> str:
    """Return the class of a fault family: `rewards` for `rewards/constant`."""
    return family.partition("/")[0]


PAIRS = [
    (form, first, second)
    for form in runs.WRITERS
    for first, second in itertools.combinations([fault for fault in faults.ROWS if form in fault.formats], 2)
    if family_class(first.family) != family_class(second.family)
    and not {family_class(first.family), family_class(second.family)} & HIDES_OTHERS
]
FILE_PAIRS = [
    pair
    for pair in itertools.combinations(faults.FILES, 2)
    if family_class(pair[0][1]) != family_class(pair[1][1])
]


def main() -> None:
    """Audit the runs and print the tables."""
    parser = argparse.ArgumentParser(description="Measure how many faults in recorded runs the audit names.")
    parser.add_argument("--runs", type=int, default=20, help="runs of our trainer (default: 20)")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="start no run after this time (default: 3600)"
    )
    parser.add_argument("--pairs", type=int, default=6, help="pairs of faults per run (default: 6)")
    parser.add_argument(
        "--toy", action="store_true", help="audit few cases; only checks that the program runs"
    )
    parser.add_argument("--first-seed", type=int, default=1000, help="seed of the first run (default: 1000)")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    table, until = Table(), time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as name:
        seeds = range(options.first_seed, options.first_seed + options.runs)
        audit_runs(table, seeds, Path(name), until, pairs=options.pairs, toy=options.toy)
    table.print()


if __name__ == "__main__":
    main()
