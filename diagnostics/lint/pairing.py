"""Pair each trainer with its rollout server: in the same script, by address, or among files of one command line."""

from __future__ import annotations

from itertools import combinations

from diagnostics.lint.rules.servers import list_ports
from diagnostics.lint.run_plan import RunPlan

_LOCAL = {"127.0.0.1", "localhost", "0.0.0.0", "::1", "::"}  # noqa: S104 - compared, nothing listens there
# Every pair is checked; a script with more servers than this is no run.
_MAX_SERVERS = 64


def pair_with_servers(plans: list[RunPlan]) -> list[tuple[RunPlan, RunPlan]]:
    """Return each trainer in server mode with its server.

    A server of the same script comes first. Otherwise it is one in another file at the address that the trainer names,
    or the one server of the files that were named together on the command line.
    """
    servers = [plan for plan in plans if plan.role == "serve"]
    pairs = []
    for trainer in (
        plan for plan in plans if plan.role == "train" and plan.values.get("rollout.mode") is not None
    ):
        if trainer.values["rollout.mode"].data != "server":
            continue
        in_script = [server for server in servers if server.source == trainer.source]
        candidates = in_script or [server for server in servers if _is_addressed(trainer, server)]
        candidates = candidates or _named_together(trainer, plans, servers)
        pairs += [(trainer, server) for server in _matching_ports(trainer, candidates)]
    return pairs


def _is_addressed(trainer: RunPlan, server: RunPlan) -> bool:
    """Return whether the trainer's settings name the server's host; a local address is no evidence."""
    host = server.values.get("server.host")
    if host is None or not host.known or str(host.data) in _LOCAL:
        return False
    addresses = trainer.evidence("server.host", "server.address")
    return any(address.known and str(host.data) in str(address.data) for address in addresses)


def _named_together(trainer: RunPlan, plans: list[RunPlan], servers: list[RunPlan]) -> list[RunPlan]:
    """Return the servers in files named on the command line, except files that also start a trainer."""
    if not trainer.explicit:
        return []
    complete = {plan.source for plan in plans if plan.role == "train"}
    return [server for server in servers if server.explicit and server.source not in complete]


def _matching_ports(trainer: RunPlan, servers: list[RunPlan]) -> list[RunPlan]:
    """Return the servers that listen on the trainer's ports; a single server counts whatever its port."""
    if len(servers) <= 1:
        return servers
    chosen = []
    for number in {port.data for port in list_ports(trainer.values.get("server.port"))}:
        listening = [
            server
            for server in servers
            if number in {port.data for port in list_ports(server.values.get("server.port"))}
        ]
        # A script may run several trainings in sequence: the server started last before the trainer counts.
        earlier = [server for server in listening if _line_of(server) <= _line_of(trainer)]
        chosen += earlier[-1:] or listening[:1]
    return chosen


def server_pairs(plans: list[RunPlan]) -> list[tuple[RunPlan, RunPlan]]:
    """Return pairs of servers that one script runs at the same time: it starts no trainer between them."""
    servers = [plan for plan in plans if plan.role == "serve"][:_MAX_SERVERS]
    trainers = [plan for plan in plans if plan.role == "train"]
    return [
        (first, second)
        for first, second in combinations(servers, 2)
        if first.source == second.source
        and not any(
            trainer.source == first.source and _line_of(first) < _line_of(trainer) < _line_of(second)
            for trainer in trainers
        )
    ]


def _line_of(plan: RunPlan) -> int:
    return plan.settings.place.line
