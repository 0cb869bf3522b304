"""`doctor --hosts FILE` and `doctor --ray [ADDRESS]` on the command line."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.doctor import examine as doctor
from diagnostics.doctor.fleet import cluster, hosts, reach
from diagnostics.doctor.fleet.cluster import ClusterError
from diagnostics.doctor.fleet.hosts import HostsError
from diagnostics.doctor.fleet.nodes import Node, read
from diagnostics.doctor.fleet.report import examine_fleet, shareable
from diagnostics.facts import compat
from diagnostics.report import clean, output
from diagnostics.report.findings import USAGE

if TYPE_CHECKING:
    import argparse

    from diagnostics.doctor.fleet.hosts import Host
    from diagnostics.report.findings import Report


def run(options: argparse.Namespace) -> int:
    """Asks the nodes and prints the report; returns the exit code."""
    prefix = str(options.prefix or (options.python.absolute().parent.parent if options.python else ""))
    try:
        _refuse(options)
        nodes, note = _of_ray(options, prefix) if options.ray else _of_hosts(options, prefix)
    except (HostsError, ClusterError) as error:
        print(f"diagnostics: {clean.own(str(error))}", file=sys.stderr)
        return USAGE
    issues, table = doctor.load_catalogue(), compat.load()

    def report_of(seen: list[Node]) -> Report:
        return output.filtered(examine_fleet(seen, issues, table, note), options)

    report = report_of(nodes) if options.format == "terminal" else shareable(report_of, nodes)
    output.write(report, options)
    return report.exit_code(output.fail_on(options))


def _refuse(options: argparse.Namespace) -> None:
    if getattr(options, "fix_plan", False):
        raise HostsError(
            "--fix-plan: one environment at a time: run it on the node, without --hosts or --ray"
        )
    if not 0 < options.node_limit <= 3600:
        raise HostsError(f"--node-limit {options.node_limit:g}: expected seconds, up to 3600")
    for name in ("host_command", "host_python"):
        if options.ray and getattr(options, name):
            raise HostsError(f"--{name.replace('_', '-')}: belongs to --hosts, not to --ray")


def _of_hosts(options: argparse.Namespace, prefix: str) -> tuple[list[Node], str]:
    found = hosts.read(options.hosts)
    if options.host_python:
        found = [host if host.python else replace(host, python=options.host_python) for host in found]
    print(f"asking {len(found)} hosts, at most {options.node_limit:g} s each", file=sys.stderr)
    answers = reach.ask(found, options.host_command, prefix, options.node_limit)
    nodes = []
    rank = 0
    slots = all(host.slots for host in found)
    for position, (host, answer) in enumerate(zip(found, answers, strict=True)):
        many = slots and host.slots > 1
        number = f"{rank}-{rank + host.slots - 1}" if many else str(rank)
        secrets = tuple(filter(None, (host.target, host.name)))
        name = f"{host.name}:{host.port}" if _shared(host, found) else host.name
        nodes.append(
            Node(position, "ranks" if many else "rank", number, name, secrets=secrets, **read(answer))
        )
        rank += host.slots if slots else 1
    counted = "slot by slot" if slots else "one a host"
    return nodes, (
        f"ranks are counted in the order of the list, {counted}; environment variables and limits are those that this "
        "way of getting in has, which a launcher may change"
    )


def _shared(host: Host, found: list[Host]) -> bool:
    return sum(other.name == host.name for other in found) > 1


def _of_ray(options: argparse.Namespace, prefix: str) -> tuple[list[Node], str]:
    python = f"{prefix}/bin/python" if prefix else sys.executable
    print(f"asking Ray's nodes, at most {options.node_limit:g} s after joining", file=sys.stderr)
    nodes = cluster.ask(python, options.ray, options.node_limit)
    return nodes, "environment variables and limits are those that Ray's workers have on each node"
