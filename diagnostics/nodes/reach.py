"""Old name of `diagnostics.collect.remote`; to be removed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diagnostics.collect.remote import Answer, Host, Program, query_hosts, read_hosts

__all__ = ["chosen"]


def chosen(
    options: Any, prefix: str, carried: Callable[[Host], Program]
) -> tuple[list[Host], list[Answer]]:
    """Query the hosts that the command line names."""
    found = read_hosts(options.hosts)
    if options.host_python:
        found = [host if host.python else replace(host, python=options.host_python) for host in found]
    print(f"querying {len(found)} hosts, at most {options.node_limit:g} s each", file=sys.stderr)
    members = query_hosts(
        found, carried, template=options.host_command, prefix=prefix, limit_s=options.node_limit
    )
    return found, [member.answer for member in members]
