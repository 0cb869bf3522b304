"""`python -m diagnostics.matrix.sweep.swift`: how ms-swift's releases check the arguments of a mode and its resources.

Each release's own code runs from its wheel, unpacked beside one of two environments
(`repro/questions/swift_arguments.py` says how). What was answered is kept by release and digest
of the program, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from diagnostics.matrix.build.environments import BuildError
from diagnostics.matrix.build.sources import SourceError
from diagnostics.matrix.build.uv import UvMissingError
from diagnostics.matrix.build.workplace import ROOT, InterpreterError, Workplace
from diagnostics.matrix.plan.cells import load
from diagnostics.matrix.records.identity import text_digest
from diagnostics.matrix.records.store import Store, StoreBusyError
from diagnostics.matrix.sweep import environment, wheels
from diagnostics.matrix.sweep.plan import Sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SCHEMA = "grpo-doctor.swift.v1"
PUBLISHED = ROOT / "diagnostics" / "data" / "swift.json"
TABLE = ROOT / "docs" / "swift-table.md"
PROGRAM = ("repro/questions/swift_arguments.py", "repro/drivers/accelerators/torch_npu/__init__.py")
FIRST = "3.1.0"
_TIMEOUT_S = 1200.0
_DIFFERS = "one environment for all releases of a generation; what a release pins otherwise is not heeded"


def _beside(name: str, *requirements: str) -> Sweep:
    return Sweep(
        name=name,
        package="ms-swift",
        first=FIRST,
        codes=("CFG001",),
        python="3.11",
        requirements=requirements,
        alone=(),
        differs=_DIFFERS,
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
_TROUBLE = (StoreBusyError, UvMissingError, SourceError, InterpreterError, BuildError)


def main(arguments: list[str] | None = None) -> int:
    """Asks the releases that are due, prints the table.

    Returns:
        0: every release answered. 2: it can't be done. 3: one gave no answer. 130: interrupted.
    """
    options = _options(arguments)
    workplace = Workplace(load(ROOT / "matrix.toml"), Store(options.store.resolve()), say=_say)
    try:
        if options.lock:
            return _lock(workplace)
        found = _ask_all(workplace, options)
    except _TROUBLE as error:
        print(f"swift: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "swift: interrupted: what was answered is kept, the next run goes on from here", file=sys.stderr
        )
        return 130
    document = published(found)
    table = markdown(document)
    print(table)
    if options.publish:
        PUBLISHED.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        TABLE.write_text(table, encoding="utf-8")
        print(f"{PUBLISHED}\n{TABLE}", file=sys.stderr)
    return 3 if any("failed" in report for report in found.values()) else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m diagnostics.matrix.sweep.swift", description=__doc__)
    parser.add_argument(
        "--releases", action="append", default=[], metavar="GLOB", help="only these, as '3.4.*'"
    )
    parser.add_argument(
        "--publish", action="store_true", help="write diagnostics/data/swift.json and the docs' table"
    )
    parser.add_argument(
        "--lock", action="store_true", help="resolve again what runs beside the releases, run nothing"
    )
    parser.add_argument(
        "--store", type=Path, default=ROOT / ".matrix", help="folder of answers and environments"
    )
    parser.add_argument("--every", action="store_true", help="every release, not the newest of each minor")
    options = parser.parse_args(arguments)
    if options.publish and options.releases:
        parser.error("--publish wants every release; leave --releases away")
    return options


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _lock(workplace: Workplace) -> int:
    """Resolves what ms-swift asks for, and leaves ms-swift itself out: each release is put beside it."""
    for sweep in BESIDE.values():
        environment.lock(workplace, sweep)
        path = environment.lock_path(workplace, sweep)
        kept = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if not line.startswith("ms-swift==")
        ]
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
        print(path)
    return 0


def _ask_all(workplace: Workplace, options: argparse.Namespace) -> dict[str, Any]:
    every = wheels.releases("ms-swift", FIRST, workplace.environ)
    chosen = wheels.matching(every, options.releases, "ms-swift")
    if not (options.releases or options.every):
        chosen = newest_of_minors(chosen)
    program = text_digest("".join((ROOT / path).read_text(encoding="utf-8") for path in PROGRAM))[:16]
    found = {}
    with workplace.store.locked():
        for position, version in enumerate(chosen, start=1):
            kept = workplace.folder("sweeps", "swift-answers") / f"{version}-{program}.json"
            if not kept.exists():
                report = _ask(workplace, version)
                if "failed" in report:
                    found[version] = report
                    _say(f"{version}: {report['failed']}")
                    continue
                kept.write_text(json.dumps(report), encoding="utf-8")
            found[version] = json.loads(kept.read_text(encoding="utf-8"))
            said = [case["said"] for case in found[version]["cases"].values()]
            _say(
                f"{version} ({position} of {len(chosen)}): "
                + ", ".join(f"{said.count(s)} {s}" for s in sorted(set(said)))
            )
    return found


def newest_of_minors(releases: Sequence[str]) -> list[str]:
    """Returns the last release of each minor, in order.

    >>> newest_of_minors(["3.4.0", "3.4.1", "3.4.1.post1", "3.5.0"])
    ['3.4.1.post1', '3.5.0']
    """
    return list({Version(name).release[:2]: name for name in sorted(releases, key=Version)}.values())


def _ask(workplace: Workplace, version: str) -> dict[str, Any]:
    """Returns a release's report; under `failed` why there is none."""
    sweep = next(beside for first, beside in BESIDE.items() if Version(version) >= Version(first))
    python = environment.ensure(workplace, sweep)
    folder = workplace.folder("sweeps", "ms-swift")
    cache = workplace.folder("wheels")
    site = wheels.unpack("ms-swift", version, folder, cache=cache, environ=workplace.environ)
    path = os.pathsep.join([os.fspath(ROOT), os.fspath(site)])
    try:
        done = subprocess.run(
            [python, "-m", "repro.questions.swift_arguments"],
            env={**workplace.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {_TIMEOUT_S:g} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]}
    report: dict[str, Any] = json.loads(done.stdout)
    return report | {"beside": sweep.name}


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
    lines = ["| case | what it is | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(groups)]
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


if __name__ == "__main__":
    sys.exit(main())
