"""Render the GitHub Actions workflow of the matrix: one job per cell, and one that merges their results."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from diagnostics.matrix.cells import Cell, Matrix
from diagnostics.matrix.report import TEMPLATES

# Arguments of `nox -s matrix --` that write the committed workflow file.
MAKES = "workflow --output .github/workflows/matrix.yml"
CPU, GPU = "ubuntu-latest", "self-hosted,gpu"
# GitHub ends a job after six hours. A job on a self-hosted runner may take five days; it gets one day.
_LONGEST_MINUTES, _LONGEST_GPU_MINUTES = 360, 1440
_GPU_TESTS_MINUTES = 60
# Time to download and unpack an environment (gigabytes); without an environment, only Python and uv.
_BUILD_MINUTES, _SETUP_MINUTES = 40, 5


def matrix_workflow(matrix: Matrix, cells: Sequence[Cell], *, cpu: str = CPU, gpu: str = GPU) -> str:
    """Return the workflow's file.

    Args:
        matrix: The matrix file.
        cells: The cells that get a job.
        cpu: Label of the runner for cells, such as 'ubuntu-latest'.
        gpu: Labels of a self-hosted runner with a GPU, separated by commas; '' for no job on such a runner.
    """
    jobs = [
        {
            "id": cell.id,
            "artifact": cell.id.replace("+", "_"),
            "minutes": min(_LONGEST_MINUTES, cell_minutes(matrix, cell, layers)),
            "layers": ",".join(layers),
        }
        for cell in cells
        # These runners have no GPU, so layers that need one are left out.
        if (layers := [name for name in cell.layers if matrix.layer(name).gpus == 0])
    ]
    all_minutes = sum(cell_minutes(matrix, cell, cell.layers) for cell in cells)
    # The delimiters are [[ ]] and [% %], because GitHub's expressions use {{ }}.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=False,  # noqa: S701 - YAML, and every value goes through tojson
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
    )
    text: str = environment.get_template("workflow.yml.j2").render(
        source=matrix.path.name,
        makes=MAKES,
        cells=jobs,
        cpu=cpu,
        gpu=[label.strip() for label in gpu.split(",") if label.strip()],
        gpu_minutes=min(_LONGEST_GPU_MINUTES, _GPU_TESTS_MINUTES + all_minutes),
    )
    return text


def stale_workflow(matrix: Matrix) -> list[str]:
    """Return a line if the committed workflow differs from the generated one; empty otherwise."""
    path = matrix.path.parent / ".github" / "workflows" / "matrix.yml"
    if not path.is_file() or path.read_text(encoding="utf-8") == matrix_workflow(matrix, matrix.cells):
        return []
    return [f"{path}: differs from what the matrix file makes: `nox -s matrix -- {MAKES}` makes it"]


def cell_minutes(matrix: Matrix, cell: Cell, layers: Sequence[str]) -> int:
    """Return the time limit of a cell's job in minutes: the limits of its layers, and time to build its environment."""
    seconds = sum(matrix.layer(name).timeout_s for name in layers)
    return int(seconds / 60) + (_BUILD_MINUTES if cell.recipe else _SETUP_MINUTES)
