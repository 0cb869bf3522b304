"""Take snapshots on many hosts at a time: over ssh or another command, or as tasks of a Ray cluster."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from diagnostics.hang.collect.snapshot import NoProcessError
from diagnostics.hang.snapshot import Snapshot, SnapshotError, join_snapshots
from diagnostics.nodes import cluster, hosts, reach
from diagnostics.nodes.answer import AnswerError, NodeAnswer
from diagnostics.nodes.program import Carried
from diagnostics.output.redact import mask

_PARTS = (
    "__init__.py",
    "safe_io.py",
    "hang/__init__.py",
    "hang/snapshot.py",
    "hang/collect/*.py",
    "hang/collect/*.txt",
)
"""Sources that travel: standard library only."""


def collector(pattern: str, seconds: float, samples: int) -> Carried:
    """Return the program that runs on a host."""
    options = {"pattern": pattern, "seconds": seconds, "samples": samples}
    return Carried("diagnostics.hang.collect.remote", _PARTS, options)


def take_snapshots(nodes: Namespace, program: Carried) -> Snapshot:
    """Return what all hosts observed, as one job; a host without an answer is named as missing.

    Args:
        nodes: The options `hosts`, `ray`, `host_command`, `host_python` and `node_limit`.
        program: What runs on each.

    Raises:
        HostsError: The list of hosts cannot be used.
        ClusterError: The cluster cannot be reached.
        NoProcessError: All answered, and none has a process of a job.
    """
    if nodes.ray:
        labelled = [(member.name, member.answer) for member in cluster.chosen(nodes, "", program)]
    else:
        listed, answers = reach.chosen(nodes, "", lambda _: program)
        labelled = [(hosts.name(host, listed), answer) for host, answer in zip(listed, answers, strict=True)]
    # The report may be shared: names of hosts stand on standard error only.
    for number, (name, answer) in enumerate(labelled, start=1):
        reason = f": {answer.problem}" if answer.problem else ""
        print(mask(f"host-{number} is {name}{reason}"), file=sys.stderr)
    return join_answers([answer for _, answer in labelled])


def join_answers(answers: Sequence[NodeAnswer]) -> Snapshot:
    """Return one snapshot of all answers; hosts are called host-1, host-2, ... in order.

    Raises:
        NoProcessError: All answered, and none has a process of a job.
    """
    parts = []
    for number, answer in enumerate(answers, start=1):
        host = f"host-{number}"
        try:
            parts.append(Snapshot.from_json(answer.document()).on_host(host))
        except (AnswerError, SnapshotError) as error:
            parts.append(Snapshot(blind=(f"{host}: {error}",), missing=(host,)))
    joined = join_snapshots(parts)
    if not joined.processes and not joined.missing:
        raise NoProcessError(f"none of {len(parts)} hosts has such a process: {'; '.join(joined.notes)}")
    return joined
