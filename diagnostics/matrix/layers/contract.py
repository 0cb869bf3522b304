"""Layer `contract`: check, without running them, whether this vLLM provides what the trainer's source uses.

The API index lists what the trainer's release uses, and what the vLLM release has. For TRL, a missing name fails the
layer if a GRPO run needs it, and behaviour counts too (rules.toml); uses that the source leaves open give NOT_CHECKED.
For another trainer, a name that fails at import fails the layer, and missing names that only functions use give
NOT_CHECKED, because it is not known which functions a run calls. Without an index entry, the answer is NOT_RUN.
"""

from collections.abc import Iterator

from diagnostics.api_index import query
from diagnostics.api_index.compare import Comparison, MissingUse
from diagnostics.api_index.query import Release
from diagnostics.api_index.rules import is_grpo_file, is_needed_by_grpo, matching_cases
from diagnostics.matrix.layers.layer import Layer
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Fact, Outcome


def compare_releases(trainer: Release, engine: Release) -> Answer:
    """Return the answer for a release of a trainer with a release of vLLM."""
    is_trl = trainer.package == "trl"
    comparison = query.compare_names(trainer, engine, with_server=is_trl)
    if comparison is None:
        return Answer(Outcome.NOT_RUN, f"the API index cannot compare {trainer} and {engine}")
    missing = [item for item in comparison.missing if not is_trl or is_needed_by_grpo(item.use)]
    unneeded = [item for item in comparison.missing if item not in missing]
    undecided = [*_undecided(comparison, trainer, engine)] if is_trl else []
    used = f"{comparison.checked} things that {'TRL' if is_trl else trainer.package} uses"
    outcome, summary = Outcome.PASS, f"all {used} are provided"
    if missing:
        names = sorted({item.use.text for item in missing})
        outcome = Outcome.FAIL if is_trl or query.missing_at_import(comparison) else Outcome.NOT_CHECKED
        summary = f"{len(names)} of {used} are missing in this vLLM: {', '.join(names)}"
        if outcome is Outcome.NOT_CHECKED:
            summary += "; needed: a run that calls these functions"
    elif undecided:
        subjects = list(dict.fromkeys(subject for _kind, subject, _needed in undecided))
        outcome = Outcome.NOT_CHECKED
        summary = f"{len(subjects)} of {used} not checked: {', '.join(subjects)}; needed: {undecided[0][2]}"
    elif unneeded:
        count = len({item.use.text for item in unneeded})
        summary = f"{count} of {used} missing in this vLLM, but not used by every GRPO run"
    lines = [_missing_line(item) for item in missing]
    open_lines = [f"{subject}; needed: {needed}" for _kind, subject, needed in undecided]
    rulings = matching_cases(trainer.version, engine.version) if is_trl else ()
    details = (
        *(f"missing: {line}" for line in lines),
        *(f"not checked: {line}" for line in open_lines),
        *(f"missing, but not used by every GRPO run: {_missing_line(item)}" for item in unneeded),
        *(f"missing, but guarded: {_missing_line(item)}" for item in comparison.guarded),
        *(
            f"{case.outcome}: {rule.statement}; {case.why} ({rule.option or rule.affected_runs})"
            for rule, case in rulings
            if case
        ),
    )
    facts = (*(("missing", item.use.text, _moment(item)) for item in missing), *undecided)
    return Answer(outcome, summary, signs=(*lines, *open_lines), facts=facts, details=details)


def _undecided(comparison: Comparison, trainer: Release, engine: Release) -> Iterator[Fact]:
    """Yield what the source of TRL and vLLM leaves open for a GRPO run, each with what is needed to decide it."""
    for item in comparison.unsure:
        if is_grpo_file(item.use.file):
            needed = "the condition in TRL's source decided, by uses.py or a rule in rules.toml"
            yield "undecided", item.use.text, needed
    cases = [*matching_cases(trainer.version, engine.version)]
    for rule, case in cases:
        if case is None and not rule.option:
            yield "undecided", rule.subject, "this vLLM read, and a case for it in rules.toml"
    # A rule about a path has already said that it holds or breaks, or that no case fits this vLLM.
    settled_paths = tuple(f"{path}." for rule, _case in cases for path in rule.decided_types)
    for use, reason in comparison.unfollowed:
        if is_needed_by_grpo(use) and not f"{use.text}.".startswith(settled_paths):
            yield "undecided", use.text, f"a rule in rules.toml ({reason}, {use.file}:{use.line})"


def _moment(item: MissingUse) -> str:
    return "when called" if item.use.late else "at import"


def _missing_line(item: MissingUse) -> str:
    return f"{item.use.text}: {item.why} ({item.location}, {_moment(item)})"


LAYERS = (
    Layer(
        name="contract",
        question="Does this vLLM's source provide what the trainer uses: names, arguments, routes, options, behaviour?",
        evidence=EvidenceLevel.STATIC,
        check=lambda _, cell: compare_releases(
            Release(cell.trainer, cell.version), Release("vllm", cell.vllm)
        ),
        # The entries of the packages are data.
        code=(__name__, "diagnostics.api_index", "diagnostics.data.api"),
    ),
)
