"""Score triage on logs from other people's threads, labelled before triage first read them.

A folder has `labels.jsonl`, a line for each log: `file`; `kind` (whole, tail, cut, message only, metrics); `code` of
the known issue that explains the cause, or null; `also_acceptable` codes; `failure` (true, false, or null if unknown);
and optionally `sure`. The texts belong to their authors and are not in this repository.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from diagnostics import catalog
from diagnostics.triage.command import triage
from diagnostics.triage.rules import Rules
from diagnostics.triage.sources import LogSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

LABELS = "labels.jsonl"
GOALS = {"whole": 0.90, "tail, cut or message": 0.60, "precision": 0.95}
_MAX_SHOWN = 3
# Issues that were added to the catalog after the labels, so that no label names them.
AFTER_THE_LABELS = (
    "ENG013", "ENV021", "ENV022", "ENV023", "ENV024", "ENV025", "ENV026", "MEM013", "NUM027",
    "CFG129", "CFG130", "CFG131", "CFG132", "CFG133", "CFG134", "CFG135", "CFG136", "CFG137", "CFG138", "CFG139",
    "CMP031", "CMP032", "CMP033", "CMP034", "CMP035", "CMP036", "ENG014", "ENG015", "ENV027", "ENV028", "ENV029",
    "ENV030", "MEM014", "NET022", "NET023", "NET024", "NET025", "NET026", "NUM048", "RAY024", "RAY025", "SYN022",
    "SYN023", "TOK020", "CFG140", "CFG141", "CFG142", "ENV031", "REW006", "SYN027",
    "CFG150", "CFG151", "CFG152", "CFG153", "CFG154", "CFG155", "CFG156", "CFG157", "CFG158", "CFG159", "ENG030",
    "ENG031", "ENG032",
    "ENV040", "ENV041", "ENV042", "ENV043", "ENV044", "NUM060", "NUM061", "REW010", "REW011", "SYN030",
)  # fmt: skip


@dataclass(frozen=True)
class Thread:
    """Label and triage's answer for the log of one thread.

    Attributes:
        log: Name of the log's file.
        kind: Kind of the log, as labelled.
        label: The code of the cause, or an empty string.
        accepted: All correct codes.
        failure: Whether the log shows a failure; None if it just stops, so that this is unknown.
        decidable: Whether the log itself shows the cause, and not only the rest of the thread.
        answers: Codes of triage's answer, the likeliest first.
        similar: Codes of similar known issues, which are not an answer.
        sure: Whether the first answer is more than a hypothesis.
        shown: Whether triage showed lines to look at first.
        symptom: Whether triage found a symptom in the metrics.
    """

    log: str
    kind: str
    label: str
    accepted: tuple[str, ...]
    failure: bool | None
    decidable: bool
    state: str
    answers: tuple[str, ...]
    similar: tuple[str, ...]
    sure: bool
    shown: bool
    symptom: bool

    @property
    def is_first_right(self) -> bool:
        """Return whether the first answer is correct."""
        return bool(self.answers) and self.answers[0] in self.accepted

    @property
    def is_in_first_three(self) -> bool:
        """Return whether a correct code is in the first three codes shown: answers, then similar issues."""
        listed = [*self.answers, *(code for code in self.similar if code not in self.answers)]
        return any(code in self.accepted for code in listed[:_MAX_SHOWN])

    @property
    def is_alarmed(self) -> bool:
        """Return whether triage reported a failure, with or without an answer."""
        return bool(self.answers) or self.state == "unknown"

    @property
    def is_reported(self) -> bool:
        """Return whether triage reported a failure, lines to look at, or a symptom."""
        return self.is_alarmed or self.shown or self.symptom

    @property
    def judged_by_hand(self) -> bool:
        """Return whether the answer is an issue that is newer than the labels, so that a person must judge it."""
        return bool(self.failure and self.answers and not self.label and self.answers[0] in AFTER_THE_LABELS)


def judge_threads(folder: Path) -> list[Thread]:
    """Run triage on each labelled log of a folder."""
    rules = Rules(catalog.load())
    threads = []
    for line in (folder / LABELS).read_text(encoding="utf-8").splitlines():
        label = json.loads(line)
        verdict = triage([LogSource(label["file"], folder / label["file"])], rules)
        code = label["code"] or ""
        threads.append(
            Thread(
                log=label["file"],
                kind=label["kind"],
                label=code,
                accepted=tuple(filter(None, [code, *label["also_acceptable"]])),
                failure=label["failure"],
                decidable="undecidable" not in str(label.get("sure", "")),
                state=verdict.state,
                answers=tuple(
                    candidate.issue.code for candidate in verdict.candidates or getattr(verdict, "leads", ())
                ),
                similar=tuple(issue.code for issue in verdict.similar),
                sure=bool(verdict.candidates) and verdict.candidates[0].certainty != "hypothesis",
                shown=bool(verdict.anchors),
                symptom=bool(verdict.fallback.symptoms),
            )
        )
    return threads


def table_row(thread: Thread) -> str:
    """Return the row of the table to which a thread belongs."""
    if not thread.failure:
        return "no failure" if thread.failure is False else "just stops"
    return thread.kind if thread.kind in {"whole", "metrics"} else "tail, cut or message"


def shares(threads: Sequence[Thread]) -> dict[str, tuple[int, int]]:
    """Return for each score its hits and its number of cases."""
    rows: dict[str, list[Thread]] = defaultdict(list)
    for thread in threads:
        rows[table_row(thread)].append(thread)
    figures = {}
    for name in ("whole", "tail, cut or message", "metrics"):
        labelled = [thread for thread in rows[name] if thread.label]
        figures[f"{name}: named"] = _share(thread.is_first_right for thread in labelled)
        figures[f"{name}: named or in the first three"] = _share(
            thread.is_in_first_three for thread in labelled
        )
        figures[f"{name}: a failure, and said so or shown"] = _share(
            thread.is_reported for thread in rows[name]
        )
    fine = rows["no failure"]
    answered = [
        thread for thread in threads if thread.answers and not thread.judged_by_hand and thread.decidable
    ]
    figures["precision of answers"] = _share(thread.is_first_right for thread in answered)
    figures["precision of answers that are more than a hypothesis"] = _share(
        thread.is_first_right for thread in answered if thread.sure
    )
    figures["answers of entries that came after the labels"] = _share(
        thread.judged_by_hand for thread in threads if thread.answers
    )
    figures["metrics: the symptom is read"] = _share(thread.symptom for thread in rows["metrics"])
    figures["failures called clean"] = _share(
        thread.state == "clean" for thread in threads if thread.failure is not False
    )
    figures["no failure: no answer and no unknown failure"] = _share(not thread.is_alarmed for thread in fine)
    figures["just stops: not judged, as it is"] = _share(
        thread.state == "not_judged" for thread in rows["just stops"]
    )
    figures["no failure: called clean"] = _share(thread.state == "clean" for thread in fine)
    return figures


def _share(cases: Iterable[bool]) -> tuple[int, int]:
    cases = list(cases)
    return sum(cases), len(cases)


def render_table(threads: Sequence[Thread]) -> str:
    """Render the scores as a Markdown table."""
    lines = ["| figure | threads | share |", "|---|---|---|"]
    for name, (hits, of) in shares(threads).items():
        lines.append(f"| {name} | {hits}/{of} | {f'{hits / of:.2f}' if of else '-'} |")
    return "\n".join(lines)


def misses(threads: Sequence[Thread]) -> str:
    """Return a line for each thread whose answer differs from its label."""
    return "\n".join(
        f"{thread.log} {thread.kind}: {thread.label or '-'} {list(thread.accepted)}"
        + ("" if thread.failure else " no failure")
        + f": said {thread.state} {list(thread.answers)} near {list(thread.similar)}"
        + (" BY HAND" if thread.judged_by_hand else "")
        for thread in threads
        if (thread.label and not thread.is_first_right)
        or (thread.answers and not thread.is_first_right)
        or (thread.failure and not thread.is_reported)
        or (not thread.failure and thread.is_alarmed)
    )


def build_document(threads: Sequence[Thread]) -> dict[str, object]:
    """Return the scores and the threads as a JSON document."""
    return {
        "threads": [asdict(thread) for thread in threads],
        "shares": {name: list(share) for name, share in shares(threads).items()},
    }


def meets_goals(threads: Sequence[Thread]) -> bool:
    """Return whether the goals are met, and no failure is called clean."""
    figures = shares(threads)
    pairs = (
        (figures["whole: named"], GOALS["whole"]),
        (figures["tail, cut or message: named or in the first three"], GOALS["tail, cut or message"]),
        (figures["precision of answers"], GOALS["precision"]),
    )
    return not figures["failures called clean"][0] and all(hits >= least * of for (hits, of), least in pairs)
