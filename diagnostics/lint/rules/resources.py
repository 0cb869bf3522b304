"""Devices: who needs how many, and whether they are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.dialects.base import environment_number
from diagnostics.lint.rules.base import found, values
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding

# Before that a mode that contradicts the rest is changed with a warning; from there on it is refused.
STRICT = ">=3.11.1"


@rule("CFG001", check="mode and resources")
def swift_workers(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG001: ms-swift 3.2 to 3.4, where `num_infer_workers` and NPROC_PER_NODE decide the mode."""
    workers, visible = plan.whole("devices.rollout"), plan.whole("devices.visible")
    if plan.framework != "ms-swift" or workers is None or visible is None or plan.get("server.host"):
        return []
    # Without an engine nothing of this is looked at.
    engines = [plan.settings.items.get(name) for name in ("use_vllm", "use_lmdeploy")]
    if all(engine is None or engine.data is False for engine in engines):
        return []
    gate = versions.within("ms-swift", ">=3.2.2,<3.5")
    # What counts is one node: its devices, its processes.
    processes = environment_number(plan.settings, "NPROC_PER_NODE")
    trains = processes.data if processes is not None else None
    shown = values(plan, "devices.ids") or values(plan, "devices.visible")
    rests_on = [*values(plan, "devices.rollout"), *shown, *([processes] if processes else [])]
    out: list[Finding] = []
    if workers == visible:
        if isinstance(trains, int) and trains != visible:
            out += found(
                plan, "CFG001", Severity.ERROR,
                f"num_infer_workers {workers} is the number of visible devices, so this is colocate; then "
                f"NPROC_PER_NODE has to be {visible} too, and it is {trains}.",
                rests_on, gate=gate, remedy=f"NPROC_PER_NODE={visible}, or fewer inference workers.",
            )  # fmt: skip
        if plan.get("rollout.async"):
            out += found(
                plan, "CFG001", Severity.ERROR,
                "async_generate is refused in colocate mode, which num_infer_workers equal to the number of "
                "visible devices asks for.",
                [*values(plan, "rollout.async"), *rests_on], gate=gate,
                remedy="Leave async_generate out, or give training and rollout devices of their own.",
            )  # fmt: skip
        return out
    if isinstance(trains, int) and trains + workers != visible:
        out += found(
            plan, "CFG001", Severity.ERROR,
            f"Training takes {trains} devices and rollout {workers}: together {trains + workers}, while {visible} "
            "are visible.",
            rests_on, gate=gate,
            remedy=f"Let NPROC_PER_NODE + num_infer_workers be {visible}, or both {visible} for colocate.",
        )  # fmt: skip
    parallel = plan.whole("engine.tensor_parallel")
    if parallel is not None and parallel > 1:
        out += found(
            plan, "CFG001", Severity.ERROR,
            "With devices of its own the engine takes no tensor parallelism in these releases.",
            [*values(plan, "engine.tensor_parallel"), *rests_on], gate=gate,
            remedy="--tensor_parallel_size 1, colocate, or a server.",
        )  # fmt: skip
    return out


@rule("CFG001", check="mode and resources")
def swift_modes(plan: RunPlan, versions: Versions) -> list[Finding]:  # noqa: PLR0911 - one line a case
    """CFG001: ms-swift 3.5 on, where `vllm_mode` says it and is checked against the rest."""
    if plan.framework != "ms-swift" or plan.role != "train" or plan.settings.open or plan.settings.passes:
        return []
    items = plan.settings.items
    # A run over Ray has a section for each role, and the mode follows from these.
    if any(key.startswith(("train.", "rollout.")) for key in items):
        return []
    mode, uses = items.get("vllm_mode"), items.get("use_vllm")
    serves = bool({"vllm_server_host", "vllm_server_base_url"} & set(items))
    since = versions.within("ms-swift", ">=3.5")
    strict = versions.within("ms-swift", STRICT)
    workers = "num_infer_workers" in items and not since
    if plan.get("rollout.async") and not workers and not serves:
        known = mode is not None and mode.known and mode.data != "server"
        if known or (mode is None and since):
            return found(
                plan, "CFG001", Severity.ERROR,
                "async_generate needs a server: vllm_mode server, and where it is.",
                values(plan, "rollout.async", "rollout.mode"), gate=True if mode is not None else since,
                remedy="Start `swift rollout` on devices of its own, then --vllm_mode server --vllm_server_host HOST; "
                "or leave --async_generate out.",
            )  # fmt: skip
    if mode is None and uses is not None and uses.data is True and not serves:
        # Where the release is not known, a config of the older ones is not accused.
        return [] if strict is None else found(
            plan, "CFG001", Severity.ERROR,
            "use_vllm is set, and vllm_mode does not say how.", [uses],
            remedy="--vllm_mode colocate, or --vllm_mode server with --vllm_server_host HOST.", gate=strict,
        )  # fmt: skip
    if mode is None or not mode.known:
        return []
    if uses is None or uses.data is False:
        return found(
            plan, "CFG001", Severity.ERROR,
            "vllm_mode is set, but use_vllm is not.", [mode, *([uses] if uses else [])],
            remedy="--use_vllm true, or no --vllm_mode.", gate=strict,
        )  # fmt: skip
    if mode.data == "server" and not serves and uses is not None and uses.data is True:
        return found(
            plan, "CFG001", Severity.ERROR,
            "vllm_mode is server, and nothing says where the server is.", [mode, uses],
            remedy="--vllm_server_host HOST --vllm_server_port PORT, or --vllm_mode colocate.",
            gate=strict,
        )  # fmt: skip
    return []


