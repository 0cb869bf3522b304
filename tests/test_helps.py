"""`--help` of the programs beside the diagnosis: a sentence, three examples that are taken, exit codes."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys

import pytest

from repro import __main__ as repro
from repro import usage as of_repro

EXAMPLES = {
    **{(repro, name): examples for name, (_, examples) in of_repro.COMMANDS.items()},
}


@pytest.mark.parametrize(("program", "name"), EXAMPLES, ids=lambda each: getattr(each, "__name__", each))
def test_a_help_has_a_sentence_examples_and_exit_codes(program, name):
    """Each example is one that the parser takes; nothing that was written for it is lost."""
    parser = program._parser()
    told = io.StringIO()
    with contextlib.redirect_stdout(told), pytest.raises(SystemExit, match="0"):
        parser.parse_args([name, "--help"])
    text = told.getvalue()
    assert text.count(".\n") >= 1
    assert text.index("examples:") < text.index("exit codes:\n  0 ")
    assert len(EXAMPLES[program, name]) == 3
    for example in EXAMPLES[program, name]:
        assert f"  {parser.prog} {example}\n" in text
        assert parser.parse_args(shlex.split(example.partition(" | ")[0])).command


@pytest.mark.parametrize(("program", "table"), [(repro, of_repro.COMMANDS)])
def test_every_command_has_examples(program, table):
    """And no other."""
    (commands,) = [each for each in program._parser()._actions if isinstance(each.choices, dict)]
    assert set(commands.choices) == set(table)


@pytest.mark.parametrize("program", ["repro", "grpo_core"])
def test_an_older_python_is_told_which_it_takes(program):
    """It refuses our dataclasses in words of its own, in a traceback."""
    older = f"import runpy, sys; sys.version_info = (3, 9, 18); runpy.run_module({program!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", older], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{program}: needs Python 3.10 or newer; this is {sys.executable}\n"
