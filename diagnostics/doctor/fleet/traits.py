"""What of a node is compared with the others: traits by name, in the order of what follows from a difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.frameworks import ENGINES, TRAINERS
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.collect.collection import Facts
    from diagnostics.doctor.fleet.nodes import Node

NONE = "none"
COMPARED = (*ENGINES, "torch", "ray", *TRAINERS, "transformers", "deepspeed", "flash-attn")
# They differ from node to node where everything is as it should be.
OWN_VARIABLES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE", "VLLM_HOST_IP", "TMPDIR",
    "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_WORKER_ID", "RAY_NODE_ID", "RAY_NODE_IP_ADDRESS",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING", "RAY_PROCESS_STARTUP_TOKEN", "RAY_ADDRESS",
}  # fmt: skip
_HEAVY = (
    "NCCL_",
    "VLLM_",
    "GLOO_",
    "MASTER_",
    "PYTORCH_",
    "TORCH",
    "CUDA_",
    "RAY_",
    "VERL_",
    "LD_",
    "WORLD_SIZE",
)


@dataclass(frozen=True)
class Trait:
    """One thing to compare.

    Attributes:
        name: As a sentence has it: "3 of 4 nodes have NAME VALUE".
        code: Of the finding that a difference is.
        of: Reads it; None where it is not known of a node.
    """

    name: str
    code: str
    severity: Severity
    of: Callable[[Node], str | None]
    package: str = ""


def traits(nodes: list[Node]) -> list[Trait]:
    """All traits that nodes of this fleet have."""
    facts = [node.facts for node in nodes if node.facts]
    packages = {name for one in facts for name in one.environment.packages}
    variables = {name for one in facts for name in one.environment.variables} - OWN_VARIABLES
    limits = {name for one in facts for name in one.machine.limits}
    return [
        *_nccl(packages),
        *_frameworks(packages),
        Trait("Python", "CMP952", Severity.ERROR, _facts(lambda one: one.environment.python)),
        *_gpus_and_driver(),
        *(Trait(name, "ENV953", _grave(name), _variable(name)) for name in sorted(variables)),
        *(Trait(f"limit of {name}", "ENV954", Severity.WARNING, _limit(name)) for name in sorted(limits)),
        Trait("shared memory", "ENV954", Severity.WARNING, _facts(_shared_memory)),
        Trait("architecture", "ENV956", Severity.ERROR, _facts(lambda one: one.machine.architecture)),
        Trait("C library", "ENV956", Severity.INFO, _facts(lambda one: one.machine.libraries.libc or None)),
        Trait("kernel", "ENV956", Severity.INFO, _facts(lambda one: one.machine.kernel)),
        Trait("processors", "ENV956", Severity.INFO, _facts(lambda one: str(one.machine.processors.count))),
        Trait("memory", "ENV956", Severity.INFO, _facts(_memory)),
    ]


def _nccl(packages: set[str]) -> list[Trait]:
    """NCCL as a package, of each CUDA; and as a library that the loader may find first."""
    names = sorted(name for name in packages if name.startswith("nvidia-nccl"))
    told = {name: "NCCL" if len(names) == 1 else f"NCCL ({name})" for name in names}
    outside = "NCCL outside Python's packages"
    return [
        *(Trait(told[name], "NET952", Severity.ERROR, package(name), name) for name in names),
        Trait(outside, "NET952", Severity.WARNING, lambda node: ", ".join(node.nccl) or NONE),
    ]


def _frameworks(packages: set[str]) -> list[Trait]:
    there = [name for name in COMPARED if name in packages]
    return [Trait(name, "CMP951", Severity.ERROR, package(name), name) for name in there]


def _gpus_and_driver() -> list[Trait]:
    driver = _facts(lambda one: _asked(one, one.machine.gpus.driver))
    cuda = _facts(lambda one: _asked(one, one.machine.gpus.cuda))
    return [
        Trait("NVIDIA driver", "ENV951", Severity.WARNING, driver),
        Trait("CUDA of the driver", "ENV951", Severity.WARNING, cuda),
        Trait("GPUs", "ENV952", Severity.WARNING, _facts(_gpus)),
    ]


def _grave(name: str) -> Severity:
    return Severity.WARNING if name.startswith(_HEAVY) else Severity.INFO


def _facts(of: Callable[[Facts], str | None]) -> Callable[[Node], str | None]:
    return lambda node: of(node.facts) if node.facts else None


def package(name: str) -> Callable[[Node], str | None]:
    """Reads the release of a package."""
    return _facts(lambda one: one.environment.version(name) or NONE)


def _variable(name: str) -> Callable[[Node], str | None]:
    return _facts(
        lambda one: f"={value}" if (value := one.environment.variables.get(name)) is not None else "unset"
    )


def _limit(name: str) -> Callable[[Node], str | None]:
    def of(one: Facts) -> str | None:
        limit = one.machine.limits.get(name)
        if limit is None:
            return None
        return "unlimited" if limit.soft is None else str(limit.soft)

    return _facts(of)


def _asked(one: Facts, value: str) -> str | None:
    """What the driver says; a driver that did not answer is not one that is missing."""
    state = one.machine.gpus.state
    return value if state == "ok" else NONE if state == "none" else None


def _gpus(one: Facts) -> str | None:
    names = [gpu.name for gpu in one.machine.gpus.devices]
    told = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return _asked(one, told or NONE)


def _shared_memory(one: Facts) -> str | None:
    disk = one.machine.disk("shared memory")
    return f"{disk.total_gb:.1f} GB" if disk and disk.total_gb is not None else None


def _memory(one: Facts) -> str | None:
    total = one.machine.memory.total_gb
    # Two equal machines differ by what the firmware keeps.
    return f"{round(total)} GB" if total is not None else None
