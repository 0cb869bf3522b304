"""Compare what a trainer uses with what an engine release provides."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from diagnostics.matrix.api.rules import Rule, Ruling, apply_rules
from diagnostics.matrix.api.surface import Definition, Surface, registered_routes
from diagnostics.matrix.api.uses import CLIENT, LAUNCHER, Use, collect_uses
from diagnostics.matrix.wheels import Sources

# The files of TRL that a GRPO run uses. Those of other trainers (online DPO, RLOO …) are compared too, but what they
# miss is only a remark.
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
_CONFIG = "trl/trainer/grpo_config.py"


def is_grpo_file(file: str) -> bool:
    """Return whether a GRPO run uses a file."""
    return any(fnmatch.fnmatch(file, pattern) for pattern in GRPO_FILES)


@dataclass(frozen=True)
class MissingUse:
    """A use that the engine release does not provide."""

    use: Use
    why: str

    @property
    def location(self) -> str:
        """file:line in the trainer's wheel."""
        return f"{self.use.file}:{self.use.line}"

    @property
    def in_grpo(self) -> bool:
        """Whether a GRPO run can reach it."""
        return is_grpo_file(self.use.file)


@dataclass(frozen=True)
class Undecided:
    """A possible fault of a GRPO run that source could not decide."""

    subject: str
    why: str
    needed: str
    """What would decide it."""


@dataclass
class Comparison:
    """The result."""

    checked: int = 0
    """Number of different uses."""
    missing: list[MissingUse] = field(default_factory=list)
    optional: list[MissingUse] = field(default_factory=list)
    """Missing, and reached only by a run that sets an option."""
    guarded: list[MissingUse] = field(default_factory=list)
    """Missing, but the trainer has an alternative."""
    undecided: list[Undecided] = field(default_factory=list)
    holding: list[Ruling] = field(default_factory=list)
    """Rules of behaviour that hold."""
    elsewhere: list[str] = field(default_factory=list)
    """Not decided, outside of a GRPO run."""


def compare_apis(
    trainer: Sources, engine: Surface, version: Version, rules: tuple[Rule, ...] | None = None
) -> Comparison:
    """Look up every use of the engine in the trainer's source, and apply every rule (None: the project's)."""
    comparison = Comparison()
    uses = _collect_all(trainer, engine, version, comparison)
    lookup = Lookup(engine, _own_routes(trainer))
    unique = (use for use in dict.fromkeys(uses) if use.kind != "arm")
    problems = {use: problem for use in unique if (problem := lookup.problem(use))}
    working = _working_choices(uses, problems)
    for use, problem in problems.items():
        alternative = use.choice is not None and (use.file, use.choice[0]) in working
        _classify(comparison, MissingUse(use, problem), alternative=alternative)
    comparison.checked = len({use.text for use in uses if use.kind != "arm"})
    rulings = apply_rules(trainer, engine.sources, rules)
    for ruling in rulings:
        _add_ruling(comparison, ruling)
    for use, problem in lookup.unfollowed:
        _add_unfollowed(comparison, use, problem, rulings)
    return comparison


def _collect_all(trainer: Sources, engine: Surface, version: Version, comparison: Comparison) -> list[Use]:
    off, uses = options_off_by_default(trainer), []
    for name in sorted(trainer.names()):
        text = trainer.read(name)
        if engine.package not in text and not name.endswith((CLIENT, LAUNCHER)):
            continue
        try:
            uses += collect_uses(text, name, engine.package, version, off)
        except SyntaxError as error:
            reason = f"{name}:{error.lineno} cannot be parsed by this Python: {error.msg}"
            if is_grpo_file(name):
                comparison.undecided.append(Undecided(name, reason, "the matrix run by a newer Python"))
            else:
                comparison.elsewhere.append(reason)
    return uses


def options_off_by_default(trainer: Sources) -> frozenset[str]:
    """Return the trainer's settings whose default is None or False, also without the prefix `vllm_`."""
    names: set[str] = set()
    tree = ast.parse(trainer.read(_CONFIG)) if _CONFIG in trainer.names() else ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            default = node.value
            if isinstance(default, ast.Call):
                keywords = {keyword.arg: keyword.value for keyword in default.keywords}
                default = keywords.get("default", default)
            if isinstance(default, ast.Constant) and default.value in {None, False}:
                names |= {node.target.id, node.target.id.removeprefix("vllm_")}
    return frozenset(names - {"mode"})


def _own_routes(trainer: Sources) -> frozenset[str]:
    """Return the routes of the trainer's own server, if it has one: its client uses that server."""
    files = [name for name in trainer.names() if name.endswith(LAUNCHER)]
    return frozenset(route for name in files for route in registered_routes(ast.parse(trainer.read(name))))


