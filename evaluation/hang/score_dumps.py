"""Score `hang --from` on stack dumps of other people: `python -m evaluation.hang.score_dumps FOLDER`.

FOLDER has `labels.jsonl`, a line for each dump: `file`; `class`; `hng`: the correct codes, or causes without a known
issue such as `device`; `confirmed`: whether the cause was confirmed; `healthy`; `unknown_ok`: whether `unknown` is an
acceptable verdict; `shown`: whether the dump itself shows the cause. A dump that cannot be read is graded as missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from diagnostics.hang.diagnosis import diagnose
from diagnostics.hang.known_issues import with_issue
from diagnostics.hang.parsers import ParseError
from diagnostics.hang.parsers.dump_files import read_files
from diagnostics.hang.verdict import HANG, UNKNOWN

UNREAD = "unread"


def score(label: dict[str, Any], path: Path) -> dict[str, Any]:
    """Diagnose a dump as `hang --from` does, and grade the verdict."""
    try:
        verdict = with_issue(diagnose(read_files([str(path)]))).verdict
        outcome, cause, code, sentence = verdict.outcome, verdict.cause, verdict.code, verdict.sentence
    except ParseError as error:
        outcome, cause, code, sentence = UNREAD, "", "", str(error).replace(str(path), path.name)
    answer = (code or cause) if outcome == HANG else ""
    return {
        "file": path.name,
        "class": label["class"],
        "group": label_group(label),
        "expected": label["hng"],
        "shown": label.get("shown", True),
        "outcome": outcome,
        "cause": cause if outcome == HANG else "",
        "code": answer,
        "sentence": sentence,
        "worth": grade(label, outcome, answer),
    }


def label_group(label: dict[str, Any]) -> str:
    """Return the group of a label: healthy, confirmed or not confirmed."""
    if label.get("healthy"):
        return "healthy"
    return "confirmed" if label.get("confirmed") else "not confirmed"


def grade(label: dict[str, Any], outcome: str, code: str) -> str:
    """Grade a verdict: right, unknown (acceptable), missed (no hang reported), or false (a wrong hang reported)."""
    if outcome == HANG:
        return "right" if code in label["hng"] and not label.get("healthy") else "false"
    if label.get("healthy"):
        return "missed" if outcome == UNREAD else "right"
    if outcome == UNKNOWN and (label.get("unknown_ok") or not label.get("confirmed")):
        return "unknown"
    return "missed"


def render_figures(rows: list[dict[str, Any]]) -> str:
    """Render the counts of grades by group of labels."""
    lines = [f"{'label':<16}{'dumps':>6}{'read':>6}{'right':>7}{'unknown':>9}{'missed':>8}{'false':>7}"]
    for name in ("confirmed", "not confirmed", "healthy", ""):
        chosen = [row for row in rows if name in ("", row["group"])]
        grades = Counter(row["worth"] for row in chosen)
        read = sum(row["outcome"] != UNREAD for row in chosen)
        figures = f"{grades['right']:>7}{grades['unknown']:>9}{grades['missed']:>8}{grades['false']:>7}"
        lines.append(f"{name or 'all':<16}{len(chosen):>6}{read:>6}{figures}")
    confirmed = [row for row in rows if row["group"] == "confirmed" and row["shown"]]
    lines.append(
        f"confirmed, shown by the text: {sum(row['worth'] == 'right' for row in confirmed)} of {len(confirmed)}"
    )
    return "\n".join(lines)


def main() -> int:
    """Score each dump of a folder, and print the grades and their counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    labels = [json.loads(line) for line in (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [score(label, folder / label["file"]) for label in labels]
    for row in rows:
        answer = " ".join(word for word in (row["outcome"], row["cause"], row["code"]) if word)
        expected = "/".join(row["expected"]) or "-"
        print(f"{row['worth']:<8}{row['file']:<10}{row['group']:<14} expected {expected:<14} said {answer}")
        print(f"        {row['sentence'][:180]}")
    print(render_figures(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
