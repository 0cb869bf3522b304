"""Repros give the recorded outcomes, some with locations or counts, in environments with the released packages.

The environments are cells of the matrix, and those that these variables name: GRPO_DOCTOR_PEERS is a Python of
`nox -s tests-cells`, GRPO_DOCTOR_FASTAPI a Python with repro/fastapi.txt, GRPO_DOCTOR_MATH a folder of environments
with repro/math.txt, named by the release of math-verify; GRPO_DOCTOR_TRL_1_9_2 is the folder of
`uv pip install --no-deps --target FOLDER trl==1.9.2`.
"""

from fnmatch import fnmatchcase

import pytest

from tests.case_files import read_cases
from tests.cells import cell_python, existing_path, read_attempts, run_with


def parameters(case):
    """Return the parameters of a case, with its marks."""
    marks = [getattr(pytest.mark, name) for name in case["marks"].split()]
    values = (case["environment"], case["command"], case["lines"], case.get("trl", ""))
    return pytest.param(*values, marks=marks, id=f"{case['command']} {case['environment']}")


ADVICE = f"the variable is described in {__name__}"
CASES = [parameters(case) for case in read_cases(__file__, "repros_in_cells.yaml")]


def environment_python(environment):
    """Return the Python of a cell or of a variable's environment; skip the test if there is none."""
    variable, _, path = environment.partition("/")
    if not variable.startswith("GRPO_DOCTOR_"):
        return cell_python(environment)
    return existing_path(variable, path, ADVICE)


@pytest.mark.parametrize(("environment", "command", "lines", "trl"), CASES)
def test_repro_has_its_recorded_outcomes(environment, command, lines, trl):
    """Each listed attempt matches its pattern: its outcome, and in some cases counts, location, function or detail."""
    path = [str(existing_path(f"GRPO_DOCTOR_TRL_{trl.replace('.', '_')}", "", ADVICE))] if trl else []
    arguments = ["-m", "repro", "run", *command.split(), "--json"]
    done = run_with(environment_python(environment), *arguments, timeout_s=1500, path=path)
    observed = {}
    for pair, attempt in read_attempts(done, command.split()[0]).items():
        place = f"at {attempt['where']} in {attempt['function']}: {attempt['detail']}"
        line = f"{attempt['outcome']} {attempt['finished']} of {attempt['expected']} {place}"
        mitigation = pair[1] or "none"
        observed |= {f"{pair[0]} {mitigation}": line, mitigation: line}
    assert {key: observed[key] for key in lines if not fnmatchcase(observed[key], lines[key])} == {}
