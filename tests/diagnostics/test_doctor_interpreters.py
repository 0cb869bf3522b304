"""`doctor` reports an environment whose interpreter is missing, dangling or of another release (ENV924)."""

from __future__ import annotations

import pytest

from diagnostics import compat_table as compat
from diagnostics.collect import packages as environment
from diagnostics.doctor import run_checks as examine
from diagnostics.fixes import commands_of
from tests.diagnostics.fake_environments import EnvironmentBuilder, load_catalog


def findings(prefix):
    """Return the findings about the interpreter of an environment."""
    report = examine.examine(environment.collect(prefix, {}), load_catalog(), compat.load())
    return [finding for finding in report.findings if finding.code == "ENV924"]


def test_dangling_interpreter_links_are_an_error_with_a_repair(tmp_path):
    """Each dangling link of an interpreter is named with its target, and the repair recreates it."""
    created = EnvironmentBuilder(tmp_path / "env").add("vllm", "0.10.2")
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
    # venv does not replace a dangling link, and another Python release would not find the packages.
    assert commands_of(finding.remedy.actions) == (
        f"rm {folder}/python {folder}/python3",
        f"python3.11 -m venv --upgrade --without-pip {created.prefix}",
    )


def test_working_interpreter_and_prefix_without_venv_have_no_finding(tmp_path):
    """A working interpreter has no finding, and neither has a folder of `pip --prefix`, which has none."""
    created = EnvironmentBuilder(tmp_path / "env").add("vllm", "0.10.2")
    assert findings(created.prefix) == []
    (created.prefix / "bin" / "python").unlink()
    (created.prefix / "pyvenv.cfg").unlink()
    assert findings(created.prefix) == []


@pytest.mark.parametrize("installers", [(), ("pip", "setuptools")])
def test_packages_in_the_folder_of_another_release_are_an_error(tmp_path, installers):
    """Packages in another release's folder, where an upgrade of Python leaves them, are an error."""
    created = EnvironmentBuilder(tmp_path / "env").add("vllm", "0.10.2")
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
    ("change", "message"),
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
def test_missing_or_mismatched_interpreter_is_reported(tmp_path, change, message):
    """A missing interpreter, a missing home, and a release other than that of the packages are reported."""
    created = EnvironmentBuilder(tmp_path / "env").add("vllm", "0.10.2")
    change(created)
    [finding] = findings(created.prefix)
    # An interpreter can find its library without the home, so this is only a warning.
    assert finding.severity.word == ("warning" if message.startswith("home") else "error")
    assert [item.text for item in finding.evidence] == [message]
