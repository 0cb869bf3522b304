"""Devices: rollout modes, parallel sizes and processes against the GPUs that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.dialects.derivation import env_number
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.values import parse_count
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.lint.run_plan import RunPlan

# From here on ms-swift refuses a mode that contradicts the rest; before, it changes the mode with a warning.
_STRICT_MODE = ">=3.11.1"
# Options of a server that spans several nodes, or whose devices Ray finds.
_MULTI_NODE = {
    "nnodes", "n", "node_rank", "r", "data_parallel_size_local", "dpl", "data_parallel_address", "dpa",
    "data_parallel_rank", "dpn", "data_parallel_start_rank", "dpr", "headless",
}  # fmt: skip
_SERVER_BACKENDS = ("distributed_executor_backend", "data_parallel_backend", "dpb")


@rule("CFG001", check="mode and resources", frameworks=("ms-swift",), releases=">=3.2.2,<3.5")
def swift_workers_match_devices(plan: RunPlan) -> Iterator[Problem]:
    """In ms-swift 3.2 to 3.4 num_infer_workers and NPROC_PER_NODE decide the mode and have to add up."""
    workers, visible = plan.whole("devices.rollout"), plan.whole("devices.visible")
    if workers is None or visible is None or plan.get("server.host"):
        return
    engines = [plan.option(name) for name in ("use_vllm", "use_lmdeploy")]
    if all(engine is None or engine.data is False for engine in engines):
        return
    # One node's processes and devices count.
    processes = env_number(plan.settings, "NPROC_PER_NODE")
    trains = processes.data if processes is not None and isinstance(processes.data, int) else None
    values = [*plan.evidence("devices.rollout"), *plan.evidence("devices.visible"), processes]
    if workers == visible:
        if trains is not None and trains != visible:
            yield Problem(
                f"num_infer_workers {workers} is the number of visible devices, which is colocate mode; then "
                f"NPROC_PER_NODE has to be {visible} too, and it is {trains}.",
                values, fix=f"Set NPROC_PER_NODE={visible}, or fewer inference workers.",
            )  # fmt: skip
        if plan.get("rollout.async"):
            yield Problem(
                f"async_generate is refused in colocate mode, which num_infer_workers {workers} with {visible} "
                "visible devices is.",
                [*plan.evidence("rollout.async"), *values],
                fix="Leave async_generate out, or give training and rollout devices of their own.",
            )
        return
    if trains is not None and trains + workers != visible:
        yield Problem(
            f"Training uses {trains} devices and rollout {workers}, together {trains + workers}, but {visible} are "
            "visible.",
            values, fix=f"Make NPROC_PER_NODE + num_infer_workers {visible}, or both {visible} for colocate.",
        )  # fmt: skip
    parallel = plan.whole("engine.tensor_parallel")
    if parallel is not None and parallel > 1:
        yield Problem(
            f"An engine with devices of its own supports no tensor parallelism in these releases; it is {parallel}.",
            [*plan.evidence("engine.tensor_parallel"), *values],
            fix="Set --tensor_parallel_size 1, or use colocate mode or a server.",
        )


@rule("CFG001", check="mode and resources", frameworks=("ms-swift",), role="train")
def swift_mode_is_consistent(plan: RunPlan) -> Iterator[Problem]:
    """From ms-swift 3.5 on vllm_mode sets the mode and is checked against the other options."""
    if plan.settings.has_unread_options or plan.needs_arguments:
        return
    # A run over Ray has a section for each role, and the mode follows from these.
    if any(key.startswith(("train.", "rollout.")) for key in plan.options):
        return
    mode, uses = plan.option("vllm_mode"), plan.option("use_vllm")
    server = plan.option("vllm_server_host", "vllm_server_base_url")
    since = plan.versions.within("ms-swift", ">=3.5")
    strict = plan.versions.within("ms-swift", _STRICT_MODE)
    workers = "num_infer_workers" in plan.options and not since
    other_mode = mode is not None and mode.known and mode.data != "server"
    if plan.get("rollout.async") and not workers and server is None and (other_mode or (mode is None and since)):
        yield Problem(
            "async_generate needs a server: vllm_mode server and the server's address.",
            plan.evidence("rollout.async", "rollout.mode"), applies=True if mode is not None else since,
            fix="Start `swift rollout` on devices of its own and set --vllm_mode server --vllm_server_host HOST, or "
            "leave --async_generate out.",
        )  # fmt: skip
    elif mode is None and uses is not None and uses.data is True:
        # Older releases derive the mode, so a run with an unknown release is not reported.
        if strict is not None:
            where = f", although {server.key} {server.data} is" if server is not None else ""
            fix = "Add --vllm_mode server." if server is not None else (
                "Add --vllm_mode colocate, or --vllm_mode server with --vllm_server_host HOST."
            )  # fmt: skip
            yield Problem(
                f"use_vllm is set without vllm_mode{where}: ms-swift requires vllm_mode since 3.11.1.",
                [uses, server], fix=fix, applies=strict,
            )  # fmt: skip
    elif mode is not None and mode.known and (uses is None or uses.data is False):
        yield Problem(
            f"vllm_mode is {mode.data}, but use_vllm is not set.", [mode, uses],
            fix="Set --use_vllm true, or leave --vllm_mode out.", applies=strict,
        )  # fmt: skip
    elif mode is not None and mode.data == "server" and server is None and uses is not None and uses.data is True:
        yield Problem(
            "vllm_mode is server, but the server's address is not set.", [mode, uses],
            fix="Add --vllm_server_host HOST --vllm_server_port PORT, or use --vllm_mode colocate.", applies=strict,
        )  # fmt: skip


@rule("CFG111", check="mode and resources", frameworks=("ms-swift",), role="train", releases=">=3.5")
def swift_reward_is_set(plan: RunPlan) -> Iterator[Problem]:
    """ms-swift refuses GRPO without any source of reward."""
    sources = (
        "reward_funcs", "reward_model", "teacher_model", "teacher_model_server", "gym_env", "use_gym_env",
    )  # fmt: skip
    kind = plan.option("rlhf_type")
    if plan.get("rollout.mode") == "server" or "megatron" in plan.options or kind is None:
        return
    if plan.disabled(*sources) and plan.option(*sources, "config", "@") is None:
        yield Problem(
            "Neither reward_funcs nor reward_model is set.", (kind,), fix="Add --reward_funcs NAME...",
            fix_is_complete=True,
        )  # fmt: skip


@rule("CFG104", check="devices")
def tensor_parallel_fits(plan: RunPlan) -> Iterator[Problem]:
    """One copy of the model needs as many devices as its parallel sizes say, and has to divide those that train."""
    parallel = plan.whole("engine.tensor_parallel")
    if parallel is None or parallel <= 1 or plan.framework == "own":
        return
    if plan.role == "serve":
        yield from _server_devices(plan, parallel)
        return
    if plan.get("rollout.mode") != "colocate":
        return
    devices = plan.whole("devices.train")
    if devices is not None and devices >= 1 and devices % parallel:
        yield Problem(
            f"The {devices} devices that train are not a multiple of the engine's tensor parallelism {parallel}.",
            plan.evidence("engine.tensor_parallel", "devices.train", "rollout.mode"),
            fix=f"Set {plan.values['engine.tensor_parallel'].key} to a divisor of {devices}.",
        )


def _server_devices(plan: RunPlan, parallel: int) -> Iterator[Problem]:
    visible = plan.whole("devices.visible")
    copies, stages = plan.whole("engine.data_parallel") or 1, plan.whole("engine.pipeline_parallel") or 1
    needed = parallel * copies * stages
    backends = [plan.options[name] for name in _SERVER_BACKENDS if name in plan.options]
    elsewhere = _MULTI_NODE & set(plan.options) or any(each.data not in {"mp", "uni", None} for each in backends)
    if visible is not None and needed > visible and not elsewhere:
        yield Problem(
            f"The server needs {needed} devices and sees {visible}.",
            plan.evidence(
                "engine.tensor_parallel", "engine.data_parallel", "engine.pipeline_parallel", "devices.visible"
            ),
            fix="Make more devices visible, or lower its tensor, pipeline or data parallelism.",
        )


@rule("CFG104", check="devices", frameworks=("openrlhf",))
def openrlhf_engines_match_actor(plan: RunPlan) -> Iterator[Problem]:
    """OpenRLHF's colocate_all needs engines x tensor parallelism to be the actor's devices."""
    if plan.get("rollout.mode") != "colocate":
        return
    engines, parallel = plan.whole("devices.rollout"), plan.whole("engine.tensor_parallel")
    devices = plan.whole("devices.train")
    if engines is None or parallel is None or devices is None or engines * parallel == devices:
        return
    yield Problem(
        f"{engines} engines of {parallel} devices each use {engines * parallel} devices, and the actor has {devices}.",
        plan.evidence("devices.rollout", "engine.tensor_parallel", "devices.per_node", "devices.nodes", "rollout.mode"),
        fix="Make engines x tensor_parallel_size equal to the actor's nodes x devices.",
    )


@rule("CFG111", check="devices", frameworks=("openrlhf",), role="train", releases=">=0.3.6")
def openrlhf_reference_matches_actor(plan: RunPlan) -> Iterator[Problem]:
    """OpenRLHF's actor and reference model on the same devices have to be the same number."""
    shared = plan.enabled(
        "train.colocate_actor_ref", "colocate_actor_ref", "train.colocate_all", "colocate_all_models"
    )
    weight = plan.option("algo.kl.init_coef", "init_kl_coef")
    # The default of the weight is above 0 in all releases, and both models' is one node of 8.
    if shared is None or (weight is not None and (not weight.known or weight.data in (0, 0.0, None))):
        return
    actor = [plan.values.get(name) for name in ("devices.nodes", "devices.per_node")]
    reference = [
        plan.option("ref.num_nodes", "ref_num_nodes"),
        plan.option("ref.num_gpus_per_node", "ref_num_gpus_per_node"),
    ]
    if plan.settings.has_unread_options or any(value is None or not value.known for value in actor):
        return
    if any(value is not None and not value.known for value in reference):
        return
    nodes, per_node = [value.data for value in actor if value is not None]
    sizes = [default if value is None else value.data for value, default in zip(reference, (1, 8), strict=True)]
    if sizes != [nodes, per_node]:
        yield Problem(
            f"Actor and reference model share devices, so the actor's {nodes} x {per_node} and the reference model's "
            f"{sizes[0]} x {sizes[1]} have to be the same.",
            (*actor, *reference, shared),
            fix=f"Set --ref.num_nodes {nodes} --ref.num_gpus_per_node {per_node}", fix_is_complete=True,
        )  # fmt: skip


