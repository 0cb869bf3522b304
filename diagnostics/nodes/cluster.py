"""Old name of `diagnostics.collect.remote`; to be removed."""

from __future__ import annotations

import sys
from typing import Any

from diagnostics.collect.remote import Member, Program, RemoteError, query_ray

ClusterError = RemoteError
__all__ = ["ClusterError", "chosen"]


def chosen(options: Any, prefix: str, carried: Program) -> list[Member]:
    """Query the cluster that the command line names."""
    python = options.host_python or (f"{prefix}/bin/python" if prefix else sys.executable)
    print(f"querying Ray's nodes, at most {options.node_limit:g} s after joining", file=sys.stderr)
    return query_ray(python, options.ray, carried, options.node_limit)
