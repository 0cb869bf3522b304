"""Layer `contract`: check, without running them, whether this vLLM provides what the trainer's source uses.

For TRL, both wheels are read, from local folders, a cache or the package index: names, arguments, routes and options
are compared, and rules about vLLM's behaviour are applied. A name that only TRL's other trainers miss does not fail the
layer. If no name is missing, uses that the source leaves open give NOT_CHECKED. For other trainers, the API index is
read, which has names and arguments; missing names that only functions use give NOT_CHECKED. Without a wheel or an index
entry, the answer is NOT_RUN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from packaging.version import Version

from diagnostics.api_index import query
from diagnostics.api_index.compare import Comparison, MissingUse, compare, fields_off_by_default
from diagnostics.api_index.extract import extract
from diagnostics.api_index.rules import Rule, Ruling, apply_rules, is_grpo_file
from diagnostics.api_index.surface import SourceFacts, Sources, Surface
from diagnostics.api_index.uses import TRL_CLIENT, TRL_LAUNCHER, Use, collect_uses
from diagnostics.matrix.cells import Cell
from diagnostics.matrix.context import Context
from diagnostics.matrix.layers.layer import Layer
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.matrix.wheels import WheelError, WheelSources, find_wheel

# Number of releases whose parsed sources stay in memory: each takes tens of megabytes, and successive cells share them.
CACHED_RELEASES = 2
_CONFIG = "trl/trainer/grpo_config.py"


@dataclass(frozen=True)
class Undecided:
    """A possible fault of a GRPO run that the source does not decide."""

    subject: str
    why: str
    needed: str
    """What is needed to decide whether there is a fault."""


@dataclass
class Contract(Comparison):
    """The comparison of a TRL release with a vLLM release, and what it leaves undecided."""

    undecided: list[Undecided] = field(default_factory=list)
    holding: list[Ruling] = field(default_factory=list)
    """Rules about vLLM's behaviour that hold in this release."""


def compare_apis(
    trainer: Sources, engine: Surface, version: Version, rules: tuple[Rule, ...] | None = None
) -> Contract:
    """Compare the uses of vLLM in the trainer's source with vLLM's, and apply rules (None for the project's rules)."""
    assert isinstance(engine.source, SourceFacts)
    uses, unparsed = _collect_uses(trainer)
    off = fields_off_by_default(trainer.read(_CONFIG)) if _CONFIG in trainer.names() else frozenset()
    own_routes = _own_routes(trainer)
    contract = Contract(**vars(compare(uses, engine, {"vllm": version}, off=off, own_routes=own_routes)))
    for file, reason in unparsed.items():
        if is_grpo_file(file):
            contract.undecided.append(Undecided(file, reason, "the matrix run by a newer Python"))
    for item in contract.unsure:
        if is_grpo_file(item.use.file):
            reason = f"{item.why}, under a condition on what is installed ({item.location})"
            needed = "that condition decided, by uses.py or a rule in rules.toml"
            contract.undecided.append(Undecided(item.use.text, reason, needed))
        else:
            contract.guarded.append(item)
    rulings = apply_rules(trainer, engine.source.sources, rules)
    for ruling in rulings:
        _add_ruling(contract, ruling)
    # A rule about a path has already said that it holds or breaks, or that no case of the rule fits this engine.
    settled_paths = [f"{path}." for ruling in rulings for path in ruling.rule.decided_types]
    for use, reason in contract.unfollowed:
        if (
            is_grpo_file(use.file)
            and not use.option(off)
            and not f"{use.text}.".startswith(tuple(settled_paths))
        ):
            needed = "a rule in rules.toml that says where it leads in this release"
            contract.undecided.append(Undecided(use.text, f"{reason} ({use.file}:{use.line})", needed))
    return contract


def _collect_uses(trainer: Sources) -> tuple[list[Use], dict[str, str]]:
    """Return the uses of vLLM in the trainer's files, and for each unparsable file the reason."""
    uses, unparsed = [], {}
    for name in sorted(trainer.names()):
        text = trainer.read(name)
        if "vllm" in text or name.endswith((TRL_CLIENT, TRL_LAUNCHER)):
            try:
                uses += collect_uses(text, name, {"vllm"})
            except SyntaxError as error:
                unparsed[name] = f"{name}:{error.lineno} cannot be parsed by this Python: {error.msg}"
    return uses, unparsed


def _own_routes(trainer: Sources) -> frozenset[str]:
    """Return the routes of the trainer's own server, if it has one, because then its client uses these."""
    files = [name for name in trainer.names() if name.endswith(TRL_LAUNCHER)]
    names = [name for file in files for name in extract(trainer.read(file), file)]
    return frozenset(name.removeprefix("route:") for name in names if name.startswith("route:"))


def _add_ruling(contract: Contract, ruling: Ruling) -> None:
    """Add what a rule about behaviour decided: it holds, it breaks, or no case of it fits.

    A rule about an option adds nothing if no case fits, and does not count as missing if it breaks.
    """
    file, _, line = ruling.trl.rpartition(":")
    rule, case = ruling.rule, ruling.case
    if case is None:
        if not rule.option:
            reason = f"{rule.statement} ({ruling.trl}): no case fits"
            needed = "this vLLM read, and a case for it in rules.toml"
            contract.undecided.append(Undecided(rule.subject, reason, needed))
    elif case.outcome == "holds":
        contract.holding.append(ruling)
    else:
        reason = f"{rule.statement}; {case.why} ({ruling.vllm}; {rule.affected_runs})"
        use = Use("rule", rule.subject, "", file=file, line=int(line or 0), late=True)
        (contract.optional if rule.option else contract.missing).append(MissingUse(use, reason, rule.option))


