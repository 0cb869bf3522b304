"""Run the command `triage`: find the known issue behind the logs of a failed run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from diagnostics import UserError, catalog
from diagnostics.cli import Command
from diagnostics.findings import FINDINGS, FINE, INCOMPLETE, Certainty
from diagnostics.output import progress, text_filters
from diagnostics.output.report_output import ReportOptions, filter_report, print_report, report_options
from diagnostics.triage.missing_names import explain_missing_names
from diagnostics.triage.model import LogFacts
from diagnostics.triage.report import report
from diagnostics.triage.requirement_conflicts import explain_conflicts
from diagnostics.triage.rules import Rules
from diagnostics.triage.scan import scan
from diagnostics.triage.sources import LogSource, SkippedFiles, SourceError, find_logs
from diagnostics.triage.verdict import NOT_JUDGED, Diagnosis, judge

# Other states are incomplete: a failure without a known cause, or a log that was not checked.
_EXIT = {"known": FINDINGS, "wrapper": FINDINGS, "clean": FINE}
_MAX_NAMES = 8


@click.command(
    cls=Command,
    examples=(
        ("triage run.log", "one log, also compressed"),
        ("triage logs/", "all ranks of one run"),
        ("triage --group runs/", "one run per log; groups the runs that failed alike"),
    ),
    exit_codes={
        0: "no failure, and the log shows the end of the run",
        1: "a known failure",
        3: "incomplete: an unknown failure, a log without an end, or an unreadable log",
    },
)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option(
    "--group", is_flag=True, help="Treat each log as one run, and group the runs that failed alike."
)
@click.option("--excerpt", is_flag=True, help="The logs are excerpts: do not expect the end of the run.")
@report_options
def command(logs: tuple[str, ...], group: bool, excerpt: bool, output: ReportOptions) -> int:
    """Find the known issue behind the logs of a failed run, and its fix. LOG: files, folders, or - for stdin."""
    skipped = SkippedFiles()
    if group and output.format not in {"terminal", "json"}:
        raise UserError(f"--group --format {output.format}: expected terminal or json")
    with progress.running("triage") if "-" not in logs else nullcontext():
        try:
            if group:
                code = _print_groups(_runs(logs, skipped), as_json=output.format == "json")
                return INCOMPLETE if code == FINE and skipped.unread else code
            sources = find_logs(logs, skipped)
        except SourceError as error:
            raise UserError(text_filters.mask_for_screen(str(error))) from None
        verdict = triage(sources, Rules(catalog.load()), excerpt=excerpt)
    result = filter_report(report(verdict, [source.name for source in sources], str(skipped)), output)
    print_report(result, output)
    code = exit_code(verdict)
    if code == FINE and skipped.unread:
        return INCOMPLETE
    if code == FINDINGS and not any(finding.severity >= output.fail_on for finding in result.findings):
        return INCOMPLETE if verdict.problems else FINE
    return code


def triage(sources: Sequence[LogSource], rules: Rules, *, excerpt: bool = False) -> Diagnosis:
    """Read all logs of one run and return one verdict; in an `excerpt`, no end of the run is expected."""
    verdict = judge([_scan(source, rules) for source in sources], rules, excerpt=excerpt)
    names, conflicts = list(explain_missing_names(verdict)), list(explain_conflicts(verdict))
    verdict = replace(verdict, computed=(*names, *conflicts))
    if verdict.state in {"known", "clean"}:
        return verdict
    first = verdict.anchors[0].location if verdict.anchors else ""
    # Requirements that are not met may be harmless if something else fails.
    failed = any(log.failures or (log.errors and not log.cut) for log in verdict.logs)
    if (conflicts and not failed) or any(
        item.certainty != Certainty.HYPOTHESIS and first in {"", item.evidence[0].place} for item in names
    ):
        return replace(verdict, state="known", anchors=())
    return verdict


def _scan(source: LogSource, rules: Rules) -> LogFacts:
    progress.update(f"reading {source.name}")
    return scan(source, rules)


def exit_code(verdict: Diagnosis) -> int:
    """Return 0 (no failure and an end), 1 (a known failure) or 3 (an unknown failure, no end, or an unread log)."""
    code = _EXIT.get(verdict.state, INCOMPLETE)
    return INCOMPLETE if code == FINE and verdict.problems else code


def _runs(arguments: Sequence[str], skipped: SkippedFiles) -> dict[str, list[LogSource]]:
    """Return the logs of each run: each file and each folder in a given folder is a run."""
    runs: dict[str, list[LogSource]] = {}
    for argument in arguments:
        for source in find_logs([argument], skipped):
            folder, inside, _ = source.name.partition("/")
            is_run = inside and source.path is not None and Path(argument).is_dir()
            name = folder if is_run else source.name
            name = f"{argument}/{name}" if name in runs and not is_run else name
            runs.setdefault(name, []).append(source)
    return runs


def _print_groups(runs: dict[str, list[LogSource]], *, as_json: bool) -> int:
    """Judge each run separately, and print runs with equal fingerprints together, the largest group first."""
    rules = Rules(catalog.load())
    groups: dict[str, list[tuple[str, Diagnosis]]] = {}
    for name, sources in runs.items():
        verdict = triage(sources, rules)
        groups.setdefault(verdict.fingerprint, []).append((name, verdict))
    ordered = sorted(groups.items(), key=lambda item: (not item[0], -len(item[1]), item[0]))
    if as_json:
        document = {"schema": "grpo-doctor.groups.v1", "groups": [_group_document(*item) for item in ordered]}
        print(json.dumps(text_filters.redact_for_sharing(document), indent=1))
    for fingerprint, members in () if as_json else ordered:
        names = ", ".join(text_filters.mask_for_screen([name for name, _ in members[:_MAX_NAMES]]))
        names += ", …" if len(members) > _MAX_NAMES else ""
        title = text_filters.mask_for_screen(_title(members[0][1]))
        print(f"{len(members):>5}  {fingerprint or '-':<19}  {title}\n       {names}")
    codes = (exit_code(verdict) for members in groups.values() for _, verdict in members)
    return max(codes, key=(FINE, INCOMPLETE, FINDINGS).index)


def _group_document(fingerprint: str, members: list[tuple[str, Diagnosis]]) -> dict[str, Any]:
    verdict = members[0][1]
    codes = [*(it.issue.code for it in verdict.candidates), *(it.code for it in verdict.computed)]
    return {
        "fingerprint": fingerprint,
        "verdict": verdict.state,
        "code": next(iter(codes), None),
        "title": _title(verdict),
        "logs": [name for name, _ in members],
    }


def _title(verdict: Diagnosis) -> str:
    if verdict.candidates:
        issue = verdict.candidates[0].issue
        return f"{issue.code} {issue.title}{' (root not in the log)' if verdict.state == 'wrapper' else ''}"
    if verdict.state == "known":
        return f"{verdict.computed[0].code} {verdict.computed[0].title}"
    if verdict.leads:
        return f"perhaps {verdict.leads[0].issue.code} {verdict.leads[0].issue.title}"
    if verdict.state == NOT_JUDGED:
        return "not checked: no known failure, and no end of the run"
    return f"unknown: {verdict.anchors[0].text[:100]}" if verdict.anchors else "no failure"
