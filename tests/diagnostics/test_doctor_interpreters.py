"""An environment without its interpreter is broken, even if its metadata are fine."""

from __future__ import annotations

import pytest

from diagnostics import compat_table as compat
from diagnostics.collect import packages as environment
from diagnostics.doctor import run_checks as examine
from diagnostics.fixes import commands_of
from tests.diagnostics.environments import Maker, issues


def findings(prefix):
    results = environment.collect(prefix, {})
    report = examine.examine(results, issues(), compat.load())
    return [finding for finding in report.findings if finding.code == "ENV924"]


def test_a_link_to_nothing_is_an_error_with_its_place(tmp_path):
    """Named with what it leads to; a link to a link to nothing is one, too."""
    created = Maker(tmp_path / "env").add("vllm", "0.10.2")
    folder = created.prefix / "bin"
    (folder / "python").unlink()
    (folder / "python").symlink_to("python3")
    (folder / "python3").symlink_to(tmp_path / "gone" / "python3.11")
    [finding] = findings(created.prefix)
    assert (finding.severity.word, finding.certainty) == ("error", "established")
    assert [(item.place, item.text) for item in finding.evidence] == [
        (str(folder / "python"), "a link to python3, which is not there"),
        (str(folder / "python3"), f"a link to {tmp_path}/gone/python3.11, which is not there"),
    ]
    # venv makes no link where one to nothing stands, and another release than the packages' would find none of them.
    assert commands_of(finding.remedy.actions) == (
        f"rm {folder}/python {folder}/python3",
        f"python3.11 -m venv --upgrade --without-pip {created.prefix}",
    )


def test_an_interpreter_that_is_there_and_a_folder_that_is_no_environment_are_left_alone(tmp_path):
    """A folder made by `pip --prefix` has packages and no interpreter."""
    created = Maker(tmp_path / "env").add("vllm", "0.10.2")
    assert findings(created.prefix) == []
    (created.prefix / "bin" / "python").unlink()
    (created.prefix / "pyvenv.cfg").unlink()
    assert findings(created.prefix) == []


@pytest.mark.parametrize("installers", [(), ("pip", "setuptools")])
def test_an_empty_folder_of_its_own_is_not_where_the_packages_are(tmp_path, installers):
    """An upgrade of Python leaves the packages in the old release's folder: the new interpreter does not see them."""
    created = Maker(tmp_path / "env").add("vllm", "0.10.2")
    (created.prefix / "lib" / "python3.11").rename(created.prefix / "lib" / "python3.9")
    folder = created.prefix / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    for name in installers:
        (folder / f"{name}-1.0.dist-info").mkdir()
        (folder / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (created.prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.11.7\n")
    [finding] = findings(created.prefix)
    assert [item.text for item in finding.evidence] == [
        "it is Python 3.11; the packages are those of python3.9"
    ]
    assert any("python3.9 -m venv" in line for line in commands_of(finding.remedy.actions))
    (folder / "trl-1.0.dist-info").mkdir()
    assert findings(created.prefix) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda created: (created.prefix / "bin" / "python").unlink(), "there is no interpreter"),
        (
            lambda created: (created.prefix / "pyvenv.cfg").write_text(
                "home = /no/such/bin\nversion = 3.11.7\n"
            ),
            "home = /no/such/bin, which is not there",
        ),
        (
            lambda created: (created.prefix / "pyvenv.cfg").write_text(
                "home = /usr/bin\nversion_info = 3.12.1\n"
            ),
            "it is Python 3.12; the packages are those of python3.11",
        ),
    ],
)
def test_an_interpreter_that_starts_nothing_is_an_error(tmp_path, change, told):
    """Missing, without its home, or another one than the packages are for."""
    created = Maker(tmp_path / "env").add("vllm", "0.10.2")
    change(created)
    [finding] = findings(created.prefix)
    # An interpreter that finds its library itself starts anyway: seen in a real environment.
    assert finding.severity.word == ("warning" if told.startswith("home") else "error")
    assert [item.text for item in finding.evidence] == [told]
