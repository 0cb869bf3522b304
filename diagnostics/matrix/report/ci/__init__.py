"""The matrix as jobs of a CI service: a GitHub Actions workflow made from `matrix.toml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Environment

    from diagnostics.matrix.plan.cells import Cell, Matrix

TEMPLATE = Path(__file__).with_name("workflow.yml.j2")
RELEASE = Path(__file__).with_name("release.yml.j2")
SUITE = Path(__file__).with_name("gpu.yml.j2")
# The command that makes the committed file.
MAKES = "workflow --output .github/workflows/matrix.yml"
MAKES_RELEASE = "workflow --release --output .github/workflows/release.yml"
MAKES_SUITE = "workflow --suite --output .github/workflows/gpu.yml"
CPU, GPU = "ubuntu-latest", "self-hosted,gpu"
# GitHub ends a job after six hours.
LONGEST_MINUTES = 360
# A self-hosted runner may take five days; a day is enough.
LONGEST_GPU_MINUTES = 1440
# The tests marked `gpu`, and their environment.
_TESTS_MINUTES = 60
# Building an environment: the download and the unpacking of gigabytes.
_BUILD_MINUTES = 40


def workflow(matrix: Matrix, cells: Sequence[Cell], *, cpu: str, gpu: Sequence[str]) -> str:
    """Returns the workflow: a job a cell, one that merges their stores into a table, one on a GPU runner.

    Args:
        matrix: the whole file, for the layers' time limits.
        cells: those that get a job.
        cpu: label of the runner of cells, as 'ubuntu-latest'.
        gpu: labels of a self-hosted runner with a GPU, all of which it must have; none: no such job.
    """
    template = _environment().from_string(TEMPLATE.read_text(encoding="utf-8"))
    listed = [
        {
            "id": cell.id,
            "artifact": cell.id.replace("+", "_"),
            "minutes": min(LONGEST_MINUTES, minutes(matrix, cell, plain)),
            "layers": ",".join(plain),
        }
        for cell in cells
        if (plain := without_gpu(matrix, cell))
    ]
    whole = sum(minutes(matrix, cell, cell.layers) for cell in cells)
    text: str = template.render(
        source=matrix.path.name,
        makes=MAKES,
        cells=listed,
        cpu=cpu,
        gpu=list(gpu),
        gpu_minutes=min(LONGEST_GPU_MINUTES, _TESTS_MINUTES + whole),
    )
    return text


def release() -> str:
    """Returns the workflow of a release: built twice, published by the index's trust in it, with the same actions."""
    template = _environment().from_string(RELEASE.read_text(encoding="utf-8"))
    text: str = template.render(makes=MAKES_RELEASE, uses=_actions())
    return text


def suite(*, cpu: str = CPU, gpu: Sequence[str] = ()) -> str:
    """Returns the workflow of the tests for a GPU: packed as a kit, run from it, and taken in; no cell is asked.

    Args:
        cpu: label of the runner that packs and takes in.
        gpu: labels of a self-hosted runner with a GPU; none: those that are meant.
    """
    template = _environment().from_string(SUITE.read_text(encoding="utf-8"))
    labels = list(gpu) or GPU.split(",")
    text: str = template.render(makes=MAKES_SUITE, uses=_actions(), cpu=cpu, gpu=labels)
    return text


def _actions() -> dict[str, str]:
    """Returns the actions of the matrix's workflow, each by its name with its hash."""
    named = re.findall(r"uses: ((\S+)@\S+ # \S+)", TEMPLATE.read_text(encoding="utf-8"))
    return {name: whole for whole, name in named}


def _environment() -> Environment:
    """Jinja's, with other braces than those of GitHub's own expressions."""
    from jinja2 import Environment, StrictUndefined

    return Environment(
        autoescape=False,  # noqa: S701 - YAML, and every value goes through tojson
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
        keep_trailing_newline=True,
    )


def usual(matrix: Matrix) -> str:
    """Returns the workflow of all cells, for the runners that are meant unless others are named."""
    return workflow(matrix, matrix.cells, cpu=CPU, gpu=GPU.split(","))


def committed(matrix: Matrix) -> Path | None:
    """Returns the workflow that lies beside the matrix file, None if there is none."""
    path = matrix.path.parent / ".github" / "workflows" / "matrix.yml"
    return path if path.is_file() else None


def without_gpu(matrix: Matrix, cell: Cell) -> tuple[str, ...]:
    """Returns the layers of a cell that a runner without a GPU can be asked; the others are the GPU runner's."""
    return tuple(name for name in cell.layers if matrix.layer(name).needs.gpus == 0)


def minutes(matrix: Matrix, cell: Cell, layers: Sequence[str]) -> int:
    """Returns how long a cell may take: the sum of its layers' limits, and the build of its environment."""
    asked = sum(matrix.layer(name).timeout_s for name in layers) / 60
    build = _BUILD_MINUTES if cell.recipe else 5
    return int(asked) + build
