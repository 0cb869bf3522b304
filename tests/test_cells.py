"""A test that is skipped because its cell is missing names the command that builds the cell."""

from __future__ import annotations

import tomllib

import pytest

from tests import cells


@pytest.mark.parametrize("name", ["verl-0.4.1", "vllm-9.9.9+trl-9.9.9"])
def test_cell_outside_the_matrix_has_no_build_command(monkeypatch, name):
    monkeypatch.setenv("GRPO_DOCTOR_CELLS", "/nowhere")
    with pytest.raises(pytest.skip.Exception, match="no cell of the matrix") as skipped:
        cells.cell_python(name)
    assert "--cells" not in str(skipped.value)


def test_matrix_cell_has_a_build_command(monkeypatch):
    monkeypatch.delenv("GRPO_DOCTOR_CELLS", raising=False)
    name = next(iter(tomllib.loads((cells.ROOT / "matrix.toml").read_text())["cells"]))
    with pytest.raises(pytest.skip.Exception, match="nox -s matrix -- --cells") as skipped:
        cells.cell_python(name)
    assert f"--cells '{name}'" in str(skipped.value)
