"""The options `--hosts` and `--ray`; apart from what they start, so that commands start fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

LIMIT_S = 30.0


def add(parser: argparse.ArgumentParser, hosts: str, ray: str) -> None:
    """Adds them; the texts say what is done with hosts, and with the nodes of a cluster."""
    group = parser.add_argument_group("many nodes")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--hosts", type=Path, metavar="FILE", help=hosts)
    which.add_argument("--ray", nargs="?", const="auto", metavar="ADDRESS", help=ray)
    group.add_argument(
        "--host-command",
        default="",
        metavar="WORDS",
        help="in place of ssh, e.g. 'kubectl exec -i {host} --'",
    )
    group.add_argument(
        "--host-python",
        default="",
        metavar="PATH",
        help="the Python there (default: python3); with --ray one here that has Ray",
    )
    group.add_argument(
        "--node-limit",
        type=float,
        default=LIMIT_S,
        metavar="SECONDS",
        help=f"for each node (default: {LIMIT_S:g})",
    )


def problem(options: argparse.Namespace) -> str:
    """What is wrong with them, a line; or ""."""
    if not 0 < options.node_limit <= 3600:
        return f"--node-limit {options.node_limit:g}: expected seconds, up to 3600"
    if options.ray and options.host_command:
        return "--host-command: belongs to --hosts, not to --ray"
    return ""
