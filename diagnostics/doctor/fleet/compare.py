"""Differences between nodes as findings: what most have, who has something else, and what follows from it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.catalog.own_codes import finding
from diagnostics.doctor.fixplan import installers
from diagnostics.doctor.fleet.traits import COMPARED, NONE, Trait, package, traits
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Advice, Install, Remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from diagnostics.doctor.fleet.nodes import Node
    from diagnostics.output.findings import Finding

# Traits that differ, each with the nodes by value.
Different = list[tuple[Trait, dict[str, list["Node"]]]]

MOST_NAMED = 8
MOST_LINES = 16
MOST_VALUES = 12
SKEW_S = 1.0
_SOURCES = {
    "NET952": (
        'Read in src/init.cc of NCCL 2.23.4 and newer: "Mismatched NCCL version detected" ends with ncclInvalidUsage.',
    ),
    "CMP952": (
        "Read in Ray 2.60.0, check_version_info: a process of another Python is refused, its last digit included.",
    ),
}
_REMEDIES = {
    "NET952": "The same torch on every node that trains, and the NCCL that it asks for.",
    "CMP951": "The same releases on all nodes that do the same, best from one lock or one image.",
    "CMP952": "The same Python on every node, to the last digit where Ray is used.",
    "CMP953": "Install nodes that do the same from one lock or one image.",
    "ENV951": "The same driver on every node that has GPUs, as the machines' keeper can do.",
    "ENV952": "Leave the odd nodes out, or start on each as many processes as it has GPUs, if the trainer takes that.",
    "ENV953": "Unless it may differ, set it alike: in the launcher's or the job's environment, not in one shell.",
    "ENV954": "Set it alike: ulimit or limits.conf, --shm-size of the container; what starts the run must have it.",
    "ENV955": "Fetch the model on the nodes that lack it, or put the cache on a shared disk.",
    "ENV956": "Nothing, if it is meant to be so.",
    "NET953": "Let a time service set the clocks.",
}
# Of the same code, and another matter.
_BY_SEVERITY = {
    ("ENV956", Severity.ERROR): "Install each node for its own architecture, or leave the odd nodes out.",
    ("NET952", Severity.WARNING): "The same NCCL on every node outside Python's packages, or none there.",
}


def differences(nodes: list[Node]) -> list[Finding]:
    """All differences between the nodes that answered, one finding for each kind."""
    seen = [node for node in nodes if node.facts]
    if len(seen) < 2:
        return []
    among = f"{len(seen)} nodes" if len(seen) == len(nodes) else f"the {len(seen)} nodes that answered"
    bare = _bare(seen)
    # Who has nothing of it is no odd one in each of fifty packages: it is another environment.
    installed = [node for node in seen if node not in bare]
    by_code: dict[tuple[str, Severity], Different] = defaultdict(list)
    for trait in traits(seen):
        groups = _groups(trait, installed if trait.package else seen)
        if len(groups) > 1:
            by_code[trait.code, trait.severity].append((trait, groups))
    found = [
        _finding(code, severity, different, seen, among) for (code, severity), different in by_code.items()
    ]
    found += [_other_environment(bare, installed)] if bare else []
    return [*found, *_packages(installed, among), *_models(seen, among), *_clocks(seen)]


def _bare(nodes: list[Node]) -> list[Node]:
    """Nodes with none of the frameworks that others have."""
    bare = [node for node in nodes if not _frameworks(node)]
    return bare if len(bare) < len(nodes) else []


def _frameworks(node: Node) -> set[str]:
    return set(COMPARED) & set(node.facts.environment.packages) if node.facts else set()


def _other_environment(bare: list[Node], installed: list[Node]) -> Finding:
    there = sorted(set.intersection(*map(_frameworks, installed)) or _frameworks(installed[0]))
    prefixes = [(node, node.facts.environment.prefix) for node in bare if node.facts]
    return finding(
        "CMP951",
        Severity.ERROR,
        known_by="static",
        detail=f"{_who(bare)}: none of {', '.join(there)}, which the other nodes have.",
        evidence=tuple(Evidence(f"examined: {prefix}", node.label) for node, prefix in prefixes),
        remedy=Remedy.of(
            "If that is not the environment that runs there, name the right one: --prefix for all nodes"
            # The nodes of a cluster stand in no list.
            f"{'' if bare[0].word == 'node' else ', prefix=DIR in the list for one'}. Else install it as on the other "
            "nodes."
        ),
    )


def _groups(trait: Trait, nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """The nodes by value, the largest group first; nodes of which it is not known are in none."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        value = trait.of(node)
        if value is not None:
            groups[value].append(node)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].position)))


def sentence(alike: Different, total: int, among: str) -> str:
    """What most have and who has something else, of traits in which the same nodes differ.

    The words are those of "3 of 4 nodes have NCCL 2.26.2; rank 3 (d) has 2.21.5".
    """
    told = []
    parts = list(alike[0][1].values())
    for place, members in enumerate(parts):
        shown = _values(alike, place)
        if place == 0 and len(members) > 1:
            told.append(f"{len(members)} of {among} have {shown}")
        else:
            verb = "has" if len(members) == 1 and members[0].word != "ranks" else "have"
            told.append(f"{_who(members)} {verb} {shown}")
    known = sum(map(len, parts))
    tail = "" if len(parts[0]) * 2 > known else " (no majority)"
    if known < total:
        tail += f"; of {total - known} it is not known"
    return "; ".join(told) + tail + "."


