"""What the dialects share: tables of names, defaults by release, devices, and what follows from other values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value, scalar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diagnostics.lint.versions import Versions


@dataclass(frozen=True)
class Default:
    """What holds where nothing is set, in some releases.

    Attributes:
        versions: A specifier of the framework's releases, empty for all.
    """

    name: str
    key: str
    data: Any
    versions: str = ""


def start(settings: Settings, names: Mapping[str, str]) -> RunPlan:
    """A plan with everything in it that has a name of its own, and what the environment says.

    Args:
        settings: What was read.
        names: The framework's key -> the plan's name. Of two keys for a name the later one in the table counts.
    """
    made = RunPlan(settings.framework, settings)
    made.put("framework", Value(settings.framework, settings.place, "framework"))
    for key, name in names.items():
        if key in settings.items and settings.items[key].data is not None:
            made.put(name, settings.items[key])
    _environment(made)
    return made


def defaults(made: RunPlan, table: Iterable[Default], versions: Versions, label: str) -> None:
    """Fills in defaults where nothing more can be set that this tool does not see.

    A default that differs between releases is taken only where the release is known.
    """
    if made.settings.open:
        return
    for default in table:
        if made.values.get(default.name) is None and versions.within(made.framework, default.versions):
            place = Place(f"default of {label}")
            # A project's own copy of a framework may have other defaults.
            outside = made.settings.passes or made.framework in versions.copies
            made.put(default.name, Value(default.data, place, default.key, soft=True, outside=outside))


def _environment(made: RunPlan) -> None:
    environ = made.settings.environ
    visible = environ.get("CUDA_VISIBLE_DEVICES") or environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is not None and visible.known:
        ids = device_ids(visible.data)
        if ids is not None:
            made.put("devices.ids", visible.but(ids))
            made.put("devices.visible", visible.but(len(ids)))
    elif visible is None and "SLURM_GPUS_ON_NODE" in environ:
        of_job = environ["SLURM_GPUS_ON_NODE"]
        made.put("devices.visible", of_job.but(int(of_job.data)) if str(of_job.data).isdecimal() else of_job)
    allocator = environ.get("PYTORCH_CUDA_ALLOC_CONF")
    if allocator is not None and allocator.known:
        made.put("memory.allocator", allocator)
        asked = "expandable_segments:true" in str(allocator.data).replace(" ", "").lower()
        made.put("memory.expandable", allocator.but(asked))
    v1 = environ.get("VLLM_USE_V1")
    if v1 is not None and v1.known and str(v1.data) in {"0", "1"}:
        made.put("engine.v1", v1.but(str(v1.data) == "1"))
    address = environ.get("RAY_ADDRESS")
    if address is not None and address.known:
        made.put("ray.address", address)


def device_ids(data: Any) -> list[str] | None:
    """The devices that CUDA_VISIBLE_DEVICES names; None where they are not numbers or names of devices.

    >>> device_ids("0,1, 2"), device_ids("0-3"), device_ids(3)
    (['0', '1', '2'], None, ['3'])
    """
    parts = [part.strip() for part in str(data).split(",") if part.strip()]
    good = all(part.isdecimal() or part.startswith(("GPU-", "MIG-")) for part in parts)
    return parts if good and parts and len(parts) <= 1024 else None


def environment_number(settings: Settings, name: str) -> Value | None:
    """A variable of the environment as a whole number; unknown where it is set to something else."""
    value = settings.environ.get(name)
    if value is None:
        return None
    data = scalar(str(value.data)) if value.known else UNKNOWN
    return value.but(data if isinstance(data, int) and not isinstance(data, bool) else UNKNOWN)


def product(values: Iterable[Value | None], key: str) -> Value | None:
    """Several numbers multiplied; unknown where one of them is, nothing where one is not there."""
    factors = list(values)
    first = factors[0]
    if first is None or any(value is None for value in factors):
        return None
    data: Any = 1
    for value in factors:
        assert value is not None
        if not isinstance(value.data, int) or isinstance(value.data, bool):
            return first.but(UNKNOWN).named(key)
        data *= value.data
    soft = any(value is not None and value.soft for value in factors)
    outside = any(value is not None and value.outside for value in factors)
    key = " x ".join(value.key for value in factors if value is not None and value.data != 1) or key
    return Value(data, first.place, key, soft, outside)


def launched(settings: Settings) -> Value | None:
    """The number of training processes, where the launcher says it."""
    launch = settings.launch
    if "processes" in launch:
        return launch["processes"]
    per_node = launch.get("processes_per_node")
    if per_node is None:
        return None
    nodes = launch.get("nodes", Value(1, per_node.place, "nnodes"))
    if isinstance(per_node.data, int) and isinstance(nodes.data, str) and nodes.data.isdecimal():
        nodes = nodes.but(int(nodes.data))
    return product((per_node, nodes), per_node.key)


# What takes nothing away, by setting.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "sampling.top_p": (1, 1.0, None),
    "sampling.top_k": (0, -1, None),
    "sampling.min_p": (0, 0.0, None),
}


def truncated(made: RunPlan) -> None:
    """Derives whether sampling cuts the distribution; unknown where a value it depends on is."""
    for name in NEUTRAL:
        value = made.values.get(name)
        if value is not None and cuts_off(name, value):
            made.put("sampling.truncated", value.but(data=True))
            return


def cuts_off(name: str, value: Value) -> bool:
    """Tells whether a setting of the sampler, by its name in the plan, takes anything away."""
    return value.known and not isinstance(value.data, str) and value.data not in NEUTRAL[name]


def truth(value: Value | None) -> Value | None:
    """A switch: 0 and "" are false, other numbers true."""
    if value is None or not value.known:
        return value
    return value.but(bool(value.data))
