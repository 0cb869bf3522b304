"""Files that nobody names on a command line and that decide all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalog.own_codes import finding
from diagnostics.doctor.checks.registered import check
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run

if TYPE_CHECKING:
    from diagnostics.collect.configs import ConfigFile
    from diagnostics.collect.machine import Machine
    from diagnostics.output.findings import Finding


def _no_files(machine: Machine) -> str:
    return "" if machine.configs else "there is none"


@check("default files", skip=_no_files)
def default_files(machine: Machine) -> list[Finding]:
    """ENV920 where accelerate's default file does not fit this machine, or NCCL's exists at all."""
    found = []
    for file in machine.configs:
        evidence = _accelerate(file, machine) if file.kind == "accelerate" else _any(file)
        if evidence:
            found.append(
                finding(
                    "ENV920",
                    Severity.INFO if file.kind == "nccl" and not file.problem else Severity.WARNING,
                    known_by="static",
                    detail="",
                    evidence=tuple(evidence),
                    remedy=Remedy.of(
                        "Name a file of the run's own with --config_file, or move this one away."
                        if file.kind == "accelerate"
                        else "Move it away, unless it is meant for all runs that read it.",
                        Run(
                            (
                                *(("sudo",) if file.path.startswith("/etc/") else ()),
                                "mv",
                                file.path,
                                f"{file.path}.away",
                            )
                        ),
                    ),
                )
            )
    return found


def _any(file: ConfigFile) -> list[Evidence]:
    if file.problem:
        return [Evidence(file.problem, file.path)]
    return [
        Evidence(f"{name}={value}", f"{file.path}:{file.lines[name]}") for name, value in file.values.items()
    ]


def _accelerate(file: ConfigFile, machine: Machine) -> list[Evidence]:
    if file.problem:
        return [Evidence(file.problem, file.path)]
    evidence = []

    def told(name: str, why: str) -> None:
        evidence.append(Evidence(f"{name}: {file.values[name]} ({why})", f"{file.path}:{file.lines[name]}"))

    count = len(machine.gpus.devices)
    cpu = file.values.get("use_cpu", "").lower() == "true"
    processes = file.values.get("num_processes", "")
    if machine.gpus.state == "ok" and not cpu and processes.isdecimal() and int(processes) > count:
        told("num_processes", f"this machine has {count} GPUs")
    if cpu and count:
        told("use_cpu", "this machine has GPUs")
    if file.values.get("num_machines", "1") not in {"1", ""}:
        told("num_machines", "every launch waits for the other machines")
    return evidence