def _values(alike: Different, place: int, *, brief: bool = True) -> str:
    """What the nodes of one part have; in brief a single trait is named for the first part alone."""
    told = []
    for trait, groups in alike[:MOST_VALUES]:
        value = list(groups)[place]
        if value == NONE:
            told.append(f"no {trait.name}")
        elif brief and place and len(alike) == 1:
            told.append(value.removeprefix("="))
        else:
            told.append(_named(trait.name, value))
    more = f" and {len(alike) - MOST_VALUES} more" if len(alike) > MOST_VALUES else ""
    return ", ".join(told) + more


def _alike(different: Different) -> list[Different]:
    """The traits by who differs: one other lock shows in fifty packages, and is one difference."""
    parts: dict[tuple[tuple[int, ...], ...], Different] = defaultdict(list)
    for trait, groups in different:
        parts[tuple(tuple(node.position for node in members) for members in groups.values())].append(
            (trait, groups)
        )
    return list(parts.values())


def _named(name: str, value: str) -> str:
    return f"{name}{value}" if value.startswith("=") else f"{name} {value}"


def _who(members: list[Node]) -> str:
    named = ", ".join(node.label for node in members[:MOST_NAMED])
    return named + (f" and {len(members) - MOST_NAMED} more" if len(members) > MOST_NAMED else "")


def _finding(code: str, severity: Severity, different: Different, nodes: list[Node], among: str) -> Finding:
    parts = _alike(different)
    evidence = [
        Evidence(_values(alike, place, brief=False), _who(members))
        for alike in parts
        for place, members in enumerate(alike[0][1].values())
    ]
    more = f" And {len(parts) - MOST_LINES} more." if len(parts) > MOST_LINES else ""
    advice = _BY_SEVERITY.get((code, severity)) or _REMEDIES[code]
    return finding(
        code,
        severity,
        known_by="static",
        detail=" ".join(sentence(alike, len(nodes), among) for alike in parts[:MOST_LINES]) + more,
        evidence=tuple(evidence[:MOST_LINES]),
        remedy=Remedy((*map(Advice, (advice, *_SOURCES.get(code, ()))), *_installs(different))),
    )


def _odd(groups: dict[str, list[Node]]) -> list[Node]:
    """The nodes that are not of the majority; none where there is none."""
    sizes = [len(members) for members in groups.values()]
    if sizes[0] * 2 <= sum(sizes):
        return []
    return [node for members in list(groups.values())[1:] for node in members]


def _installs(different: Different) -> list[Install]:
    """What brings each odd node to what most have: one command a node, in the words of its own installer."""
    wanted: dict[int, list[str]] = defaultdict(list)
    members: dict[int, Node] = {}
    for trait, groups in different:
        value = next(iter(groups))
        for node in _odd(groups) if trait.package and value != NONE else ():
            wanted[node.position].append(f"{trait.package}=={value}")
            members[node.position] = node
    installs = []
    for position in sorted(wanted)[:MOST_NAMED]:
        facts = members[position].facts
        assert facts
        command = installers.find(facts.environment).install(wanted[position])
        installs.append(replace(command, note=f"on {members[position].label}"))
    if (rest := len(wanted) - MOST_NAMED) > 0:
        installs[-1] = replace(installs[-1], note=f"{installs[-1].note}; and the like on {rest} more")
    return installs


def _packages(nodes: list[Node], among: str) -> list[Finding]:
    """All other packages in one finding: who has a lock of another day differs in fifty."""
    own = {trait.package for trait in traits(nodes)}
    names = sorted({name for node in nodes if node.facts for name in node.facts.environment.packages} - own)
    different = []
    for name in names:
        trait = Trait(name, "CMP953", Severity.INFO, package(name))
        groups = _groups(trait, nodes)
        if len(groups) > 1:
            different.append((trait, groups))
    return [_finding("CMP953", Severity.INFO, different, nodes, among)] if different else []


def _models(nodes: list[Node], among: str) -> list[Finding]:
    """Models that some nodes have in their cache and others have not."""
    if not any(node.models for node in nodes):
        return []
    different = []
    for name in sorted({model for node in nodes for model in node.models}):
        trait = Trait(f"model {name}", "ENV955", Severity.INFO, _has(name))
        groups = _groups(trait, nodes)
        if len(groups) > 1:
            different.append((trait, groups))
    return [_finding("ENV955", Severity.INFO, different, nodes, among)] if different else []


def _has(model: str) -> Callable[[Node], str | None]:
    return lambda node: "in the cache" if model in node.models else NONE


def _clocks(nodes: list[Node]) -> list[Finding]:
    """Nodes whose clock is off by more than SKEW_S from most others, however long their answers took.

    What is known of a clock is an interval: only where two do not meet do the clocks surely differ.
    """
    known = [(node, node.clock) for node in nodes if node.clock]
    told, evidence = [], []
    for node, clock in known:
        gaps = [_gap(clock, other) for member, other in known if member is not node]
        sure = sorted(gap for gap in gaps if gap > SKEW_S)
        if gaps and len(sure) * 2 > len(gaps):
            others = [other for member, other in known if member is not node]
            word = "ahead" if clock[0] > min(other[1] for other in others) else "behind"
            told.append(f"the clock of {node.label} is at least {sure[0]:.1f} s {word}")
            evidence.append(Evidence(f"{clock[0]:+.2f} to {clock[1]:+.2f} s from the clock here", node.label))
    if not told:
        return []
    return [
        finding(
            "NET953",
            Severity.WARNING,
            known_by="static",
            detail="Against most other nodes " + "; ".join(told) + ".",
            evidence=tuple(evidence),
            remedy=Remedy.of(_REMEDIES["NET953"]),
        )
    ]


def _gap(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Seconds between two intervals, 0 or less where they meet."""
    return max(one[0] - other[1], other[0] - one[1])
