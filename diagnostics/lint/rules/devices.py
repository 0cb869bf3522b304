"""Rule about GPUs (CFG108): a trainer and its rollout server do not share one.

`used_devices` and `server_is_local` return the facts for it; `servers.py` also uses `server_is_local`.
"""

from collections.abc import Iterator

from diagnostics.findings import Severity
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import parse_count

# Addresses of the same machine.
LOCAL_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "::1")  # noqa: S104 - compared, nothing listens there


def used_devices(plan: RunPlan) -> set[str]:
    """Return the ids of the devices that a run uses: as many of the visible ones as it has processes or ranks.

    A server's parallel size that is not set or not known counts as 1. If a trainer's number of processes is unknown,
    all visible devices are returned; if the ids are unknown, none.
    """
    visible: list[str] = plan.get("devices.ids") or []
    if plan.role == "serve":
        sizes = [plan.whole_number(f"engine.{name}_parallel") or 1 for name in ("tensor", "data", "pipeline")]
        count: int | None = sizes[0] * sizes[1] * sizes[2]
    else:
        count = parse_count(plan.processes_on_a_node())
    return set(visible[:count])


@rule("CFG108", check="trainer with server", scope="pair")
def trainer_and_server_use_different_devices(trainer: RunPlan, server: RunPlan) -> Iterator[Problem]:
    """A trainer and its local server use different GPUs, because NCCL refuses two ranks on one device.

    A GPU that both see but only one uses is a warning.
    """
    if not server_is_local(trainer):
        return
    visible = set(server.get("devices.ids") or ()) & set(trainer.get("devices.ids") or ())
    if not visible:
        return
    used = used_devices(server) & used_devices(trainer)
    devices = ", ".join(sorted(used or visible))
    message = f"Trainer and server both use GPU {devices}. NCCL refuses to send weights between two ranks on one GPU."
    if not used:
        message = (
            f"GPU {devices} is visible to the trainer and to its server; by their sizes only one uses it."
        )
    newer = ", in TRL from 0.18 on" if trainer.framework == "trl" else ""
    yield Problem(
        message,
        [*trainer.evidence("devices.ids"), *server.evidence("devices.ids"), *trainer.evidence("server.host")],
        fix=f"Give the server its own GPUs, or use colocate mode{newer}.",
        severity=Severity.ERROR if used else Severity.WARNING,
    )


def server_is_local(trainer: RunPlan) -> bool:
    """Return whether each address of the trainer's server is local; False if there is no address."""
    address = trainer.get("server.host") or trainer.get("server.address")
    hosts = address if isinstance(address, list) else [address]
    return all(any(word in str(host) for word in LOCAL_HOSTS) for host in hosts)
