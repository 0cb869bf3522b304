"""Check for Ray clusters on this machine that a run would join, or whose leftovers it would wait for."""

from __future__ import annotations

from collections.abc import Iterator

from diagnostics.collect.ray import RayCluster
from diagnostics.doctor.checks.base import Examined, check, finding
from diagnostics.doctor.installers import install
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Fix, Run, SetVariables

_STOP = Run(("ray", "stop"))


def _no_ray(case: Examined) -> str:
    return "Ray is not installed" if case.environment.version("ray") is None else ""


@check("Ray", skip=_no_ray, machine=True)
def ray_clusters(case: Examined) -> Iterator[Finding]:
    """RAY015 for the address of a dead cluster, RAY012 for a running one, RAY901 for another release."""
    for cluster in case.machine.ray:
        yield from _current_cluster(case, cluster)
        if cluster.release and cluster.running != () and cluster.release != case.environment.version("ray"):
            yield _other_release(case, cluster)


def _other_release(case: Examined, cluster: RayCluster) -> Finding:
    environment = case.environment
    release = environment.version("ray")
    return finding(
        "RAY901",
        Severity.WARNING if cluster.running else Severity.INFO,
        [
            Evidence(f"its latest session was started by Ray {cluster.release}", cluster.folder),
            Evidence(f"ray {release}", environment.packages["ray"].place),
        ],
        Fix.of(
            "Use the same release for the cluster and the run: install the cluster's, or stop and restart the cluster.",
            install(environment, f"ray=={cluster.release}"),
            _STOP,
        ),
        detail=f"The latest session here is of Ray {cluster.release}; installed is {release}.",
    )


def _current_cluster(case: Examined, cluster: RayCluster) -> Iterator[Finding]:
    address = cluster.current
    if not address or case.variables.get("RAY_ADDRESS") or cluster.running is None:
        return
    file = f"{cluster.folder}/ray_current_cluster"
    evidence = [Evidence(f"`ray start` recorded the cluster {address}", file)]
    if cluster.running:
        yield case.known_issue(
            "RAY012",
            Severity.INFO,
            [*evidence, Evidence(f"running here: {', '.join(cluster.running)}", "/proc")],
            Fix.of(
                "If the run should not join it, stop that cluster, or start one of your own.",
                _STOP,
                SetVariables((("RAY_ADDRESS", "local"),)),
            ),
            detail="ray.init() without an address joins this cluster and uses its resources.",
        )
    else:
        yield case.known_issue(
            "RAY015",
            Severity.WARNING,
            evidence,
            Fix.of("If the cluster is dead, remove its file, or start it again.", _STOP, Run(("rm", file))),
            detail="No Ray process runs here: the cluster is dead or on another machine.",
        )
