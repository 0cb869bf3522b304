"""Score triage on logs that are labelled with their cause: `python -m evaluation.triage.labelled_logs DIR`.

DIR has a folder for each label: a code, `clean` (successful runs and unrelated logs) or `unknown` (failures that no
known issue describes). A log is named correctly if the first candidate is its label. A folder name with two codes, such
as `SYN010+ENG001`, has the root cause first, then the consequence that must not be taken for the cause.

`first_judgement.json` in DIR has the first verdicts of triage on logs that were made after the rules. Their scores do
not change when rules change, and are printed in addition. A DIR with `labels.jsonl` is scored by
`evaluation.triage.threads` instead.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from diagnostics import catalog
from diagnostics.catalog.model import FAMILIES
from diagnostics.findings import FINDINGS, FINE, USAGE
from diagnostics.triage.command import triage
from diagnostics.triage.fallback import analyze_unmatched
from diagnostics.triage.rules import Rules
from diagnostics.triage.sources import LogSource
from evaluation.triage import threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NEGATIVE = ("clean", "unknown", "not_judged", "hypothesis", "empty")
FIRST = "first_judgement.json"
_RESAMPLES = 2000
_HEAD = """\
# Triage on the labelled logs

Made by `python -m evaluation.triage.labelled_logs tests/diagnostics/logs --write {file}` on {day};
not edited by hand. What the logs are and what these figures say: docs/triage.md.
"""
GOALS = {"recall": 0.95, "precision": 0.97}


@dataclass(frozen=True)
class Outcome:
    """Triage's answer for one log.

    Attributes:
        log: Path of the log.
        label: The correct answer: a code, `clean` or `unknown`.
        answer: Code of the first candidate, else of the first computed finding; or the state if there is none.
        others: Codes of the other candidates.
        similar: Codes of the most similar known issues, found without the rules.
    """

    log: str
    label: str
    answer: str
    others: tuple[str, ...]
    similar: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Return whether the answer is the label; for a clean or unknown log `not_judged` is right, too."""
        return self.answer == self.label or (self.label in NEGATIVE and self.answer == "not_judged")


@dataclass(frozen=True)
class Share:
    """A share of cases with its 95 % interval after Wilson."""

    hits: int
    of: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.hits}/{self.of} [{self.low:.2f}, {self.high:.2f}]" if self.of else "-"


def wilson(hits: int, of: int) -> Share:
    """Return a share with its 95 % interval (Wilson).

    Example:
        >>> wilson(9, 10)
        Share(hits=9, of=10, low=0.5958, high=0.9821)
    """
    if not of:
        return Share(0, 0, 0.0, 1.0)
    z = 1.959964
    middle = (hits / of + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(hits / of * (1 - hits / of) / of + z * z / (4 * of * of))
    return Share(hits, of, round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4))


def first_judgement(folder: Path) -> tuple[str, list[Outcome]]:
    """Return a sentence about the first verdicts on later logs, and these verdicts."""
    path = folder / FIRST
    if not path.exists():
        return "", []
    document = json.loads(path.read_text())
    return document["about"], [
        Outcome(log, log.partition("/")[0], answer, ()) for log, answer in sorted(document["said"].items())
    ]


