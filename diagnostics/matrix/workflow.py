"""Render the GitHub Actions workflows for matrix, release and GPU checks; the matrix workflow has one job per cell."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jinja2

from diagnostics.matrix.cells import Cell, Matrix
from diagnostics.matrix.report import TEMPLATES

# Arguments of `nox -s matrix --` that write each committed workflow file.
MAKES = "workflow --output .github/workflows/matrix.yml"
MAKES_RELEASE = "workflow --release --output .github/workflows/release.yml"
MAKES_SUITE = "workflow --suite --output .github/workflows/gpu.yml"
CPU, GPU = "ubuntu-latest", "self-hosted,gpu"
# GitHub ends a job after six hours; a self-hosted runner may take five days, and a day is enough.
_LONGEST_MINUTES, _LONGEST_GPU_MINUTES = 360, 1440
_GPU_TESTS_MINUTES = 60
# Downloading and unpacking gigabytes; without an environment, Python and uv alone.
_BUILD_MINUTES, _SETUP_MINUTES = 40, 5


def matrix_workflow(matrix: Matrix, cells: Sequence[Cell], *, cpu: str = CPU, gpu: Sequence[str] = ()) -> str:
    """Return the matrix workflow: one job per cell, one that merges the results, and optionally one on a GPU runner.

    Args:
        matrix: The whole file, for the layers' time limits.
        cells: The cells that get a job.
        cpu: Label of the runner of cells, as 'ubuntu-latest'.
        gpu: Labels of a self-hosted runner with a GPU; none: no such job.
    """
    jobs = [
        {
            "id": cell.id,
            "artifact": cell.id.replace("+", "_"),
            "minutes": min(_LONGEST_MINUTES, cell_minutes(matrix, cell, layers)),
            "layers": ",".join(layers),
        }
        for cell in cells
        if (layers := cpu_layers(matrix, cell))
    ]
    all_minutes = sum(cell_minutes(matrix, cell, cell.layers) for cell in cells)
    gpu_minutes = min(_LONGEST_GPU_MINUTES, _GPU_TESTS_MINUTES + all_minutes)
    return _render(
        "workflow.yml.j2",
        source=matrix.path.name,
        makes=MAKES,
        cells=jobs,
        cpu=cpu,
        gpu=list(gpu),
        gpu_minutes=gpu_minutes,
    )


def release_workflow() -> str:
    """Return the release workflow, which builds twice and publishes by trusted publishing."""
    return _render("release.yml.j2", makes=MAKES_RELEASE, uses=_pinned_actions())


def gpu_workflow(*, cpu: str = CPU, gpu: Sequence[str] = ()) -> str:
    """Return the workflow of the GPU checks: wheels downloaded, checks run on a GPU, results imported.

    Args:
        cpu: Label of the runner that downloads and imports.
        gpu: Labels of a self-hosted runner with a GPU; none: the default ones.
    """
    labels = list(gpu) or GPU.split(",")
    return _render("gpu.yml.j2", makes=MAKES_SUITE, uses=_pinned_actions(), cpu=cpu, gpu=labels)


def stale_workflows(matrix: Matrix) -> list[str]:
    """Return one line for each committed workflow that differs from what the matrix file makes."""
    folder = matrix.path.parent / ".github" / "workflows"
    generated = (
        (folder / "matrix.yml", matrix_workflow(matrix, matrix.cells, gpu=GPU.split(",")), MAKES),
        (folder / "release.yml", release_workflow(), MAKES_RELEASE),
        (folder / "gpu.yml", gpu_workflow(), MAKES_SUITE),
    )
    return [
        f"{path}: differs from what the matrix file makes: `nox -s matrix -- {command}` makes it"
        for path, text, command in generated
        if path.is_file() and path.read_text(encoding="utf-8") != text
    ]


def cpu_layers(matrix: Matrix, cell: Cell) -> tuple[str, ...]:
    """Return the layers of a cell that a runner without a GPU can run."""
    return tuple(name for name in cell.layers if matrix.layer(name).gpus == 0)


def cell_minutes(matrix: Matrix, cell: Cell, layers: Sequence[str]) -> int:
    """Return the time limit of a cell: those of its layers, and the build of its environment."""
    seconds = sum(matrix.layer(name).timeout_s for name in layers)
    return int(seconds / 60) + (_BUILD_MINUTES if cell.recipe else _SETUP_MINUTES)


def _pinned_actions() -> dict[str, str]:
    """Return the `uses:` values of the matrix workflow, pinned to commits, by name of the action."""
    text = (TEMPLATES / "workflow.yml.j2").read_text(encoding="utf-8")
    return {name: pinned for pinned, name in re.findall(r"uses: ((\S+)@\S+ # \S+)", text)}


def _render(template: str, **values: object) -> str:
    """Render a template; its delimiters are [[ ]] and [% %], because GitHub's expressions use {{ }}."""
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
        comment_start_string="[#",
        comment_end_string="#]",
    )
    text: str = environment.get_template(template).render(**values)
    return text
