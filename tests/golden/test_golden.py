"""Every command gives its recorded result: exit code, document keys, first lines, refusals.

Record intended changes by `python -m tests.golden.record`, and list them in CHANGELOG.md.
"""

from __future__ import annotations

import copy
import importlib.util

import pytest

from tests.golden import workbench

ENTRIES = workbench.recorded()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_a_command_answers_as_recorded(entry, tmp_path):
    """Each command runs in a separate folder; keys that are added to a document are no change."""
    missing = [name for name in entry.get("needs", ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    workdir = tmp_path.resolve() / "work"
    workbench.furnish(workdir)
    assert workbench.differences(entry, workbench.observe(entry, workdir)) == []


def test_every_exit_code_and_format_is_recorded():
    """The recorded commands cover the contract: exit codes, formats of each reader, names that must stay distinct."""
    lines = [entry["run"] for entry in ENTRIES]
    assert len({entry["name"] for entry in ENTRIES}) == len(ENTRIES)
    assert {entry["exit"] for entry in ENTRIES} >= {0, 1, 2, 3}
    for command in ("doctor", "lint", "triage"):
        for form in ("json", "jsonl", "sarif", "junit", "github", "markdown"):
            assert any(f" {command} " in line and f"--format {form}" in line for line in lines), (
                command,
                form,
            )


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if "json" in entry["stdout"]][:1])
def test_what_went_is_seen_and_what_came_is_not(entry):
    """A missing key, another finding and another exit code are differences; an additional key is none."""
    answer = copy.deepcopy(entry)
    answer["stdout"]["json"]["keys"].append("added")
    assert workbench.differences(entry, answer) == []
    for change in ({"exit": 130}, {"stderr": "a word"}, {"stdout": {"lines": []}}):
        assert len(workbench.differences(entry, answer | change)) == 1
    without_stderr = copy.deepcopy(entry)
    without_stderr["stdout"]["json"]["keys"] = without_stderr["stdout"]["json"]["keys"][1:]
    assert len(workbench.differences(entry, without_stderr)) == 1
    without_stderr["stdout"]["json"]["findings"] = ["error XXX000"]
    assert len(workbench.differences(entry, without_stderr)) == 2
