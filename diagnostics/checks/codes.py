"""The codes of findings that are not known issues: what a check may say on its own. 9xx in each family."""

from __future__ import annotations

from diagnostics.findings import Evidence, Finding, Remedy, Severity

CODES = {
    "CMP901": (
        "This pair of vLLM and TRL was never run",
        "The compatibility table that is shipped with the tool has no cell with exactly these two versions. That is "
        "not a fault: it means that nobody here knows. The nearest pairs that were run are named.",
    ),
    "CMP902": (
        "This pair of vLLM and TRL is known to fail",
        "The compatibility table has a cell with exactly these versions, and a layer of it failed or its requirements "
        "have no solution. The finding says which layer, what it saw, and whether that was run or read in source.",
    ),
    "CMP903": (
        "vLLM is outside the range that this TRL declares",
        "The installed TRL names the vLLM releases it supports in its own metadata (the extra `vllm`). The installed "
        "vLLM is not among them. Declared ranges can be too narrow and too wide; a run says more.",
    ),
    "CMP904": (
        "A declared requirement is not met",
        "vLLM's or TRL's own metadata asks for a version of a package, and another one is installed, or none.",
    ),
    "ENV901": (
        "Package metadata is broken or there twice",
        "A metadata folder has no name or version, or a package is there more than once. It is what an interrupted or "
        "mixed installation leaves behind; which files are really imported is then a matter of luck.",
    ),
    "ENV902": (
        "RAY_ADDRESS holds a web address",
        "RAY_ADDRESS is set to the address of Ray's dashboard or job server (http://...). A process that calls "
        "ray.init() with it fails. It belongs to `ray job submit` alone.",
    ),
    "ENV903": (
        "VLLM_USE_V1=0 asks for an engine that is not there",
        "The V0 engine was removed in vLLM 0.11.0 (its scheduler is not in that wheel). The variable is ignored there, "
        "so a work-around that relies on it does nothing.",
    ),
    # Of `doctor --hosts` and `doctor --ray`: 95x.
    "NET951": (
        "A node could not be examined",
        "It did not answer, refused, has no Python that can run the collector, or is dead. What is on it is unknown: "
        "it counts as no difference and as no agreement.",
    ),
    "NET952": (
        "Nodes have different releases of NCCL",
        "NCCL compares the releases of all ranks when a communicator is made and refuses one of two releases with "
        "ncclInvalidUsage. Where a library outside Python's packages is loaded first, that one counts.",
    ),
    "NET953": (
        "The clocks of nodes differ",
        "A node's clock is surely off by more than a second from the middle of all. Log lines of several ranks can "
        "then not be put in order, and time limits that are told as points in time end early or late.",
    ),
    "CMP951": (
        "Nodes have different releases of a framework",
        "Ranks of one run are expected to run the same code. Other releases exchange other messages: what follows goes "
        "from a refusal (Ray) over a hang to weights that land in the wrong place.",
    ),
    "CMP952": (
        "Nodes have different Pythons",
        "What one rank pickles another can then not always read. Ray refuses a process whose Python is not "
        "the cluster's, to the last digit (check_version_info).",
    ),
    "CMP953": (
        "Nodes have different releases of other packages",
        "The nodes were not installed from one lock. It need not matter; look here when one rank alone fails.",
    ),
    "ENV951": (
        "Nodes have different drivers",
        "Another release of NVIDIA's driver, or another CUDA that it can run: a wheel that starts on one node may not "
        "start on another.",
    ),
    "ENV952": (
        "Nodes have different GPUs",
        "Another model, or another number of them. Collectives go at the pace of the slowest, and a launcher that "
        "starts the same number of processes everywhere fails where there are fewer.",
    ),
    "ENV953": (
        "Environment variables differ between nodes",
        "Variables that change how NCCL, vLLM, Ray, PyTorch or the hub behave are set on some nodes only, or to other "
        "values. What one node sees over ssh is what a bare login has, not what a launcher sets.",
    ),
    "ENV954": (
        "Limits or shared memory differ between nodes",
        "Open files, processes, locked memory (ulimit) or the size of /dev/shm. The lowest decides: one rank dies "
        "where the others have room.",
    ),
    "ENV955": (
        "A model is in the cache of some nodes only",
        "The others download it at the start, all at once, or fail where they are offline; the rest waits at the first "
        "collective meanwhile.",
    ),
    "ENV956": (
        "Machines differ",
        "Architecture, kernel, C library, processors or memory. Of these only the architecture keeps a run from "
        "working by itself.",
    ),
    "RAY951": (
        "Ray's cluster has dead nodes",
        "Ray lists nodes that it lost. Actors placed on them are gone, and placement groups made for them wait.",
    ),
}


def finding(
    code: str,
    severity: Severity,
    *,
    known_by: str,
    detail: str,
    evidence: tuple[Evidence, ...],
    remedy: Remedy,
) -> Finding:
    """A finding under one of these codes; established, since it was read off the environment itself."""
    return Finding(
        code=code,
        title=CODES[code][0],
        severity=severity,
        certainty="established",
        known_by=known_by,
        detail=detail,
        evidence=evidence,
        remedy=remedy,
    )
