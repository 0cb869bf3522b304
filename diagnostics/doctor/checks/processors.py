"""Processors: what may be used against what libraries will take for granted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnostics.catalog.own_codes import finding
from diagnostics.doctor.checks.registered import check
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run, SetVariables

if TYPE_CHECKING:
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Machine
    from diagnostics.output.findings import Finding


@check("processors")
def processors(environment: Environment, machine: Machine) -> list[Finding]:
    """ENV906 for more threads than processors, ENV907 for an affinity that leaves NUMA nodes out."""
    told = machine.processors
    found = []
    usable = told.usable
    asked = environment.variables.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(asked) if asked.isdecimal() and len(asked) < 6 else 0
    # Without the variable a library starts a thread for each processor that the affinity shows, quota or not.
    too_many = threads > usable or (not threads and told.quota is not None and told.allowed >= 2 * told.quota)
    if too_many:
        number = max(1, math.floor(usable))
        evidence = [
            Evidence(f"{told.allowed} of {told.count} processors are allowed", "the process's affinity")
        ]
        if told.quota is not None:
            evidence.append(Evidence(f"time for {told.quota:g} processors", "/sys/fs/cgroup, cpu.max"))
        if threads:
            evidence.append(Evidence(f"OMP_NUM_THREADS={threads}", "environment"))
        found.append(
            finding(
                "ENV906",
                Severity.WARNING,
                known_by="static",
                detail=f"{threads or told.allowed} threads share {usable:g} processors.",
                evidence=tuple(evidence),
                remedy=Remedy.of(
                    "Set OMP_NUM_THREADS to what may be used, divided by the run's processes; below it is for one.",
                    SetVariables((("OMP_NUM_THREADS", str(number)),)),
                ),
            )
        )
    left_out = sorted({node.number for node in told.nodes if node.processors} - set(told.nodes_allowed))
    if left_out and told.nodes_allowed:
        nodes = ", ".join(map(str, told.nodes_allowed))
        found.append(
            finding(
                "ENV907",
                Severity.INFO,
                known_by="static",
                detail=f"It may run on node {nodes}; not on {', '.join(map(str, left_out))}.",
                evidence=(Evidence(f"{len(told.nodes)} nodes", "/sys/devices/system/node"),),
                remedy=Remedy.of(
                    "For a launcher of several ranks, start it without the binding.",
                    # 0 is the process that asks: it inherits what the shell may use.
                    Run(("taskset", "-cp", "0")),
                    Run(
                        ("numactl", f"--cpunodebind={nodes.replace(' ', '')}", "COMMAND"), note="for one rank"
                    ),
                ),
            )
        )
    return found
