"""Digests of the project's source change with code and data, not with comments, docstrings and layout.

They decide whether a stored result is still valid. Each layer names the modules that its digest covers.
"""

import pytest

from diagnostics.matrix import ray_cells
from diagnostics.matrix.cells import load_matrix
from diagnostics.matrix.context import ROOT, Context
from diagnostics.matrix.identity import SourceDigests
from diagnostics.matrix.layers import LAYERS
from diagnostics.matrix.layers.repros import REPRO_MODULES
from diagnostics.matrix.results import make_question, select_cells
from diagnostics.matrix.store import Store

FILES = {
    "grpo_core/__init__.py": "",
    "grpo_core/losses.py": "X = 1  # why\n",
    "repro/__init__.py": "",
    "repro/__main__.py": "from repro import runner\n",
    "repro/runner.py": "def run():\n    from repro.drivers import engine\n",
    "repro/drivers/__init__.py": "",
    "repro/drivers/engine.py": "A = 1\n",
    "repro/drivers/calls.py": "B = 1\n",
    "repro/issues/__init__.py": "from repro.issues import sch001, sch002\n",
    "repro/issues/sch001.py": "from repro.drivers import calls\n",
    "repro/issues/sch002.py": "C = 1\n",
    "repro/ray.txt": "ray==2.40\n",
}


@pytest.fixture
def digest(tmp_path):
    """Return a function that computes the digest of a toy project's modules, with changed files."""

    def compute(*names, **changes):
        for path in tmp_path.rglob("*.py"):
            path.unlink()
        for name, text in (
            FILES | {key.replace("__", "/") + ".py": value for key, value in changes.items()}
        ).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return SourceDigests(dict.fromkeys(("grpo_core", "repro"), tmp_path)).digest(names)

    return compute


def test_comments_docstrings_and_layout_change_nothing(digest):
    """Comments, docstrings and layout do not change the digest; code and new files do."""
    before = digest("grpo_core")
    assert digest("grpo_core", grpo_core__losses='"""Losses."""\n\nX = 1\n') == before
    assert digest("grpo_core", grpo_core__losses="X = 2\n") != before
    assert digest("grpo_core", grpo_core__other="") != before


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_data_of_a_module_count(digest, tmp_path, ending):
    before = digest("grpo_core.losses")
    (tmp_path / "grpo_core" / f"losses.{ending}").write_text("1")
    assert digest("grpo_core.losses") != before


def test_repro_digest_ignores_other_repros(digest):
    """The digest of a repro changes with its own module and shared modules, not with other repros."""
    names = ("repro", "repro.issues.sch001")
    before = digest(*names)
    assert digest(*names, repro__issues__sch002="C = 2\n") == before
    assert digest(*names, repro__issues__sch001="D = 2\n") != before
    assert digest(*names, repro__drivers__engine="A = 2\n") != before


def test_layers_name_existing_code(tmp_path):
    """Every layer names existing modules, every repro has a layer, and two layers of a cell have different digests.

    A Ray worker computes the same digests, because the code that a layer names is sent to it.
    """
    matrix = load_matrix(ROOT / "matrix.toml", LAYERS)
    context = Context(matrix, Store(ROOT / "unused"))
    ray_cells._copy_code(context, tmp_path)
    sent = SourceDigests(dict.fromkeys(context.sources.folders, tmp_path))
    for layer in LAYERS:
        assert sent.digest(layer.code) == context.sources.digest(layer.code), layer.name
        for name in layer.code:
            path = ROOT.joinpath(*name.split("."))
            assert path.is_dir() or path.with_suffix(".py").is_file(), name
    assert {layer.name for layer in LAYERS if layer.name.startswith("repro:")} == {
        f"repro:{code}" for code in REPRO_MODULES
    }
    (cell,) = select_cells(matrix, ["vllm-0.12.0+trl-0.25.0"], None)
    first, second = (dict(make_question(context, cell, layer).inputs) for layer in ("resolve", "contract"))
    assert first["code"] != second["code"]
    assert (first["vllm"], first["trl"]) == ("0.12.0", "0.25.0")
