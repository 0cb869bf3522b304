"""Run the command `triage`: find the known issue behind the logs of a failed run.

`triage` judges all logs of one run together; a missing name or an unmet requirement can also be the known cause.
With `--group` each log or folder of logs is a run, `--fail-on` is ignored, and the formats are terminal and JSON.

Exit codes:
- 1: the failure or its consequences are known, and a finding is at or above `--fail-on`;
- 3: the failure is unknown or only possible, a log is unreadable, or its end is missing (except with `--excerpt`);
- 0: otherwise.
"""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import click

from diagnostics import UserError, catalog
from diagnostics.cli import Command
from diagnostics.cpu_limit import cpu_limit
from diagnostics.findings import FINDINGS, FINE, INCOMPLETE, Certainty, Finding, Severity
from diagnostics.output import progress, text_filters
from diagnostics.output.report_output import ReportOptions, filter_report, print_report, report_options
from diagnostics.triage.compiled_packages import explain_builds
from diagnostics.triage.fact_collector import CUT_TRACEBACK
from diagnostics.triage.groups import find_runs, print_groups
from diagnostics.triage.log_facts import Hit
from diagnostics.triage.missing_names import REFUSED, LoggedReleases, explain_missing_names
from diagnostics.triage.report import report
from diagnostics.triage.requirement_conflicts import explain_conflicts, stated_ranges
from diagnostics.triage.rules import Rules
from diagnostics.triage.scan import scan
from diagnostics.triage.sources import LogSource, SkippedFiles, SourceError, find_logs
from diagnostics.triage.verdict import NOT_JUDGED, Diagnosis, judge

_JUDGE_S = 20.0
# Exit codes by state; any other state is incomplete: an unknown failure, or a log that was not checked.
_EXIT = {"known": FINDINGS, "wrapper": FINDINGS, "clean": FINE}


@click.command(
    cls=Command,
    examples=(
        ("triage run.log", "one log, also compressed"),
        ("triage logs/", "all ranks of one run"),
        ("triage --group runs/", "one run per log; groups the runs that failed alike"),
    ),
    exit_codes={
        0: "the run ended without a failure, or there are only warnings",
        1: "a known failure",
        3: "incomplete: an unknown failure, a log without an end, or an unreadable log",
    },
)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option(
    "--group", is_flag=True, help="Treat each log as one run, and group runs with the same failure."
)
@click.option("--excerpt", is_flag=True, help="The logs are excerpts: do not expect the end of the run.")
@report_options
def command(logs: tuple[str, ...], group: bool, excerpt: bool, output: ReportOptions) -> int:
    """Find the known issue behind the logs of a failed run, and its fix. LOG: files, folders, or - for stdin."""
    skipped = SkippedFiles()
    if group and output.format not in {"terminal", "json"}:
        raise UserError(f"--group --format {output.format}: expected terminal or json")
    with progress.show_spinner("triage") if "-" not in logs else nullcontext():
        try:
            if group:
                code = _triage_groups(find_runs(logs, skipped), excerpt, as_json=output.format == "json")
                return INCOMPLETE if code == FINE and skipped.unread else code
            sources = find_logs(logs, skipped)
        except SourceError as error:
            raise UserError(text_filters.mask_for_screen(str(error))) from None
        verdict = triage(sources, Rules(catalog.load()), excerpt=excerpt)
    result = filter_report(report(verdict, [source.name for source in sources], str(skipped)), output)
    print_report(result, output)
    code = exit_code(verdict)
    if code == FINDINGS and not any(finding.severity >= output.fail_on for finding in result.findings):
        code = INCOMPLETE if verdict.problems else FINE
    return INCOMPLETE if code == FINE and skipped.unread else code


def _triage_groups(runs: dict[str, list[LogSource]], excerpt: bool, *, as_json: bool) -> int:
    """Print the groups of runs, each run judged separately; return the worst exit code."""
    rules = Rules(catalog.load())
    verdicts = {name: triage(sources, rules, excerpt=excerpt) for name, sources in runs.items()}
    print_groups(verdicts, as_json=as_json)
    return max(map(exit_code, verdicts.values()), key=(FINE, INCOMPLETE, FINDINGS).index)


def triage(sources: Sequence[LogSource], rules: Rules, *, excerpt: bool = False) -> Diagnosis:
    """Read all logs of one run and return one verdict; `excerpt` is an argument of `judge`."""
    logs = [scan(source, rules) for source in sources]
    with cpu_limit("judging the logs", _JUDGE_S + len(logs)):
        verdict = judge(logs, rules, excerpt=excerpt)
        names = list(explain_missing_names(verdict, partial(stated_ranges, verdict)))
        conflicts = list(explain_conflicts(verdict))
        names += explain_builds(verdict, LoggedReleases(verdict))
        _remember_masked_words(verdict, [*names, *conflicts])
    if any(REFUSED in item.detail for item in names):
        # To satisfy the requirement would bring the first error back.
        conflicts = [replace(item, severity=Severity.INFO, remedy=None) for item in conflicts]
    verdict = replace(verdict, computed=(*names, *conflicts))
    if verdict.state in {"known", "clean"}:
        return verdict
    # Lines that only may report a failure are in no order.
    anchors = verdict.anchors if verdict.state == NOT_JUDGED else verdict.anchors[:1]
    first = {item.location for item in anchors if not item.text.startswith(CUT_TRACEBACK)}
    places = {item.evidence[0].place for item in names}
    computed = (*names, *conflicts)
    first |= {it.evidence[0].place for it in computed if any(_is_same_failure(it, hit) for hit in anchors)}
    # If something else failed, requirements that are not met may be harmless.
    failed = any(log.failures or (log.errors and not log.cut_tracebacks) for log in verdict.logs)
    certain = [item for item in computed if item.certainty != Certainty.HYPOTHESIS]
    if any(
        (item in conflicts and not failed) or item.evidence[0].place in (first or places) for item in certain
    ):
        return replace(verdict, state="known", anchors=())
    return verdict


def _remember_masked_words(verdict: Diagnosis, computed: Sequence[Finding]) -> None:
    """Let redaction mask in all texts what it masks in the raw lines that are evidence: a text may lack the label."""
    fallback, issues = verdict.fallback, (*verdict.candidates, *verdict.consequences)
    hits = [*verdict.anchors, *fallback.last, *(lead.hit for lead in fallback.leads)]
    hits += [hit for item in issues for hit in (item.first, *item.evidence)]
    hits += [*(fallback.stall.messages if fallback.stall else ()), *(it.hits[0] for it in fallback.symptoms)]
    logs = {log.source: log for log in verdict.logs}
    places = {hit.location for hit in hits} | {it.place for finding in computed for it in finding.evidence}
    for source, _, line in (place.rpartition(":") for place in places):
        # A place may also be in the source of a package.
        if source in logs:
            logs[source].remember_masked_words(int(line))


def _is_same_failure(finding: Finding, hit: Hit) -> bool:
    """Return whether another line reports the same message, cut off, or the same quoted name."""
    text, message = finding.evidence[0].text, hit.text.partition(" (in ")[0]
    names = [set(re.findall(r"'(\w+)'", item)) for item in (text, message)]
    return text.startswith(message) or bool(names[0] & names[1])


def exit_code(verdict: Diagnosis) -> int:
    """Return the exit code of a verdict: 0, 1 or 3, with the meanings in `exit_codes` above."""
    code = _EXIT.get(verdict.state, INCOMPLETE)
    return INCOMPLETE if code == FINE and verdict.problems else code
