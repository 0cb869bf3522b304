"""Score triage on other people's threads, labelled before triage saw them: a folder with `labels.jsonl`.

A line of it: `file`, `kind` (whole, tail, cut, message only, metrics), `code` of the entry that explains the cause or
null, `also_acceptable` codes, and whether it is a `failure` at all. The texts belong to who wrote them and are not kept
here; figures are.
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
WANTED = {"whole": 0.90, "tail, cut or message": 0.60, "precision": 0.95}
_MOST = 3
# Entries that came after the labels, which can't name them.
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
    """Triage's answer for one thread.

    Attributes:
        label: The code of the cause, or an empty string.
        accepted: That code and those that are right as well.
        failure: None if the log just stops, so that it is unknown.
        decidable: Whether the piece itself shows the cause, and not the rest of the thread alone.
        named: Codes that were given as the answer, the likeliest first.
        near: Known issues that were named as near, which is no answer.
        sure: Whether the first answer is more than a hypothesis.
        shown: Whether lines were shown to look at first.
        symptom: Whether a symptom was read from its metrics.
    """

    log: str
    kind: str
    label: str
    accepted: tuple[str, ...]
    failure: bool | None
    decidable: bool
    state: str
    named: tuple[str, ...]
    near: tuple[str, ...]
    sure: bool
    shown: bool
    symptom: bool

    @property
    def first(self) -> bool:
        """The first answer is right."""
        return bool(self.named) and self.named[0] in self.accepted

    @property
    def in_three(self) -> bool:
        """Among the first three codes that are shown, answers before what is near."""
        listed = [*self.named, *(code for code in self.near if code not in self.named)]
        return any(code in self.accepted for code in listed[:_MOST])

    @property
    def alarmed(self) -> bool:
        """A failure was spoken of: an answer, or an unknown one."""
        return bool(self.named) or self.state == "unknown"

    @property
    def looked_at(self) -> bool:
        """Something of it was shown to look at, or an answer given."""
        return self.alarmed or self.shown or self.symptom

    @property
    def by_hand(self) -> bool:
        """Answered by an entry that came after the labels: a person holds it against the truth."""
        return bool(self.failure and self.named and not self.label and self.named[0] in AFTER_THE_LABELS)


def judge_threads(folder: Path) -> list[Thread]:
    """Judge each labelled thread of a folder by itself."""
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
                named=tuple(
                    candidate.issue.code for candidate in verdict.candidates or getattr(verdict, "leads", ())
                ),
                near=tuple(issue.code for issue in verdict.similar),
                sure=bool(verdict.candidates) and verdict.candidates[0].certainty != "hypothesis",
                shown=bool(verdict.anchors),
                symptom=bool(verdict.fallback.symptoms),
            )
        )
    return threads


def group(thread: Thread) -> str:
    """The row of the table that a thread belongs to."""
    if not thread.failure:
        return "no failure" if thread.failure is False else "just stops"
    return thread.kind if thread.kind in {"whole", "metrics"} else "tail, cut or message"


def shares(threads: Sequence[Thread]) -> dict[str, tuple[int, int]]:
    """Hits and cases of each figure."""
    rows: dict[str, list[Thread]] = defaultdict(list)
    for thread in threads:
        rows[group(thread)].append(thread)
    figures = {}
    for name in ("whole", "tail, cut or message", "metrics"):
        labelled = [thread for thread in rows[name] if thread.label]
        figures[f"{name}: named"] = _share(thread.first for thread in labelled)
        figures[f"{name}: named or in the first three"] = _share(thread.in_three for thread in labelled)
        figures[f"{name}: a failure, and said so or shown"] = _share(
            thread.looked_at for thread in rows[name]
        )
    fine = rows["no failure"]
    answered = [thread for thread in threads if thread.named and not thread.by_hand and thread.decidable]
    figures["precision of answers"] = _share(thread.first for thread in answered)
    figures["precision of answers that are more than a hypothesis"] = _share(
        thread.first for thread in answered if thread.sure
    )
    figures["answers of entries that came after the labels"] = _share(
        thread.by_hand for thread in threads if thread.named
    )
    figures["metrics: the symptom is read"] = _share(thread.symptom for thread in rows["metrics"])
    figures["failures called clean"] = _share(
        thread.state == "clean" for thread in threads if thread.failure is not False
    )
    figures["no failure: no answer and no unknown failure"] = _share(not thread.alarmed for thread in fine)
    figures["just stops: not judged, as it is"] = _share(
        thread.state == "not_judged" for thread in rows["just stops"]
    )
    figures["no failure: called clean"] = _share(thread.state == "clean" for thread in fine)
    return figures


def _share(cases: Iterable[bool]) -> tuple[int, int]:
    cases = list(cases)
    return sum(cases), len(cases)


def render_table(threads: Sequence[Thread]) -> str:
    """The figures as a table of Markdown, and what was wrong."""
    lines = ["| figure | threads | share |", "|---|---|---|"]
    for name, (hits, of) in shares(threads).items():
        lines.append(f"| {name} | {hits}/{of} | {f'{hits / of:.2f}' if of else '-'} |")
    return "\n".join(lines)


def misses(threads: Sequence[Thread]) -> str:
    """Return a line for each thread whose answer differs from its label."""
    return "\n".join(
        f"{thread.log} {thread.kind}: {thread.label or '-'} {list(thread.accepted)}"
        + ("" if thread.failure else " no failure")
        + f": said {thread.state} {list(thread.named)} near {list(thread.near)}"
        + (" BY HAND" if thread.by_hand else "")
        for thread in threads
        if (thread.label and not thread.first)
        or (thread.named and not thread.first)
        or (thread.failure and not thread.looked_at)
        or (not thread.failure and thread.alarmed)
    )


def as_json(threads: Sequence[Thread]) -> dict[str, object]:
    """Figures and threads as a document."""
    return {
        "threads": [asdict(thread) for thread in threads],
        "shares": {name: list(share) for name, share in shares(threads).items()},
    }


def good(threads: Sequence[Thread]) -> bool:
    """Whether what is wanted is met."""
    figures = shares(threads)
    pairs = (
        (figures["whole: named"], WANTED["whole"]),
        (figures["tail, cut or message: named or in the first three"], WANTED["tail, cut or message"]),
        (figures["precision of answers"], WANTED["precision"]),
    )
    return not figures["failures called clean"][0] and all(hits >= least * of for (hits, of), least in pairs)
