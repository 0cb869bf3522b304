"""How doctor's checks are found: by the folder, by a decorator, and what each needs by its parameters."""

import ast
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from diagnostics.doctor import checks, examine
from diagnostics.doctor.checks import declared, registered
from diagnostics.doctor.checks.registered import DoctorCheck, Examined
from diagnostics.output.findings import NotJudged


def test_every_check_is_registered():
    """A function from facts to findings is a check; each name of a check has one, and nothing is wrong with it."""
    assert registered.problems() == []
    assert all(checks.BY_NAME.values())
    here = {each.place for each in registered.checks()}
    for path in sorted(Path(checks.__file__).parent.glob("[a-z]*.py")):
        if path.stem == "registered":
            continue
        found = {
            (str(path), node.decorator_list[0].lineno if node.decorator_list else node.lineno)
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and node.returns is not None
            and ast.unparse(node.returns) == "list[Finding]"
        }
        assert found, f"{path} has no check"
        assert found <= here, path


def test_what_is_wrong_with_a_registration_is_told_with_its_place(monkeypatch):
    """An unknown name, a need that nothing has, and a part of a check that would be skipped unseen."""
    monkeypatch.setattr(registered, "_registered", [])

    @registered.check("diks")
    def misplaced(environment):
        return []

    @registered.check("disks", skip=lambda machine: "")
    def half(machine, weather):
        return []

    @registered.check("disks")
    def other(machine):
        return []

    told = registered.problems()
    assert [line.partition(": ")[2].partition(":")[0] for line in told] == [
        "there is no check 'diks'",
        "nothing is examined under the name weather",
        "a check that may be skipped is one function; 'disks' is several",
    ]
    assert told[0].startswith(f"{__file__}:{misplaced.__code__.co_firstlineno}: ")
    assert half(None, None) == other(None) == []


UNREAD = NotJudged("memory", "the file is not readable", "run it as its owner", "/proc/meminfo")


@pytest.mark.parametrize(
    ("check", "outcome", "reason"),
    [
        (DoctorCheck("memory", lambda environment: [environment]), "findings", ""),
        (DoctorCheck("memory", lambda environment: []), "ok", ""),
        (DoctorCheck("memory", lambda machine: []), "not_judged", ""),
        (DoctorCheck("memory", lambda environment: [], skip=lambda issues: "none"), "skipped", "none"),
        (DoctorCheck("memory", lambda environment: [], not_judged=lambda: [UNREAD]), "not_judged", ""),
        (DoctorCheck("memory", lambda: [1], not_judged=lambda: [UNREAD]), "findings", ""),
        (DoctorCheck("memory", lambda: [1], skip=lambda: 1 / 0), "crashed", "ZeroDivisionError"),
    ],
)
def test_what_comes_of_a_check(check, outcome, reason):
    """What was not looked at is never ok."""
    found = examine.result("memory", [check], Examined("here", {}, None, None))
    assert found.outcome == outcome
    assert reason in found.reason
    assert bool(reason) == bool(found.reason)


@pytest.mark.parametrize(
    ("line", "of_an_extra"),
    [
        ("ray[default]>=2; extra == 'ray'", True),
        ('x; python_version >= "3.8" and extra == "all"', True),
        ('x; (sys_platform == "linux") and extra == "a.b-c"', True),
        ('x; python_version < "3.99" or extra == "all"', False),
        ('x; (extra == "a" or python_version > "3") and extra == "b"', False),
        ("x; python_version > '3'", False),
        ("extra==1", False),
    ],
)
def test_what_is_of_an_extra_alone_never_applies(line, of_an_extra):
    """It is left out unread, so it must be one that does not apply where no extra is asked for."""
    assert bool(declared._OF_AN_EXTRA.search(line)) is of_an_extra
    marker = Requirement(line).marker
    assert not of_an_extra or not marker.evaluate({"extra": ""})
