"""Fixtures of the diagnostics tests: fake environments, compiled log signatures, and commands that run in-process."""

import io
import json
import sys
from typing import Any, NamedTuple

import pytest

from diagnostics import __main__ as program
from diagnostics import catalog
from diagnostics.output.redact import forget_secrets
from diagnostics.triage.command import triage
from diagnostics.triage.rules import Rules
from evaluation.triage.corpus.sweep import MemoryLog
from tests.diagnostics.fake_environments import EnvironmentBuilder


@pytest.fixture(autouse=True)
def no_remembered_secrets():
    """Forget the secrets that a reader remembered in an earlier test."""
    forget_secrets()


@pytest.fixture
def environment(tmp_path):
    """Return a builder of a fake Python environment on disk, which is empty at first."""
    return EnvironmentBuilder(tmp_path / "env")


@pytest.fixture(scope="session")
def rules():
    """Compile the catalog's log signatures once for all tests."""
    return Rules(catalog.load())


@pytest.fixture
def triage_lines(rules):
    """Return a function that triages its arguments as the lines of one log."""

    def triage_lines(*lines, **options):
        return triage([MemoryLog("\n".join(lines).encode())], rules, **options)

    return triage_lines


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


class CommandResult(NamedTuple):
    """Exit code, standard output and standard error of a command that ran in this process."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return the JSON on standard output."""
        return json.loads(self.out)


@pytest.fixture
def run_command(capsys):
    """Return a function that runs a command of grpo-doctor in this process and returns a CommandResult."""
    return lambda *arguments: CommandResult(program.main([*map(str, arguments)]), *capsys.readouterr())


@pytest.fixture
def run_triage(run_command, monkeypatch, rules):
    """Return a function that runs `triage` in this process with the precompiled signatures."""
    monkeypatch.setattr("diagnostics.triage.command.Rules", lambda _issues: rules)

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return run_command("triage", *arguments)

    return run
