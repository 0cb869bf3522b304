"""Installing and removing packages in the environment at hand, as actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from diagnostics.frameworks import FRAMEWORKS, TRAINERS, top_of
from diagnostics.output.remedies import Install, Uninstall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.collect.environment import Environment

# What puts a package back that an installer takes for installed.
ANEW = ("--force-reinstall", "--no-deps")
# Modules that are called otherwise than what is installed.
_DISTRIBUTIONS = {
    top_of(module): each.packages[0]
    for each in FRAMEWORKS.values()
    for module in each.modules
} | {
    "cv2": "opencv-python-headless", "PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn", "zmq": "pyzmq",
    "google": "protobuf", "vllm_flash_attn": "vllm", "flash_attn": "flash-attn", "hydra": "hydra-core",
    "dateutil": "python-dateutil", "attr": "attrs", "git": "gitpython", "dotenv": "python-dotenv",
    "ring_flash_attn": "ring-flash-attn",
}  # fmt: skip


def distribution_of(module: str) -> str:
    """What is installed to have a module.

    >>> distribution_of("hydra.core"), distribution_of("swift.llm"), distribution_of("tensordict")
    ('hydra-core', 'ms-swift', 'tensordict')
    """
    top = module.partition(".")[0]
    return _DISTRIBUTIONS.get(top, top)


def requirement(environment: Environment, name: str) -> str:
    """A package in the releases that an installed trainer asks for, where one does."""
    for trainer in TRAINERS:
        package = environment.packages.get(trainer)
        for line in package.requires if package else ():
            asked = _read(line)
            if asked and canonicalize_name(asked.name) == canonicalize_name(name) and asked.specifier:
                return f"{name}{asked.specifier}"
    return name


# What an installer allows together and no run survives: (package, its releases, who dies of them, whose releases,
# what is asked for beside it). Wheels of pyarrow from 24 on are built for numpy 2.
_CLASHES = (
    ("numpy", "<2", "pyarrow", ">=24", "pyarrow<24"),
    ("transformers", ">=5", "trl", "<0.29", "trl>=0.29"),
)


def without_clashes(environment: Environment, requirements: Iterable[str]) -> tuple[str, ...]:
    """Requirements, and what has to be asked for beside them so that what stays does not die of them."""
    asked = tuple(requirements)
    named: dict[str, SpecifierSet] = {
        canonicalize_name(each.name): each.specifier for one in asked if (each := _read(one))
    }
    added = []
    for name, releases, other, its, beside in _CLASHES:
        there = environment.version(other)
        moved = name in named and _only(named[name], releases)
        if (
            moved
            and other not in named
            and there is not None
            and SpecifierSet(its).contains(there, prereleases=True)
        ):
            added.append(beside)
    return (*asked, *added)


def _read(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _only(asked: SpecifierSet, releases: str) -> bool:
    """Whether a range holds releases of the other one alone, by the bounds that are usual in either.

    >>> _only(SpecifierSet("<2"), "<2"), _only(SpecifierSet("==1.26.4"), "<2"), _only(SpecifierSet(">=1"), "<2")
    (True, True, False)
    """
    bound = SpecifierSet(releases)
    inside = [one.version.removesuffix(".*") for one in asked if one.operator in {"==", "~=", "===", "<="}]
    return str(bound) in {str(one) for one in asked} or any(
        bound.contains(version, prereleases=True) for version in inside
    )


def install(environment: Environment, *requirements: str, options: tuple[str, ...] = ()) -> Install:
    """What installs something here, by the installer in use."""
    return Install(without_clashes(environment, requirements), environment.installer("install"), options)


def uninstall(environment: Environment, *names: str) -> Uninstall:
    """What removes packages here."""
    return Uninstall(names, environment.installer("uninstall"))
