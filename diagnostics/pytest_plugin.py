"""A pytest plugin: triage the output of a failed test, and add the known issue to its report.

Off unless `--grpo-doctor` is given or `grpo_doctor = true` is in the ini file. It adds a section in the terminal and a
property in JUnit XML to the report of a failed test. A passing test costs one comparison. pytest loads this module in
every session, so triage and Rich are imported on the first failed test.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tempfile
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from diagnostics import process
from diagnostics.findings import Report
from diagnostics.output import prepare, sanitize
from diagnostics.output.redact import mask

SECTION = "grpo-doctor"
# The name of the log, which precedes each line number in the section.
_LOG = "captured"
_WIDTH = 100
_RULES: pytest.StashKey[Any] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--grpo-doctor`, `--grpo-doctor-only` with their ini options, and `--grpo-doctor-hang`."""
    group = parser.getgroup("grpo-doctor", "known issues of GRPO on vLLM behind failing tests")
    group.addoption(
        "--grpo-doctor", action="store_true", default=False, help="triage what failing tests printed"
    )
    group.addoption(
        "--grpo-doctor-only",
        metavar="MARKER",
        default="",
        help="the same, for tests that have this marker alone, as gpu",
    )
    group.addoption(
        "--grpo-doctor-hang",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="if a test takes longer, observe all its processes from outside and report which process blocks which",
    )
    parser.addini("grpo_doctor", "triage what failing tests printed", type="bool", default=False)
    parser.addini("grpo_doctor_only", "only tests that have this marker", default="")


def _makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a section to the report of a failed test; never raise."""
    report = yield
    if report.failed and _is_enabled(item):
        try:
            text, issue = _triage_failure(item, call, report)
        except Exception as error:  # noqa: BLE001 - a fault of this plugin must not become one of the session
            problem = _masked_line(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
            text, issue = f"warning: it could not look at this failure: {problem}", ""
        report.sections.append((SECTION, text))
        if issue:
            # JUnit XML reads the report of the teardown, which copies the item's properties.
            item.user_properties.append((SECTION, issue))
            report.user_properties.append((SECTION, issue))
    return report


class _Watcher:
    """Report the running test to a separate process, which checks a test that takes too long."""

    def __init__(self, stall_s: float) -> None:
        words = ["hang", "--beats", "--pid", str(os.getpid()), "--stall", str(stall_s)]
        self._process = process.start(
            process.own_python("diagnostics", *words),
            own_session=False,
            stdin=subprocess.PIPE,
            stdout=2,
            stderr=2,
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Report the test that starts."""
        self._send(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        """Report its end."""
        self._send("")

    def pytest_unconfigure(self) -> None:
        """End the watcher."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _send(self, text: str) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.write(" ".join(text.split()).encode(errors="replace") + b"\n")
            self._process.stdin.flush()


def pytest_configure(config: pytest.Config) -> None:
    """Start the watcher for `--grpo-doctor-hang`; under xdist in each worker."""
    stall_s = config.getoption("grpo_doctor_hang")
    if stall_s > 0 and not getattr(config.option, "numprocesses", None):
        # Its output is for the user, not output of a test.
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            config.pluginmanager.register(_Watcher(stall_s))


# No decorator: pytest is no dependency, and mypy may run without its types.
pytest_runtest_makereport = pytest.hookimpl(wrapper=True)(_makereport)


def _masked_line(text: str) -> str:
    return sanitize.escape_line(mask(text))


def _is_enabled(item: pytest.Item) -> bool:
    config = item.config
    marker = config.getoption("grpo_doctor_only") or config.getini("grpo_doctor_only")
    if not (
        config.getoption("grpo_doctor")
        or config.getoption("grpo_doctor_only")
        or config.getini("grpo_doctor")
    ):
        return False
    return not marker or item.get_closest_marker(marker) is not None


def _triage_failure(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> tuple[str, str]:
    """Return the text of the section and, for a known issue, of the property."""
    from diagnostics import catalog
    from diagnostics.triage import command
    from diagnostics.triage.report import report as report_of
    from diagnostics.triage.rules import Rules
    from diagnostics.triage.sources import LogSource

    if _RULES not in item.config.stash:
        item.config.stash[_RULES] = Rules(catalog.load())
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        log = Path(folder) / _LOG
        log.write_text(_printed(call, report), encoding="utf-8", errors="replace")
        verdict = command.triage([LogSource(_LOG, log)], item.config.stash[_RULES])
    triage_report = report_of(verdict, [_LOG])
    if not triage_report.findings:
        return "no issue of the catalogue in what this test printed and raised", ""
    first = triage_report.findings[0]
    return _findings_text(triage_report), f"{first.code} {first.title} ({first.certainty})"


def _printed(call: pytest.CallInfo[None], report: pytest.TestReport) -> str:
    """Return the captured output, and the exception as Python prints it."""
    parts = [content for name, content in report.sections if name.startswith("Captured ")]
    if call.excinfo is not None:
        parts.append(_exception(call.excinfo.value))
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _exception(error: BaseException) -> str:
    """Return a traceback without source lines: a test that expects a failure names it in its own code."""
    root = traceback.TracebackException(type(error), error, error.__traceback__, lookup_lines=False)
    pending, done = [root], set()
    while pending:
        exception = pending.pop()
        if id(exception) in done:
            continue
        done.add(id(exception))
        exception.stack = traceback.StackSummary.from_list(
            [
                traceback.FrameSummary(it.filename, it.lineno, it.name, lookup_line=False, line="")
                for it in exception.stack
            ]
        )
        linked = (exception.__cause__, exception.__context__, *(exception.exceptions or ()))
        pending += [it for it in linked if it is not None]
    return "".join(root.format())


def _findings_text(report: Report) -> str:
    """Return the findings as the terminal shows them, without colour."""
    from diagnostics.output.terminal import print_finding, print_text

    stream = io.StringIO()
    report = prepare.for_screen(report)
    console = sanitize.console(stream, width=_WIDTH, force_terminal=True, color_system=None)
    print_finding(console, report.findings[0], verbose=True)
    for finding in report.findings[1:]:
        print_text(console, f"or {finding.code} {finding.title} ({finding.certainty})")
    for note in report.notes:
        print_text(console, f"note: {note}")
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