@rule("CFG111", check="devices", frameworks=("verl",), role="train", releases=">=0.2")
def verl_sequence_parallel_needs_padding_removed(plan: RunPlan) -> Iterator[Problem]:
    """verl's sequence parallelism needs use_remove_padding."""
    parallel = plan.whole("train.sequence_parallel")
    padding = plan.option("actor_rollout_ref.model.use_remove_padding")
    validated = plan.settings.target in {"", "verl.trainer.main_ppo", "recipe.dapo.main_dapo"}
    if parallel is not None and parallel > 1 and padding is not None and padding.data is False and validated:
        yield Problem(
            f"Sequence parallelism over {parallel} devices needs use_remove_padding.",
            (*plan.evidence("train.sequence_parallel"), padding),
            fix="Set actor_rollout_ref.model.use_remove_padding=True", fix_is_complete=True,
        )  # fmt: skip


@rule("CFG111", check="devices", frameworks=("verl",), role="train", releases=">=0.6")
def verl_expert_parallel_matches(plan: RunPlan) -> Iterator[Problem]:
    """verl's expert parallelism has to be tensor x data parallelism."""
    names = ("engine.expert_parallel", "engine.tensor_parallel", "engine.data_parallel")
    experts, tensor = plan.whole(names[0]), plan.whole(names[1])
    data = plan.whole(names[2]) if names[2] in plan.values else 1
    if experts is None or experts < 2 or tensor is None or data is None or plan.get("rollout.engine") == "trtllm":
        return
    if experts != tensor * data:
        yield Problem(
            f"expert_parallel_size {experts} is not tensor x data parallelism, {tensor} x {data}.",
            plan.evidence(*names), fix=f"Set actor_rollout_ref.rollout.expert_parallel_size={tensor * data}",
            fix_is_complete=True,
        )  # fmt: skip


