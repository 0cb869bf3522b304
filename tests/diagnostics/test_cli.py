"""The grpo-doctor command line shows help for every command, imports lazily, and completes words in shells."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from diagnostics import cli
from tests.violations import violations


def test_every_command_loads_and_its_examples_parse():
    """Each command's help shows its exit codes, and its examples are of this command."""

    def check(name):
        command = cli.load_command(name)
        result = CliRunner().invoke(cli.app, [name, "--help"])
        assert result.exit_code == 0, result.output
        if isinstance(command, cli.Command):
            assert "Exit codes" in result.output
            for line, _ in command._examples:
                assert line.split()[0] == name

    assert violations(check, cli.COMMANDS) == []


def test_help_lists_every_command_without_importing_them():
    """`--help` imports no command, Rich or jinja2, so that it is fast."""
    code = (
        "import sys; from diagnostics.cli import main; main(['--help']); "
        "print([name for name in sys.modules if name.split('.')[0] in {'rich', 'jinja2', 're2'} "
        "or name.startswith('diagnostics.lint')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert [name for name in (*cli.COMMANDS, *cli.PROGRAMS) if f"  {name} " not in done.stdout] == []


def test_missing_command_prints_suggestions_to_stderr(capsys):
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "triage run.log" in err


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_script_names_the_program(shell, monkeypatch, capsys):
    """The completion script of click names the program; bash is left out, because click would start it."""
    monkeypatch.setattr(sys, "argv", ["grpo-doctor"])
    monkeypatch.setenv("_GRPO_DOCTOR_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit, match="0"):
        cli.main([])
    assert "_GRPO_DOCTOR_COMPLETE" in capsys.readouterr().out


def test_completion_lists_the_commands(monkeypatch, capsys):
    """The program completes the words that a completion script passes in variables."""
    monkeypatch.setattr(sys, "argv", ["grpo-doctor"])
    monkeypatch.setenv("_GRPO_DOCTOR_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", "grpo-doctor tri")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit, match="0"):
        cli.main([])
    assert "triage" in capsys.readouterr().out


def test_interrupt_exits_130_without_a_message(monkeypatch, capsys):
    def interrupted(_name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_command", interrupted)
    assert cli.main(["explain", "SCH001"]) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        "audit --timeout nan run.jsonl",
        "audit --timeout inf run.jsonl",
        "audit --idle -1 --watch run.jsonl",
        "hang --seconds 0",
        "hang --patience nan",
        "doctor --node-limit nan",
    ],
)
def test_seconds_have_to_be_a_positive_number(arguments, capsys):
    assert cli.main(arguments.split()) == 2
    assert "Invalid value for '--" in capsys.readouterr().err
