"""The declared requirements of installed packages: which are not met, and what to install for a missing module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from diagnostics.collect.packages import Environment, Package
from diagnostics.frameworks import ENGINES, FRAMEWORKS, TRAINER_LIBRARIES, TRAINERS, top_of
from diagnostics.versions import compare, in_range

OPTIONAL = {
    "torchvision", "torchaudio", "torchcodec", "xformers", "triton", "opencv-python-headless", "numba",
}  # fmt: skip
"""Packages that are left out on purpose, or needed only for other inputs than text."""
# A requirement of an extra, without an alternative that applies without extras.
_EXTRA_ONLY = re.compile(r"""^[^;]*;(?!.*\bor\b).*\bextra *== *["'][\w.-]+["']""")
# Modules whose distribution has another name.
_DISTRIBUTIONS = {
    **{
        top_of(module): framework.packages[0]
        for framework in FRAMEWORKS.values() for module in framework.modules
    },
    "cv2": "opencv-python-headless", "PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn", "zmq": "pyzmq",
    "google": "protobuf", "vllm_flash_attn": "vllm", "flash_attn": "flash-attn", "hydra": "hydra-core",
    "dateutil": "python-dateutil", "attr": "attrs", "git": "gitpython", "dotenv": "python-dotenv",
    "ring_flash_attn": "ring-flash-attn",
}  # fmt: skip
# Releases that an installer allows together although a run fails: (package, releases, other package, its releases,
# requirement to add). Wheels of pyarrow from 24 on are built for numpy 2.
_CLASHES = (
    ("numpy", "<2", "pyarrow", ">=24", "pyarrow<24"),
    ("transformers", ">=5.3", "trl", "<0.29", "trl>=0.29"),
)


def distribution_of(module: str) -> str:
    """Return the distribution that provides a module.

    >>> distribution_of("hydra.core"), distribution_of("swift.llm"), distribution_of("tensordict")
    ('hydra-core', 'ms-swift', 'tensordict')
    """
    top = module.partition(".")[0]
    return _DISTRIBUTIONS.get(top, top)


def requirement_of(environment: Environment, name: str) -> str:
    """Return a package with the range that an installed trainer declares for it."""
    for trainer in TRAINERS:
        package = environment.packages.get(trainer)
        for line in package.requires if package else ():
            parsed = parse_requirement(line)
            if parsed and canonicalize_name(parsed.name) == canonicalize_name(name) and parsed.specifier:
                return f"{name}{parsed.specifier}"
    return name


def checked_packages(environment: Environment) -> list[Package]:
    """Return the packages whose requirements are checked, trainers and engines first."""
    names = dict.fromkeys((*TRAINERS, *ENGINES, "torch", *TRAINER_LIBRARIES, *environment.needed))
    return [environment.packages[name] for name in names if name in environment.packages]


def unmet_requirements(environment: Environment, package: Package) -> list[Requirement]:
    """Return the requirements that are not met here, without extras and a trainer's engine; missing packages last."""
    unmet = [
        requirement
        for line in package.requires if not _EXTRA_ONLY.search(line) and (requirement := parse_requirement(line))
        if not _is_engine(package, requirement) and not _is_met(environment, requirement)
        and applies(environment, requirement)
    ]  # fmt: skip
    key = {item: canonicalize_name(item.name) for item in unmet}
    return sorted(unmet, key=lambda item: (environment.version(key[item]) is None, key[item]))


def declared_engines(trainer: Package) -> Iterator[Requirement]:
    """Yield the ranges of vLLM that a trainer declares, extras included."""
    lines = (line for line in trainer.requires if line.startswith("vllm"))
    return (
        item
        for item in map(parse_requirement, lines)
        if item and _is_engine(trainer, item) and item.specifier
    )


def _is_engine(package: Package, requirement: Requirement) -> bool:
    return package.name in TRAINERS and canonicalize_name(requirement.name) == "vllm"


def _is_met(environment: Environment, requirement: Requirement) -> bool:
    name = canonicalize_name(requirement.name)
    version = environment.version(name)
    return name in OPTIONAL if version is None else in_range(version, requirement.specifier)


def applies(environment: Environment, requirement: Requirement) -> bool:
    """Return whether a requirement applies here without extras."""
    if requirement.marker is None:
        return True
    release = environment.python_release
    minor = ".".join(release.split(".")[:2])
    return requirement.marker.evaluate({"extra": "", "python_version": minor, "python_full_version": release})


def without_clashes(environment: Environment, requirements: Iterable[str]) -> tuple[str, ...]:
    """Return requirements, adjusted so that other installed packages keep working.

    A range that also allows working releases is narrowed to them; otherwise the other package is upgraded too.
    """
    required = list(requirements)
    names = {canonicalize_name(item.name) for entry in required if (item := parse_requirement(entry))}
    for name, releases, another, remaining, addition in _CLASHES:
        if another in names or not in_range(environment.version(another) or "", remaining):
            continue
        for place, entry in enumerate(required):
            parsed = parse_requirement(entry)
            if (
                parsed is None
                or canonicalize_name(parsed.name) != name
                or not _range_forces(parsed.specifier, releases)
            ):
                continue
            if releases.startswith(">=") and satisfies_below(parsed.specifier, releases[2:]):
                required[place] = f"{entry},<{releases[2:]}" if parsed.specifier else entry
            else:
                required.append(addition)
    return tuple(required)


def satisfies_below(wanted: SpecifierSet, bound: str) -> bool:
    """Return whether a range allows a release right below a bound, tried by its lower bounds.

    >>> satisfies_below(SpecifierSet(">=4.56.1"), "5.3"), satisfies_below(SpecifierSet(">=5.4"), "5.3")
    (True, False)
    """
    lowest = [item.version for item in wanted if item.operator in {">=", ">"}]
    return not lowest or all(compare(version, bound) == -1 for version in lowest)


def parse_requirement(text: str) -> Requirement | None:
    """Parse a requirement; None if it is none."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _range_forces(wanted: SpecifierSet, releases: str) -> bool:
    """Return whether installing a requirement selects a version in `releases`, a range with one bound.

    >>> _range_forces(SpecifierSet("<2"), "<2"), _range_forces(SpecifierSet("==1.26.4"), "<2")
    (True, True)
    >>> _range_forces(SpecifierSet(">=1"), "<2"), _range_forces(SpecifierSet(">=5"), ">=5.3")
    (False, True)
    """
    pins = [item.version.removesuffix(".*") for item in wanted if item.operator in {"==", "~=", "===", "<="}]
    newest, bound = "9999", releases.lstrip("<>=")
    if pins:
        return any(in_range(pin, releases) for pin in pins)
    if releases.startswith(">"):
        return bool(wanted) and in_range(newest, wanted)
    return not in_range(bound, wanted) and not in_range(newest, wanted)
