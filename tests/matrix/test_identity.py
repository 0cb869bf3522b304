"""A verdict's identity changes exactly when something it rests on does."""

from __future__ import annotations

import json

import pytest

from diagnostics.matrix.build import environments, locks
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.plan.cells import LAYERS, load
from diagnostics.matrix.records.identity import code_digest
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.run.board import question

EVERY = (*LAYERS,)


@pytest.fixture
def place(tmp_path, kit, monkeypatch):
    """Returns a function that computes all identities of one cell after a change of the file."""
    programs = tmp_path / "programs"
    for name in ("repro", "grpo_core"):
        (programs / name).mkdir(parents=True)
        (programs / name / "issues").mkdir()
        (programs / name / "issues" / "a.py").write_text('CODE = "SCH001"\n')
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "vllm-1.0+trl-1.0.txt").write_text("vllm==1.0\n")
    (tmp_path / "locks" / "vllm-1.0+trl-1.0.cpu.txt").write_text("vllm==1.0\n")
    path = tmp_path / "matrix.toml"
    text = kit.head + kit.cell("1.0", "1.0", EVERY)
    monkeypatch.setattr(Workplace, "interpreter", lambda self, minor, fetch=False: (self, f"{minor}.7"))

    def identities(change=lambda text: text):
        path.write_text(change(text))
        matrix = load(path)
        workplace = Workplace(matrix, Store(tmp_path / "store"), programs=programs)
        return {
            layer: question(workplace, matrix.cells[0], layer).identity for layer in matrix.cells[0].layers
        }

    identities.folder = tmp_path
    return identities


def changed(before, after):
    """Returns the layers whose identity differs."""
    return {layer for layer in before if before[layer] != after[layer]}


WITH_TRAINER = {
    "engine",
    "train:colocate",
    "train:async",
    "train:server",
    "conformance",
    "serve:vllm",
    "serve:trl",
}
# What is asked of a built environment; `install` builds it.
IN_CELL = set(EVERY) - {"resolve", "resolve:today", "contract", "install"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("2025-06-01", "2025-06-02", {"resolve"}),
        ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", {"resolve", "resolve:today"}),
        ('codes = ["SCH001"]', 'codes = ["SCH001", "SCH002"]', {"scheduler"}),
        ('imports = ["vllm", "trl"]', 'imports = ["vllm"]', {"import"}),
        ("[layers.import]", '[layers.engine]\narguments = ["--seed", "2"]\n[layers.import]', {"engine"}),
        (
            "[recipes.toy.differs]",
            '[recipes.toy.environment]\nVLLM_USE_V1 = "0"\n[recipes.toy.differs]',
            IN_CELL,
        ),
        # What stands in the environment besides its lock's wheels.
        ('about = "toy"', 'about = "toy"\nnamed = "vllm=={vllm}+cpu"', IN_CELL | {"install"}),
        ('about = "toy"', 'about = "toy"\nglibcxx = "3.4.32"', IN_CELL | {"install"}),
        # What judges an answer or bounds its time is not what the answer rests on.
        ("timeout_s = 300", "timeout_s = 301", set()),
        ('profiles = ["quick"]', 'profiles = ["full"]\nnote = "n"', set()),
        ('about = "toy"', 'about = "still a toy"', set()),
        ("disk_gb = 0.01", "disk_gb = 5", set()),
    ],
)
def test_a_change_of_the_matrix_file(place, old, new, expected):
    """Each setting touches the layers that it can change the answer of, and no others."""
    before = place()
    assert changed(before, place(lambda text: text.replace(old, new))) == expected


def test_the_cell_s_versions_touch_everything(place):
    """Another vLLM is another cell throughout."""
    before = place()
    after = place(lambda text: text.replace("vllm-1.0+", "vllm-1.1+"))
    assert changed(before, after) == set(EVERY)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("locks/vllm-1.0+trl-1.0.txt", "vllm==1.0\nnumpy==2\n", {"resolve"}),
        ("locks/vllm-1.0+trl-1.0.cpu.txt", "vllm==1.0\nnumpy==2\n", IN_CELL | {"install"}),
        ("locks/vllm-1.0+trl-1.0.cpu.txt", "# a comment\nvllm==1.0  # via nothing\n", set()),
        ("locks/vllm-1.0+trl-1.0.cpu.txt", "vllm==1.0 \\\n    --hash=sha256:00\n", set()),
        ("locks/vllm-1.0+trl-1.0.txt", "vllm==1.0 \\\n    --hash=sha256:00\n", set()),
        # A repro's own file, one that it comes to import, one that it does not.
        ("programs/repro/issues/a.py", 'CODE = "SCH001"  # 2\n', {"scheduler"}),
        ("programs/repro/issues/a.py", 'import repro.b\nCODE = "SCH001"\n', {"scheduler"}),
        ("programs/repro/b.py", "", set()),
        ("programs/repro/questions/imports.py", "2\n", {"import"}),
        ("programs/grpo_core/issues/a.py", "2\n", WITH_TRAINER),
        ("programs/repro/__pycache__/a.pyc", "x", set()),
        ("README.md", "x", set()),
    ],
)
def test_a_change_of_a_file(place, file, text, expected):
    """Locks and our own programs touch the layers that use them; comments and bytecode nothing."""
    before = place()
    path = place.folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert changed(before, place()) == expected


def test_the_interpreter_touches_what_runs(place, monkeypatch):
    """Another patch release of Python asks again what ran on it."""
    before = place()
    monkeypatch.setattr(Workplace, "interpreter", lambda self, minor, fetch=False: (self, f"{minor}.8"))
    assert changed(before, place()) == IN_CELL | {"install"}


def test_code_is_known_by_names_and_contents(tmp_path):
    """A moved file is a change even if no byte differs."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.py").write_text("x")
    before = code_digest(tmp_path, ("p",))
    (tmp_path / "p" / "a.py").rename(tmp_path / "p" / "b.py")
    assert code_digest(tmp_path, ("p",)) != before


def test_the_marker_is_bound_to_lock_and_interpreter(place, kit):
    """An environment built from another lock doesn't count as the cell's."""
    place()
    matrix = load(place.folder / "matrix.toml")
    workplace = Workplace(matrix, Store(place.folder / "store"))
    cell = matrix.cells[0]
    target = environments.folder(workplace, cell)
    (target / "bin").mkdir(parents=True)
    (target / "bin" / "python").write_text("")
    good = {
        "lock": locks.digest(("vllm==1.0",)),
        "python": f"{kit.python}.7",
        "packages": 1,
        "seconds": 1,
        "size_gb": 1,
    }
    (target / environments.MARKER).write_text(json.dumps(good))
    assert environments.existing(workplace, cell) is not None
    (place.folder / "locks" / "vllm-1.0+trl-1.0.cpu.txt").write_text("vllm==1.1\n")
    assert environments.existing(workplace, cell) is None
