"""What a shell offers, asked of the shells that are here."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from diagnostics import __main__ as command
from diagnostics import catalog
from diagnostics.output.output import FORMATS
from tests.screen import ROOT

_ASKED = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_grpo_doctor
printf '%s\\n' "${COMPREPLY[@]}"
"""


_ASKED_OF_FISH = """
source $argv[1]
complete -C "$argv[2..-1]"
"""
_ASKED_OF_ZSH = """
source $1; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
compgen -F _grpo_doctor -- "${@[-1]}"
"""


@pytest.fixture(params=["grpo-doctor", "python -m diagnostics"])
def offered(request, tmp_path, capsys, monkeypatch):
    """A function: what bash offers behind these words of a command line."""
    monkeypatch.setattr("sys.argv", [request.param.split()[0]])
    assert command.main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)

    def asked(*words):
        line = ["bash", "-eu", "-c", _ASKED, "bash", str(script), *request.param.split(), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stderr == ""
        return done.stdout.split()

    return asked


def test_bash_completes_commands_options_formats_and_codes(offered):
    """Each where it may stand; what is a file is left to the shell."""
    assert offered("tri") == ["triage"]
    assert {*command.COMMANDS, "repro", "matrix", "train", "--help", "--version"} == {*offered("")}
    assert offered("lint", "--format", "") == list(FORMATS)
    assert offered("doctor", "--fix") == ["--fix-plan"]
    assert offered("explain", "SCH") == [code for code in catalog.load() if code.startswith("SCH")] != []
    assert offered("doctor", "--select", "CFG101") == ["CFG101"]
    assert offered("--verbose", "explain", "--kind", "sil") == ["silent"]
    assert offered("triage", "run") == []
    assert offered("completion", "") == ["bash", "zsh", "fish"]


def test_another_program_of_python_is_left_alone(tmp_path, capsys, monkeypatch):
    """What is asked of `python` and not of us gets what it had: files."""
    monkeypatch.setattr("sys.argv", ["python"])
    command.main(["completion", "bash"])
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    line = ["bash", "-c", _ASKED, "bash", str(script), "python", "-m", "http.server", ""]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(shell, tmp_path, capsys):
    """Without running it; where that shell is installed."""
    assert command.main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "SCH001" in script.read_text()
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    assert subprocess.run([found, "-n", str(script)], capture_output=True, text=True, check=True).stderr == ""


@pytest.fixture(params=["fish", "zsh"])
def offered_elsewhere(request, tmp_path, capsys, monkeypatch):
    """A function: what that shell offers behind these words; where it is installed."""
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setattr("sys.argv", ["grpo-doctor"])
    assert command.main(["completion", request.param]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "run.log").touch()
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}

    def asked(*words):
        line = ["grpo-doctor", *words]
        if request.param == "fish":
            given = [found, "--no-config", "-c", _ASKED_OF_FISH, str(script), " ".join(line)]
        else:
            given = [found, "-f", "-c", _ASKED_OF_ZSH, "zsh", str(script), *line]
        done = subprocess.run(given, capture_output=True, text=True, check=False, cwd=tmp_path, env=home)
        assert done.stderr == ""
        offers = [line.partition("\t")[0] for line in done.stdout.splitlines()]
        return [one for one in offers if one.startswith(words[-1])]

    return asked


def test_fish_and_zsh_offer_the_same(offered_elsewhere):
    """Asked of the shell itself, started as somebody has it who never turned completion on."""
    assert offered_elsewhere("tri") == ["triage"]
    assert {*command.COMMANDS, "repro", "matrix", "train"} <= {*offered_elsewhere("")}
    assert {*offered_elsewhere("lint", "--format", "")} == {*FORMATS}
    assert offered_elsewhere("doctor", "--fix") == ["--fix-plan"]
    assert offered_elsewhere("explain", "SCH") == [
        code for code in catalog.load() if code.startswith("SCH")
    ]
    assert {*offered_elsewhere("completion", "")} == {"bash", "zsh", "fish"}
    assert offered_elsewhere("--ver") == ["--version"]
