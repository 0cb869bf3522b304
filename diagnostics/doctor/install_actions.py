"""Actions that install and remove packages in the examined environment."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from diagnostics.collect.packages import Environment
from diagnostics.fixes import Install, Uninstall
from diagnostics.frameworks import FRAMEWORKS, TRAINERS, top_of
from diagnostics.versions import compare, in_range

REINSTALL = ("--force-reinstall", "--no-deps")
"""Options that restore a package which the installer takes for installed."""
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


def without_clashes(environment: Environment, requirements: Iterable[str]) -> tuple[str, ...]:
    """Return requirements, changed so that the packages that stay keep working.

    A range that also allows working releases is narrowed to them; otherwise the other package is moved too.
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
                or not _moves_into(parsed.specifier, releases)
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


def _moves_into(wanted: SpecifierSet, releases: str) -> bool:
    """Return whether installing a range ends in the other range, which has one bound.

    >>> _moves_into(SpecifierSet("<2"), "<2"), _moves_into(SpecifierSet("==1.26.4"), "<2")
    (True, True)
    >>> _moves_into(SpecifierSet(">=1"), "<2"), _moves_into(SpecifierSet(">=5"), ">=5.3")
    (False, True)
    """
    pins = [item.version.removesuffix(".*") for item in wanted if item.operator in {"==", "~=", "===", "<="}]
    newest, bound = "9999", releases.lstrip("<>=")
    if pins:
        return any(in_range(pin, releases) for pin in pins)
    if releases.startswith(">"):
        return bool(wanted) and in_range(newest, wanted)
    return not in_range(bound, wanted) and not in_range(newest, wanted)


def install(environment: Environment, *requirements: str, options: tuple[str, ...] = ()) -> Install:
    """Return the command that installs requirements here, with the installer in use."""
    return Install(
        without_clashes(environment, requirements), installer_words(environment, "install"), options
    )


def uninstall(environment: Environment, *names: str) -> Uninstall:
    """Return the command that removes packages here."""
    return Uninstall(names, installer_words(environment, "uninstall"))


def installer_words(environment: Environment, action: str) -> tuple[str, ...]:
    """Return the installer command that fits most packages' INSTALLER files."""
    installers = [package.installer for package in environment.packages.values() if package.installer]
    usual = (
        environment.vllm.installer if environment.vllm else max(installers, key=installers.count, default="")
    )
    if usual == "uv":
        return ("uv", "pip", action, "--python", environment.prefix)
    return (f"{environment.prefix}/bin/python", "-m", "pip", action)
