"""Rules about rollout servers: addresses, ports, lengths, and options that a server never receives.

`pair_with_trainers` finds the plans that the rules about pairs check together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diagnostics.findings import Severity
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.rules.devices import server_is_local
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Value, parse_count

CHECK = "servers and ports"
PAIRS = "trainer with server"
_WITH_SERVER = ("trl", "ms-swift")
_MAX_PORT = 65535
_LOCAL = {"127.0.0.1", "localhost", "0.0.0.0", "::1", "::"}  # noqa: S104 - compared, nothing listens there


@rule("CFG107", check=CHECK, frameworks=_WITH_SERVER, role="train", warnings_only=True)
def server_ignores_local_engine_options(plan: RunPlan) -> Iterator[Problem]:
    """Options of a local engine have no effect if the engine is a server."""
    dialect = DIALECTS[plan.framework]
    if plan.get("rollout.mode") != "server" or (
        plan.framework == "trl" and plan.versions.within("trl", "<0.18")
    ):
        return
    ignored = [plan.options[key] for key in dialect.local_engine if key in plan.options]
    ignored = [value for value in ignored if value.data is not None]
    if not ignored:
        return
    names = [value.key for value in ignored]
    older = plan.framework == "ms-swift" and plan.versions.within("ms-swift", "<3.4")
    command = "swift deploy" if older else dialect.server_command
    movable = [name for name in names if name not in dialect.no_server_option]
    useless = [name for name in names if name in dialect.no_server_option]
    fixes = [f"Give {', '.join(movable)} to `{command}`, by the name that it uses there."] if movable else []
    fixes += [f"Leave {', '.join(useless)} out."] if useless else []
    yield Problem(
        f"The engine is a server, so {', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect.",
        [*ignored, *plan.evidence("rollout.mode")],
        fix=" ".join(fixes),
        severity=Severity.WARNING,
    )


@rule("HNG015", check=CHECK, frameworks=_WITH_SERVER, warnings_only=True)
def nodes_meet_at_one_address(plan: RunPlan) -> Iterator[Problem]:
    """With several nodes a loopback master address is another machine on each."""
    launcher, env = plan.settings.launcher, plan.settings.env
    address, nodes = (
        launcher.get("master_addr") or env.get("MASTER_ADDR"),
        launcher.get("nodes") or env.get("NNODES"),
    )
    # With a rendezvous, torchrun gives its processes another address.
    if "rendezvous" in launcher or address is None or nodes is None or address.soft or nodes.soft:
        return
    if (parse_count(nodes) or 0) > 1 and str(address.data) in {"127.0.0.1", "localhost", "::1"}:
        yield Problem(
            f"Each of {nodes.data} nodes looks for the first node at {address.data}, which is itself, and waits.",
            [address, nodes],
            fix="Set the first node's address, the same on all nodes.",
            severity=Severity.WARNING,
        )


@rule("CFG109", check=CHECK)
def ports_are_valid_and_distinct(plan: RunPlan) -> Iterator[Problem]:
    """The ports of one run are numbers up to 65535, and different on one machine."""
    ports = [
        port for name in ("server.port", "server.group_port") for port in _list_ports(plan.values.get(name))
    ]
    if plan.role == "train":
        ports += _list_ports(
            plan.settings.launcher.get("master_port") or plan.settings.env.get("MASTER_PORT")
        )
    by_number: dict[int, Value] = {}
    for port in ports:
        earlier = by_number.setdefault(port.data, port)
        if not 0 <= port.data <= _MAX_PORT:
            yield Problem(
                f"{port.key} is {port.data}; ports end at {_MAX_PORT}.",
                [port],
                fix="Use a number from 1024 to 65535.",
            )
        elif port.data and earlier.key != port.key and _server_is_here(plan):
            yield Problem(
                f"{earlier.key} and {port.key} are both {port.data}, on one machine.",
                [earlier, port],
                fix="Give each its own port.",
            )


def _server_is_here(plan: RunPlan) -> bool:
    """Return whether the server is certainly on the trainer's machine, because the address is a local one."""
    return bool(plan.get("server.host") or plan.get("server.address")) and server_is_local(plan)