def bootstrap_macro_recall(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the macro recall.

    Logs of one code resemble each other: codes are resampled first, then the logs of each code. The seed is fixed.
    """
    by_code: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.label not in NEGATIVE:
            by_code[outcome.label].append(outcome.right)
    if not by_code:
        return 0.0, 1.0
    numbers, codes = random.Random(1), sorted(by_code)
    means = sorted(
        sum(
            sum(sample) / len(sample)
            for code in numbers.choices(codes, k=len(codes))
            for sample in [numbers.choices(by_code[code], k=len(by_code[code]))]
        )
        / len(codes)
        for _ in range(_RESAMPLES)
    )
    return round(means[_RESAMPLES // 40], 4), round(means[-_RESAMPLES // 40 - 1], 4)


def evaluate(folder: Path, rules: Rules) -> list[Outcome]:
    """Run triage on each log in the label folders of a folder.

    Raises:
        NotADirectoryError: The folder has no logs in label folders.
    """
    outcomes = []
    for path in sorted(folder.glob("*/*.log")):
        label = path.parent.name.partition("+")[0]
        verdict = triage([LogSource(path.name, path)], rules)
        codes = [candidate.issue.code for candidate in verdict.candidates]
        if verdict.state == "known" and not codes:
            codes = [finding.code for finding in verdict.computed]
        answer = codes[0] if codes else verdict.state
        similar = analyze_unmatched(verdict.logs, rules).similar if codes else ()
        outcomes.append(
            Outcome(
                f"{path.parent.name}/{path.name}",
                label,
                answer,
                tuple(codes[1:]),
                tuple(issue.code for issue in similar),
            )
        )
    if not outcomes:
        raise NotADirectoryError(f"{folder}: expected folders CODE, clean or unknown with *.log in them")
    return outcomes


def figures(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return the scores: recall, macro recall, precision, false alarms, recall and precision by family, wrong logs."""
    by_code: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_code[outcome.label].append(outcome)
    codes = {code: outcomes_of_code for code, outcomes_of_code in by_code.items() if code not in NEGATIVE}
    alarms = [outcome for outcome in outcomes if outcome.answer not in NEGATIVE]
    return {
        "logs": len(outcomes),
        "positive": sum(map(len, codes.values())),
        "codes": len(codes),
        "clean": len(by_code.get("clean", ())),
        "unknown": len(by_code.get("unknown", ())),
        "macro_recall": sum(
            _right(outcomes_of_code) / len(outcomes_of_code) for outcomes_of_code in codes.values()
        )
        / max(1, len(codes)),
        "macro_recall_interval": bootstrap_macro_recall(outcomes),
        "recall": asdict(
            wilson(
                _right(alarm for outcomes_of_code in codes.values() for alarm in outcomes_of_code),
                sum(map(len, codes.values())),
            )
        ),
        "precision": asdict(wilson(_right(alarms), len(alarms))),
        "false_alarms_on_clean": sum(not outcome.right for outcome in by_code.get("clean", ())),
        "said_to_have_ended": sum(outcome.answer == "clean" for outcome in by_code.get("clean", ())),
        "families": {family: _family(family, outcomes) for family in FAMILIES},
        "wrong": [asdict(outcome) for outcome in outcomes if not outcome.right],
    }


def _right(outcomes: Iterable[Outcome]) -> int:
    return sum(outcome.right for outcome in outcomes)


def _family(family: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    labelled = [outcome for outcome in outcomes if outcome.label.startswith(family)]
    answered = [outcome for outcome in outcomes if outcome.answer.startswith(family)]
    return {
        "codes": len({outcome.label for outcome in labelled}),
        "recall": asdict(wilson(_right(labelled), len(labelled))),
        "precision": asdict(wilson(_right(answered), len(answered))),
    }


def render_table(result: dict[str, object]) -> str:
    """Render the scores as a Markdown table and a summary."""
    lines = ["| family | codes | recall | precision |", "|---|---|---|---|"]
    families = result["families"]
    assert isinstance(families, dict)
    for family, row in families.items():
        recall, precision = Share(**row["recall"]), Share(**row["precision"])
        lines.append(f"| {family} {FAMILIES[family]} | {row['codes']} | {recall} | {precision} |")
    assert isinstance(result["recall"], dict)
    assert isinstance(result["precision"], dict)
    recall, precision = Share(**result["recall"]), Share(**result["precision"])
    lines.append(f"| all | {result['codes']} | {recall} | {precision} |")
    lines.append("")
    lines.append(
        f"{result['positive']} logs of {result['codes']} codes, {result['clean']} clean or unrelated,"
        f" {result['unknown']} of failures without an entry. Macro recall {result['macro_recall']:.3f}"
        f" {_interval(result)}; false alarms on clean logs: {result['false_alarms_on_clean']};"
        f" {result['said_to_have_ended']} of them say themselves that they ended."
    )
    return "\n".join(lines)


def _interval(result: dict[str, object]) -> str:
    low, high = cast("tuple[float, float]", result["macro_recall_interval"])
    return f"[{low:.2f}, {high:.2f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scores; return 1 if they miss the goals."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.triage.labelled_logs", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--format", choices=("markdown", "json"), default="markdown")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the report, with date and command, to this file"
    )
    options = parser.parse_args(arguments)
    if (options.folder / threads.LABELS).exists():
        return _threads(options)
    try:
        outcomes = evaluate(options.folder, Rules(catalog.load()))
    except NotADirectoryError as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return USAGE
    document = figures(outcomes)
    about, first = first_judgement(options.folder)
    if first:
        document["first_judgement"] = figures(first)
    page = "\n".join(_page(document, outcomes, about, first))
    print(json.dumps(document, indent=1) if options.format == "json" else page)
    if options.write:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        options.write.write_text(f"{_HEAD.format(file=options.write, day=day)}\n{page}\n", encoding="utf-8")
    return FINE if meets_goals(document) else FINDINGS


def _threads(options: argparse.Namespace) -> int:
    results = threads.judge_threads(options.folder)
    page = f"{threads.render_table(results)}\n\n{threads.misses(results)}"
    print(json.dumps(threads.build_document(results), indent=1) if options.format == "json" else page)
    return FINE if threads.meets_goals(results) else FINDINGS


def _page(
    result: dict[str, object], outcomes: Sequence[Outcome], about: str, first: Sequence[Outcome]
) -> Iterable[str]:
    yield render_table(result)
    hits = count_similar_hits(outcomes)
    if hits[2]:
        yield (
            f"By words and frames alone, without the rules, the nearest issue is the right one in {hits[0]} of"
            f" {hits[2]} of these logs, and among three in {hits[1]}."
        )
    for outcome in outcomes:
        if not outcome.right:
            yield f"wrong: {outcome.log}: said {outcome.answer}, then {', '.join(outcome.others) or 'nothing'}"
    if first:
        yield f"\nAt first sight. {about}\n\n{render_table(figures(first))}"
    for outcome in first:
        if not outcome.right:
            yield f"wrong at first sight: {outcome.log}: said {outcome.answer}"


def count_similar_hits(outcomes: Sequence[Outcome]) -> tuple[int, int, int]:
    """Count labelled logs whose code is the nearest, among the nearest three, and all; rules are not used."""
    labelled = [outcome for outcome in outcomes if outcome.label not in NEGATIVE]
    return (
        sum(outcome.label in outcome.similar[:1] for outcome in labelled),
        sum(outcome.label in outcome.similar for outcome in labelled),
        len(labelled),
    )


def meets_goals(result: dict[str, object]) -> bool:
    """Return whether macro recall and precision reach the goals, without a false alarm on clean logs."""
    precision, recall = result["precision"], result["macro_recall"]
    assert isinstance(precision, dict)
    assert isinstance(recall, float)
    share = precision["hits"] / precision["of"] if precision["of"] else 1.0
    return recall >= GOALS["recall"] and share >= GOALS["precision"] and result["false_alarms_on_clean"] == 0


if __name__ == "__main__":
    sys.exit(main())
