"""Fixtures of the diagnostics' tests."""

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from diagnostics import __main__ as program
from diagnostics import catalog
from diagnostics.triage.rules import Rules
from tests.diagnostics.environments import Maker


@pytest.fixture
def environment(tmp_path):
    """An empty Python environment on disk."""
    return Maker(tmp_path / "env")


@pytest.fixture(scope="session")
def rules():
    """The catalog's signatures, compiled once for all tests."""
    return Rules(catalog.load())


@dataclass
class Done:
    """The exit code and output of a command that ran in this process."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON on standard output."""
        return json.loads(self.out)


@pytest.fixture
def run_triage(capsys, monkeypatch, rules):
    """Run `triage` in this process, with the compiled signatures of all tests."""
    monkeypatch.setattr("diagnostics.triage.command.Rules", lambda _issues: rules)

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = program.main(["triage", *map(str, arguments)])
        return Done(code, *capsys.readouterr())

    return run
