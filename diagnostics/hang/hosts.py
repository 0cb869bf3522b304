"""Take snapshots on many hosts at a time: over ssh or another command, or as tasks of a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from diagnostics.collect.remote import Answer, NodeError, Program
from diagnostics.hang.collect.snapshot import NoProcessError
from diagnostics.hang.snapshot import Snapshot, SnapshotError, join_snapshots
from diagnostics.node_options import NodeOptions, query_nodes
from diagnostics.output.redact import mask

_SOURCES = (
    "__init__.py",
    "safe_io.py",
    "hang/__init__.py",
    "hang/snapshot.py",
    "hang/collect/*.py",
    "hang/collect/*.txt",
)
"""Sources that travel: standard library only."""


def collector(pattern: str, seconds: float, samples: int) -> Program:
    """Return the program that runs on a host."""
    options = {"pattern": pattern, "seconds": seconds, "samples": samples}
    return Program("diagnostics.hang.collect.remote", "snapshot_as_json", _SOURCES, options)


def take_snapshots(nodes: NodeOptions, program: Program) -> Snapshot:
    """Return what all hosts observed, as one job; a host without an answer is named as missing.

    Args:
        nodes: Which hosts, and how they are reached.
        program: What runs on each.

    Raises:
        RemoteError: The list of hosts cannot be used, or the cluster cannot be reached.
        NoProcessError: All answered, and none has a process of a job.
    """
    members = query_nodes(nodes, lambda _: program)
    # The report may be shared, so host names are printed on standard error only.
    for number, member in enumerate(members, start=1):
        reason = f": {member.answer.problem}" if member.answer.problem else ""
        print(mask(f"host-{number} is {member.name}{reason}"), file=sys.stderr)
    return join_answers([member.answer for member in members])


def join_answers(answers: Sequence[Answer]) -> Snapshot:
    """Return one snapshot of all answers; hosts are called host-1, host-2, ... in order.

    Raises:
        NoProcessError: All answered, and none has a process of a job.
    """
    parts = []
    for number, answer in enumerate(answers, start=1):
        host = f"host-{number}"
        try:
            parts.append(Snapshot.from_json(answer.document()).on_host(host))
        except (NodeError, SnapshotError) as error:
            parts.append(Snapshot(blind=(f"{host}: {error}",), missing=(host,)))
    joined = join_snapshots(parts)
    if not joined.processes and not joined.missing:
        raise NoProcessError(f"none of {len(parts)} hosts has such a process: {'; '.join(joined.notes)}")
    return joined
