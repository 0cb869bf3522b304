"""The cluster, by Ray: the one module of ours outside the cells that imports it, and only when it is asked for."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.collect.secrets import cut
from diagnostics.matrix.run.cluster import bundle, node
from diagnostics.matrix.run.cluster.dispatch import DispatchError, FailedError, GoneError, LostError
from diagnostics.matrix.run.cluster.placement import RayNode
from diagnostics.processes import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.needs import Needs

# So long a port may take to answer, in seconds.
CONNECT_S = 5.0
# A program gets its grace to end, then a cancelled job some seconds to say so.
CANCEL_S = GRACE_S + 5.0


@contextlib.contextmanager
def connected(address: str, workplace: Workplace) -> Iterator[RayCells]:
    """Joins a running cluster as a job of its own, with our code sent to every node that works for it.

    Raises:
        ClusterError: no Ray here, or no cluster there.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise DispatchError(
            "--ray: Ray is not installed here: pip install 'grpo-doctor[matrix,ray]'"
        ) from None
    _answers(address)
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as name, _our_signals():
        sent = bundle.write(workplace, Path(name) / "sent")
        try:
            ray.init(
                address=address,
                namespace="grpo-doctor",
                runtime_env={"working_dir": str(sent)},
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # noqa: BLE001 - a dozen kinds, all of them said in one line
            text = cut(" ".join(str(error).split()), 400)
            raise DispatchError(f"--ray {address}: {type(error).__name__}: {text}") from None
    # What Ray says of its nodes it prints to standard output, where a table is awaited.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield RayCells(ray)
        finally:
            # Without its head a cluster is not left in an orderly way, and need not be.
            leaving = threading.Thread(target=ray.shutdown, daemon=True)
            leaving.start()
            leaving.join(CANCEL_S)


def _answers(address: str) -> None:
    """Knocks at the address: Ray itself would wait for a minute.

    Raises:
        ClusterError: nobody opens, or it is no address.
    """
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise DispatchError(
            f"--ray {address}: expected HOST:PORT or auto: start the run on a machine of the cluster, "
            "not through Ray's client"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise DispatchError(f"--ray {address}: expected HOST:PORT or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise DispatchError(
            f"--ray {address}: no cluster answers there ({error}): `ray start --head --port=6379` starts one"
        ) from None


@contextlib.contextmanager
def _our_signals() -> Iterator[None]:
    """Puts our own handlers back: Ray sets one for SIGTERM that ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class RayCells:
    """A cluster of which this process is a driver."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._work = ray.remote(node.work)
        self._head: str = ray.get_runtime_context().gcs_address

    def nodes(self) -> list[RayNode]:
        """Returns the living nodes that take work; hosts with several nodes give each a name of its own.

        Raises:
            GoneError: the cluster's head does not answer any more.
        """
        self._knock()
        alive = [item for item in self._ray.nodes() if item["Alive"] and item["Resources"].get("CPU")]
        hosts = [item["NodeManagerHostname"] for item in alive]
        found = []
        for item in alive:
            host, has = item["NodeManagerHostname"], item["Resources"]
            name = host if hosts.count(host) == 1 else f"{host}/{item['NodeID'][:6]}"
            memory_gb = has.get("memory", 0.0) / 1e9
            found.append(RayNode(item["NodeID"], name, has["CPU"], memory_gb, has.get("GPU", 0.0)))
        return found

    def _knock(self) -> None:
        """Asks whether the head is there: Ray itself would wait for a minute, and then end this process with code 1."""
        host, _, port = self._head.rpartition(":")
        for patience in (False, True):
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
            except OSError as error:
                if patience:
                    raise GoneError(
                        f"--ray {self._head}: the head of the cluster is gone ({error}): what was answered is kept; "
                        "start a cluster and the command again"
                    ) from None
                threading.Event().wait(CONNECT_S)
            else:
                return

    def submit(self, node: RayNode, needs: Needs, job: dict[str, Any]) -> Any:
        """Starts a job on a node; Ray itself never starts it again."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        options = self._work.options(
            num_cpus=needs.cpus,
            num_gpus=needs.gpus,
            memory=int(needs.memory_gb * 1e9) or None,
            scheduling_strategy=there,
            max_retries=0,
            name=" ".join(str(job[key]) for key in ("task", "cell", "layer") if key in job),
        )
        return options.remote(job)

    def wait(self, handles: Sequence[Any], timeout_s: float) -> list[Any]:
        """Returns the handles of jobs that have ended."""
        if not handles:
            threading.Event().wait(timeout_s)
            return []
        ready, _ = self._ray.wait(list(handles), num_returns=1, timeout=timeout_s)
        return list(ready)

    def result(self, handle: Any) -> dict[str, Any]:
        """Returns what a job returned.

        Raises:
            FailedError: it raised, or its process could not be set up.
            LostError: its process or its node is gone.
        """
        errors = self._ray.exceptions
        try:
            reply: dict[str, Any] = self._ray.get(handle)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            raise FailedError(_last_line(error)) from None
        except errors.RayError as error:
            raise LostError(f"{type(error).__name__}: {_first_line(error)}") from None
        return reply

    def cancel(self, handles: Sequence[Any]) -> None:
        """Interrupts the jobs, which end their programs; a job that hangs ends with its process."""
        for force in (False, True):
            for handle in handles:
                with contextlib.suppress(Exception):  # one that ended meanwhile
                    self._ray.cancel(handle, force=force)
            if not handles:
                return
            _, handles = self._ray.wait(list(handles), num_returns=len(handles), timeout=CANCEL_S)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return cut(lines[0], 200) if lines else "no word about why"


def _last_line(error: BaseException) -> str:
    """Returns the line of a remote traceback that says what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return cut(lines[-1], 300) if lines else type(error).__name__
