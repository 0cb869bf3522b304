"""A pytest plugin: what a failing test printed is triaged, and the known issue behind it stands in its report.

Off unless `--grpo-doctor` is given or `grpo_doctor = true` stands in the ini file. It only ever adds to the report of
a test that failed: a section in the terminal, a property in JUnit XML. A passing test costs it one comparison.
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

SECTION = "grpo-doctor"
# The log that triage is given; its name stands before each line number in the section.
_LOG = "captured"
_WIDTH = 100
_RULES: pytest.StashKey[Any] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--grpo-doctor`, `--grpo-doctor-only` with their ini options, and `--grpo-doctor-hang`."""
    group = parser.getgroup("grpo-doctor", "known issues of GRPO on vLLM behind failing tests")
    group.addoption(
        "--grpo-doctor", action="store_true", default=False, help="triage what failing tests printed"
    )
    group.addoption(
        "--grpo-doctor-only", metavar="MARKER", default="",
        help="the same, for tests that have this marker alone, as gpu",
    )  # fmt: skip
    group.addoption(
        "--grpo-doctor-hang", metavar="SECONDS", type=float, default=0.0,
        help="look at a test that takes longer from outside: who waits for whom, over all its processes",
    )  # fmt: skip
    parser.addini("grpo_doctor", "triage what failing tests printed", type="bool", default=False)
    parser.addini("grpo_doctor_only", "only tests that have this marker", default="")


def _makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds a section to the report of a test that failed; changes nothing else, and raises nothing of its own."""
    report = yield
    if report.failed and _is_enabled(item):
        try:
            text, text_lines = _triage_failure(item, call, report)
        except Exception as error:  # noqa: BLE001 - a fault of this plugin must not become one of the session
            problem = _masked_line(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
            text, text_lines = f"warning: it could not look at this failure: {problem}", ""
        report.sections.append((SECTION, text))
        if text_lines:
            # Of the item for the report of its teardown, which JUnit reads; of the report for this one.
            item.user_properties.append((SECTION, text_lines))
            report.user_properties.append((SECTION, text_lines))
    return report


class _Watcher:
    """Tells a process of its own which test runs: it looks when one takes too long, whatever that one holds."""

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
        """A test begins."""
        self._send(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        """It ended."""
        self._send("")

    def pytest_unconfigure(self) -> None:
        """The session ends, and the watcher with it."""
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
    """Starts to watch, where `--grpo-doctor-hang` is given; under xdist in each worker."""
    stall_s = config.getoption("grpo_doctor_hang")
    if stall_s > 0 and not getattr(config.option, "numprocesses", None):
        # What it says is for whoever sits there, and no output of a test.
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            config.pluginmanager.register(_Watcher(stall_s))


# No decorator: pytest is no dependency, and its types are not there wherever this is checked.
pytest_runtest_makereport = pytest.hookimpl(wrapper=True)(_makereport)


def _masked_line(text: str) -> str:
    from diagnostics.output import sanitize
    from diagnostics.output.redact import mask

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
    """The section's text and, where an issue is known, the property's."""
    from diagnostics import catalog
    from diagnostics.triage import command
    from diagnostics.triage.reading.named import find
    from diagnostics.triage.report import report as tell
    from diagnostics.triage.rules import Rules

    if _RULES not in item.config.stash:
        item.config.stash[_RULES] = Rules(catalog.load())
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        log = Path(folder) / _LOG
        log.write_text(_printed(call, report), encoding="utf-8", errors="replace")
        verdict = command.triage(find([str(log)]), item.config.stash[_RULES])
    text_lines = tell(verdict, [_LOG])
    if not text_lines.findings:
        return "no issue of the catalogue in what this test printed and raised", ""
    first = text_lines.findings[0]
    return _findings_text(text_lines), f"{first.code} {first.title} ({first.certainty})"


def _printed(call: pytest.CallInfo[None], report: pytest.TestReport) -> str:
    """All that was captured, and the exception as Python itself prints it."""
    parts = [content for name, content in report.sections if name.startswith("Captured ")]
    if call.excinfo is not None:
        parts.append(_exception(call.excinfo.value))
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _exception(error: BaseException) -> str:
    """A traceback without lines of source: a test that expects a failure names it in its own code."""
    result = traceback.TracebackException(type(error), error, error.__traceback__, lookup_lines=False)
    first_version, observed = [result], set()
    while first_version:
        entry = first_version.pop()
        if id(entry) in observed:
            continue
        observed.add(id(entry))
        entry.stack = traceback.StackSummary.from_list(
            [
                traceback.FrameSummary(f.filename, f.lineno, f.name, lookup_line=False, line="")
                for f in entry.stack
            ]
        )
        first_version += [
            second
            for second in (entry.__cause__, entry.__context__, *(entry.exceptions or ()))
            if second is not None
        ]
    return "".join(result.format())


def _findings_text(report: Report) -> str:
    """Return the findings as the terminal shows them, without colour."""
    from diagnostics.output import prepare, sanitize
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
