"""The options of `doctor --hosts` and `doctor --ray`; apart from what they start, so that doctor starts fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

LIMIT_S = 30.0


def add(doctor_parser: argparse.ArgumentParser) -> None:
    """Adds the options of a fleet to doctor's."""
    group = doctor_parser.add_argument_group("many nodes")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--hosts", type=Path, metavar="FILE", help="examine these hosts over ssh and compare them"
    )
    which.add_argument(
        "--ray", nargs="?", const="auto", metavar="ADDRESS", help="examine the nodes of a running Ray cluster"
    )
    group.add_argument(
        "--host-command",
        default="",
        metavar="WORDS",
        help="in place of ssh, e.g. 'kubectl exec -i {host} --'",
    )
    group.add_argument(
        "--host-python", default="", metavar="PATH", help="the Python there (default: python3)"
    )
    group.add_argument(
        "--node-limit",
        type=float,
        default=LIMIT_S,
        metavar="SECONDS",
        help=f"for each node (default: {LIMIT_S:g})",
    )
