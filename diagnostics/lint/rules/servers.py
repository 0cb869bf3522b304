"""Rules about rollout servers: ports and lengths.

`pair_with_trainers` finds each trainer's server, for the rules that check both together.
"""

from collections.abc import Iterator

from diagnostics.findings import Severity
from diagnostics.lint.rules.devices import LOCAL_HOSTS, server_is_local
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan

PAIRS = "trainer with server"


def _port_numbers(plan: RunPlan) -> set[int]:
    """Return the port numbers in `server.port`, which is a number, a text or a list; empty if there are none."""
    value = plan.values.get("server.port")
    data = value.data if value is not None else []
    texts = map(str, data if isinstance(data, list) else [data])
    return {int(text) for text in texts if text.isdecimal() and len(text) < 10}


@rule("CFG109", check=PAIRS, scope="pair", warnings_only=True)
def trainer_finds_server_port(trainer: RunPlan, server: RunPlan) -> Iterator[Problem]:
    """A trainer connects to the port on which its server listens, if that is local or in the same script."""
    expected, listening = _port_numbers(trainer), _port_numbers(server)
    addresses = trainer.evidence("server.host", "server.address")
    # A script that starts both gives the trainer the server's address, such as the name of another node.
    own = trainer.source == server.source and not any(address.known for address in addresses)
    is_local = addresses and (own or server_is_local(trainer))
    if expected and listening and not expected & listening and is_local:
        yield Problem(
            f"The trainer connects to port {min(expected)}, but its server listens on {min(listening)}: it waits until "
            "its timeout.",
            [*trainer.evidence("server.port"), *server.evidence("server.port")],
            fix="Set both to the same port.",
            severity=Severity.WARNING,
        )


@rule("CFG103", check=PAIRS, scope="pair", warnings_only=True)
def server_length_fits(trainer: RunPlan, server: RunPlan) -> Iterator[Problem]:
    """The prompt and completion of a trainer without multi-turn rollouts fit into the server's max_model_len."""
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
    """Return (trainer, server) for each trainer in server mode and each server that may be its own.

    Candidates are the first of these that exist:

    1. Servers in the same script.
    2. Servers in other files, at the address that the trainer names.
    3. Servers in files that the user named and that start no training.

    Of several candidates, at most one is returned for each port of the trainer.
    """
    by_source: dict[str, list[RunPlan]] = {}
    by_host: dict[str, list[RunPlan]] = {}
    for server in (plan for plan in plans if plan.role == "serve"):
        by_source.setdefault(server.source, []).append(server)
        host = server.values.get("server.host")
        if host is not None and host.known and str(host.data) not in {*LOCAL_HOSTS, "::"}:
            by_host.setdefault(str(host.data), []).append(server)
    trainers = [plan for plan in plans if plan.role == "train"]
    complete = {trainer.source for trainer in trainers}
    named_servers = [
        plan for plan in plans if plan.role == "serve" and plan.explicit and plan.source not in complete
    ]
    pairs = []
    for trainer in trainers:
        mode = trainer.values.get("rollout.mode")
        if mode is None or mode.data != "server":
            continue
        addresses = trainer.evidence("server.host", "server.address")
        text = " ".join(str(address.data) for address in addresses if address.known)
        addressed = [server for host, servers in by_host.items() if host in text for server in servers]
        candidates = by_source.get(trainer.source) or addressed or (named_servers if trainer.explicit else [])
        pairs += [(trainer, server) for server in _matching_ports(trainer, candidates)]
    return pairs


def _matching_ports(trainer: RunPlan, servers: list[RunPlan]) -> list[RunPlan]:
    """Return the servers that listen on the trainer's ports; a single server is returned with any port."""
    if len(servers) <= 1:
        return servers
    chosen = []
    for port in _port_numbers(trainer):
        listening = [server for server in servers if port in _port_numbers(server)]
        # A script may run several trainings in sequence; the server that started last before the trainer counts.
        earlier = [
            server for server in listening if server.settings.place.line <= trainer.settings.place.line
        ]
        chosen += earlier[-1:] or listening[:1]
    return chosen
