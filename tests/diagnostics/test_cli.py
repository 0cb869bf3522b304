"""`grpo-doctor` prints help without importing the commands, completes words in shells, and refuses bad durations.

A call without a command and an old Python are refused; an interrupt or a closed pipe ends a command without a
traceback.
"""

import sys

import pytest
from click.testing import CliRunner

from diagnostics import cli
from tests.processes import run_python, run_text
from tests.violations import violations


def test_every_command_loads_and_its_help_has_exit_codes_and_own_examples():
    """A command of another class than `cli.Command` may lack exit codes and examples."""

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
    """`--help` imports no module of a command and neither Rich, jinja2 nor RE2, so that it is fast."""
    code = (
        "import sys; from diagnostics.cli import COMMANDS, main; main(['--help']); "
        "print([name for name in sys.modules if name.split('.')[0] in {'rich', 'jinja2', 're2'} "
        "or name.startswith('diagnostics.lint') or name in {item[0] for item in COMMANDS.values()}])"
    )
    done = run_python("-c", code, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert [name for name in (*cli.COMMANDS, *cli.PROGRAMS) if f"  {name} " not in done.stdout] == []


def test_missing_command_prints_suggestions_to_stderr(capsys):
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "triage run.log" in err


@pytest.mark.parametrize(
    ("instruction", "printed"),
    [
        ("zsh_source", "_GRPO_DOCTOR_COMPLETE"),
        ("fish_source", "_GRPO_DOCTOR_COMPLETE"),
        ("zsh_complete", "triage"),
    ],
)
def test_shell_completion_prints_a_script_and_completes_words(monkeypatch, capsys, instruction, printed):
    """The script passes the typed words in variables; bash is left out, because click would start it."""
    monkeypatch.setattr(sys, "argv", ["grpo-doctor"])
    words = {"_GRPO_DOCTOR_COMPLETE": instruction, "COMP_WORDS": "grpo-doctor tri", "COMP_CWORD": "1"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):
        cli.main([])
    assert printed in capsys.readouterr().out


def test_closed_pipe_ends_without_a_traceback():
    done = run_text(["sh", "-c", f"{sys.executable} -m diagnostics catalogue | head -1"])
    assert "Traceback" not in done.stderr


def test_too_old_python_is_refused_with_the_needed_release(monkeypatch, run_command):
    """A too old Python is refused in one line; installers check it, but a checkout starts with any Python."""
    monkeypatch.setattr("diagnostics.__main__._OLDEST_PYTHON", (9, 1))
    code, out, err = run_command("triage", "run.log")
    assert (code, out) == (2, "")
    assert "needs Python 3.11 or newer; this is 3." in err


def test_interrupt_exits_130_without_a_message(monkeypatch, capsys):
    def interrupted(_name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_command", interrupted)
    assert cli.main(["explain", "SCH001"]) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        "audit --timeout nan run.jsonl", "audit --timeout inf run.jsonl", "audit --idle -1 --watch run.jsonl",
        "hang --seconds 0", "hang --patience nan", "doctor --node-limit nan",
    ],
)  # fmt: skip
def test_seconds_have_to_be_a_positive_number(arguments, capsys):
    assert cli.main(arguments.split()) == 2
    assert "Invalid value for '--" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["audit", "lint", "triage", "doctor --prefix", "hang --from", "audit --watch"]
)
def test_path_that_the_system_refuses_is_one_line(run_command, command):
    code, _, error = run_command(*command.split(), "a" * 300)
    assert (code, error.count("\n"), "File name too long" in error, "internal error" in error) == (
        2,
        1,
        True,
        False,
    )
