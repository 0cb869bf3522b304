"""Servers: their ports, and what the trainer is told that only the server can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.rules.base import found, values
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Value
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding

# framework -> options of a local engine, which an engine elsewhere never sees.
_LOCAL = {
    "trl": (
        "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_max_model_len", "vllm_max_model_length",
        "vllm_enable_prefix_caching", "vllm_enable_sleep_mode",
    ),
    "ms-swift": (
        "vllm_max_model_len", "vllm_device", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size",
        "vllm_enable_prefix_caching", "vllm_max_num_seqs", "vllm_enforce_eager", "vllm_engine_kwargs",
    ),
}  # fmt: skip
# Of these a server has none.
_NOT_OF_A_SERVER = {"vllm_enable_sleep_mode", "vllm_device"}
_SERVERS = {"trl": "trl vllm-serve", "ms-swift": "swift rollout"}


@rule("CFG107", check="servers and ports", warns=True)
def ignored_options(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG107: options for a local engine beside a server."""
    if plan.role != "train" or plan.get("rollout.mode") != "server" or plan.framework not in _LOCAL:
        return []
    if plan.framework == "trl" and versions.within("trl", "<0.18"):
        return []
    items = plan.settings.items
    ignored = [items[key] for key in _LOCAL[plan.framework] if key in items and items[key].data is not None]
    if not ignored:
        return []
    told = ", ".join(value.key for value in ignored)
    server = _SERVERS[plan.framework]
    if plan.framework == "ms-swift" and versions.within("ms-swift", "<3.4"):
        server = "swift deploy"
    return found(
        plan, "CFG107", Severity.WARNING,
        f"The engine is a server; {told} would set up a local one and {'is' if len(ignored) == 1 else 'are'} "
        "ignored.",
        [*ignored, *values(plan, "rollout.mode")],
        remedy=" ".join(_elsewhere([value.key for value in ignored], server)),
    )  # fmt: skip


def _elsewhere(names: list[str], server: str) -> list[str]:
    """Where options of a local engine belong: to the server, which may call them otherwise, or nowhere."""
    out = [name for name in names if name in _NOT_OF_A_SERVER]
    given = [name for name in names if name not in out]
    told = [f"Give {', '.join(given)} to `{server}`, under the name that it has there."] if given else []
    return [*told, *([f"Leave {', '.join(out)} out."] if out else [])]


@rule("HNG015", check="servers and ports", warns=True)
def meets_nobody(plan: RunPlan, versions: Versions) -> list[Finding]:
    """HNG015: several nodes, and the first node's address is each machine itself."""
    del versions
    address = plan.settings.launch.get("master_addr") or plan.settings.environ.get("MASTER_ADDR")
    nodes = plan.settings.launch.get("nodes") or plan.settings.environ.get("NNODES")
    # torchrun that is told where to meet gives its processes an address of its own.
    if "rendezvous" in plan.settings.launch:
        return []
    # A default is there to be set by who starts it on several nodes.
    if plan.framework not in _SERVERS or address is None or nodes is None or address.soft or nodes.soft:
        return []
    many = str(nodes.data).isdecimal() and int(str(nodes.data)) > 1
    if not many or str(address.data) not in {"127.0.0.1", "localhost", "::1"}:
        return []
    return found(
        plan, "HNG015", Severity.WARNING,
        f"Each of {nodes.data} nodes that runs this looks for the first one on itself, and waits.",
        [address, nodes], remedy="Give the first node's own address, the same on all.",
    )  # fmt: skip


