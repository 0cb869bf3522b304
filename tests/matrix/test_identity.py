"""A verdict's identity changes exactly when something it rests on does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from diagnostics.matrix.ask.registry import ALL, load
from diagnostics.matrix.build import environments, locks
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.records.closure import Code
from diagnostics.matrix.records.identity import code_digest
from diagnostics.matrix.store import Store
from diagnostics.matrix.run.board import code_of, question

EVERY = tuple(layer.name for layer in ALL)


MAIN = {
    "repro": "import repro.runner\n",
    "grpo_core": "def _train():\n    import grpo_core.trainer\ndef _probe():\n    import grpo_core.probe\n",
}


@pytest.fixture
def place(tmp_path, kit, monkeypatch):
    """Returns a function that computes all identities of one cell after a change of the file."""
    programs = tmp_path / "programs"
    for name in ("repro", "grpo_core"):
        (programs / name).mkdir(parents=True)
        (programs / name / "__init__.py").write_text("")
        (programs / name / "__main__.py").write_text(MAIN[name])
    (programs / "repro" / "issues").mkdir()
    (programs / "repro" / "issues" / "sch001.py").write_text('CODE = "SCH001"\n')
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


TRAINED = {"train:colocate", "train:async", "train:server"}
REPROS = {name for name in EVERY if name.startswith("repro:")}
OF_SCH001 = {"scheduler", "repro:SCH001"}
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
        ("programs/repro/issues/sch001.py", 'CODE = "SCH002"\n', OF_SCH001),
        ("programs/repro/issues/sch001.py", 'CODE = "SCH001"  # a comment\n', set()),
        ("programs/repro/issues/sch001.py", 'import repro.b\nCODE = "SCH001"\n', OF_SCH001),
        ("programs/repro/b.py", "", set()),
        ("programs/grpo_core/trainer.py", "2\n", TRAINED),
        ("programs/grpo_core/probe.py", "2\n", {"engine"}),
        ("programs/grpo_core/other.py", "2\n", set()),
        ("programs/repro/runner.py", "2\n", {"import", "scheduler"} | REPROS),
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


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        # What shows an answer, plans or expects it has no part in it.
        ("diagnostics/matrix/report/html.py", set()),
        ("diagnostics/matrix/report/page/page.js", set()),
        ("diagnostics/matrix/plan/expectations.py", set()),
        ("diagnostics/matrix/run/progress.py", set()),
        ("diagnostics/matrix/sweep/picture.py", set()),
        # What asks, builds, sets variables, runs and judges has.
        ("diagnostics/matrix/run/asking.py", set(EVERY)),
        ("diagnostics/matrix/build/workplace.py", IN_CELL | {"install"}),
        ("diagnostics/matrix/build/libstdcxx.py", IN_CELL | {"install"}),
        ("diagnostics/matrix/build/uv.py", set(EVERY)),
        ("diagnostics/matrix/build/sources.py", {"contract"}),
        ("diagnostics/matrix/ask/in_cell.py", IN_CELL | {"install"}),
        ("diagnostics/matrix/ask/attempts.py", {"scheduler"} | REPROS),
        ("diagnostics/matrix/ask/layers/train.py", TRAINED),
        ("diagnostics/processes.py", IN_CELL | {"install"}),
        # Doctor is judged by all that it looks at, its data among it.
        ("diagnostics/doctor/examine.py", {"doctor"}),
        ("diagnostics/doctor/checks/compatibility.py", {"doctor"}),
        ("diagnostics/catalog/issues/SCH001.toml", {"doctor"}),
        # What runs in cells.
        ("grpo_core/rollout/vllm/engine.py", {"engine", "conformance"} | TRAINED),
        ("repro/issues/sch001.py", OF_SCH001),
        ("repro/questions/agreement.py", {"logprobs"}),
        ("repro/questions/trl_steps.py", {"peer:alone", "peer:vllm"}),
        ("repro/search/fuzz.py", set()),
        ("tests/grpo_core/conformance/suite.py", {"conformance"}),
    ],
)
def test_a_line_of_our_own_code(copied, file, expected):
    """One line more in a file of the project: asked again is what rests on it, and no other layer."""
    assert copied(file, "\n_CHANGED = 1\n") == expected


@pytest.mark.parametrize("file", ["diagnostics/matrix/ask/in_cell.py", "grpo_core/rollout/vllm/engine.py"])
def test_a_comment_of_our_own_code(copied, file):
    """Asks nothing again, wherever it stands."""
    assert copied(file, "\n# a comment\n") == set()


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Returns a function that adds a text to a file of a copy of the project, and names the layers asked again."""
    root = tmp_path_factory.mktemp("copy")
    names = ("diagnostics", "grpo_core", "repro", "tests/grpo_core/conformance")
    for name in names:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests" / "__init__.py").write_text("")
    matrix = load(ROOT / "matrix.toml")
    cell = next(cell for cell in matrix.cells if cell.recipe)
    places = dict.fromkeys(("diagnostics", "grpo_core", "repro", "tests"), root)
    whole = Code(places)

    def digests(code):
        return {layer.name: code.digest(*code_of(layer, matrix.layer(layer.name), cell)) for layer in ALL}

    before = digests(whole)

    def change(file, more):
        path = root / file
        text = path.read_text()
        path.write_text(text + more)
        read = {known: found for known, found in whole._files.items() if known != path}
        try:
            return changed(before, digests(Code(places, read, whole._modules)))
        finally:
            path.write_text(text)

    return change


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