@lru_cache(CACHED_RELEASES)
def _parse_engine(engine: WheelSources) -> Surface:
    """Return vLLM's parsed source, cached for the last two releases."""
    return Surface(SourceFacts(engine), "vllm")


def _check(context: Context, cell: Cell) -> Answer:
    """Compare the wheels of TRL and vLLM; for another trainer, compare their entries in the API index."""
    if cell.trainer != "trl":
        return indexed_answer(cell)
    cache = context.folder("wheels")
    context.show_status("reading the source of both wheels")
    try:
        trainer = find_wheel("trl", cell.version, cache=cache, environ=context.environ)
        engine = find_wheel("vllm", cell.vllm, cache=cache, environ=context.environ)
        return contract_answer(compare_apis(trainer, _parse_engine(engine), Version(cell.vllm)))
    except WheelError as error:
        return Answer(Outcome.NOT_RUN if error.absent else Outcome.INFRA_ERROR, str(error))


def indexed_answer(cell: Cell) -> Answer:
    """Return the answer for a trainer other than TRL, from the API index.

    Names that only functions use give NOT_CHECKED, because it is not known which functions a run calls.
    """
    user, provider = query.Release(cell.trainer, cell.version), query.Release("vllm", cell.vllm)
    comparison = query.compare_names(user, provider)
    if comparison is None:
        return Answer(Outcome.NOT_RUN, f"the API index cannot compare {user} and {provider}")
    missing = comparison.missing
    outcome = Outcome.PASS
    summary = f"all {comparison.checked} uses of vLLM that the API index has are provided"
    if missing:
        outcome = Outcome.FAIL
        names = ", ".join(sorted({item.use.text for item in missing}))
        summary = f"{len(missing)} of {comparison.checked} uses of vLLM lack their name: {names}"
        if not query.missing_at_import(comparison):
            outcome = Outcome.NOT_CHECKED
            summary = f"{summary}; needed: a run that calls these functions"
    return Answer(
        outcome,
        summary,
        signs=tuple(map(_missing_line, missing)),
        facts=tuple(("missing", item.use.text, _moment(item)) for item in missing),
        details=tuple(f"missing: {_missing_line(item)}" for item in missing),
    )


def contract_answer(contract: Contract) -> Answer:
    """Return the answer for the comparison of a TRL release with a vLLM release."""
    blocking = [item for item in contract.missing if is_grpo_file(item.use.file)]
    elsewhere = [item for item in contract.missing if not is_grpo_file(item.use.file)]
    outcome, summary = _conclusion(contract, blocking, len(elsewhere))
    details = (
        *(f"missing: {_missing_line(item)}" for item in blocking),
        *(f"not checked: {_undecided_line(item)}" for item in contract.undecided),
        *(f"missing, with {item.option} only: {_missing_line(item)}" for item in contract.optional),
        *(f"missing, but not used by GRPO: {_missing_line(item)}" for item in elsewhere),
        *(f"missing, but guarded: {_missing_line(item)}" for item in contract.guarded),
        *(
            f"holds: {ruling.rule.statement}; {ruling.case.why} ({ruling.trl}; {ruling.vllm})"
            for ruling in contract.holding
            if ruling.case
        ),
    )
    return Answer(
        outcome,
        summary,
        signs=(*map(_missing_line, blocking), *map(_undecided_line, contract.undecided)),
        facts=(
            *(("missing", item.use.text, _moment(item)) for item in blocking),
            *(("undecided", item.subject, item.needed) for item in contract.undecided),
        ),
        details=details,
    )


def _conclusion(contract: Contract, blocking: list[MissingUse], elsewhere: int) -> tuple[Outcome, str]:
    """Return the outcome and summary: FAIL for missing names, NOT_CHECKED for undecided ones, else PASS."""
    checked, undecided = contract.checked, contract.undecided
    if blocking:
        names = sorted({item.use.text for item in blocking})
        summary = (
            f"{len(names)} of {checked} things that TRL uses are missing in this vLLM: {', '.join(names)}"
        )
        return Outcome.FAIL, summary + (f"; {len(undecided)} not checked" if undecided else "")
    if undecided:
        names = list(dict.fromkeys(item.subject for item in undecided))
        summary = f"{len(names)} of {checked} things that TRL uses not checked: {', '.join(names)}"
        return Outcome.NOT_CHECKED, f"{summary}; needed: {undecided[0].needed}"
    counts = (
        (len(contract.holding), "of them by rules of behaviour"),
        (len(contract.optional), "missing with an option only"),
        (len(contract.guarded), "missing but guarded"),
        (elsewhere, "missing in other trainers"),
    )
    parts = [f"all {checked} things that TRL uses are provided"]
    return Outcome.PASS, "; ".join([*parts, *(f"{count} {text}" for count, text in counts if count)])


def _moment(item: MissingUse) -> str:
    return "when called" if item.use.late else "at import"


def _missing_line(item: MissingUse) -> str:
    return f"{item.use.text}: {item.why} ({item.location}, {_moment(item)})"


def _undecided_line(item: Undecided) -> str:
    return f"{item.subject}: {item.why}; needed: {item.needed}"


LAYERS = (
    Layer(
        name="contract",
        question="Does this vLLM's source provide what TRL uses: names, arguments, routes, options, behaviour?",
        evidence=EvidenceLevel.STATIC,
        check=_check,
        code=(__name__, "diagnostics.api_index"),
    ),
)
