"""Match a verdict to a known issue of the catalog, and recommend the fix that fits the stacks.

`with_issue` adds the code of the issue whose causes and frame patterns match the verdict. `stack_fix` finds a fix in
`stack_fixes.toml`. `finding_of` and `issue_document` return issue and fix for the report.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from diagnostics import catalog
from diagnostics.catalog import mitigation_ranking
from diagnostics.catalog.model import Frame as FramePattern
from diagnostics.catalog.model import Issue
from diagnostics.findings import Finding
from diagnostics.fixes import Advice, Explain, Fix
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.hang.diagnosis import Diagnosis
from diagnostics.hang.sentences import details_of
from diagnostics.hang.snapshot import StackFrame
from diagnostics.hang.verdict import HANG


class _Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition of a fix, about the blocking processes and the waits that lead to them.

    Each pattern in `frames` matches a frame, all kinds in `waits` occur, and all `details` of the wait are known.
    """

    frames: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


class StackFix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fix for a pattern of stack frames; `stack_fixes.toml` explains the fields."""

    name: str
    causes: tuple[str, ...]
    when: tuple[_Condition, ...]
    advice: str
    trigger: str = ""


_FIX_FILE = Path(__file__).with_name("stack_fixes.toml")
_STACK_FIXES = msgspec.toml.decode(_FIX_FILE.read_bytes(), type=dict[str, list[StackFix]])["fixes"]


def with_issue(diagnosis: Diagnosis) -> Diagnosis:
    """Add the code of the known issue to the diagnosis of a hang.

    If several match, one with patterns for blocking and waiting processes comes first, then one for blocking processes.
    In a cycle, or without waiting processes, their patterns are compared with the blocking processes. A diagnosis that
    is no hang is returned unchanged.
    """
    verdict = diagnosis.verdict
    if verdict.outcome != HANG:
        return diagnosis
    culprits = _frames(diagnosis, verdict.culprits)
    waiters = culprits if verdict.cycle else _frames(diagnosis, verdict.victims) or culprits
    matches = [
        (bool(shape.blocking) + bool(shape.waiting), bool(shape.blocking), issue.code)
        for issue in catalog.load().values()
        for shape in issue.hang
        if verdict.cause in shape.causes
        and _matches(shape.blocking, culprits)
        and _matches(shape.waiting, waiters)
    ]
    *_, code = max(matches, default=(0, False, ""))
    return replace(diagnosis, verdict=replace(verdict, code=code))


def _frames(diagnosis: Diagnosis, keys: Iterable[str]) -> list[StackFrame]:
    """Return the frames of the threads on the paths to the blocking threads of these processes."""
    states = diagnosis.index.states_of(keys)
    return [frame for state in states for thread, _ in state.steps for frame in thread.frames]


def _matches(patterns: tuple[FramePattern, ...], frames: list[StackFrame]) -> bool:
    """Return whether one of the patterns matches one of the frames, or there are no patterns."""
    pairs = product(patterns, frames)
    return not patterns or any(p.function in ("*", f.function) and p.path in f.path for p, f in pairs)


def stack_fix(diagnosis: Diagnosis) -> StackFix | None:
    """Return the first fix for the verdict's cause that fits the blocking processes' stacks and the chain of waits.

    None if no fix fits, or if the blocking processes have no threads.
    """
    verdict = diagnosis.verdict
    states = diagnosis.index.states_of(verdict.culprits)
    frames = [frame.location for frame in _frames(diagnosis, verdict.culprits)]
    waits = {edge.kind for edge in verdict.chain} | {state.kind for state in states[:1]}
    details = details_of(diagnosis.index, verdict).keys()

    def applies(condition: _Condition) -> bool:
        found = all(any(re.search(pattern, frame) for frame in frames) for pattern in condition.frames)
        return found and details >= set(condition.details) and waits >= set(condition.waits)

    fixes = (fix for fix in _STACK_FIXES if verdict.cause in fix.causes and any(map(applies, fix.when)))
    return next(fixes, None) if any(state.process.threads for state in states) else None


def frameworks_in_stacks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the frameworks whose files or commands appear in stacks or process titles."""
    texts = [process.title for process in diagnosis.index.snapshot.processes]
    texts += [frame.path for frame in _frames(diagnosis, diagnosis.index.states)]
    joined = "\n".join(dict.fromkeys(texts))
    return tuple(
        name
        for name, framework in FRAMEWORKS.items()
        if (framework.log_marks and re.search(framework.log_marks, joined))
        or any(f"/{re.split('[.:]', module)[0]}/" in joined for module in framework.modules)
    )


def recommended_fix(diagnosis: Diagnosis, issue: Issue) -> Fix:
    """Return the fix for the stacks with the mitigations that help against its trigger, else the issue's own fix.

    The mitigations are ranked for the frameworks in the stacks. Without one, edits for several frameworks are left out.
    """
    fix = stack_fix(diagnosis)
    trigger = fix.trigger if fix else ""
    triggers = {trigger} & {known.name for known in issue.triggers}
    frameworks = frameworks_in_stacks(diagnosis)
    ranked = mitigation_ranking.recommended_fix(issue, triggers=triggers, frameworks=frameworks)
    if fix is None and not frameworks:
        offers = (replace(it, edits=()) if len(it.edits) > 1 else it for it in ranked.offers)
        return replace(ranked, offers=tuple(offers))
    if fix is None:
        return ranked
    helping = tuple(offer for offer in ranked.offers if triggers & set(offer.helps))
    return Fix((Advice(fix.advice), Explain(issue.code)), helping, ranked.does_not_help)


def finding_of(diagnosis: Diagnosis) -> Finding | None:
    """Return the known issue as a finding with its recommended fix; None if no known issue matches."""
    verdict = diagnosis.verdict
    if not verdict.code:
        return None
    issue = catalog.load()[verdict.code]
    labels = {key: state.process.label for key, state in diagnosis.index.states.items()}
    blocking = [labels[key] for key in verdict.culprits if key in labels]
    # Of several processes, each observation names its own.
    place = blocking[0] if len(blocking) == 1 else diagnosis.index.snapshot.source
    # The last observation of the blocking process is the best evidence: its stack, or an unanswered request.
    evidence = [(line, place) for line in reversed(verdict.evidence)]
    evidence += [(line, labels.get(edge.source, "")) for edge in verdict.chain for line in edge.evidence]
    finding = mitigation_ranking.finding_of_issue(issue, verdict.certainty, evidence)
    return replace(finding, remedy=recommended_fix(diagnosis, issue))


def issue_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the known issue (title, cause, mitigations) and the fix for the stacks, as JSON; empty without either."""
    code, fix = diagnosis.verdict.code, stack_fix(diagnosis)
    issue = {"code": code, **mitigation_ranking.issue_summary(catalog.load()[code])} if code else {}
    return issue | ({"fix": fix.advice} if fix else {})
