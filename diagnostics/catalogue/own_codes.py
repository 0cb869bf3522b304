"""The codes of findings that are not known issues: what a check may say on its own. 9xx in each family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.report.findings import Evidence, Finding, Remedy, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.catalogue.model import Issue

CODES = {
    "CMP901": (
        "This pair of vLLM and TRL was never run",
        "The compatibility table that is shipped with the tool has no cell with exactly these two versions. That is "
        "not a fault: it means that nobody here knows. What metadata and source say is told where it was read, else "
        "the nearest pairs that were run are named.",
    ),
    "CMP902": (
        "This pair of vLLM and TRL is known to fail",
        "The compatibility table has a cell with exactly these versions, and a layer of it failed or its requirements "
        "have no solution. The finding says which layer, what it saw, and whether that was run or read in source.",
    ),
    "CMP903": (
        "vLLM is outside the range that the trainer declares",
        "The installed TRL, verl, OpenRLHF or ms-swift names the vLLM releases it supports in its own metadata (an "
        "extra like `vllm`). The installed vLLM is not among them. Declared ranges can be too narrow and too wide; a "
        "run says more.",
    ),
    "CMP904": (
        "A declared requirement is not met",
        "The metadata of vLLM, of a trainer or of PyTorch asks for a version of a package, and another one is "
        "installed, or none.",
    ),
    "CMP905": (
        "This pair of vLLM and TRL was never run, and what can be read says that it fails",
        "Nobody ran the pair, but the compatibility table holds what its metadata and source say: names that this TRL "
        "takes from vLLM are missing there, or the requirements of both have no solution together. Reading is weaker "
        "than running; the finding says what was read.",
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
        "The V0 engine was removed in vLLM 0.11.0 (its scheduler is not in that wheel). The variable is ignored "
        "there, so a work-around that relies on it does nothing.",
    ),
    "ENV904": (
        "A limit of this shell is low",
        "`ulimit` allows few processes or little locked memory. Threads count as processes: Ray, vLLM's workers and "
        "data loaders start hundreds. Locked memory is what InfiniBand and CUDA's pinned buffers are registered in.",
    ),
    "ENV905": (
        "The memory that this process may use is small or nearly used up",
        "The control group (a container's or a batch job's limit), or the host itself, has little memory left. Who "
        "goes over the limit is killed by the kernel without a word in the log.",
    ),
    "ENV906": (
        "More threads than processors",
        "The control group or the affinity gives fewer processors than the machine has, or OMP_NUM_THREADS asks for "
        "more than may be used. Libraries count the machine's processors, start a thread for each, and the threads "
        "then wait for each other.",
    ),
    "ENV907": (
        "This process may run on a part of the NUMA nodes only",
        "Its affinity covers some nodes of the machine. That is right for one rank of several and wrong for a "
        "launcher whose children inherit it: GPUs of the other nodes are then fed across the link between the nodes.",
    ),
    "ENV908": (
        "The NVIDIA driver is there and does not answer as it should",
        "A driver is loaded or its device files are there, but the management library cannot be loaded, answers with "
        "an error, crashed or hung the process that asked. Whatever starts CUDA here will do the same.",
    ),
    "ENV909": (
        "A GPU needs a look",
        "A GPU reports memory errors that could not be corrected, broken memory that waits for a reset, a compute "
        "mode that lets one process in only (a trainer and an engine are two), or it does not answer; or MIG is on, "
        "whose parts cannot form a tensor-parallel group.",
    ),
    "ENV910": (
        "A compiled module asks for a library that is not here",
        "A compiled module of vLLM or flash-attn names libraries that are in none of the places where the loader or "
        "the installed packages would have them: built for CUDA beside a PyTorch without it, for another CUDA, or for "
        "another PyTorch. Importing it fails, or the engine falls back to slow code without saying much.",
    ),
    "ENV911": (
        "The system's C libraries are older than a wheel needs",
        "A wheel's tag or a compiled module asks for a newer glibc or libstdc++ than the machine has. Importing it "
        "fails with `GLIBC_... not found` or `GLIBCXX_... not found`.",
    ),
    "ENV912": (
        "This Python is outside what a package declares",
        "A package's metadata (Requires-Python) excludes the Python that it is installed for. It was forced in, or "
        "the environment was moved to another Python.",
    ),
    "ENV913": (
        "Packages of several CUDA releases in one environment",
        "Libraries of different CUDA releases are installed side by side. Several of them write to the same folder "
        "(nvidia/nccl/lib), so which one is loaded depends on the order of installation.",
    ),
    "ENV914": (
        "Two distributions provide the same module",
        "Both write to the same folder; the one installed last overwrites the other's files, and uninstalling either "
        "breaks both.",
    ),
    "ENV915": (
        "A variable that this vLLM does not read",
        "vLLM reads its variables by name in vllm/envs.py. One that is not there is mistyped, of another release, or "
        "belongs to a plug-in; set so, it does nothing in vLLM itself.",
    ),
    "ENV916": (
        "Variables of a launcher are set in this shell",
        "RANK, WORLD_SIZE, MASTER_ADDR and the like belong to one process of a distributed run. Left over in a shell, "
        "they make the next single process wait for ranks that never come, or two runs meet at one port.",
    ),
    "ENV917": (
        "A folder that a run writes to cannot be written",
        "A cache or temporary folder belongs to somebody else or is mounted read-only, or its file system does not "
        "answer.",
    ),
    "ENV918": (
        "Settings for debugging are on",
        "They slow a run down by integer factors or change what is compiled, and are easily forgotten.",
    ),
    "ENV919": (
        "Modules or libraries of elsewhere come first",
        "PYTHONHOME, PYTHONPATH or LD_PRELOAD puts another environment's files before this one's.",
    ),
    "ENV920": (
        "A default file decides how runs are launched",
        "`accelerate launch` without --config_file reads this file. What it says does not fit this machine, or goes "
        "on top of what the command line says.",
    ),
    "ENV923": (
        "Files of an installed package are gone or cut off",
        "A package's own list (RECORD) gives the length of each file it brought, and libraries or packages' beginnings "
        "on the disk are missing or of another length. An installation was interrupted, the disk was full, or "
        "something else wrote over them.",
    ),
    "ENV921": (
        "A module does not import",
        "A process of the examined Python imported this module, and it failed, crashed or took too long. What it "
        "printed fits no known issue.",
    ),
    "ENV922": (
        "The platform is not what the packages are for",
        "A process of the examined Python asked PyTorch or vLLM what it would run on, and the answer does not fit the "
        "machine or the packages.",
    ),
    "ENG901": (
        "A tiny engine does not start or does not sample",
        "vLLM was started on a model of a few thousand random weights, and failed, crashed or took too long. What it "
        "printed fits no known issue. A real model would meet the same.",
    ),
    "NUM901": (
        "The engine's log-probs are not the trainer's",
        "vLLM sampled from a tiny model in 32-bit floats, and transformers computed the log-probs of the same tokens "
        "from the same weights. They differ by more than rounding explains.",
    ),
    "NET901": (
        "A proxy stands between this machine and itself",
        "A proxy is set and NO_PROXY does not name localhost. Trainers talk to the rollout server over HTTP; "
        "libraries that follow the variables send that to the proxy, which cannot reach it.",
    ),
    "NET902": (
        "A variable names a network device that is not here",
        "NCCL or Gloo is told to use a device by name, and the machine has none of that name. The start fails, or "
        "waits.",
    ),
    "NET903": (
        "A two-rank collective fails",
        "Two processes of the examined Python on this machine tried to sum a tensor, and failed or took too long. "
        "What they printed fits no known issue.",
    ),
    "NET904": (
        "A way for GPUs to talk is switched off",
        "A variable of NCCL's switches off direct access between GPUs, shared memory or InfiniBand, or a variable of "
        "PyTorch's switches off noticing a failed collective. It may have been set to get round a fault long since "
        "gone.",
    ),
    "RAY901": (
        "Ray on this machine is of another release",
        "The latest Ray session here was made by another release than the one installed. Joining a running cluster "
        "needs the same Ray and the same Python.",
    ),
    "RAY902": (
        "A setting of Ray's that hides what happens",
        "Ray's memory monitor is off, or its threshold is so high that the kernel kills first; or Ray is told to "
        "leave device variables alone.",
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


def known(
    issue: Issue,
    severity: Severity,
    *,
    detail: str,
    evidence: tuple[Evidence, ...],
    remedy: Remedy,
    certainty: str = "supported",
    known_by: str = "static",
) -> Finding:
    """A finding under the code of a known issue that what was read leads to; established only where it was tried."""
    return Finding(
        code=issue.code,
        title=issue.title,
        severity=severity,
        certainty=certainty,
        known_by=known_by,
        detail=detail,
        evidence=evidence,
        remedy=remedy,
        references=tuple(reference.ref for reference in issue.references),
    )


def finding(
    code: str,
    severity: Severity,
    *,
    known_by: str,
    detail: str,
    evidence: tuple[Evidence, ...],
    remedy: Remedy,
    certainty: str = "established",
) -> Finding:
    """A finding under one of these codes; established, where it was read off the environment itself."""
    return Finding(
        code=code,
        title=CODES[code][0],
        severity=severity,
        certainty=certainty,
        known_by=known_by,
        detail=detail,
        evidence=evidence,
        remedy=remedy,
    )


def to_unset(code: str, severity: Severity, evidence: Sequence[Evidence], advice: str) -> list[Finding]:
    """One finding of environment variables that had better not be set; none where there is no evidence.

    Args:
        code: Of the finding.
        severity: Of the finding.
        evidence: Each begins with a variable's name and `=`.
        advice: When to unset them.
    """
    if not evidence:
        return []
    names = " ".join(item.text.partition("=")[0] for item in evidence)
    remedy = Remedy(advice, (f"unset {names}",))
    return [finding(code, severity, known_by="static", detail="", evidence=tuple(evidence), remedy=remedy)]
