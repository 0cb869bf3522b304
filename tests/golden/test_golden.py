"""Each golden command gives its recorded exit code, line of stderr, and summary of stdout.

A golden command is a command with a recorded result. A summary has keys, findings, options or first lines. The commands
cover exit codes 0 to 3 and the formats. `python -m tests.golden.record` records intended changes, which CHANGELOG.md
lists.
"""

import copy
import importlib.util

import pytest

from tests.golden import golden_commands

ENTRIES = golden_commands.load_recorded()


def golden_case(entry):
    """Return a recorded command as a test case, on the xdist worker that has the process to fork."""
    server = "trainer" if "torch" in entry.get("needs", ()) else "commands"
    return pytest.param(entry, server, id=entry["name"], marks=pytest.mark.xdist_group(server))


@pytest.mark.parametrize(("entry", "server"), [*map(golden_case, ENTRIES)])
def test_command_gives_its_recorded_result(entry, server, tmp_path, request):
    """Each command gives its recorded result in a separate folder; additional JSON keys are no difference."""
    missing = [name for name in entry.get("needs", ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    workdir = tmp_path.resolve() / "work"
    golden_commands.create_inputs(workdir)
    run = request.getfixturevalue(server).run
    assert golden_commands.differences(entry, golden_commands.observe(entry, workdir, run)) == []


def test_exit_codes_and_formats_are_recorded():
    """The recorded commands cover exit codes 0 to 3, and the output formats of doctor, lint and triage."""
    lines = [entry["run"] for entry in ENTRIES]
    assert len({entry["name"] for entry in ENTRIES}) == len(ENTRIES)
    assert {entry["exit"] for entry in ENTRIES} >= {0, 1, 2, 3}
    for command in ("doctor", "lint", "triage"):
        of_command = "\n".join(line for line in lines if f" {command} " in line)
        for form in ("json", "jsonl", "sarif", "junit", "github", "markdown"):
            assert f"--format {form}" in of_command, (command, form)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if "json" in entry["stdout"]][:1])
def test_missing_facts_are_differences_and_added_keys_are_not(entry):
    """The comparison reports a changed exit code, stderr, output form, key or finding, and no added key."""
    answer = copy.deepcopy(entry)
    answer["stdout"]["json"]["keys"].append("added")
    assert golden_commands.differences(entry, answer) == []
    for change in ({"exit": 130}, {"stderr": "a word"}, {"stdout": {"lines": []}}):
        assert len(golden_commands.differences(entry, answer | change)) == 1
    without_key = copy.deepcopy(entry)
    without_key["stdout"]["json"]["keys"] = without_key["stdout"]["json"]["keys"][1:]
    assert len(golden_commands.differences(entry, without_key)) == 1
    without_key["stdout"]["json"]["findings"] = ["error XXX000"]
    assert len(golden_commands.differences(entry, without_key)) == 2