@rule("CFG104", check="devices")
def tensor_parallel(plan: RunPlan, versions: Versions) -> list[Finding]:  # noqa: PLR0911 - one line a case
    """CFG104: a copy of the model over more devices than there are, or over a number that does not divide them."""
    parallel = plan.whole("engine.tensor_parallel")
    if parallel is None or parallel <= 1:
        return []
    if plan.role == "serve":
        return _served(plan, parallel)
    if plan.get("rollout.mode") != "colocate" or plan.framework == "own":
        return []
    del versions
    name = "devices.train"
    devices = plan.whole(name)
    if devices is None and plan.framework in {"verl", "easyr1"}:
        return []
    if devices is None or devices < 1:
        return []
    if devices % parallel == 0:
        return []
    return found(
        plan, "CFG104", Severity.ERROR,
        f"The engine shares one copy of the model over {parallel} devices, and the {devices} that train are no "
        "multiple of that.",
        values(plan, "engine.tensor_parallel", name, "rollout.mode"),
        remedy=f"Set {plan.values['engine.tensor_parallel'].key} to a divisor of {devices}.",
    )  # fmt: skip


# What a server over several nodes is told, or one whose devices Ray finds.
_NODES = {"nnodes", "n", "node_rank", "r", "data_parallel_size_local", "dpl", "data_parallel_address", "dpa",
          "data_parallel_rank", "dpn", "data_parallel_start_rank", "dpr", "headless"}  # fmt: skip
_BACKENDS = ("distributed_executor_backend", "data_parallel_backend", "dpb")


def _of_nodes(plan: RunPlan) -> bool:
    items = plan.settings.items
    return bool(_NODES & set(items)) or any(
        name in items and items[name].data not in {"mp", "uni", None} for name in _BACKENDS
    )


def _served(plan: RunPlan, parallel: int) -> list[Finding]:
    visible = plan.whole("devices.visible")
    copies = plan.whole("engine.data_parallel") or 1
    stages = plan.whole("engine.pipeline_parallel") or 1
    if visible is None or parallel * copies * stages <= visible or _of_nodes(plan):
        return []
    return found(
        plan, "CFG104", Severity.ERROR,
        f"The server needs {parallel * copies * stages} devices and sees {visible}.",
        values(plan, "engine.tensor_parallel", "engine.data_parallel", "engine.pipeline_parallel", "devices.visible"),
        remedy="Show it more devices, or lower its tensor, pipeline or data parallelism.",
    )  # fmt: skip


@rule("CFG104", check="devices")
def openrlhf_colocate(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG104: OpenRLHF's colocate_all wants engines x tensor parallel to be the actor's devices."""
    del versions
    if plan.framework != "openrlhf" or plan.get("rollout.mode") != "colocate":
        return []
    engines, parallel = plan.whole("devices.rollout"), plan.whole("engine.tensor_parallel")
    devices = plan.whole("devices.train")
    if engines is None or parallel is None or devices is None or engines * parallel == devices:
        return []
    return found(
        plan, "CFG104", Severity.ERROR,
        f"{engines} engines over {parallel} devices each are {engines * parallel} devices, and the actor has "
        f"{devices}.",
        values(plan, "devices.rollout", "engine.tensor_parallel", "devices.per_node", "devices.nodes", "rollout.mode"),
        remedy="Make engines x tensor_parallel_size equal to the actor's nodes x devices.",
    )  # fmt: skip


@rule("CFG104", check="devices")
def processes_and_devices(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG104: more processes on a node than the devices it shows them."""
    del versions
    visible = plan.whole("devices.visible")
    per_node = plan.settings.launch.get("processes_per_node") or plan.settings.environ.get("NPROC_PER_NODE")
    if visible is None or per_node is None or plan.role != "train":
        return []
    text = str(per_node.data)
    count = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None
    if count is None or count <= visible:
        return []
    return found(
        plan, "CFG104", Severity.ERROR,
        f"{count} training processes on a node that shows them {visible} devices.",
        [per_node, *(values(plan, "devices.ids") or values(plan, "devices.visible"))],
        remedy=f"Start {visible} processes, or show more devices.",
    )  # fmt: skip


@rule("CFG108", check="trainer beside server", together=True)
def shared_devices(plans: list[RunPlan], versions: Versions) -> list[Finding]:
    """CFG108: a trainer and the server it uses, on one device."""
    del versions
    out: list[Finding] = []
    trainers = [plan for plan in plans if plan.role == "train" and plan.get("rollout.mode") == "server"]
    for server in (plan for plan in plans if plan.role == "serve"):
        for trainer in trainers:
            if not _local(trainer) or not server.get("devices.ids") or not trainer.get("devices.ids"):
                continue
            both = set(server.get("devices.ids")) & set(trainer.get("devices.ids"))
            if both:
                told = ", ".join(sorted(both))
                out += found(
                    trainer, "CFG108", Severity.ERROR,
                    f"Given to the trainer and to its server: device {told}. Where the weights are sent from it by "
                    "NCCL, that refuses two ranks on one device; elsewhere both want its memory.",
                    [*values(trainer, "devices.ids"), *values(server, "devices.ids"), *values(trainer, "server.host")],
                    remedy="Give the server devices of its own, or use colocate mode"
                    f"{', in TRL from 0.18 on' if trainer.framework == 'trl' else ''}.",
                )  # fmt: skip
    return out


def _local(trainer: RunPlan) -> bool:
    """Tells whether the trainer's server is on its own machine, as far as the plan says."""
    host = trainer.get("server.host") or trainer.get("server.address")
    hosts = host if isinstance(host, list) else [host]
    return all(
        any(word in str(each) for word in ("127.0.0.1", "localhost", "0.0.0.0", "::1"))  # noqa: S104 - compared
        for each in hosts
    )
