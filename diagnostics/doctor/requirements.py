"""Read the requirements of installed packages and of fixes, find unmet ones, and test whether ranges overlap.

`unmet_requirements` returns the unmet requirements of a package, and `install_constraints` those of an install action.
`distribution_of` maps a module to its distribution. `adjust_for_installed` changes an installation that would pair
releases that fail together.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from diagnostics import frameworks
from diagnostics.collect.metadata_validation import is_install_word, is_safe_to_parse
from diagnostics.collect.python_environment import Environment, Package
from diagnostics.findings import Finding
from diagnostics.fixes import Advice, Explain, Install
from diagnostics.frameworks import ENGINE_PACKAGES, FRAMEWORKS, TRAINER_LIBRARIES, TRAINER_PACKAGES
from diagnostics.versions import CLASHES, in_range, may_allow, satisfiable

OPTIONAL = {
    "torchvision", "torchaudio", "torchcodec", "xformers", "triton", "opencv-python-headless", "numba",
}  # fmt: skip
"""Packages that many environments lack on purpose, or that only inputs other than text need."""
# A requirement that applies only with an extra.
_EXTRA_ONLY = re.compile(r"""^[^;]*;(?!.*\bor\b).*\bextra *== *["'][\w.-]+["']""")
# Modules whose distribution has another name.
_DISTRIBUTIONS = {
    **{
        frameworks.top_level_package(module): framework.packages[0]
        for framework in FRAMEWORKS.values() for module in framework.modules
    },
    "cv2": "opencv-python-headless", "PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn", "zmq": "pyzmq",
    "google": "protobuf", "vllm_flash_attn": "vllm", "flash_attn": "flash-attn", "hydra": "hydra-core",
    "dateutil": "python-dateutil", "attr": "attrs", "git": "gitpython", "dotenv": "python-dotenv",
    "flash_attn_2_cuda": "flash-attn", "ring_flash_attn": "ring-flash-attn",
}  # fmt: skip


@dataclass(frozen=True)
class Constraint:
    """A range of versions that a package must be in.

    Attributes:
        source: Origin of the constraint: a package with its version, or the code of a finding.
        name: The required package, normalised.
        versions: A version range, empty for any version.
        known_by: declared, static or executed.
        code: Code of the finding that requires the package; empty if none does.
    """

    source: str
    name: str
    versions: str
    known_by: str = "declared"
    code: str = ""

    def allows(self, version: str | None) -> bool:
        """Return whether a version satisfies the constraint; an unreadable one is allowed, None is not."""
        return version is not None and may_allow(self.versions, version)

    def __str__(self) -> str:
        return f"{self.source} needs {self.name}{self.versions}"


def violated_constraints(constraints: Iterable[Constraint], versions: Mapping[str, str]) -> list[Constraint]:
    """Return the constraints that these versions violate; a package without a version here violates none."""
    return [item for item in constraints if item.name in versions and not item.allows(versions[item.name])]


def distribution_of(module: str) -> str:
    """Return the distribution that provides a module.

    >>> distribution_of("hydra.core"), distribution_of("swift.llm"), distribution_of("tensordict")
    ('hydra-core', 'ms-swift', 'tensordict')
    """
    top = module.partition(".")[0]
    return _DISTRIBUTIONS.get(top, top)


def parse_requirement(text: str) -> Requirement | None:
    """Parse a requirement; None if it is invalid, not safe to parse, or has a version that PEP 440 does not allow."""
    try:
        parsed = Requirement(text) if is_safe_to_parse(text) else None
    except InvalidRequirement:
        return None
    return parsed if parsed and is_install_word(f"{parsed.name}{parsed.specifier}") else None


def requirement_of(environment: Environment, name: str) -> str:
    """Return `name` with the range that an installed trainer declares for it; without such a range, only `name`."""
    for trainer in TRAINER_PACKAGES:
        package = environment.packages.get(trainer)
        for line in package.requires if package else ():
            parsed = parse_requirement(line)
            if parsed and canonicalize_name(parsed.name) == canonicalize_name(name) and parsed.specifier:
                return f"{name}{parsed.specifier}"
    return name


def checked_packages(environment: Environment) -> list[Package]:
    """Return the installed packages whose requirements are checked, trainers and engines first."""
    first = (*TRAINER_PACKAGES, *ENGINE_PACKAGES, "torch", *TRAINER_LIBRARIES)
    names = dict.fromkeys((*first, *environment.needed))
    return [environment.packages[name] for name in names if name in environment.packages]


def unmet_requirements(environment: Environment, package: Package) -> list[Requirement]:
    """Return the unmet requirements of a package, those for missing packages last.

    Requirements of extras, missing packages in OPTIONAL, a trainer's requirement for vLLM, and requirements that do not
    apply here or cannot be parsed are left out.
    """
    unmet = [
        requirement
        for line in package.requires
        if not _EXTRA_ONLY.search(line) and (requirement := parse_requirement(line))
        if not _is_vllm_of_trainer(package, requirement)
        and not _is_met(environment, requirement)
        and applies(environment, requirement)
    ]
    key = {item: canonicalize_name(item.name) for item in unmet}
    return sorted(unmet, key=lambda item: (environment.version(key[item]) is None, key[item]))


def vllm_requirements(trainer: Package) -> list[Requirement]:
    """Return the version ranges that a trainer declares for vLLM, including those of extras."""
    parsed = (parse_requirement(line) for line in trainer.requires if line.startswith("vllm"))
    return [item for item in parsed if item and _is_vllm_of_trainer(trainer, item) and item.specifier]


def _is_vllm_of_trainer(package: Package, requirement: Requirement) -> bool:
    return package.name in TRAINER_PACKAGES and canonicalize_name(requirement.name) == "vllm"


def _is_met(environment: Environment, requirement: Requirement) -> bool:
    name = canonicalize_name(requirement.name)
    version = environment.version(name)
    return name in OPTIONAL if version is None else in_range(version, requirement.specifier)


def applies(environment: Environment, requirement: Requirement) -> bool:
    """Return whether a requirement applies here without extras; False if its marker cannot be evaluated."""
    if requirement.marker is None:
        return True
    release = environment.python_release
    minor = ".".join(release.split(".")[:2])
    values = {"extra": "", "python_version": minor, "python_full_version": release}
    try:
        return requirement.marker.evaluate(values)
    except (ValueError, KeyError):  # the marker cannot be evaluated, so it counts like an invalid requirement
        return False


def constraints_on(environment: Environment, names: Iterable[str]) -> list[Constraint]:
    """Return the version ranges of the named packages that installed packages require, without those of extras."""
    required = set(names)
    return [
        Constraint(str(package), name, str(item.specifier))
        for package in environment.packages.values()
        for line in package.requires
        if (item := parse_requirement(line)) and (name := canonicalize_name(item.name)) in required
        if item.specifier and applies(environment, item)
    ]


def install_constraints(code: str, action: Install, known_by: str) -> list[Constraint]:
    """Return the requirements of an install action; none if one is unreadable, or if the action has options.

    >>> [str(each) for each in install_constraints("CMP999", Install(("numpy<2",)), "static")]
    ['CMP999 needs numpy<2']
    """
    parsed = [parse_requirement(text) for text in (() if action.options else action.requirements)]
    ranges = [(canonicalize_name(item.name), str(item.specifier)) for item in parsed if item]
    if len(ranges) < len(parsed):
        return []
    return [Constraint(code, name, versions, known_by, code) for name, versions in ranges]


def finding_constraints(finding: Finding) -> list[Constraint]:
    """Return the requirements of a finding's fix; none if an action has options, is unreadable or no install."""
    changes = [action for action in finding.actions if not isinstance(action, Advice | Explain)]
    installs = [action for action in changes if isinstance(action, Install)]
    constraints = [install_constraints(finding.code, action, finding.known_by) for action in installs]
    if len(installs) < len(changes) or not all(constraints):
        return []
    return [item for required in constraints for item in required]


def adjust_for_installed(environment: Environment, requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements of an installation, changed if their releases fail with installed ones (`CLASHES`).

    A range that reaches failing newer releases is narrowed. If no release in the range works, a requirement that
    replaces the installed package is added.
    """
    required = list(requirements)
    parsed = [parse_requirement(entry) for entry in required]
    names = [canonicalize_name(item.name) if item else "" for item in parsed]
    for clash in CLASHES:
        companion = clash.companion
        if companion in names or not in_range(environment.version(companion) or "", clash.companion_versions):
            continue
        for index, (name, item) in enumerate(zip(names, parsed, strict=True)):
            if name != clash.package or item is None or not item.specifier:
                continue
            if not satisfiable([str(item.specifier), clash.others]):
                required.append(clash.replacement)
            elif clash.versions.startswith(">") and satisfiable([str(item.specifier), clash.versions]):
                required[index] += f",{clash.others}"
    return tuple(required)
