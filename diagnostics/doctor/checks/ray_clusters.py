"""Check this machine for a Ray cluster that a run would join, one without a process here, and one of another release.

The facts are traces in Ray's temporary folder and running processes; Ray is not started.
"""

from collections.abc import Iterator

from diagnostics.collect.python_environment import Environment, Package
from diagnostics.collect.ray_traces import RayTraces
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, evidence_of, finding
from diagnostics.doctor.installers import install
from diagnostics.findings import Evidence, Finding, NotChecked, Severity
from diagnostics.fixes import Fix, Run, SetVariables

_STOP = Run(("ray", "stop"))


@check("Ray")
def ray_clusters(case: CheckInput) -> Iterator[Finding | NotChecked]:
    """Report a cluster to join (RAY012), one with no process here (RAY015), and one of another release (RAY901).

    With RAY_ADDRESS set, or if it is unknown which clusters run here, RAY901 is the only finding. A cluster without a
    process here is dead or on another machine, and gives no RAY901. Processes that do not answer are not checked.
    """
    clusters, ray = case.machine.ray, case.environment.packages.get("ray")
    if ray is None:
        raise NotApplicableError("Ray is not installed")
    for cluster in clusters:
        for pid in cluster.unanswered:
            yield NotChecked(f"pid {pid}", "no command line in time", decides=cluster.running is None)
        if cluster.current and cluster.running is not None and not case.variables.get("RAY_ADDRESS"):
            yield _current_cluster(cluster)
        if cluster.release and cluster.running != () and cluster.release != ray.version:
            yield _other_release(case.environment, ray, cluster)


def _other_release(environment: Environment, ray: Package, cluster: RayTraces) -> Finding:
    """Return RAY901: a warning if a cluster runs here, information if that is unknown."""
    text = f"its latest session was started by Ray {cluster.release}"
    again = install(environment, f"ray=={cluster.release}")
    advice = "Use one release for the cluster and the run: install the cluster's, or restart the cluster."
    severity = Severity.WARNING if cluster.running else Severity.INFO
    evidence = [Evidence(text, cluster.folder), evidence_of(ray)]
    detail = f"The latest session here is of Ray {cluster.release}; installed is {ray.version}."
    return finding("RAY901", severity, evidence, Fix.of(advice, again, _STOP), detail)


def _current_cluster(cluster: RayTraces) -> Finding:
    """Return RAY012 if a cluster runs here, else RAY015."""
    file = f"{cluster.folder}/ray_current_cluster"
    evidence = [Evidence(f"`ray start` recorded the cluster {cluster.current}", file)]
    if cluster.running:
        evidence.append(Evidence(f"running here: {', '.join(cluster.running)}", "/proc"))
        advice = "If the run should not join it, stop that cluster, or start one of your own."
        fix = Fix.of(advice, _STOP, SetVariables((("RAY_ADDRESS", "local"),)))
        detail = "ray.init() without an address joins this cluster and uses its resources."
        return finding("RAY012", Severity.INFO, evidence, fix, detail)
    fix = Fix.of("If the cluster is dead, remove its file, or start it again.", _STOP, Run(("rm", file)))
    detail = "No Ray process runs here: the cluster is dead or on another machine."
    return finding("RAY015", Severity.WARNING, evidence, fix, detail)
