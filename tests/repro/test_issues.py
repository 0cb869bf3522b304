"""The files in repro/issues are the only list of repros: named by a code, light to look at, each with its entry."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from repro import issues
from repro.issues import REPROS

FOLDER = Path(issues.__file__).parent
CATALOGUE = FOLDER.parent.parent / "diagnostics" / "catalog" / "issues"


def test_each_file_is_a_repro():
    """No file there is left out, as one whose name is no code would be; helpers live in repro/drivers."""
    names = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert {name.upper() for name in names} == set(REPROS)


@pytest.mark.parametrize("code", REPROS)
def test_a_file_holds_the_repro_of_its_code(code):
    """And the catalogue has an entry for it."""
    assert REPROS[code].code == code
    assert (CATALOGUE / f"{code}.toml").is_file()


def test_a_code_without_a_file_is_unknown():
    """Whatever else can be imported from there."""
    with pytest.raises(KeyError):
        REPROS["__INIT__"]


def test_asking_for_one_imports_no_other_and_nothing_of_upstreams():
    """Listing the codes imports none of them; a broken file keeps the others usable."""
    program = (
        "import sys; from repro.issues import REPROS; before = set(REPROS)\n"
        "loaded = lambda: sorted(m for m in sys.modules if m.startswith('repro.issues.'))\n"
        "print(loaded()); REPROS['SCH002']; print(loaded()); list(REPROS.values())\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=FOLDER.parent.parent,
    )
    none, one, top = map(ast.literal_eval, done.stdout.splitlines())
    assert (none, one) == ([], ["repro.issues.sch002"])
    assert set(top) <= {"repro", "__main__"}
