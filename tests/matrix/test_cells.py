"""A matrix file is checked, with one-line messages; profiles, patterns and names select its cells and layers."""

import pytest

from diagnostics.matrix.cells import load_matrix
from diagnostics.matrix.layers import BY_NAME, LAYERS
from diagnostics.matrix.results import select_cells, select_layers, with_needs
from diagnostics.toml_source import TomlError
from tests.case_files import each_case, read_cases
from tests.matrix.questions import load_questions

CASES = read_cases(__file__, "invalid_cells.yaml")


@pytest.fixture
def load(tmp_path):
    """Return a function that writes a matrix file and loads it."""
    return lambda text: load_questions(tmp_path / "matrix.toml", text)[0]


@each_case(CASES["values"])
def test_invalid_value_is_refused_with_file_and_line(load, kit, tmp_path, old, new, message):
    """An invalid value is refused in one line, with the file, the line, and what is wrong or expected."""
    text = kit.HEAD + kit.cell_table("1.0", "1.0", kit.CELL_LAYERS)
    old = old.replace("PY", kit.PYTHON)
    assert old in text
    changed = text.replace(old, new)
    with pytest.raises(TomlError) as refused:
        load(changed)
    file, line, rest = str(refused.value).split(":", 2)
    assert file == str(tmp_path / "matrix.toml")
    assert message in rest
    assert "\n" not in rest
    # The message names the line of the changed value, or the head of the table that lacks a value.
    source = changed.splitlines()[int(line) - 1]
    assert (
        (new and new.splitlines()[-1] in source)
        or source.startswith("[")
        or "requirements" in source
        or "layers" in source
    )


@each_case(CASES["expectations"])
def test_invalid_expectation_is_refused(load, kit, more, message):
    """An expectation needs a layer of the cell, an outcome other than a pass, and a reason."""
    with pytest.raises(TomlError) as refused:
        load(kit.HEAD + kit.cell_table("1.0", "1.0", kit.CELL_LAYERS, more=more))
    assert message in str(refused.value)


def test_other_trainers_have_their_own_layers(load, kit):
    """A cell takes a recipe for its own trainer, and refuses the layers of other trainers."""
    head = kit.HEAD.replace('"trl=={trl}"', '"verl=={verl}"')
    verl = kit.cell_table("1.0", "1.0", ["resolve", "install", "config"]).replace("+trl-", "+verl-")
    (cell,) = load(head + verl).cells
    assert (cell.trainer, cell.version, cell.layers) == ("verl", "1.0", ("resolve", "install", "config"))
    assert cell.recipe.requirements_for(cell) == (("vllm==1.0", "verl==1.0"), ())
    with pytest.raises(TomlError, match="recipe is 'toy': expected a recipe for verl"):
        load(kit.HEAD + verl)
    with pytest.raises(TomlError, match="'peer:alone': expected one of config"):
        load(head + verl.replace("config", "peer:alone"))
    with pytest.raises(TomlError, match="'config': expected one of conformance"):
        load(kit.HEAD + kit.cell_table("1.0", "1.0", ["install", "config"]))


def test_unusable_file_is_refused(load, tmp_path):
    """A file that is missing or has no cells is refused."""
    with pytest.raises(TomlError, match="cannot be read"):
        load_matrix(tmp_path / "nowhere.toml", LAYERS)
    with pytest.raises(TomlError, match="expected the key 'cells'"):
        load('schema = "grpo-doctor.matrix.v1"\nplatform = "linux"\n')


def test_profiles_and_patterns_select_cells(load, kit):
    """Patterns select among all cells; without a pattern the profile selects, and `full` contains `quick`."""
    rare = kit.cell_table("3.0", "1.0", kit.LIGHT_LAYERS, recipe=None).replace('["quick"]', '["full"]')
    matrix = load(
        kit.HEAD
        + kit.cell_table("1.0", "1.0", kit.CELL_LAYERS)
        + kit.cell_table("2.0", "1.0", kit.CELL_LAYERS)
        + rare
    )
    chosen = [
        [cell.vllm for cell in select_cells(matrix, globs, profile)]
        for globs, profile in (([], None), ([], "full"), (["vllm-[13]*"], None))
    ]
    assert chosen == [["1.0", "2.0"], ["1.0", "2.0", "3.0"], ["1.0", "3.0"]]


def test_layers_are_selected_by_name_and_need(load, kit):
    """A layer brings the layers that it needs; the name `train` selects all its modes, and `resolve` only itself."""
    matrix = load(kit.HEAD + kit.cell_table("1.0", "1.0", (*kit.CELL_LAYERS, "engine", "train:async")))
    assert with_needs(matrix.cells[0], ("scheduler",)) == ["install", "import", "scheduler"]
    chosen = select_layers(["train", "resolve,import"], quick=False)
    assert chosen == ("train:colocate", "train:async", "train:server", "resolve", "import")


def test_quick_profile_omits_repros():
    omitted = set(select_layers([], quick=False)) - set(select_layers([], quick=True))
    assert omitted == {layer for layer in BY_NAME if layer.startswith("repro:")} != set()
