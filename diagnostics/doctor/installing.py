"""Installing and removing packages in the environment at hand, as actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from diagnostics.frameworks import FRAMEWORKS, TRAINERS
from diagnostics.report.remedies import Install, Uninstall

if TYPE_CHECKING:
    from diagnostics.facts.environment import Environment

# Modules that are called otherwise than what is installed.
_DISTRIBUTIONS = {
    module.partition(":")[0].partition(".")[0]: each.packages[0]
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
            try:
                asked = Requirement(line)
            except InvalidRequirement:
                continue
            if canonicalize_name(asked.name) == canonicalize_name(name) and asked.specifier:
                return f"{name}{asked.specifier}"
    return name


def install(environment: Environment, *requirements: str, options: tuple[str, ...] = ()) -> Install:
    """What installs something here, by the installer in use."""
    return Install(requirements, environment.installer("install"), options)


def uninstall(environment: Environment, *names: str) -> Uninstall:
    """What removes packages here."""
    return Uninstall(names, environment.installer("uninstall"))
