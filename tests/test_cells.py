"""A test that is skipped for want of an environment says how it comes there, and that holds."""

from __future__ import annotations

import tomllib

import pytest

from tests import cells


@pytest.mark.parametrize("name", ["verl-0.4.1", "vllm-9.9.9+trl-9.9.9"])
def test_no_cell_is_named_that_the_matrix_has_not(monkeypatch, name):
    """A cell that no matrix file has cannot be built by a matrix command."""
    monkeypatch.setenv("GRPO_DOCTOR_CELLS", "/nowhere")
    with pytest.raises(pytest.skip.Exception, match="no cell of the matrix") as skipped:
        cells.cell_python(name)
    assert "--cells" not in str(skipped.value)


def test_a_cell_of_the_matrix_is_built_by_the_command_that_is_named(monkeypatch):
    """The name in it is one that the matrix file has."""
    monkeypatch.delenv("GRPO_DOCTOR_CELLS", raising=False)
    name = next(iter(tomllib.loads((cells.ROOT / "matrix.toml").read_text())["cells"]))
    with pytest.raises(pytest.skip.Exception, match="nox -s matrix -- --cells") as skipped:
        cells.cell_python(name)
    assert f"--cells '{name}'" in str(skipped.value)
