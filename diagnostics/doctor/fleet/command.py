"""`doctor --hosts FILE` and `doctor --ray [ADDRESS]` on the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from diagnostics.collect import compat
from diagnostics.doctor import examine as doctor
from diagnostics.doctor.fleet.nodes import Node, read
from diagnostics.doctor.fleet.report import examine_fleet, shareable
from diagnostics.nodes import cluster, hosts, reach
from diagnostics.nodes import options as wanted
from diagnostics.nodes.cluster import ClusterError
from diagnostics.nodes.hosts import HostsError
from diagnostics.nodes.program import Carried
from diagnostics.output import clean, output
from diagnostics.output.findings import USAGE

if TYPE_CHECKING:
    import argparse

    from diagnostics.output.findings import Report

_PARTS = (
    "collect/*.py",
    "frameworks.py",
    "given.py",
    "safe_io.py",
    "output/redact.py",
    "doctor/fleet/remote.py",
)


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
    if problem := wanted.problem(options):
        raise HostsError(problem)


def _of_hosts(options: argparse.Namespace, prefix: str) -> tuple[list[Node], str]:
    found, answers = reach.chosen(options, prefix, lambda host: carried(host.prefix or prefix))
    nodes = []
    rank = 0
    slots = all(host.slots for host in found)
    for position, (host, answer) in enumerate(zip(found, answers, strict=True)):
        many = slots and host.slots > 1
        number = f"{rank}-{rank + host.slots - 1}" if many else str(rank)
        secrets = tuple(filter(None, (host.target, host.name)))
        name = hosts.name(host, found)
        nodes.append(
            Node(position, "ranks" if many else "rank", number, name, secrets=secrets, **read(answer))
        )
        rank += host.slots if slots else 1
    counted = "slot by slot" if slots else "one a host"
    return nodes, (
        f"ranks are counted in the order of the list, {counted}; environment variables and limits are those that this "
        "way of getting in has, which a launcher may change"
    )


def carried(prefix: str = "") -> Carried:
    """Doctor's facts, of an environment on a node; empty for the one of the Python that runs it."""
    return Carried("diagnostics.doctor.fleet.remote", _PARTS, {"prefix": prefix})


def _of_ray(options: argparse.Namespace, prefix: str) -> tuple[list[Node], str]:
    members = cluster.chosen(options, prefix, carried())
    nodes = [
        Node(
            position,
            "node",
            str(position),
            member.name,
            dead=member.dead,
            secrets=member.secrets,
            **read(member.answer),
        )
        for position, member in enumerate(members)
    ]
    return nodes, "environment variables and limits are those that Ray's workers have on each node"
