"""Take a snapshot: find the processes, sample them for some seconds, and add the processes at the other ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from diagnostics.hang.collect import discovery, nccl_ras, peers, permissions, proc, stacks
from diagnostics.hang.snapshot import Process, Snapshot, Thread

SECONDS = 1.5
SAMPLES = 3
MANY_PROCESSES = 24
"""With more processes two samples must do."""
NO_PYSPY = "py-spy is not installed here, so no Python stack was read: pip install 'grpo-doctor[hang]'"
_SPAWN = "torch/multiprocessing/spawn.py"


@dataclass(frozen=True)
class Selection:
    """Which processes to observe, and how long."""

    pids: tuple[int, ...] = ()
    pattern: str = ""
    everything: bool = False
    seconds: float = SECONDS
    samples: int = SAMPLES


class NoProcessError(Exception):
    """Raised when no process matches; the message says what was searched for."""


@dataclass
class Observation:
    """Samples of one process: stacks, and counters before and after."""

    ran: dict[int, int | None]
    moved: int | None
    samples: list[tuple[Thread, ...]] = field(default_factory=list)
    problem: str = ""
    ran_after: dict[int, int | None] = field(default_factory=dict)
    moved_after: int | None = None
    seconds: float = 0.0


def take_snapshot(selection: Selection, *, sleep: Callable[[float], None] = time.sleep) -> Snapshot:
    """Observe the selected processes.

    Raises:
        NoProcessError: No process matches.
    """
    processes = discovery.process_table()
    unknown_pids = [pid for pid in selection.pids if pid not in processes]
    chosen = discovery.select_processes(
        processes, selection.pids, selection.pattern, everything=selection.everything, ours=os.getpid()
    )
    if unknown_pids or not chosen:
        raise NoProcessError(_nothing_found(selection, unknown_pids))
    host = peers.Host(processes)
    host.survey(chosen)
    chosen |= peers.connected_processes(host, chosen)
    chosen = set(sorted(chosen)[: discovery.MAX_PROCESSES])
    program = stacks.find_tool()
    refused = permissions.unreadable_processes(chosen)
    observations, seconds = _observe(host, chosen - set(refused), program, selection, sleep)
    builder = _ProcessBuilder(host)
    observed = [builder.build(pid, observations.get(pid), refused.get(pid, "")) for pid in sorted(chosen)]
    if further := peers.blocking_processes(host, observed) - chosen:
        refused_too = permissions.unreadable_processes(further)
        once = replace(selection, samples=1, seconds=0.1)
        again, _ = _observe(host, further - set(refused_too), program, once, sleep)
        observed += [builder.build(pid, again.get(pid), refused_too.get(pid, "")) for pid in sorted(further)]
    observed = _with_spawned_ranks(observed)
    service = nccl_ras.find_service(host, chosen)
    return Snapshot(
        processes=tuple(observed),
        sockets=peers.sockets_of(host, observed),
        locks=peers.file_locks(host, observed),
        collectives=nccl_ras.collectives_of(nccl_ras.query(service), observed) if service else (),
        seconds=round(seconds, 2),
        blind=tuple(_not_seen(observed, refused, program)),
    )


def _nothing_found(selection: Selection, unknown_pids: list[int]) -> str:
    if unknown_pids:
        return f"--pid {unknown_pids[0]}: no such process here (it ended, or is in another container)"
    if selection.pattern:
        return f"--match {selection.pattern!r}: no command line matches"
    return (
        "no process here looks like part of a job (ranks of torchrun or accelerate, vLLM, Ray): "
        "name it with --pid or --match"
    )


def _observe(
    host: peers.Host,
    pids: set[int],
    program: str | None,
    selection: Selection,
    sleep: Callable[[float], None],
) -> tuple[dict[int, Observation], float]:
    """Sample stacks, and read counters before and after."""
    began = time.monotonic()
    observations = {pid: Observation(*_counters(pid)) for pid in pids}
    # A dead process has no stack.
    pythons = [
        pid
        for pid in sorted(pids)
        if host.processes[pid].python and (proc.stat_fields(pid) or "X")[0] not in "ZX"
    ]
    many = len(pythons) > MANY_PROCESSES and selection.samples > 2
    samples = 2 if many else max(1, selection.samples)
    for number in range(samples):
        if number:
            sleep(max(0.0, began + selection.seconds * number / (samples - 1) - time.monotonic()))
        _sample(observations, pythons, program)
    if samples == 1:
        sleep(selection.seconds)
    seconds = time.monotonic() - began
    for pid, observation in observations.items():
        observation.seconds = seconds
        observation.ran_after, observation.moved_after = _counters(pid)
    return observations, seconds


def _sample(observations: dict[int, Observation], pythons: list[int], program: str | None) -> None:
    """Add a stack of each process; one that has not run since has the same stack."""
    changed = [
        pid for pid in pythons if not observations[pid].samples or observations[pid].ran != _counters(pid)[0]
    ]
    for pid in set(pythons) - set(changed):
        observations[pid].samples.append(observations[pid].samples[-1])
    for pid, result in (stacks.dump_stacks(program, changed) if program else {}).items():
        if isinstance(result, str):
            observations[pid].problem = result
        else:
            observations[pid].samples.append(result)


def _counters(pid: int) -> tuple[dict[int, int | None], int | None]:
    return {tid: proc.runnable_ns(pid, tid) for tid in proc.list_threads(pid)}, proc.bytes_moved(pid)


class _ProcessBuilder:
    """Builds processes of a snapshot from what was observed."""

    def __init__(self, host: peers.Host) -> None:
        self._host = host
        self._clocks = proc.SchedulerClocks()
        self._sources = stacks.SourceReader()

    def build(self, pid: int, observation: Observation | None, refused: str) -> Process:
        entry = self._host.processes[pid]
        fields = proc.stat_fields(pid)
        role, rank = discovery.role_of(self._host.processes, entry)
        names, semaphores = proc.shared_memory(pid)
        threads = self._threads(pid, observation, semaphores) if observation else _bare_threads(pid)
        if any(frame.function == "_worker_loop" for thread in threads for frame in thread.frames):
            role = "data loader worker"
        unseen = [refused] if refused else []
        if (
            observation
            and observation.problem
            and not observation.samples
            and fields
            and fields[0] not in "ZX"
        ):
            unseen.append(f"stack: {observation.problem}")
        trainer = rank is not None and role == "trainer"
        return Process(
            pid=pid,
            ppid=entry.ppid,
            title=entry.title,
            role=role,
            rank=rank,
            world=proc.small_int(entry.environment.get("WORLD_SIZE", "")) if trainer else None,
            job=discovery.job_address(entry.environment) if role == "trainer" else "",
            python=entry.python,
            state=fields[0] if fields else "X",
            age_s=proc.age_s(pid),
            threads=threads,
            fds=self._host.resolved(proc.descriptors(pid)),
            shared=names,
            io_moved=_io_moved(observation),
            unseen=tuple(unseen),
        )

    def _threads(
        self, pid: int, observation: Observation, semaphores: list[tuple[int, int, int]]
    ) -> tuple[Thread, ...]:
        samples: dict[int, list[Thread]] = {}
        for sample in observation.samples:
            for thread in sample:
                samples.setdefault(thread.tid, []).append(thread)
        threads = []
        for tid in proc.list_threads(pid):
            if tid not in samples and tid != pid:
                continue  # a thread without Python: a library's pool
            thread = stacks.merge_samples(samples[tid]) if tid in samples else Thread(tid)
            call = proc.system_call(pid, tid)
            state = proc.thread_state(pid, tid)
            thread = replace(
                thread,
                frames=self._sources.with_call(pid, thread.frames),
                state=state,
                syscall=call.name,
                waits_fds=call.fds,
                limited=call.limited,
                futex=_semaphore(call.futex, semaphores),
                opens=call.path,
                wchan=proc.wait_channel(pid, tid),
                runnable=_runnable_share(observation, tid),
                asleep_s=self._clocks.asleep_s(pid, tid) if state != "R" else None,
            )
            threads.append(thread)
        return tuple(threads)


def _io_moved(observation: Observation | None) -> bool | None:
    if observation is None or observation.moved is None or observation.moved_after is None:
        return None
    return observation.moved != observation.moved_after


def _runnable_share(observation: Observation, tid: int) -> float | None:
    first, second = observation.ran.get(tid), observation.ran_after.get(tid)
    if first is None or second is None:
        return None
    return min(1.0, (second - first) / 1e9 / max(observation.seconds, 0.001))


def _bare_threads(pid: int) -> tuple[Thread, ...]:
    """Return what every user may read of threads: states and kernel functions they sleep in."""
    return tuple(
        Thread(tid=tid, state=proc.thread_state(pid, tid), wchan=proc.wait_channel(pid, tid))
        for tid in proc.list_threads(pid)[:64]
    )


def _semaphore(futex: str, semaphores: list[tuple[int, int, int]]) -> str:
    address = int(futex, 16) if futex else -1
    return next((f"sem:{inode}" for start, end, inode in semaphores if start <= address < end), futex)


def _with_spawned_ranks(observed: list[Process]) -> list[Process]:
    """Number the children of torch.multiprocessing.spawn: it starts rank 0 first, and sets no variable outside."""
    spawning = {
        process.pid
        for process in observed
        if any(frame.path.endswith(_SPAWN) for thread in process.threads for frame in thread.frames)
    }
    children: dict[int, list[int]] = {}
    for process in observed:
        if process.ppid in spawning and process.rank is None and process.role == "process" and process.python:
            children.setdefault(process.ppid, []).append(process.pid)
    numbered = {
        pid: (rank, len(pids), ppid)
        for ppid, pids in children.items()
        for rank, pid in enumerate(sorted(pids))
    }
    return [
        replace(process, role="trainer", rank=number[0], world=number[1], job=f"spawned by {number[2]}")
        if (number := numbered.get(process.pid))
        else process
        for process in observed
    ]


def _not_seen(observed: list[Process], refused: dict[int, str], program: str | None) -> list[str]:
    texts = [] if program else [NO_PYSPY]
    reasons: dict[str, list[int]] = {}
    for pid, reason in refused.items():
        reasons.setdefault(reason, []).append(pid)
    for reason, pids in reasons.items():
        texts.append(f"pid {', '.join(map(str, pids))} could not be inspected: {reason}")
    for process in observed:
        texts += [f"{process.label}: {text}" for text in process.unseen if text.startswith("stack")]
    return texts