@dataclass
class Lookup:
    """Looks uses up in an engine, and remembers which could not be followed."""

    engine: Surface
    own_routes: frozenset[str] = frozenset()
    unfollowed: list[tuple[Use, str]] = field(default_factory=list)
    """Uses that source does not decide, and how far they were followed."""

    def problem(self, use: Use) -> str:  # noqa: PLR0911 - one line a kind of use
        """Return why the engine does not provide a use, '' if it does or if that is unknown."""
        if use.kind == "route":
            if self.own_routes:
                return "" if use.name in self.own_routes else f"TRL's own server has no route {use.name}"
            return "" if self.engine.has_route(use.name) else f"vLLM's server has no route {use.name}"
        if use.kind == "launch":
            known = self.own_routes or self.engine.has_serve_option(use.name)
            return "" if known else f"`vllm serve` takes no {use.name}"
        definition = self.engine.find(use.module, use.name)
        if definition is None:
            if use.kind not in {"name", "patched"}:
                return ""  # already reported for its import
            has_module = self.engine.has_module(use.module)
            return f"no {use.name} in {use.module}" if has_module else f"no module {use.module}"
        if use.kind == "argument":
            return self._argument(use, definition)
        return self._attribute(use, definition) if use.path else ""

    def _argument(self, use: Use, definition: Definition) -> str:
        keyword = use.path[-1]
        if not isinstance(definition.node, ast.ClassDef) or len(use.path) > 2:
            return ""  # a longer path is looked up as an attribute
        if len(use.path) == 2:
            keywords = self.engine.method_keywords(definition, use.path[0])
            known = keywords is None or keyword in keywords
            return "" if known else f"{use.path[0]}() takes no argument {keyword!r}"
        names, takes_others = self.engine.constructor_keywords(definition)
        if takes_others and use.name == "LLM":
            # LLM passes unknown keywords on to EngineArgs, whose fields are the real signature.
            arguments = self.engine.find(f"{self.engine.package}.engine.arg_utils", "EngineArgs")
            if arguments is not None:
                more, takes_others = self.engine.constructor_keywords(arguments)
                names |= more
        if keyword in names:
            return ""
        if takes_others:
            self.unfollowed.append((use, f"{use.name} passes on arguments that it does not name"))
            return ""
        return f"{use.name} takes no argument {keyword!r}"

    def _attribute(self, use: Use, definition: Definition) -> str:
        """Follow a path of attributes as far as source shows the types."""
        current, path, exact = definition, list(use.path), True
        while current.kind == "module" and path:
            inner = self.engine.find(current.module, path[0])
            if inner is None:
                return f"no {path[0]} in {current.module}"
            current, path = inner, path[1:]
        while path and isinstance(current.node, ast.ClassDef):
            members = self.engine.members(current)
            exists = path[0] in members.names
            if not exists and exact and members.complete:
                return f"{current.node.name} has no {path[0]}"
            types = self.engine.attribute_types(current, path[0]) if exists and len(path) > 1 else []
            if not types:
                if len(path) > 1 or not exists:
                    reached = f"{current.node.name}.{path[0]}" if exists else current.node.name
                    self.unfollowed.append((use, f"followed as far as {reached}"))
                return ""
            # Of several possible types, one that has the next attribute.
            matching = [item for item in types if path[1] in self.engine.members(item[0]).names]
            (current, certain), path = (matching or types)[0], path[1:]
            exact = certain and len(types) == 1
        return ""


def _classify(comparison: Comparison, item: MissingUse, *, alternative: bool) -> None:
    """Add a missing use: guarded, undecided, only with an option, or missing."""
    use = item.use
    if alternative:
        comparison.guarded.append(item)
    elif use.unsure and item.in_grpo:
        reason = f"{item.why}, under a condition on what is installed ({item.location})"
        needed = "that condition decided, by conditions.py or a rule in rules.toml"
        comparison.undecided.append(Undecided(use.text, reason, needed))
    elif use.unsure:
        comparison.guarded.append(item)
    elif use.option:
        comparison.optional.append(item)
    else:
        comparison.missing.append(item)


def _add_ruling(comparison: Comparison, ruling: Ruling) -> None:
    file, _, line = ruling.trl.rpartition(":")
    rule, case = ruling.rule, ruling.case
    if case is None:
        if not rule.option:
            reason = f"{rule.says} ({ruling.trl}): no case fits"
            needed = "this vLLM read, and a case for it in rules.toml"
            comparison.undecided.append(Undecided(rule.subject, reason, needed))
    elif case.outcome == "holds":
        comparison.holding.append(ruling)
    else:
        reason = f"{rule.says}; {case.why} ({ruling.vllm}; {rule.way})"
        use = Use("rule", rule.subject, "", file=file, line=int(line or 0), late=True, option=rule.option)
        (comparison.optional if rule.option else comparison.missing).append(MissingUse(use, reason))


def _add_unfollowed(comparison: Comparison, use: Use, why: str, rulings: Sequence[Ruling]) -> None:
    """Add a path that source does not decide, unless a rule decides it."""
    matching = [
        ruling
        for ruling in rulings
        if any(use.text == path or use.text.startswith(f"{path}.") for path in ruling.rule.settles)
    ]
    if any(ruling.case is not None for ruling in matching):
        return  # the rule has said that it holds or breaks
    if use.option or not is_grpo_file(use.file):
        comparison.elsewhere.append(f"{use.text}: {why}")
    elif not matching:
        needed = "a rule in rules.toml that says where it leads in this release"
        comparison.undecided.append(Undecided(use.text, f"{why} ({use.file}:{use.line})", needed))


def _working_choices(uses: Iterable[Use], problems: dict[Use, str]) -> set[tuple[str, int]]:
    """Return the `try` statements, as (file, number), with at least one arm that works."""
    arms: dict[tuple[str, int], dict[int, bool]] = {}
    for use in uses:
        if use.choice is not None:
            number, arm = use.choice
            states = arms.setdefault((use.file, number), {})
            states[arm] = states.get(arm, True) and use not in problems
    return {key for key, states in arms.items() if any(states.values())}
