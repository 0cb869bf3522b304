"""Define the options of commands that can examine several machines, and run a function on the machines they name.

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
from diagnostics.collect.remote import LIMIT_S, Answer, program_text, query_hosts, read_hosts


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
            if nodes.ray and (nodes.hosts or nodes.host_command):
                raise click.UsageError("--ray excludes --hosts and --host-command")
            return command(nodes=nodes, **arguments)

        for option in reversed(options):
            wrapper = option(wrapper)
        return wrapper

    return decorate


def query_nodes(
    options: NodeOptions, module: str, function: str, arguments: dict[str, Any], prefix: str = ""
) -> list[Answer]:
    """Run a function on the hosts of a list, or on the nodes of a Ray cluster, and return the answers.

    `redact` replaces the names of the machines from then on.

    Args:
        options: The machines, and how to reach them.
        module: The function's module.
        function: The function's name.
        arguments: The function's first argument.
        prefix: The environment whose Python runs the function on hosts, or joins the cluster; empty for the default.

    Raises:
        RemoteError: The options, the list, the command or the cluster cannot be used.
    """
    limit_s = options.node_limit
    text = program_text(module, function, arguments, limit_s)
    python = options.host_python or (f"{prefix}/bin/python" if prefix else "")
    if not options.hosts:
        print(f"querying Ray's nodes, at most {limit_s:g} s after joining", file=sys.stderr)
        return query_ray(python or sys.executable, options.ray, text, limit_s)
    hosts = read_hosts(options.hosts)
    print(f"querying {len(hosts)} hosts, at most {limit_s:g} s each", file=sys.stderr)
    return query_hosts(hosts, options.host_command, python or "python3", text, limit_s)
