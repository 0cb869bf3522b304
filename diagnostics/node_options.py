"""The options of `--hosts` and `--ray`, shared by the commands that examine many machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

LIMIT_S = 30.0


@dataclass(frozen=True)
class NodeOptions:
    """Which machines are examined, and how they are reached."""

    hosts: Path | None = None
    ray: str = ""
    host_command: str = ""
    host_python: str = ""
    node_limit: float = LIMIT_S

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.hosts or self.ray)


def node_options(hosts_help: str, ray_help: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options to a command, which gets them as `nodes`.

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
            "--host-command", default="", metavar="WORDS", help="Instead of ssh, e.g. 'kubectl exec -i {host} --'."
        ),
        click.option(
            "--host-python", default="", metavar="PATH",
            help="Python on the hosts (default: python3); with --ray one here that has Ray.",
        ),
        click.option(
            "--node-limit", type=float, default=LIMIT_S, show_default=True, metavar="SECONDS",
            help="Time limit for each host.",
        ),
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
