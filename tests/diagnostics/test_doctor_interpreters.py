"""`doctor` reports an interpreter that is missing or is not of the Python release of its packages (ENV924).

A dangling link counts as a missing interpreter. A missing base Python, the `home` in pyvenv.cfg, is a warning.
"""

import pytest

from diagnostics import compat_table
from diagnostics.collect import python_environment
from diagnostics.doctor import run_checks
from diagnostics.fixes import commands_of
from tests.diagnostics.fake_environments import EnvironmentBuilder, load_catalog


@pytest.fixture
def maker(tmp_path):
    """Return the builder of an environment with vLLM."""
    return EnvironmentBuilder(tmp_path / "env").add("vllm", "0.10.2")


def findings(maker):
    """Return the findings about the interpreter of an environment."""
    known = python_environment.collect(maker.prefix, {})
    report = run_checks.examine(known, load_catalog(), compat_table.load())
    return [finding for finding in report.findings if finding.code == "ENV924"]


def test_dangling_interpreter_links_are_an_error_with_a_repair(maker, tmp_path):
    """Each dangling link of an interpreter is named with its target; the fix removes the links and runs venv again."""
    folder = maker.prefix / "bin"
    (folder / "python").unlink()
    (folder / "python").symlink_to("python3")
    (folder / "python3").symlink_to(tmp_path / "gone" / "python3.11")
    [finding] = findings(maker)
    assert (finding.severity.word, finding.certainty) == ("error", "established")
    assert [item.place for item in finding.evidence] == [str(folder / "python"), str(folder / "python3")]
    assert f"{tmp_path}/gone/python3.11" in finding.evidence[1].text
    # venv does not replace a dangling link, and another Python release would not find the packages.
    # The name of a user in the path would put a word into quotation marks.
    commands = [command.replace("'", "") for command in commands_of(finding.remedy.actions)]
    assert commands == [
        f"rm {folder}/python {folder}/python3",
        f"python3.11 -P -m venv --upgrade --without-pip {maker.prefix}",
    ]
    # venv would write its settings through a link.
    (maker.prefix / "pyvenv.cfg").rename(tmp_path / "cfg")
    (maker.prefix / "pyvenv.cfg").symlink_to(tmp_path / "cfg")
    assert [commands_of(finding.remedy.actions) for finding in findings(maker)] == [()]


def test_matching_interpreter_and_prefix_without_venv_have_no_finding(maker):
    """An interpreter of the packages' release has no finding, nor has a `pip --prefix` folder without interpreter."""
    assert findings(maker) == []
    (maker.prefix / "bin" / "python").unlink()
    (maker.prefix / "pyvenv.cfg").unlink()
    assert findings(maker) == []


@pytest.mark.parametrize("installers", [(), ("pip", "setuptools")])
def test_packages_in_the_folder_of_another_release_are_an_error(maker, installers):
    """An upgrade of Python leaves packages in the old folder; they are no error once the new one has a package.

    An installer does not count as a package.
    """
    maker.site.parent.rename(maker.prefix / "lib" / "python3.9")
    maker.site.mkdir(parents=True)
    for name in installers:
        maker.add(name, "1.0")
    [finding] = findings(maker)
    assert finding.evidence[0].text == "it is Python 3.11; the packages are those of python3.9"
    assert any("python3.9 -I -m venv" in line for line in commands_of(finding.remedy.actions))
    maker.add("trl", "1.0")
    assert findings(maker) == []


@pytest.mark.parametrize(
    ("settings", "severity", "message"),
    [
        (None, "error", "there is no interpreter"),
        # An interpreter can find its library without the home, so this is only a warning.
        ("home = /no/such/bin\nversion = 3.11.7\n", "warning", "home = /no/such/bin, which is not there"),
        ("version_info = 3.12.1\n", "error", "it is Python 3.12; the packages are those of python3.11"),
    ],
)
def test_missing_or_mismatched_interpreter_is_reported(maker, settings, severity, message):
    """A missing interpreter, a missing home, and a release other than that of the packages are reported."""
    if settings is None:
        (maker.prefix / "bin" / "python").unlink()
    else:
        (maker.prefix / "pyvenv.cfg").write_text(settings)
    [finding] = findings(maker)
    assert (finding.severity.word, [item.text for item in finding.evidence]) == (severity, [message])
