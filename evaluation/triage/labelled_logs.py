"""Score triage on logs whose cause is known: `python -m evaluation.triage.labelled_logs DIR`.

The folder has one folder for each label: a code, `clean` for runs that went well and unrelated logs, `unknown` for
failures that no entry describes. A log counts as found where the first candidate is its label; where two codes are
right, the folder's name has both, as `SYN010+ENG001`: the root first, then what must not be taken for it.

`first_judgement.json` in the folder keeps, of logs that were made when the rules were there already, what triage said
when it saw them for the first time. Those figures do not change when rules are mended, and are printed beside.
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
from diagnostics.triage.scan import scan
from diagnostics.triage.sources import LogSource
from evaluation.triage import threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NEGATIVE = ("clean", "unknown", "not_judged", "hypothesis", "empty")
FIRST = "first_judgement.json"
_DRAWS = 2000
_HEAD = """\
# Triage on the labelled logs

Made by `python -m evaluation.triage.labelled_logs tests/diagnostics/logs --write {file}` on {day};
not edited by hand. What the logs are and what these figures say: docs/triage.md.
"""
GOALS = {"recall": 0.95, "precision": 0.97}


@dataclass(frozen=True)
class Outcome:
    """Triage's answer for one log; `said` is the first candidate's code, or the state if there is none."""

    log: str
    label: str
    said: str
    others: tuple[str, ...]
    near: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Return whether the first candidate is the label; a clean or unknown log must have none."""
        return self.said == self.label or (self.label in NEGATIVE and self.said == "not_judged")


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
    """The share with its interval.

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
    """Return the recorded outcomes for logs that the rules had never seen, and a sentence about them."""
    path = folder / FIRST
    if not path.exists():
        return "", []
    document = json.loads(path.read_text())
    return document["about"], [
        Outcome(log, log.partition("/")[0], answer, ()) for log, answer in sorted(document["said"].items())
    ]


def drawn_again(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """A 95 % interval of the macro recall: its codes, and of each its logs, drawn again with replacement.

    Logs of one code resemble each other, so that codes are drawn first. The draws are the same each time.
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
        for _ in range(_DRAWS)
    )
    return round(means[_DRAWS // 40], 4), round(means[-_DRAWS // 40 - 1], 4)


def evaluate(folder: Path) -> list[Outcome]:
    """Judge every log below a folder by itself.

    Raises:
        NotADirectoryError: There are no logs in folders of that kind.
    """
    rules = Rules(catalog.load())
    outcomes = []
    for path in sorted(folder.glob("*/*.log")):
        label = path.parent.name.partition("+")[0]
        source = LogSource(path.name, path)
        verdict = triage([source], rules)
        codes = [candidate.issue.code for candidate in verdict.candidates]
        answer = codes[0] if codes else verdict.state
        similar = analyze_unmatched([scan(source, rules)], rules).similar if codes else ()
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
    """Recall by code and family, precision, false alarms."""
    by_code: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_code[outcome.label].append(outcome)
    codes = {code: outcomes_of_code for code, outcomes_of_code in by_code.items() if code not in NEGATIVE}
    alarms = [outcome for outcome in outcomes if outcome.said not in NEGATIVE]
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
        "macro_recall_interval": drawn_again(outcomes),
        "recall": asdict(
            wilson(
                _right(alarm for outcomes_of_code in codes.values() for alarm in outcomes_of_code),
                sum(map(len, codes.values())),
            )
        ),
        "precision": asdict(wilson(_right(alarms), len(alarms))),
        "false_alarms_on_clean": sum(not outcome.right for outcome in by_code.get("clean", ())),
        "said_to_have_ended": sum(outcome.said == "clean" for outcome in by_code.get("clean", ())),
        "families": {family: _family(family, outcomes) for family in FAMILIES},
        "wrong": [asdict(outcome) for outcome in outcomes if not outcome.right],
    }


def _right(outcomes: Iterable[Outcome]) -> int:
    return sum(outcome.right for outcome in outcomes)


def _family(family: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    labelled = [outcome for outcome in outcomes if outcome.label.startswith(family)]
    answered = [outcome for outcome in outcomes if outcome.said.startswith(family)]
    return {
        "codes": len({outcome.label for outcome in labelled}),
        "recall": asdict(wilson(_right(labelled), len(labelled))),
        "precision": asdict(wilson(_right(answered), len(answered))),
    }


def render_table(told: dict[str, object]) -> str:
    """The figures as a table of Markdown."""
    lines = ["| family | codes | recall | precision |", "|---|---|---|---|"]
    families = told["families"]
    assert isinstance(families, dict)
    for family, row in families.items():
        recall, precision = Share(**row["recall"]), Share(**row["precision"])
        lines.append(f"| {family} {FAMILIES[family]} | {row['codes']} | {recall} | {precision} |")
    assert isinstance(told["recall"], dict)
    assert isinstance(told["precision"], dict)
    recall, precision = Share(**told["recall"]), Share(**told["precision"])
    lines.append(f"| all | {told['codes']} | {recall} | {precision} |")
    lines.append("")
    lines.append(
        f"{told['positive']} logs of {told['codes']} codes, {told['clean']} clean or unrelated, {told['unknown']} of"
        f" failures without an entry. Macro recall {told['macro_recall']:.3f} {_interval(told)}; false alarms on clean"
        f" logs: {told['false_alarms_on_clean']}; {told['said_to_have_ended']} of them say themselves that they ended."
    )
    return "\n".join(lines)


def _interval(told: dict[str, object]) -> str:
    low, high = cast("tuple[float, float]", told["macro_recall_interval"])
    return f"[{low:.2f}, {high:.2f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; exit code 1 where they are below the goals."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.triage.labelled_logs", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--format", choices=("markdown", "json"), default="markdown")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a page of all this, with day and command")
    options = parser.parse_args(arguments)
    if (options.folder / threads.LABELS).exists():
        return _threads(options)
    try:
        outcomes = evaluate(options.folder)
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
    return FINE if good(document) else FINDINGS


def _threads(options: argparse.Namespace) -> int:
    results = threads.judge_threads(options.folder)
    page = f"{threads.render_table(results)}\n\n{threads.misses(results)}"
    print(json.dumps(threads.as_json(results), indent=1) if options.format == "json" else page)
    return FINE if threads.good(results) else FINDINGS


def _page(
    told: dict[str, object], outcomes: Sequence[Outcome], about: str, first: Sequence[Outcome]
) -> Iterable[str]:
    yield render_table(told)
    hits = recall_of_near(outcomes)
    if hits[2]:
        yield (
            f"By words and frames alone, without the rules, the nearest issue is the right one in {hits[0]} of"
            f" {hits[2]} of these logs, and among three in {hits[1]}."
        )
    for outcome in outcomes:
        if not outcome.right:
            yield f"wrong: {outcome.log}: said {outcome.said}, then {', '.join(outcome.others) or 'nothing'}"
    if first:
        yield f"\nAt first sight. {about}\n\n{render_table(figures(first))}"
    for outcome in first:
        if not outcome.right:
            yield f"wrong at first sight: {outcome.log}: said {outcome.said}"


def recall_of_near(outcomes: Sequence[Outcome]) -> tuple[int, int, int]:
    """Count labelled logs whose code is the nearest, among the nearest three, and all; rules are not used."""
    labelled = [outcome for outcome in outcomes if outcome.label not in NEGATIVE]
    return (
        sum(outcome.label in outcome.near[:1] for outcome in labelled),
        sum(outcome.label in outcome.near for outcome in labelled),
        len(labelled),
    )


def good(told: dict[str, object]) -> bool:
    """Whether the goals are met: macro recall, precision, and not one false alarm on clean logs."""
    precision, recall = told["precision"], told["macro_recall"]
    assert isinstance(precision, dict)
    assert isinstance(recall, float)
    share = precision["hits"] / precision["of"] if precision["of"] else 1.0
    return recall >= GOALS["recall"] and share >= GOALS["precision"] and told["false_alarms_on_clean"] == 0


if __name__ == "__main__":
    sys.exit(main())
