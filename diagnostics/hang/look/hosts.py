"""Looks on many hosts at a time: over ssh or whatever gets in there, or as tasks of a Ray cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from diagnostics.hang import snapshot
from diagnostics.hang.look.take import NoProcessError
from diagnostics.hang.snapshot import Snapshot, SnapshotError
from diagnostics.nodes import cluster, hosts, reach
from diagnostics.nodes.answer import AnswerError, NodeAnswer
from diagnostics.nodes.program import Carried
from diagnostics.output import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_PARTS = (
    "hang/plain.py",
    "frameworks.py",
    "given.py",
    "safe_io.py",
    "hang/frames.py",
    "hang/wait_table.py",
    "hang/roles.py",
    "hang/snapshot.py",
    "hang/read/__init__.py",
    "hang/read/pyspy.py",
    "hang/read/served.py",
    "hang/look/*.py",
)


def carried(options: argparse.Namespace) -> Carried:
    """What runs on a host."""
    asked = {"pattern": options.match, "seconds": options.seconds, "samples": options.samples}
    return Carried("diagnostics.hang.look.remote", _PARTS, asked)


def take(options: argparse.Namespace) -> Snapshot:
    """What all of them see, as one job; who gives no answer is named among what could not be seen.

    Raises:
        HostsError: The list of hosts can't be used.
        ClusterError: The cluster can't be asked at all.
        NoProcessError: All answered, and none has a process to look at.
    """
    sent = carried(options)
    if options.ray:
        members = cluster.chosen(options, "", sent)
        named = [(member.name, member.answer) for member in members]
    else:
        found, answers = reach.chosen(options, "", lambda _: sent)
        named = [(hosts.name(host, found), answer) for host, answer in zip(found, answers, strict=True)]
    # What is printed may be shared: names of hosts stand on standard error alone.
    for number, (name, answer) in enumerate(named, start=1):
        why = f": {answer.problem}" if answer.problem else ""
        print(clean.own(f"host-{number} is {name}{why}"), file=sys.stderr)
    return of_answers([answer for _, answer in named])


def of_answers(answers: Sequence[NodeAnswer]) -> Snapshot:
    """One snapshot of what hosts answered, which are called host-1, host-2, … in their order.

    Raises:
        NoProcessError: All answered, and none has a process to look at.
    """
    parts = []
    for number, answer in enumerate(answers, start=1):
        host = f"host-{number}"
        try:
            seen = Snapshot.from_json(answer.document())
        except (AnswerError, SnapshotError) as error:
            parts.append(Snapshot(blind=(f"{host}: {error}",), missing=(host,)))
            continue
        parts.append(seen.on(host))
    whole = snapshot.joined(parts)
    if not whole.processes and not whole.missing:
        raise NoProcessError(f"none of {len(parts)} hosts has such a process: {'; '.join(whole.notes)}")
    return whole
