"""Does the real engine keep the engine protocol? The conformance suite, run by the cell's own Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from diagnostics.collect.secrets import cut
from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.ask.layer import Layer, infrastructure
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell, LayerSettings
    from diagnostics.processes import Finished

SUITE = "tests/grpo_core/conformance"
PLUGIN = "tests.grpo_core.conformance.plugin"
# Installed beside the cell, not into it, and without what a cell has anyway (packaging).
# Each with the hash of its wheel.
_TOOLS = {
    "pytest==8.3.5": "sha256:c69214aa47deac29fad6c2a4f590b9c4a9fdb16a403176fe154b79c0b4d4d820",
    "pluggy==1.6.0": "sha256:e920276dd6813095e9377c0bc5566d94c932c33b27a3e3945d8389c374dd4746",
    "iniconfig==2.1.0": "sha256:9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760",
}
PYTEST = tuple(_TOOLS)
OUTCOMES = "outcomes.json"


def _inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    return {**in_cell.inputs(workplace, cell), "pytest": " ".join(PYTEST)}


def _program(settings: LayerSettings, _cell: Cell) -> list[str]:
    options = ["-q", "-c", os.devnull, "--rootdir", ".", "--import-mode=importlib", "-p", "no:cacheprovider"]
    return [
        "pytest",
        *options,
        "-p",
        PLUGIN,
        f"{SUITE}/suite.py",
        "--outcomes",
        OUTCOMES,
        *settings.arguments,
    ]


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    try:
        tools = _tools(workplace, cell)
    except (OSError, subprocess.SubprocessError) as error:
        return infrastructure(
            f"pytest could not be installed beside the cell: {error}", EvidenceLevel.EXECUTED
        )
    program = _program(workplace.matrix.layer("conformance"), cell)
    ended = in_cell.execute(workplace, cell, "conformance", program, beside=(tools,), files=_copy)
    return ended if isinstance(ended, Answer) else _answer(ended, cell)


def _copy(folder: Path) -> None:
    """The suite as it is now, in a package `tests` that comes before any of the cell's."""
    shutil.copytree(ROOT / SUITE, folder / SUITE, ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")


def _tools(workplace: Workplace, cell: Cell) -> Path:
    """Pytest for this Python, installed when first needed."""
    target = workplace.folder("beside") / f"{PYTEST[0]}-python{cell.python}"
    if not target.exists():
        aside = target.with_name(f"{target.name}.part")
        shutil.rmtree(aside, ignore_errors=True)
        python, _version = workplace.interpreter(cell.python)
        command = ["pip", "install", "--quiet", "--no-config", "--no-deps", "--target", str(aside)]
        subprocess.run(
            [workplace.uv, *command, "--require-hashes", "--python", python, "-r", "-"],
            input="".join(f"{name} --hash={found}\n" for name, found in _TOOLS.items()).encode(),
            env=workplace.uv_environ(), capture_output=True, check=True, timeout=300,
        )  # fmt: skip
        aside.rename(target)
    return target


def _answer(ended: in_cell.Ended, cell: Cell) -> Answer:
    try:
        found = json.loads((ended.folder / OUTCOMES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    outcome, summary = judge(found, ended.done)
    lines = tuple(f"{name}: {item['outcome']}{_why(item)}" for name, item in found.items())
    return Answer(
        outcome,
        cut(summary, 300),
        EvidenceLevel.EXECUTED,
        signs=tuple(line for line in lines if not line.endswith(": passed")),
        details=lines,
        ran_with=in_cell.ran_with(cell, None),
        excerpt="" if outcome is Outcome.PASS else ended.excerpt,
        log=ended.log,
    )


def judge(found: Mapping[str, Mapping[str, str]], done: Finished) -> tuple[Outcome, str]:
    """Says what the outcomes of the suite's tests come to, and how its run ended."""
    by = {word: [name for name, item in found.items() if item["outcome"] == word] for word in _WORDS}
    counts = ", ".join(f"{len(names)} {word}" for word, names in by.items() if names)
    if done.code < 0:
        return in_cell.blame(done), f"{in_cell.ended_by(done)} behind these: {counts or 'none'}"
    if by["failed"]:
        first = by["failed"][0]
        return Outcome.FAIL, f"{counts}; first {first}{_why(found[first])}"
    if done.code != 0 or not by["passed"]:
        return Outcome.INFRA_ERROR, f"pytest ended with {done.code}: {counts or 'no test ran'}"
    return Outcome.PASS, counts


_WORDS = ("passed", "not applicable", "failed")


def _why(item: Mapping[str, str]) -> str:
    return f" ({item['why']})" if item.get("why") else ""


LAYERS = (
    Layer(
        name="conformance",
        order=120,
        group="engine",
        question="Does the real engine pass the conformance suite that every engine passes?",
        evidence=EvidenceLevel.EXECUTED,
        needs=(*in_cell.USABLE, "engine"),
        inputs=_inputs,
        program=_program,
        ask=_ask,
        modules=(PLUGIN, f"{PLUGIN.rpartition('.')[0]}.suite"),
    ),
)
