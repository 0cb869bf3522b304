"""Run the conformance suite on an engine named on the command line, as a pytest plugin.

Usage: `python -m pytest -p tests.grpo_core.conformance.plugin tests/grpo_core/conformance/suite.py --engine vllm`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("tests.grpo_core.conformance.suite")

from tests.grpo_core.conformance.cases import Case, make_case  # noqa: E402

WORDS = {"passed": "passed", "skipped": "not applicable", "failed": "failed"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options for the engine to test, its model folder, and the results file."""
    group = parser.getgroup("conformance")
    group.addoption("--engine", default="transformers", help="see cases.start")
    group.addoption("--model-dir", help="the folder that a running server was started on")
    group.addoption("--outcomes", help="a JSON file for the result of each test")


def pytest_configure(config: pytest.Config) -> None:
    """With `--outcomes`, register the writer of results; it writes after each test, so a crash keeps earlier ones."""
    if path := config.getoption("--outcomes"):
        config.pluginmanager.register(Outcomes(Path(path)))


class Outcomes:
    """Write results by test: `outcome` (`passed`, `failed` or `not applicable`) and `why`, empty if passed."""

    def __init__(self, path: Path) -> None:
        self._path, self._found = path, {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test's result; a failed fixture is a failed test."""
        if report.when != "call" and report.passed:
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else failure_message(report)
        name = report.nodeid.rpartition("::")[2]
        self._found[name] = {"outcome": WORDS[report.outcome], "why": reason.removeprefix("Skipped: ")}
        self._path.write_text(json.dumps(self._found, indent=1), encoding="utf-8")


def failure_message(report: pytest.TestReport) -> str:
    """Return the first line of a test's failure."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    return text.strip().splitlines()[0] if text.strip() else ""


@pytest.fixture(scope="session")
def running_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """Yield the case of one engine for all tests."""
    torch.set_num_threads(1)
    engine, folder = map(request.config.getoption, ("--engine", "--model-dir"))
    case = make_case(engine, tmp_path_factory.mktemp("models"), folder and Path(folder))
    yield case
    case.close()


@pytest.fixture
def engine_case(running_case: Case, request: pytest.FixtureRequest) -> Iterator[Case]:
    """Yield the engine's case, its reference weights restored, with a new engine if the previous test failed."""
    failed = request.session.testsfailed
    running_case.reference.restore()
    yield running_case
    if request.session.testsfailed > failed:
        running_case.close()
