"""The command line: help, lazy commands, the shared options, completion."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from diagnostics import cli
from diagnostics.commands.completion import SHELLS
from tests.violations import violations


def test_every_command_loads_and_its_examples_parse():
    """Ported commands have examples with real options; others accept --help."""

    def check(name):
        command = cli.load_command(name)
        result = CliRunner().invoke(cli.app, [name, "--help"])
        assert result.exit_code == 0, result.output
        if isinstance(command, cli.Command):
            assert "Exit codes" in result.output
            for line, _ in command._examples:
                assert line.split()[0] == name

    assert violations(check, cli.COMMANDS) == []


def test_help_lists_every_command_without_importing_it():
    """A short answer imports no command, no Rich, no jinja2."""
    code = (
        "import sys; from diagnostics.cli import main; main(['--help']); "
        "print([each for each in sys.modules if each.split('.')[0] in {'rich', 'jinja2', 're2'} "
        "or each.startswith('diagnostics.lint')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert [name for name in (*cli.COMMANDS, *cli.PROGRAMS) if f"  {name} " not in done.stdout] == []


def test_nothing_asked_names_a_command_for_each_situation(capsys):
    """Exit code 2, on standard error."""
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "triage run.log" in err


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_is_printed(shell, capsys):
    """click's own script, for the installed program."""
    assert cli.main(["completion", shell]) == 0
    assert "_GRPO_DOCTOR_COMPLETE" in capsys.readouterr().out


def test_an_interrupt_is_exit_code_130(monkeypatch, capsys):
    """Without a message."""

    def interrupted(_name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_command", interrupted)
    assert cli.main(["explain", "SCH001"]) == 130
    assert capsys.readouterr().err.strip() == ""
