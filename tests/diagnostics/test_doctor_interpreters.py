"""An environment whose interpreter is gone is not fine, whatever its metadata say."""

from __future__ import annotations

import sys

from diagnostics.doctor import examine
from diagnostics.facts import compat, environment
from tests.diagnostics.environments import Maker, issues


def findings(prefix):
    found = environment.collect(prefix, {})
    report = examine.examine(found, issues(), compat.load())
    return [finding for finding in report.findings if finding.code == "ENV924"]


def test_a_link_to_nothing_is_an_error_with_its_place(tmp_path):
    """Named with what it leads to; a link to a link to nothing is one, too."""
    made = Maker(tmp_path / "env").add("vllm", "0.10.2")
    folder = made.prefix / "bin"
    folder.mkdir()
    (folder / "python").symlink_to("python3")
    (folder / "python3").symlink_to(tmp_path / "gone" / "python3.11")
    [finding] = findings(made.prefix)
    assert (finding.severity.word, finding.certainty) == ("error", "established")
    assert [(each.place, each.text) for each in finding.evidence] == [
        (str(folder / "python"), "a link to python3, which is not there"),
        (str(folder / "python3"), f"a link to {tmp_path}/gone/python3.11, which is not there"),
    ]


def test_an_interpreter_that_is_there_and_a_folder_without_one_are_left_alone(tmp_path):
    """A folder made by `pip --prefix` has packages and no interpreter of its own."""
    made = Maker(tmp_path / "env").add("vllm", "0.10.2")
    assert findings(made.prefix) == []
    (made.prefix / "bin").mkdir()
    (made.prefix / "bin" / "python").symlink_to(sys.executable)
    assert findings(made.prefix) == []