@rule("CFG901", check="servers and ports", warns=True)
def server_beside_colocate(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG901: an engine of the run's own, and the address of a server."""
    del versions
    mode = plan.settings.items.get("vllm_mode")
    if plan.framework not in _SERVERS or plan.role != "train" or mode is None or mode.data != "colocate":
        return []
    names = ("vllm_server_base_url", "vllm_server_host")
    said = [plan.settings.items[name] for name in names if name in plan.settings.items]
    said = [value for value in said if value.known and value.data and not value.soft]
    if not said:
        return []
    from diagnostics.catalog.own_codes import finding

    return [
        finding(
            "CFG901", Severity.WARNING, known_by="static",
            detail=f"vllm_mode is colocate: the run makes an engine of its own, and {said[0].key} names a server.",
            evidence=tuple(Evidence(value.told, str(value.place)) for value in (mode, *said)),
            remedy=Remedy.of(f"Set vllm_mode to server, or leave {' and '.join(value.key for value in said)} out."),
        )
    ]  # fmt: skip


@rule("CFG109", check="servers and ports")
def ports(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG109: two ports of one run that are the same, or a number that is no port."""
    del versions
    named: list[Value] = [
        value for name in ("server.port", "server.group_port") for value in _each(plan.values.get(name))
    ]
    if plan.role == "train":
        master = plan.settings.launch.get("master_port") or plan.settings.environ.get("MASTER_PORT")
        named += _each(master)
    out: list[Finding] = []
    seen: dict[int, Value] = {}
    for value in named:
        if not 0 <= value.data <= 65535:
            out += found(
                plan, "CFG109", Severity.ERROR, f"{value.data} is no port: they end at 65535.", [value],
                remedy="Take a number from 1024 to 65535.",
            )  # fmt: skip
        elif value.data and value.data in seen and seen[value.data].key != value.key and _here(plan):
            out += found(
                plan, "CFG109", Severity.ERROR,
                f"{seen[value.data].key} and {value.key} are both {value.data}, on one machine.",
                [seen[value.data], value], remedy="Give each a port of its own.",
            )  # fmt: skip
        seen.setdefault(value.data, value)
    return out


def _here(plan: RunPlan) -> bool:
    """Tells whether the server is on the trainer's own machine, so that their ports can collide."""
    host = plan.get("server.host") or plan.get("server.address")
    hosts = host if isinstance(host, list) else [host]
    here = ("127.0.0.1", "localhost", "0.0.0.0")  # noqa: S104 - compared, nothing listens there
    return all(any(word in str(each) for word in here) for each in hosts)


def _each(value: Value | None) -> list[Value]:
    """The whole numbers in a value: one, or a list of them."""
    if value is None or not value.known:
        return []
    found_in = value.data if isinstance(value.data, list) else [value.data]
    numbers = [
        int(n) if isinstance(n, str) and n.isascii() and n.isdecimal() and len(n) < 10 else n
        for n in found_in
    ]
    return [value.but(n) for n in numbers if isinstance(n, int) and not isinstance(n, bool)]


@rule("CFG109", check="trainer beside server", together=True, warns=True)
def one_port_for_two(plans: list[RunPlan], versions: Versions) -> list[Finding]:
    """CFG109: two servers of one run on one port, or a trainer that looks for its server on another one."""
    del versions
    # Each is compared to each: a file with more of them than this is no run of anybody's.
    servers = [plan for plan in plans if plan.role == "serve"][:64]
    out: list[Finding] = []
    for index, first in enumerate(servers):
        for second in servers[index + 1 :]:
            ports_of = [{v.data for v in _each(plan.values.get("server.port"))} for plan in (first, second)]
            same = ports_of[0] & ports_of[1]
            disjoint = set(first.get("devices.ids") or ()) != set(second.get("devices.ids") or ())
            if same and disjoint and first.settings.place.file == second.settings.place.file:
                out += found(
                    second, "CFG109", Severity.WARNING,
                    f"Two servers on port {min(same)}: on one machine the second does not start, or, of `vllm "
                    "serve`, may get a part of the first one's requests.",
                    [*values(second, "server.port"), *values(first, "server.port")],
                    remedy="Give each --port of its own.",
                )  # fmt: skip
    return out


@rule("CFG109", check="trainer beside server", together=True, warns=True)
def found_elsewhere(plans: list[RunPlan], versions: Versions) -> list[Finding]:
    """CFG109: a trainer that looks for its server on a port where the one beside it does not listen."""
    del versions
    servers = [plan for plan in plans if plan.role == "serve"]
    out: list[Finding] = []
    if len(servers) != 1:
        return out
    listens = {value.data for value in _each(servers[0].values.get("server.port"))}
    for trainer in (plan for plan in plans if plan.get("rollout.mode") == "server"):
        asked = {value.data for value in _each(trainer.values.get("server.port"))}
        if asked and listens and not asked & listens and _here(trainer):
            out += found(
                trainer, "CFG109", Severity.WARNING,
                f"The trainer asks port {min(asked)}, and the server beside it listens on {min(listens)}: where "
                "nothing else listens there, it waits until its timeout.",
                [*values(trainer, "server.port"), *values(servers[0], "server.port")],
                remedy="Give both the same port.",
            )  # fmt: skip
    return out


@rule("CFG103", check="trainer beside server", together=True, warns=True)
def length_of_the_server(plans: list[RunPlan], versions: Versions) -> list[Finding]:
    """CFG103: what the trainer asks for is longer than the server beside it takes."""
    del versions
    servers = [plan for plan in plans if plan.role == "serve" and plan.whole("engine.max_length")]
    out: list[Finding] = []
    if len(servers) != 1:
        return out
    limit = servers[0].whole("engine.max_length") or 0
    for trainer in (plan for plan in plans if plan.get("rollout.mode") == "server"):
        prompt, completion = trainer.whole("data.max_prompt") or 0, trainer.whole("data.max_completion")
        if completion is None or prompt + completion <= limit or trainer.get("rollout.multi_turn"):
            continue
        out += found(
            trainer, "CFG103", Severity.WARNING,
            f"{prompt} tokens of prompt and {completion} of completion are {prompt + completion}; the server takes "
            f"{limit}.",
            [*values(servers[0], "engine.max_length"), *values(trainer, "data.max_prompt", "data.max_completion")],
            remedy=f"Start the server with {servers[0].values['engine.max_length'].key} {prompt + completion}.",
        )  # fmt: skip
    return out
