"""Find the runs that `triage --group` judges separately, and print those that failed alike as one group.

`find_runs` finds the runs, and `print_groups` prints the groups.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnostics.output import text_filters
from diagnostics.output.redact import name_below, truncate
from diagnostics.triage.sources import LogSource, SkippedFiles, find_logs
from diagnostics.triage.verdict import NOT_JUDGED, Diagnosis

_MAX_NAMES = 8


def find_runs(arguments: Sequence[str], skipped: SkippedFiles) -> dict[str, list[LogSource]]:
    """Return the logs of each run: each named file, and each file or folder directly in a named folder, is a run.

    Of runs with equal names, the later ones get their path as a name.

    Raises:
        SourceError: An argument names no log.
    """
    runs: dict[str, list[LogSource]] = {}
    for argument in arguments:
        earlier, is_folder = set(runs), Path(argument).is_dir()
        for source in find_logs([argument], skipped):
            name = source.name
            if source.path and source.root:
                name = name_below(source.root / source.path.relative_to(source.root).parts[0], source.root)
            path = f"{argument.rstrip('/')}/{name}" if is_folder else argument
            runs.setdefault(path if name in earlier else name, []).append(source)
    return runs


def print_groups(verdicts: Mapping[str, Diagnosis], *, as_json: bool) -> None:
    """Print runs with equal fingerprints as one group, the largest group first.

    Runs without a fingerprint come last: those with equal states and titles are one group, such as clean runs.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, verdict in verdicts.items():
        key = verdict.fingerprint, "" if verdict.fingerprint else f"{verdict.state} {_title(verdict)}"
        groups.setdefault(key, []).append(name)
    ordered = sorted(groups.items(), key=lambda item: (not item[0][0], -len(item[1]), item[0]))
    if as_json:
        documents = [_group_document(verdicts[names[0]], names) for _, names in ordered]
        document = {"schema": "grpo-doctor.groups.v1", "groups": documents}
        print(json.dumps(text_filters.redact_for_sharing(document), indent=1))
        return
    for (fingerprint, _), names in ordered:
        listed = ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
        title, listed = map(text_filters.mask_for_screen, (_title(verdicts[names[0]]), listed))
        print(f"{len(names):>5}  {fingerprint or '-':<19}  {title}\n       {listed}")


def _group_document(verdict: Diagnosis, names: list[str]) -> dict[str, Any]:
    codes = [*(it.issue.code for it in verdict.candidates), *(it.code for it in verdict.computed)]
    return {
        "fingerprint": verdict.fingerprint,
        "verdict": verdict.state,
        "code": next(iter(codes), None),
        "title": _title(verdict),
        "logs": names,
    }


def _title(verdict: Diagnosis) -> str:
    """Return the issue, lead or first line that describes a verdict."""
    if verdict.candidates:
        issue = verdict.candidates[0].issue
        return f"{issue.code} {issue.title}{' (root not in the log)' if verdict.state == 'wrapper' else ''}"
    if verdict.state == "known":
        return f"{verdict.computed[0].code} {verdict.computed[0].title}"
    if verdict.leads:
        return f"perhaps {verdict.leads[0].issue.code} {verdict.leads[0].issue.title}"
    if verdict.state in {NOT_JUDGED, "empty"} or (verdict.state == "clean" and verdict.problems):
        return "not checked: no known failure, and no clean end of the run"
    return f"unknown: {truncate(verdict.anchors[0].quoted, 100)}" if verdict.anchors else "no failure"
