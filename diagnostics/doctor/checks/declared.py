"""What vLLM, the trainers and PyTorch declare in their own metadata, against what is installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from diagnostics.catalog.own_codes import finding
from diagnostics.catalog.releases import within
from diagnostics.doctor.checks.known_issues import nothing_to_judge
from diagnostics.doctor.checks.registered import check
from diagnostics.doctor.installing import install
from diagnostics.frameworks import ENGINES, SHOWN, STOOD_ON, TRAINERS
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy

if TYPE_CHECKING:
    from diagnostics.collect.environment import Environment, Package
    from diagnostics.output.findings import Finding

# What ends in an extra, and in nothing that would do without it.
_OF_AN_EXTRA = re.compile(r"""^[^;]*;(?!.*\bor\b).*\bextra *== *["'][\w.-]+["']""")
# Left out of an environment on purpose, or needed for other inputs than text.
_OPTIONAL = {
    "torchvision",
    "torchaudio",
    "torchcodec",
    "xformers",
    "triton",
    "opencv-python-headless",
    "numba",
}
# What their own metadata ask for is imported, or looked up by its release, whenever they are; but not these.
_UNASKED = {*_OPTIONAL, "typer", "typer-slim", "hf-xet", "requests", "multiprocess"}
# transformers compares these with its own requirements before anything else, and raises.
_COMPARED = {
    "filelock", "huggingface-hub", "numpy", "packaging", "pyyaml", "regex", "safetensors", "tokenizers", "tqdm",
}  # fmt: skip


def _nothing_needed(environment: Environment) -> str:
    return "" if environment.needed else nothing_to_judge(environment)


@check("declared requirements", skip=_nothing_needed)
def declared(environment: Environment) -> list[Finding]:
    """Findings where a declared range is left: the trainers' of vLLM, and the requirements of all of them."""
    found = []
    for name in dict.fromkeys((*TRAINERS, *ENGINES, "torch", *STOOD_ON, *environment.needed)):
        package = environment.packages.get(name)
        if package is not None:
            found += _requirements(environment, package)
    return found


def _requirements(environment: Environment, package: Package) -> list[Finding]:
    found: list[Finding] = []
    windows: list[Requirement] = []
    missing: list[str] = []
    unmet: list[tuple[str, str]] = []
    for line in package.requires:
        # Most are of extras that nobody asks for; reading them took longer than all else of this check.
        if _OF_AN_EXTRA.search(line) and not (package.name in TRAINERS and line.startswith("vllm")):
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        name = canonicalize_name(requirement.name)
        if package.name in TRAINERS and name == "vllm":
            windows.append(requirement)
        elif _applies(environment, requirement):
            version = environment.version(name)
            if version is None:
                missing += [] if name in _OPTIONAL else [name]
            elif not within(version, requirement.specifier):
                unmet.append((f"{requirement.name}{requirement.specifier}", version))
    found += _window(environment, package, windows)
    if unmet:
        found.append(_unmet(environment, package, sorted(unmet)))
    if missing:
        found.append(_missing(environment, package, sorted(missing)))
    return found


def _applies(environment: Environment, requirement: Requirement) -> bool:
    if requirement.marker is None:
        return True
    release = environment.python.split(",")[0].strip()
    minor = ".".join(release.split(".")[:2])
    return requirement.marker.evaluate({"extra": "", "python_version": minor, "python_full_version": release})


def _window(environment: Environment, trainer: Package, windows: list[Requirement]) -> list[Finding]:
    """A finding where none of the ranges of vLLM that a trainer's extras name has the installed one."""
    vllm = environment.vllm
    named = [requirement for requirement in windows if requirement.specifier]
    if vllm is None or not named or any(within(vllm.version, w.specifier) for w in named):
        return []
    ranges = " or ".join(f"vllm{requirement.specifier}" for requirement in named)
    return [
        finding(
            "CMP903",
            Severity.WARNING,
            known_by="declared",
            detail=f"{SHOWN[trainer.name]} {trainer.version} declares {ranges}; installed is {vllm.version}.",
            evidence=(
                *(Evidence(f"Requires-Dist: {one}", f"{trainer.place}/METADATA") for one in named),
                Evidence(f"{vllm.name} {vllm.version}", vllm.place),
            ),
            remedy=Remedy.of(
                # The table is of TRL alone.
                "Install a vLLM that it declares, unless the compatibility table says that this pair works."
                if trainer.name == "trl"
                else "Install a vLLM that it declares.",
                install(environment, f"{vllm.name}{named[0].specifier}"),
            ),
        )
    ]


def _unmet(environment: Environment, package: Package, unmet: list[tuple[str, str]]) -> Finding:
    told = ", ".join(f"{wanted} (installed: {version})" for wanted, version in unmet)
    compared = [one for one in unmet if package.name == "transformers" and _name(one[0]) in _COMPARED]
    return finding(
        "CMP904",
        Severity.ERROR if compared else Severity.WARNING,
        known_by="declared",
        detail=f"{package.name} {package.version} asks for {told}."
        + (f" When it is imported it looks at {_those(compared)}, and raises." if compared else ""),
        evidence=(
            Evidence(f"{package.name} {package.version} asks for {told}", f"{package.place}/METADATA"),
        ),
        remedy=Remedy.of(
            f"Install what it asks for, or another {package.name}.",
            install(environment, *(wanted for wanted, _ in unmet)),
        ),
    )


def _those(unmet: list[tuple[str, str]]) -> str:
    return " and ".join(_name(wanted) for wanted, _ in unmet)


def _name(wanted: str) -> str:
    return canonicalize_name(Requirement(wanted).name)


def _missing(environment: Environment, package: Package, names: list[str]) -> Finding:
    core = {"torch", "transformers", "ray"} & set(names)
    if package.name in STOOD_ON and package.name != "huggingface-hub":
        core = set(names) - _UNASKED
    return finding(
        "CMP904",
        Severity.ERROR if core else Severity.WARNING,
        known_by="declared",
        detail=f"{package.name} {package.version} asks for packages that are not installed: {', '.join(names)}.",
        evidence=(
            Evidence(
                f"{package.name} {package.version} lacks {', '.join(names)}", f"{package.place}/METADATA"
            ),
        ),
        remedy=Remedy.of(
            "Install it with its requirements.", install(environment, f"{package.name}=={package.version}")
        ),
    )
