"""Ray on this machine: clusters that a run would join or wait for, and settings of Ray's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalog.own_codes import finding, known, to_unset
from diagnostics.doctor.checks.registered import check
from diagnostics.doctor.installing import install
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run, SetVariables

if TYPE_CHECKING:
    from diagnostics.catalog.model import Issue
    from diagnostics.collect.clusters import RayCluster
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Machine
    from diagnostics.output.findings import Finding

_STOP = Run(("ray", "stop"))


def _no_ray(environment: Environment) -> str:
    return "Ray is not installed" if environment.version("ray") is None else ""


@check("Ray", skip=_no_ray)
def ray_clusters(environment: Environment, machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    """RAY015 for a dead cluster's address, RAY012 for one that runs, RAY901 for another release."""
    found: list[Finding] = []
    if environment.version("ray") is None:
        return found
    for cluster in machine.ray:
        found += _current(environment, cluster, issues)
        release = environment.version("ray")
        if cluster.release and cluster.release != release:
            found.append(
                finding(
                    "RAY901",
                    Severity.WARNING if cluster.running else Severity.INFO,
                    known_by="static",
                    detail=f"Installed here is {release}.",
                    evidence=(
                        Evidence(f"its latest session was made by {cluster.release}", cluster.folder),
                        Evidence(f"ray {release}", environment.packages["ray"].place),
                    ),
                    remedy=Remedy.of(
                        "Use the same release for the cluster and the run: install the cluster's, or stop it and start "
                        "it anew.",
                        install(environment, f"ray=={cluster.release}"),
                        _STOP,
                    )
                    if cluster.running or cluster.running is None
                    else Remedy.of(
                        "Nothing here, where no process of Ray's is seen; a cluster elsewhere wants its own release."
                    ),
                )
            )
    return found


def _current(environment: Environment, cluster: RayCluster, issues: dict[str, Issue]) -> list[Finding]:
    address = cluster.current
    if not address or environment.variables.get("RAY_ADDRESS"):
        return []
    evidence = (
        Evidence(f"{address} is the cluster that `ray start` left", f"{cluster.folder}/ray_current_cluster"),
    )
    if cluster.running:
        seen = (*evidence, Evidence(f"running here: {', '.join(cluster.running)}", "/proc"))
        return [
            known(
                issues["RAY012"],
                Severity.INFO,
                detail="ray.init() without an address joins it, with its resources, not its own.",
                evidence=seen,
                remedy=Remedy.of(
                    "Right if that is meant. Otherwise stop it, or ask for an own one.",
                    _STOP,
                    SetVariables((("RAY_ADDRESS", "local"),)),
                ),
            )
        ]
    if cluster.running is None:
        return []
    return [
        known(
            issues["RAY015"],
            Severity.WARNING,
            detail="No process of Ray's is seen here: the cluster is dead, or it is elsewhere.",
            evidence=evidence,
            remedy=Remedy.of(
                "Where it is dead, remove what it left, or start it again.",
                _STOP,
                Run(("rm", f"{cluster.folder}/ray_current_cluster")),
            ),
        )
    ]


@check("environment variables")
def ray_settings(environment: Environment) -> list[Finding]:
    """RAY902 for settings that switch Ray's guards off."""
    seen = environment.variables
    told = []
    monitor, threshold = "RAY_memory_monitor_refresh_ms", "RAY_memory_usage_threshold"
    if seen.get(monitor) == "0":
        why = "Ray ends no worker for want of memory; the kernel does"
        told.append((monitor, f"{monitor}=0: {why}"))
    try:
        share = float(seen.get(threshold, "0"))
    except ValueError:
        share = 0.0
    if share > 0.98:
        told.append((threshold, f"{threshold}={share:g}: the kernel is likely to kill first"))
    noset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    if seen.get(noset, "").lower() in {"1", "true"}:
        told.append((noset, f"{noset}={seen[noset]}: Ray does not narrow what a worker sees to its own GPUs"))
    return to_unset("RAY902", Severity.INFO, told, "Unset what the trainer does not ask for.")