@rule("CFG104", check="devices", role="train")
def processes_fit_devices(plan: RunPlan) -> Iterator[Problem]:
    """A node cannot start more training processes than it has visible devices."""
    visible = plan.whole("devices.visible")
    per_node = plan.processes_on_a_node()
    count = parse_count(per_node)
    if visible is None or count is None or count <= visible:
        return
    yield Problem(
        f"{count} training processes on a node with {visible} visible devices.",
        [per_node, *plan.evidence("devices.visible")],
        fix=f"Start {visible} processes, or make more devices visible.",
    )


def used_devices(plan: RunPlan) -> set[str]:
    """Return the device ids that a run uses: the first ones of those it sees; empty if they are not known."""
    visible: list[str] = plan.get("devices.ids") or []
    if plan.role == "serve":
        sizes = [plan.whole(f"engine.{name}_parallel") or 1 for name in ("tensor", "data", "pipeline")]
        count: int | None = sizes[0] * sizes[1] * sizes[2]
    else:
        count = parse_count(plan.processes_on_a_node())
    return set(visible[:count])


@rule("CFG108", check="trainer beside server", scope="pair")
def trainer_and_server_share_devices(trainer: RunPlan, server: RunPlan) -> Iterator[Problem]:
    """A trainer and the server it uses cannot share a GPU: NCCL refuses two ranks on one device."""
    if not server_is_local(trainer):
        return
    visible = set(server.get("devices.ids") or ()) & set(trainer.get("devices.ids") or ())
    if not visible:
        return
    used = used_devices(server) & used_devices(trainer)
    devices = ", ".join(sorted(used or visible))
    message = f"Trainer and server both use GPU {devices}. NCCL refuses to send weights between two ranks on one GPU."
    if not used:
        message = f"GPU {devices} is visible to the trainer and to its server; by their sizes only one uses it."
    newer = ", in TRL from 0.18 on" if trainer.framework == "trl" else ""
    yield Problem(
        message,
        [*trainer.evidence("devices.ids"), *server.evidence("devices.ids"), *trainer.evidence("server.host")],
        fix=f"Give the server GPUs of its own, or use colocate mode{newer}.",
        severity=Severity.ERROR if used else Severity.WARNING,
    )


def server_is_local(trainer: RunPlan) -> bool:
    """Tell whether the trainer's server is on its own machine; without an address it is not known."""
    address = trainer.get("server.host") or trainer.get("server.address")
    local = ("127.0.0.1", "localhost", "0.0.0.0", "::1")  # noqa: S104 - compared, nothing listens there
    hosts = address if isinstance(address, list) else [address]
    return all(any(word in str(host) for word in local) for host in hosts)