def test_choices_of_a_command_line_leave_out_the_others(tmp_path):
    """By commands of a `__main__`, comparisons and tables; what is chosen nowhere is followed everywhere."""
    texts = {
        "__main__": "def _train():\n    import p.trained\ndef _probe():\n    import p.probed\n",
        "trained": (
            "TABLE = {'colocate': 'p.turns', 'async': 'p.ahead'}\n"
            "if engine == 'vllm':\n    from p import one\nelif engine == 'fake':\n    from p import two\n"
            "else:\n    from p import three\n"
        ),
        "probed": "start(['-m', 'p', 'train'])\nimport_module(f'p.by_{name}')\n",
        **dict.fromkeys(("turns", "ahead", "one", "two", "three", "by_a", "by_b", "by_name", "__init__"), ""),
    }
    (tmp_path / "p").mkdir()
    for name, text in texts.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)

    def found(*words):
        names = Code({"p": tmp_path}).files(["p"], words)
        return {name.removeprefix("p/").removesuffix(".py") for name in names} - {"__init__", "__main__"}

    assert found("train", "colocate", "vllm") == {"trained", "turns", "one"}
    assert found("train", "vllm") == {"trained", "turns", "ahead", "one"}
    # What a program starts in turn has a command of its own.
    assert found("probe", "fake", "async") == {
        "probed",
        "by_a",
        "by_b",
        "by_name",
        "trained",
        "ahead",
        "two",
    }
    assert found("serve") == set()


def test_what_a_folder_or_a_table_finds_is_followed(tmp_path):
    """All of a folder that is imported whole; of a table what is asked for by name, or all of it."""
    texts = {
        "p/__init__": "",
        "p/extras": "T = {'one': 'q.a', 'two': 'q.b'}\ndef extra(n):\n    import_module(f'{__package__}.{T[n]}')\n",
        "p/first": "from p.extras import extra\nextra('one')\n",
        "p/any": "from p.extras import extra\nextra(name)\n",
        "p/whole": "from p import extras\nextras.extra('one')\n",
        "p/none": "from p.extras import extra\n",
        "p/q/__init__": "",
        "p/q/a": "",
        "p/q/b": "",
        "p/found/__init__": "for path in here:\n    import_module(f'{__name__}.{path.stem}')\n",
        "p/found/x": "",
        "p/found/y": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    code = Code({"p": tmp_path})

    def extras(module):
        return {name for name in code.files([module]) if name.startswith("p/q/") and "__init__" not in name}

    both = {"p/q/a.py", "p/q/b.py"}
    assert [extras(f"p.{name}") for name in ("first", "any", "whole", "none")] == [
        {"p/q/a.py"},
        both,
        both,
        set(),
    ]
    assert {"p/found/x.py", "p/found/y.py"} <= set(code.files(["p.found"]))


def test_what_only_a_type_checker_imports_does_not_count(tmp_path):
    """Nor does what only a docstring names; data beside a module counts if the module names it."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").write_text("")
    (tmp_path / "p" / "a.py").write_text(
        '"""p.b"""\nif TYPE_CHECKING:\n    import p.b\nelse:\n    import p.c\nPath(__file__).with_name("d.txt")\n'
    )
    for name in ("b.py", "c.py", "d.txt", "e.txt"):
        (tmp_path / "p" / name).write_text("")
    files = Code({"p": tmp_path}).files(["p.a"])
    assert set(files) == {"p/__init__.py", "p/a.py", "p/c.py", "p/d.txt"}


PROGRAMS = {
    "train:colocate": [
        "train",
        "--rollout.mode",
        "colocate",
        "--rollout.engine",
        "fake",
        "--train.steps",
        "1",
    ],
    "engine": ["probe", "--rollout.engine", "fake"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_loads_is_what_its_answer_rests_on(tmp_path, name):
    """Of our own modules none is loaded that is not counted: what the arguments choose is read off rightly."""
    arguments = [*PROGRAMS[name], "--json"]
    told = (
        "import atexit, runpy, sys\n"
        "def tell():\n"
        "    names = [m for m in sys.modules if m.partition('.')[0] == 'grpo_core']\n"
        "    open('loaded', 'w').write(' '.join(names))\n"
        "atexit.register(tell)\n"
        f"sys.argv = ['grpo_core', *{arguments!r}]\n"
        "runpy.run_module('grpo_core', run_name='__main__', alter_sys=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", told],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = (tmp_path / "loaded").read_text().split()
    assert loaded, done.stderr
    code = Code({"grpo_core": ROOT})
    counted = set(code.files(["grpo_core"], arguments))
    files = {next(iter(code.files([module]) and [code._module(module)[0]])) for module in loaded}
    assert files <= counted
