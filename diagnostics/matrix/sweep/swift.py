"""How ms-swift's releases check the arguments of a mode and its resources, asked as a sweep of their own.

Each release's own code runs from its wheel, unpacked beside the environment of its generation
(`repro/questions/swift_arguments.py` says how).
"""

from __future__ import annotations

import datetime
import json
import textwrap
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.matrix.sweep.plan import Sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diagnostics.matrix.ask.in_cell import Reply
    from diagnostics.matrix.records.events import Event

SCHEMA = "grpo-doctor.swift.v1"
ANSWERS = "grpo-doctor.swift-arguments.v1"
NAME, PACKAGE = "swift", "ms-swift"
PUBLISHED = ROOT / "diagnostics" / "data" / "swift.json"
TABLE = ROOT / "docs" / "results" / "swift-table.md"
_HEAD = """\
# What ms-swift says, release by release

Made by `python -m diagnostics.matrix sweep --sweep swift --publish` on {day}; not edited by hand. What was asked and
what is simulated: [swift.md](../swift.md).
"""
FIRST = "3.1.0"
_TIMEOUT_S = 1200.0
_DIFFERS = "one environment for all releases of a generation; what a release pins otherwise is not heeded"


def _beside(name: str, *requirements: str) -> Sweep:
    return Sweep(
        name=name,
        package=PACKAGE,
        first=FIRST,
        codes=("CFG001",),
        python="3.11",
        requirements=requirements,
        alone=(),
        differs=_DIFFERS,
        timeout_s=_TIMEOUT_S,
        at_a_time=1,
        locks_itself=False,
        family=NAME,
    )


_COMMON = ("torch==2.13.0", "json-repair", "pyarrow<20", "setuptools<80")
# What runs beside a release, from which release on: packages of its time that import with all of them.
BESIDE = {
    "4.0": _beside(
        "swift-4", "ms-swift==4.6.0", "torch==2.13.0", "transformers==4.57.6", "trl==0.29.1", "setuptools<80"
    ),
    "3.12": _beside("swift-3.12", "ms-swift==3.12.6", "transformers==4.57.6", "trl==0.24.0", *_COMMON),
    "3.1": _beside(
        "swift-3", "ms-swift==3.5.3", "transformers==4.51.3", "trl==0.19.1", "peft==0.15.2", *_COMMON
    ),
}


def beside(version: str) -> Sweep:
    """Returns what a release is asked as: beside the environment of its generation."""
    return next(sweep for first, sweep in BESIDE.items() if Version(version) >= Version(first))


def program(_sweep: Sweep) -> Sequence[str]:
    """Returns what `python -m` is given."""
    return ("repro.questions.swift_arguments",)


def read(reply: Reply, ran_with: tuple[tuple[str, str], ...]) -> Answer:
    """Makes the answer: the whole document is what the published table is made of."""
    said = [case["said"] for case in reply.document["cases"].values()]
    summary = ", ".join(f"{said.count(word)} {word}" for word in sorted(set(said)))
    facts = (("document", json.dumps(reply.document, ensure_ascii=False)),)
    return Answer(
        Outcome.PASS, summary, EvidenceLevel.EXECUTED, facts=facts, ran_with=ran_with, log=reply.log
    )


def report(event: Event | None, sweep: Sweep) -> dict[str, Any]:
    """Returns what a release said; under `failed` why it said nothing."""
    if event is None or not event.finished:
        return {"failed": event.answer.summary if event else "not asked"}
    ((document,),) = event.answer.told("document")
    return {**json.loads(document), "beside": sweep.name}


def newest_of_minors(releases: Sequence[str]) -> list[str]:
    """Returns the last release of each minor, in order.

    >>> newest_of_minors(["3.4.0", "3.4.1", "3.4.1.post1", "3.5.0"])
    ['3.4.1.post1', '3.5.0']
    """
    return list({Version(name).release[:2]: name for name in sorted(releases, key=Version)}.values())


def published(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document that ships: releases with the same answers stand together."""
    answered = {version: report for version, report in found.items() if "cases" in report}
    first: Mapping[str, Any] = next(iter(answered.values()), {"simulated": [], "about": {}})
    environments = {report["beside"]: report["packages"] for report in answered.values()}
    return {
        "schema": SCHEMA,
        "generated": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "simulated": list(first["simulated"]),
        "environments": environments,
        "about": first["about"],
        "unanswered": {version: report["failed"] for version, report in found.items() if "failed" in report},
        "groups": list(_groups(answered)),
    }


def _groups(answered: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields runs of neighbouring releases that said the same to every case."""
    group: dict[str, Any] | None = None
    for version in sorted(answered, key=Version):
        report = answered[version]
        if group and (group["cases"], group["beside"]) == (report["cases"], report["beside"]):
            group["releases"].append(version)
            continue
        if group:
            yield group
        group = {"releases": [version], "beside": report["beside"], "cases": report["cases"]}
    if group:
        yield group


_SYMBOLS = {"accepts": "✔ accepts", "warns": "⚠ warns", "refuses": "✘ refuses", "no option": "- no option"}


def markdown(document: Mapping[str, Any]) -> str:
    """Returns the table of cases by groups of releases, and what was said, each text once."""
    groups = document["groups"]
    heads = [_span(group["releases"]) for group in groups]
    notes: dict[str, int] = {}
    lines = [_HEAD.format(day=document["generated"])]
    lines += ["| case | what it is | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(groups)]
    for name, about in document["about"].items():
        cells = [_cell(group["cases"].get(name), notes) for group in groups]
        lines.append(f"| `{name}` | {about} | " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}. {_escaped(text)}" for text, number in notes.items())]
    for version, why in document["unanswered"].items():
        lines.append(f"\nNot answered: {version}: {_escaped(why)}")
    return "\n".join(lines) + "\n"


def _span(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


def _cell(case: Mapping[str, str] | None, notes: dict[str, int]) -> str:
    if case is None:
        return "not run"
    if not case["text"] or case["said"] == "no option":
        return _SYMBOLS.get(case["said"], case["said"])
    return f"{_SYMBOLS.get(case['said'], case['said'])} ({notes.setdefault(case['text'], len(notes) + 1)})"


def _escaped(text: str) -> str:
    return textwrap.shorten(text.replace("|", "\\|").replace("<", "\\<"), 400, placeholder=" …")
