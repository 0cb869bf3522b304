"""The matrix on the nodes of a Ray cluster: who asks what, and how answers come back.

`bundle` is what the nodes are sent, `node` what runs there, `placement` chooses a node, `dispatch` hands out the
questions and takes in the answers, `on_ray` is all that knows Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.run.cluster.dispatch import Dispatch, DispatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.matrix.run.board import Question
    from diagnostics.matrix.run.runner import MatrixRun


def run_on(address: str, going: MatrixRun, due: Sequence[Question]) -> None:
    """Asks what is due on the nodes of a running cluster.

    Args:
        address: of the cluster, as '10.0.0.1:6379', or 'auto' for the one that this machine is in.
        going: the run that takes in the answers.
        due: the questions, in order.

    Raises:
        ClusterError: when there is no cluster at that address, none of its nodes takes work, or Ray is not installed
            here.
    """
    from diagnostics.matrix.run.cluster.on_ray import connected

    with connected(address, going.workplace) as cluster:
        names = ", ".join(f"{node.name} ({node.described})" for node in cluster.nodes())
        if not names:
            raise DispatchError(
                f"--ray {address}: no node of the cluster takes work: `ray start --address={address}` adds one"
            )
        going.progress.note(f"cluster at {address}: {names}")
        Dispatch(going, due, cluster).finish()
