"""Check for Ray clusters on this machine that a run would join by mistake, or that are dead."""

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
    """Report the address of a dead cluster (RAY015), a running one (RAY012), or another Ray release (RAY901)."""
    for cluster in case.machine.ray:
        yield from _current_cluster(case, cluster)
        if cluster.release and cluster.running != () and cluster.release != case.environment.version("ray"):
            yield _other_release(case, cluster)


def _other_release(case: Examined, cluster: RayCluster) -> Finding:
    installed = case.environment.packages["ray"]
    text = f"its latest session was started by Ray {cluster.release}"
    again = install(case.environment, f"ray=={cluster.release}")
    advice = (
        "Use the same release for the cluster and the run: install the cluster's, or restart the cluster."
    )
    return finding(
        "RAY901",
        Severity.WARNING if cluster.running else Severity.INFO,
        [Evidence(text, cluster.folder), Evidence(f"ray {installed.version}", installed.place)],
        Fix.of(advice, again, _STOP),
        f"The latest session here is of Ray {cluster.release}; installed is {installed.version}.",
    )


def _current_cluster(case: Examined, cluster: RayCluster) -> Iterator[Finding]:
    address = cluster.current
    if not address or case.variables.get("RAY_ADDRESS") or cluster.running is None:
        return
    file = f"{cluster.folder}/ray_current_cluster"
    evidence = [Evidence(f"`ray start` recorded the cluster {address}", file)]
    if cluster.running:
        evidence.append(Evidence(f"running here: {', '.join(cluster.running)}", "/proc"))
        advice = "If the run should not join it, stop that cluster, or start one of your own."
        fix = Fix.of(advice, _STOP, SetVariables((("RAY_ADDRESS", "local"),)))
        detail = "ray.init() without an address joins this cluster and uses its resources."
        yield case.known_issue("RAY012", Severity.INFO, evidence, fix, detail)
    else:
        fix = Fix.of("If the cluster is dead, remove its file, or start it again.", _STOP, Run(("rm", file)))
        detail = "No Ray process runs here: the cluster is dead or on another machine."
        yield case.known_issue("RAY015", Severity.WARNING, evidence, fix, detail)
