"""Holds what a trainer uses against what an engine release offers."""

from __future__ import annotations

import ast
import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.matrix.ask.contract import follow, rules
from diagnostics.matrix.ask.contract.uses import CLIENT, LAUNCHER, Use, collect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from packaging.version import Version

    from diagnostics.matrix.ask.contract.rules import Rule, Ruling
    from diagnostics.matrix.ask.contract.surface import Surface
    from diagnostics.matrix.build.sources import Sources

# The files of TRL that a GRPO run goes through. Other trainers (online DPO, RLOO …) are looked at too, but
# what they miss is a remark: it doesn't stop a GRPO run.
GRPO_FILES = (
    "trl/__init__.py",
    "trl/import_utils.py",
    "trl/trainer/grpo_*.py",
    "trl/trainer/utils.py",
    "trl/trainer/base_trainer.py",
    "trl/models/*.py",
    "trl/generation/*.py",
    "trl/extras/vllm_client.py",
    "trl/extras/profiling.py",
    "trl/scripts/vllm_serve.py",
    "trl/scripts/grpo.py",
    "trl/cli/commands/vllm_serve.py",
)
CONFIG = "trl/trainer/grpo_config.py"


def on_the_way(file: str) -> bool:
    """Tells whether a GRPO run can meet what stands in a file."""
    return any(fnmatch.fnmatch(file, pattern) for pattern in GRPO_FILES)


@dataclass(frozen=True)
class Missing:
    """A use that the engine release doesn't serve."""

    use: Use
    why: str

    @property
    def where(self) -> str:
        """file:line in the trainer's wheel."""
        return f"{self.use.file}:{self.use.line}"

    @property
    def on_the_way(self) -> bool:
        """Whether a GRPO run can meet it."""
        return on_the_way(self.use.file)


@dataclass(frozen=True)
class Undecided:
    """What could hold a fault on the way of a GRPO run, and could not be decided."""

    what: str
    why: str
    would: str
    """What would let it be judged."""


@dataclass
class Contract:
    """The result of the comparison."""

    checked: int = 0
    """Different uses looked up."""
    missing: list[Missing] = field(default_factory=list)
    """Not served and not guarded."""
    optional: list[Missing] = field(default_factory=list)
    """Not served, and reached only by a run that sets an option."""
    guarded: list[Missing] = field(default_factory=list)
    """Not served, but the trainer has an alternative around it."""
    undecided: list[Undecided] = field(default_factory=list)
    settled: list[Ruling] = field(default_factory=list)
    """Rules of behaviour that hold."""
    aside: list[str] = field(default_factory=list)
    """What could not be told off the way of a GRPO run, where it decides nothing."""


def compare(
    trainer: Sources, engine: Surface, version: Version, behaviour: tuple[Rule, ...] | None = None
) -> Contract:
    """Looks up every use of the engine in the trainer's source, and every rule of behaviour (None: the project's)."""
    contract = Contract()
    uses = _uses(trainer, engine, version, contract)
    looked = follow.Looked(engine, follow.own_routes(trainer))
    problems = {use: why for use in dict.fromkeys(uses) if use.kind != "arm" and (why := looked.problem(use))}
    working = _working_choices(uses, problems)
    for use, why in problems.items():
        _place(contract, Missing(use, why), alternative=_alternative(use, working))
    contract.checked = len({use.text for use in uses if use.kind != "arm"})
    ruled = rules.rulings(trainer, engine.sources, behaviour)
    for ruling in ruled:
        _rule(contract, ruling)
    for use, why in looked.unfollowed:
        _unfollowed(contract, use, why, ruled)
    return contract


def _uses(trainer: Sources, engine: Surface, version: Version, contract: Contract) -> list[Use]:
    off, uses = options_off(trainer), []
    for name in sorted(trainer.names()):
        text = trainer.read(name)
        if engine.package not in text and not name.endswith((CLIENT, LAUNCHER)):
            continue
        try:
            uses += collect(text, name, engine.package, version, off)
        except SyntaxError as error:
            why = f"{name}:{error.lineno} is no Python that can be read here: {error.msg}"
            if on_the_way(name):
                contract.undecided.append(Undecided(name, why, "the matrix run by a newer Python"))
            else:
                contract.aside.append(why)
    return uses


def options_off(trainer: Sources) -> frozenset[str]:
    """Returns the fields of the trainer's settings that are None or False unless they are set, also without `vllm_`."""
    if CONFIG not in trainer.names():
        return frozenset()
    found = set()
    for node in ast.walk(ast.parse(trainer.read(CONFIG))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            default = node.value
            if isinstance(default, ast.Call):
                named = {each.arg: each.value for each in default.keywords}
                default = named.get("default", default)
            if isinstance(default, ast.Constant) and default.value in {None, False}:
                found |= {node.target.id, node.target.id.removeprefix("vllm_")}
    return frozenset(found - {"mode"})


def _alternative(use: Use, working: set[tuple[str, int]]) -> bool:
    return use.choice is not None and (use.file, use.choice[0]) in working


def _place(contract: Contract, item: Missing, *, alternative: bool) -> None:
    """Puts what is missing where it belongs: a break, only with an option, guarded, or undecided."""
    use = item.use
    if alternative:
        contract.guarded.append(item)
    elif use.unsure and item.on_the_way:
        why = f"{item.why}, under a condition on what is installed ({item.where})"
        would = "that condition decided, by conditions.py or a rule in rules.toml"
        contract.undecided.append(Undecided(use.text, why, would))
    elif use.unsure:
        contract.guarded.append(item)
    elif use.option:
        contract.optional.append(item)
    else:
        contract.missing.append(item)


def _rule(contract: Contract, ruling: Ruling) -> None:
    file, _, line = ruling.trl.rpartition(":")
    rule, case = ruling.rule, ruling.case
    if case is None:
        if not rule.option:
            would = "this vLLM read, and a case for it in rules.toml"
            contract.undecided.append(
                Undecided(rule.subject, f"{rule.says} ({ruling.trl}): no case fits", would)
            )
    elif case.outcome == rules.HOLDS:
        contract.settled.append(ruling)
    else:
        why = f"{rule.says}; {case.why} ({ruling.vllm}; {rule.way})"
        use = Use("rule", rule.subject, "", (), False, file, int(line or 0), late=True, option=rule.option)
        (contract.optional if rule.option else contract.missing).append(Missing(use, why))


def _unfollowed(contract: Contract, use: Use, why: str, ruled: Sequence[Ruling]) -> None:
    """A path that source doesn't follow to its end is settled by a rule, or decides nothing, or is undecided."""
    said = [one for one in ruled if any(_leads(path, use.text) for path in one.rule.settles)]
    if any(one.case is not None for one in said):
        return  # it holds, or the rule has said that it breaks
    if use.option or not on_the_way(use.file):
        contract.aside.append(f"{use.text}: {why}")
    elif not said:
        would = "a rule in rules.toml that says where it leads in this release"
        contract.undecided.append(Undecided(use.text, f"{why} ({use.file}:{use.line})", would))


def _leads(path: str, text: str) -> bool:
    return text == path or text.startswith(f"{path}.")


def _working_choices(uses: Iterable[Use], problems: dict[Use, str]) -> set[tuple[str, int]]:
    """Returns the `try` statements, as (file, number), of which at least one arm works wholly."""
    arms: dict[tuple[str, int], dict[int, bool]] = {}
    for use in uses:
        if use.choice is not None:
            number, arm = use.choice
            state = arms.setdefault((use.file, number), {})
            state[arm] = state.get(arm, True) and use not in problems
    return {key for key, state in arms.items() if any(state.values())}
