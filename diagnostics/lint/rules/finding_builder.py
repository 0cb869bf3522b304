"""Convert a rule's problem to a finding, with title, evidence level and mitigations from the catalog.

A value that the environment may replace, or an unknown release, lowers an error to a warning. So does a changed copy of
the framework, except for errors about the command or about the copy's own options.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diagnostics import catalog
from diagnostics.catalog import mitigation_ranking, model
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Advice, Explain, Fix, RankedMitigation
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.lint import option_index
from diagnostics.lint.rules.registry import Problem
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Value

# Codes of findings that are errors also for a changed copy: they are about the command, or the copy's own options.
_HOLDS_FOR_COPIES = {"CFG113", "CFG114", "CFG120"}
# Codes of checks, which are no known issues, and their evidence levels.
_CHECK_CODES = {"CFG901": "static", "ENV902": "executed"}


def to_finding(plan: RunPlan, code: str, problem: Problem) -> Finding | None:
    """Convert a problem of a plan to a finding with this code; None if the release is not affected."""
    if problem.applies is False:
        return None
    values = [value for value in problem.values if value is not None]
    severity, message = problem.severity, problem.message
    # The environment may replace a value such as `${X:-8}`, so a finding that follows from it is not certain.
    if any(value.outside for value in values):
        severity = min(severity, Severity.WARNING)
    if severity > Severity.WARNING and code not in _HOLDS_FOR_COPIES and _is_changed_copy(plan):
        severity = Severity.WARNING
        message = f"{message} The project's own copy has options of its own, and may allow it."
    if problem.applies is None:
        severity = min(severity, Severity.WARNING)
        package = problem.package or plan.framework
        advice = f"The release is unknown: pass --{package} VERSION for a definite answer."
        has_option = package in FRAMEWORKS and FRAMEWORKS[package].packages
        message = f"{message} {advice if has_option else f'No release of {package} is known.'}"
    soft = any(value.soft for value in values)
    certainty = "hypothesis" if problem.applies is None else "supported" if soft else "established"
    evidence = tuple(dict.fromkeys(item for value in values for item in _evidence(value)))
    evidence = evidence or (Evidence(plan.framework, str(plan.settings.place)),)
    if code in _CHECK_CODES:
        level, remedy = _CHECK_CODES[code], Fix.of(problem.fix)
    else:
        level = problem.known_by or _evidence_level(catalog.find(code), plan.framework)
        remedy = _remedy(plan, code, problem)
    return mitigation_ranking.finding(
        code, severity, evidence, remedy, message, certainty=certainty, known_by=level
    )


def _evidence(value: Value) -> list[Evidence]:
    """Return a value as evidence, as the file has it; for a product, its factors."""
    if value.factors:
        return [item for factor in value.factors for item in _evidence(factor)]
    kind = "default in the script" if value.place.line else "a default"
    return [Evidence(value.as_text + (f" ({kind})" if value.soft and value.known else ""), str(value.place))]


def _is_changed_copy(plan: RunPlan) -> bool:
    """Return whether the project's copy of the framework is changed: the run has options that no release has."""
    if not plan.own_copy:
        return False
    names = option_index.option_names(plan.framework, plan.role)
    return bool(option_index.refused_options(plan.settings, names))


def _evidence_level(entry: model.Issue, framework: str) -> str:
    """Return the best evidence level of an entry for a framework; evidence from other trainers does not count."""
    framework_levels = [claim.evidence for claim in entry.affected if claim.package == framework]
    if not framework_levels and framework in FRAMEWORKS and not FRAMEWORKS[framework].packages:
        return "static"  # the framework has no releases; its checks were read in its repository
    trainers = set(model.FRAMEWORKS) - {"vllm"}
    general = [claim.evidence for claim in entry.affected if claim.package not in trainers]
    return max(framework_levels or general or ["declared"], key=model.EVIDENCE.index)


def _remedy(plan: RunPlan, code: str, problem: Problem) -> Fix:
    """Return the problem's fix; if it is not complete, add the entry's best mitigation and the framework's."""
    if problem.fix_is_complete:
        return Fix.of(problem.fix, Explain(code))
    ranked = mitigation_ranking.recommended_fix(
        catalog.find(code), triggers=problem.triggers, frameworks=(plan.framework,), releases=plan.releases
    )

    def with_own_edits(offers: Iterable[RankedMitigation]) -> Iterator[RankedMitigation]:
        """Yield the mitigations with an edit for the run's framework, without the framework's name."""
        for offer in offers:
            edits = [replace(e, framework="") if e.framework == plan.framework else e for e in offer.edits]
            if edits != list(offer.edits):
                yield replace(offer, edits=tuple(edits))

    offers, first = list(with_own_edits(ranked.offers)), ranked.offers[:1]
    if first and first[0].mitigation not in {offer.mitigation for offer in offers}:
        offers.insert(0, first[0])
    return Fix(
        actions=((Advice(problem.fix),) if problem.fix else ()) + ranked.actions,
        offers=tuple(offers),
        does_not_help=tuple(with_own_edits(ranked.does_not_help)),
    )