def _list_ports(value: Value | None) -> list[Value]:
    """Return the whole numbers in a value: one number or a list."""
    if value is None or not value.known:
        return []
    items = value.data if isinstance(value.data, list) else [value.data]
    counts = [parse_count(replace(value, data=item)) if isinstance(item, str) else item for item in items]
    return [value.derive(count) for count in counts if isinstance(count, int) and not isinstance(count, bool)]


def _port_numbers(plan: RunPlan) -> set[int]:
    return {port.data for port in _list_ports(plan.values.get("server.port"))}


@rule("CFG109", check=PAIRS, scope="pair", warnings_only=True)
def trainer_finds_server_port(trainer: RunPlan, server: RunPlan) -> Iterator[Problem]:
    """A trainer has to connect to the port on which its server listens."""
    expected, listening = _port_numbers(trainer), _port_numbers(server)
    if expected and listening and not expected & listening and _server_is_here(trainer):
        yield Problem(
            f"The trainer connects to port {min(expected)}, but its server listens on {min(listening)}: it waits until "
            "its timeout.",
            [*trainer.evidence("server.port"), *server.evidence("server.port")],
            fix="Set both to the same port.",
            severity=Severity.WARNING,
        )


@rule("CFG103", check=PAIRS, scope="pair", warnings_only=True)
def server_length_fits(trainer: RunPlan, server: RunPlan) -> Iterator[Problem]:
    """The trainer's prompt and completion have to fit the server's max_model_len."""
    limit, completion = server.whole_number("engine.max_length"), trainer.whole_number("data.max_completion")
    prompt = trainer.whole_number("data.max_prompt") or 0
    if not limit or completion is None or prompt + completion <= limit or trainer.get("rollout.multi_turn"):
        return
    yield Problem(
        f"Prompt and completion may have {prompt + completion} tokens ({prompt} + {completion}), and the server takes "
        f"{limit}.",
        [*server.evidence("engine.max_length"), *trainer.evidence("data.max_prompt", "data.max_completion")],
        fix=f"Start the server with {server.values['engine.max_length'].key} {prompt + completion}.",
        severity=Severity.WARNING,
    )


def pair_with_trainers(plans: list[RunPlan]) -> list[tuple[RunPlan, RunPlan]]:
    """Return each trainer in server mode with its server.

    The servers of the same script count first, else the servers in other files at the address that the trainer names,
    else the servers in files that were named on the command line. Of several servers, the ports decide.
    """
    by_source: dict[str, list[RunPlan]] = {}
    by_host: dict[str, list[RunPlan]] = {}
    for server in (plan for plan in plans if plan.role == "serve"):
        by_source.setdefault(server.source, []).append(server)
        host = server.values.get("server.host")
        if host is not None and host.known and str(host.data) not in _LOCAL:
            by_host.setdefault(str(host.data), []).append(server)
    trainers = [plan for plan in plans if plan.role == "train"]
    complete = {trainer.source for trainer in trainers}
    named = [plan for plan in plans if plan.role == "serve" and plan.explicit and plan.source not in complete]
    pairs = []
    for trainer in trainers:
        mode = trainer.values.get("rollout.mode")
        if mode is None or mode.data != "server":
            continue
        addresses = trainer.evidence("server.host", "server.address")
        text = " ".join(str(address.data) for address in addresses if address.known)
        addressed = [server for host, servers in by_host.items() if host in text for server in servers]
        candidates = by_source.get(trainer.source) or addressed or (named if trainer.explicit else [])
        pairs += [(trainer, server) for server in _matching_ports(trainer, candidates)]
    return pairs


def _matching_ports(trainer: RunPlan, servers: list[RunPlan]) -> list[RunPlan]:
    """Return the servers that listen on the trainer's ports; a single server counts with any port."""
    if len(servers) <= 1:
        return servers
    chosen = []
    for port in _port_numbers(trainer):
        listening = [server for server in servers if port in _port_numbers(server)]
        # A script may run several trainings in sequence; the server that started last before the trainer counts.
        earlier = [server for server in listening if server.first_line <= trainer.first_line]
        chosen += earlier[-1:] or listening[:1]
    return chosen
