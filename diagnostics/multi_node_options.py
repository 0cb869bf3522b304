"""Define the options of commands that can examine several machines, and run a program on the machines they name.

`query_nodes` returns the answers. The options are `--hosts`, `--ray`, `--host-command`, `--host-python` and
`--node-limit`; `--hosts` and `--ray` exclude each other. Hosts are reached by ssh or by the user's command, nodes of a
Ray cluster by Ray tasks. Progress is printed to standard error.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from diagnostics.cli import seconds_option
from diagnostics.collect.ray_nodes import query_ray
from diagnostics.collect.remote import LIMIT_S, Answer, Program, RemoteError, query_hosts, read_hosts
from diagnostics.output.redact import remember_host


@dataclass(frozen=True)
class NodeOptions:
    """Values of the options: the machines to examine, and how to reach them."""

    hosts: Path | None = None
    ray: str = ""
    host_command: str = ""
    host_python: str = ""
    node_limit: float = LIMIT_S

    def __bool__(self) -> bool:
        """Return whether other machines are to be examined."""
        return bool(self.hosts or self.ray)


def node_options(hosts_help: str, ray_help: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that adds the options to a command, which gets them as its argument `nodes`.

    Args:
        hosts_help: Help of `--hosts`.
        ray_help: Help of `--ray`.
    """
    options = (
        click.option("--hosts", type=click.Path(path_type=Path), metavar="FILE", help=hosts_help),
        click.option(
            "--ray", is_flag=False, flag_value="auto", default="", metavar="[ADDRESS]", help=ray_help
        ),
        click.option(
            "--host-command", default="", metavar="WORDS",
            help="Command to use instead of ssh, e.g. 'kubectl exec -i {host} --'.",
        ),
        click.option(
            "--host-python", default="", metavar="PATH",
            help="Python on the hosts (default: the environment's or python3); with --ray: a local one with Ray.",
        ),
        seconds_option("--node-limit", default=LIMIT_S, help="Time limit for each host."),
    )  # fmt: skip

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def wrapper(**arguments: Any) -> int:
            nodes = NodeOptions(**{field.name: arguments.pop(field.name) for field in fields(NodeOptions)})
            if nodes.hosts and nodes.ray:
                raise click.UsageError("--hosts and --ray exclude each other")
            return command(nodes=nodes, **arguments)

        for option in reversed(options):
            wrapper = option(wrapper)
        return wrapper

    return decorate


def query_nodes(options: NodeOptions, program: Program, prefix: str = "") -> list[Answer]:
    """Run a program on the hosts of a list, or on the nodes of a Ray cluster, and return their answers.

    `redact` replaces the names of the machines from then on.

    Args:
        options: The machines, and how to reach them.
        program: The program.
        prefix: The environment whose Python runs the program on hosts, or joins the cluster; empty for the default.

    Raises:
        RemoteError: The options, the list, the command or the cluster cannot be used.
    """
    limit_s = options.node_limit
    if not 0 < limit_s <= 3600:
        raise RemoteError(f"--node-limit {limit_s:g}: expected seconds, up to 3600")
    python = options.host_python or (f"{prefix}/bin/python" if prefix else "")
    if not options.hosts:
        if options.host_command:
            raise RemoteError("--host-command needs --hosts, not --ray")
        print(f"querying Ray's nodes, at most {limit_s:g} s after joining", file=sys.stderr)
        return query_ray(python or sys.executable, options.ray, program, limit_s)
    hosts = read_hosts(options.hosts)
    for host in hosts:
        remember_host(host.target)
        remember_host(host.name)
    print(f"querying {len(hosts)} hosts, at most {limit_s:g} s each", file=sys.stderr)
    command = options.host_command
    return query_hosts(hosts, program, template=command, python=python or "python3", limit_s=limit_s)
