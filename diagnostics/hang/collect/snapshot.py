"""Take a snapshot of running processes: select them, sample them for some seconds, and add processes they wait for.

`take_snapshot` returns it; `snapshot_as_json` is what other hosts run. Stacks are sampled with py-spy, counters are
read before and after. What could not be read is in the snapshot's `blind` and `missing`.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from diagnostics.collect.blocking_reads import UNANSWERED
from diagnostics.hang.collect import discovery, peers, proc, sockets, stacks
from diagnostics.hang.snapshot import Process, Snapshot, Thread

SECONDS = 1.5
SAMPLES = 3
MANY_PROCESSES = 24
"""With more Python processes, at most two stack samples are taken."""
NO_PYSPY = "py-spy is not installed here, so no Python stack was read: pip install py-spy"


@dataclass(frozen=True)
class Selection:
    """The processes to observe, and for how long.

    Without pids and pattern, processes of this user or root that look like part of a job are observed.

    Attributes:
        pids: Process ids. Descendants and connected processes of all selected processes are included.
        pattern: Pattern for command lines.
        seconds: Duration of the observation.
        samples: Number of stack samples; at most two are taken of many processes.
    """

    pids: tuple[int, ...] = ()
    pattern: str = ""
    seconds: float = SECONDS
    samples: int = SAMPLES


class NoProcessError(Exception):
    """Raised when no process matches or a named one does not exist; the message says what was searched for."""


def take_snapshot(selection: Selection, *, sleep: Callable[[float], None] = time.sleep) -> Snapshot:
    """Observe the selected processes and those that they are connected to, at most 512, and those that they wait for.

    Raises:
        NoProcessError: No process matches, or a process with one of the given ids does not exist.
    """
    UNANSWERED.clear()
    proc.UNANSWERED_PATHS.clear()
    host = peers.Host(discovery.process_table())
    selected = _select(host, selection)
    pids = set(selected[: discovery.MAX_PROCESSES])
    observer, holders = _Observer(host, sleep, selection), peers.file_lock_holders(host)
    observed = observer.observe(pids, selection.samples, selection.seconds)
    seconds = observer.seconds
    if further := peers.possible_blockers(host, observed) - pids:
        observed += observer.observe(further, samples=1, seconds=0.1)
    blind = observer.inspection_problems(observed)
    unlisted = sockets.unlisted_processes(process.pid for process in observed)
    missing = [f"the sockets of {len(unlisted)} of {len(observed)} processes"] if unlisted else []
    blind += [f"{text} are not listed here: run hang in their network namespace" for text in missing]
    if not host.complete:
        missing.append("open files or sockets of other processes")
        blind.append(f"{missing[-1]} were not read, because there are too many")
    blind += [f"pid {pid} did not answer in time: its memory was not read" for pid in sorted(UNANSWERED)[:20]]
    blind += [f"pid {pid}: a file system does not answer" for pid in sorted(proc.UNANSWERED_PATHS)[:20]]
    if more := len(selected) - len(pids):
        missing.append(f"{more} of {len(selected)} processes")
        blind.append(f"{missing[-1]} were not observed: name those of one job with --pid or --match")
    ends = peers.sockets_of(host, observed), peers.held_locks(host, observed, holders)
    return Snapshot(
        tuple(observed), *ends, seconds=round(seconds, 2), blind=tuple(blind), missing=tuple(missing)
    )


def snapshot_as_json(options: dict[str, Any], _folder: str) -> dict[str, Any]:
    """Return the snapshot of this host as JSON; if no process matches, its notes say so. Other hosts run this function.

    Args:
        options: `pattern`, `seconds` and `samples` of a Selection.
        _folder: Not used; remote programs get the folder of their sources.
    """
    try:
        return take_snapshot(Selection(**options)).to_json()
    except NoProcessError as error:
        return Snapshot(notes=(str(error),)).to_json()


def _select(host: peers.Host, selection: Selection) -> list[int]:
    """Return the selected processes and those that they are connected to, in the order of their numbers."""
    processes = host.processes
    pids = discovery.select_processes(processes, selection.pids, selection.pattern, own_pid=os.getpid())
    if unknown := [pid for pid in selection.pids if pid not in processes]:
        raise NoProcessError(f"--pid {unknown[0]}: no such process here, perhaps in another container")
    if not pids and selection.pattern:
        raise NoProcessError(f"--match {selection.pattern!r}: no command line matches")
    if not pids:
        ours, uid = discovery.ancestors(processes, os.getpid()), os.geteuid()
        found = [
            str(it.pid) for it in processes.values() if it.uid == uid and it.python and it.pid not in ours
        ]
        named = f"; Python processes of yours: {', '.join(found[-8:])}" if found else ""
        raise NoProcessError(
            f"no process here looks like part of a job: name it with --pid or --match{named}"
        )
    host.survey(pids)
    pids |= peers.connected_processes(host, pids)
    return sorted(pids)


# Nanoseconds in which each thread was runnable, by its id, and bytes read and written.
_Counters = tuple[dict[int, int | None], tuple[int, int]]


def _read_counters(pid: int) -> _Counters:
    """Return the nanoseconds in which each thread was runnable, and the bytes that the process read and wrote."""
    return {tid: proc.runnable_ns(pid, tid) for tid in proc.list_threads(pid)}, proc.bytes_moved(pid)


@dataclass
class _Observation:
    """Samples of one process: stacks, and counters before and after."""

    before: _Counters
    after: _Counters
    samples: list[tuple[Thread, ...]] = field(default_factory=list)
    problem: str = ""

    def io_moved(self) -> bool | None:
        """Return whether the process read or wrote any bytes; None if unknown."""
        (_, before), (_, after) = self.before, self.after
        return None if -1 in before + after else before != after

    def wrote(self) -> bool:
        """Return whether the process wrote any bytes; False if unknown."""
        return 0 <= self.before[1][1] < self.after[1][1]

    def runnable_share(self, tid: int, seconds: float) -> float | None:
        """Return the share of the time in which a thread was runnable; None if unknown."""
        before, after = self.before[0].get(tid), self.after[0].get(tid)
        return None if before is None or after is None else min(1.0, (after - before) / 1e9 / seconds)


class _Observer:
    """Samples processes, and builds the snapshot's processes from the samples.

    Attributes:
        seconds: Duration of the last sampling.
        refused: Processes that may not be inspected, with the reason.
    """

    def __init__(self, host: peers.Host, sleep: Callable[[float], None], selection: Selection) -> None:
        self.host, self.program, self.sleep = host, stacks.find_py_spy(), sleep
        self.owners = {os.geteuid(), *(host.processes[pid].uid for pid in selection.pids)}
        if selection.pattern:
            self.owners |= {e.uid for e in host.processes.values() if re.search(selection.pattern, e.title)}
        self.seconds = 0.0
        self.refused: dict[int, str] = {}
        proc.clock_offset_ms.cache_clear()
        self._sources = stacks.SourceReader()

    def observe(self, pids: set[int], samples: int, seconds: float) -> list[Process]:
        """Sample the stacks of processes, read counters before and after, and return the processes."""
        foreign = {pid: uid for pid in pids if (uid := self.host.processes[pid].uid) not in self.owners}
        reason = "it belongs to uid {}, as no process that --pid or --match names: name it with --pid"
        self.refused |= {pid: reason.format(uid) for pid, uid in foreign.items()}
        self.refused |= stacks.unreadable_processes(pids - foreign.keys() if os.geteuid() == 0 else pids)
        began = time.monotonic()
        counters = {pid: _read_counters(pid) for pid in sorted(pids - set(self.refused))}
        observations = {pid: _Observation(before, before) for pid, before in counters.items()}
        # A dead process has no stack.
        pythons = [pid for pid in observations if self.host.processes[pid].python and not proc.has_ended(pid)]
        if len(pythons) > MANY_PROCESSES:
            samples = min(samples, 2)
        for number in range(samples):
            if number:
                self.sleep(max(0.0, began + seconds * number / (samples - 1) - time.monotonic()))
            self._sample(observations, pythons)
        if samples == 1:
            self.sleep(seconds)
        self.seconds = time.monotonic() - began
        self.host.update_sockets()
        for pid, observation in observations.items():
            observation.after = _read_counters(pid)
        return [self._process(pid, observations.get(pid)) for pid in sorted(pids)]

    def _sample(self, observations: dict[int, _Observation], pythons: list[int]) -> None:
        """Add one stack sample per process, or the reason why there is none."""
        pids = [pid for pid in pythons if self.program and pid not in UNANSWERED]
        for pid, result in stacks.dump_stacks(self.program or "", pids).items():
            if isinstance(result, str):
                observations[pid].problem = result
            else:
                observations[pid].samples.append(result)

    def _process(self, pid: int, observation: _Observation | None) -> Process:
        """Build a process of the snapshot; without an observation it has no stacks."""
        entry = self.host.processes[pid]
        fields = proc.stat_fields(pid)
        role, rank = discovery.role_of(self.host.processes, entry)
        names, semaphores = proc.shared_memory(pid)
        process = Process(pid, entry.ppid, title=entry.title, rank=rank, python=entry.python, shared=names)
        if observation:
            threads = self._threads(pid, observation, semaphores)
            moved, wrote = observation.io_moved(), observation.wrote()
            io_bytes = sum(observation.after[1]) - sum(observation.before[1])
            process = replace(process, io_moved=moved, wrote=wrote, io_bytes=io_bytes)
        else:  # every user may read states, and the kernel functions that threads sleep in
            tids = proc.list_threads(pid)[:64]
            threads = tuple(proc.observe_thread(pid, Thread(tid), memory=False) for tid in tids)
        if any(frame.function == "_worker_loop" for thread in threads for frame in thread.frames):
            role = "data loader worker"
        unseen = [self.refused[pid]] if pid in self.refused else []
        if observation and observation.problem and not observation.samples and not proc.has_ended(pid):
            unseen.append(f"stack: {observation.problem}")
        if role == "trainer":
            world = proc.small_int(entry.environment.get("WORLD_SIZE", ""))
            process = replace(process, world=world, job=discovery.job_address(entry.environment))
        state, files = fields[0] if fields else "X", self.host.with_socket_kinds(proc.descriptors(pid))
        # A program gets a new random address of its stack.
        forked = fields[25:26] == proc.stat_fields(entry.ppid)[25:26] != ["0"] and bool(fields)
        process = replace(process, role=role, state=state, threads=threads, unseen=tuple(unseen))
        return replace(process, fds=files, forked=forked)

    def _threads(self, pid: int, observation: _Observation, mapped: proc.Semaphores) -> tuple[Thread, ...]:
        """Return the threads with a Python stack and the main thread, with their stacks, system calls and times."""
        samples: dict[int, list[Thread]] = {}
        for thread in (thread for sample in observation.samples for thread in sample):
            samples.setdefault(thread.tid, []).append(thread)
        threads = []
        for tid in proc.list_threads(pid):
            if tid not in samples and tid != pid:
                continue  # a thread without Python: a library's pool
            stack = stacks.merge_samples(samples[tid]) if tid in samples else Thread(tid)
            thread = proc.observe_thread(pid, stack)
            # A library's thread can wake an event loop, too.
            endless = thread.endless and bool(thread.futex or len(samples) == len(proc.list_threads(pid)))
            runnable = observation.runnable_share(tid, max(self.seconds, 0.001))
            asleep_s = proc.asleep_s(pid, tid) if thread.state != "R" else None
            frames, futex = self._sources.with_call(pid, thread.frames), _semaphore(thread.futex, mapped)
            relocks = self._sources.relocks(pid, frames) if thread.syscall == "futex" else None
            thread = replace(thread, endless=endless, runnable=runnable, asleep_s=asleep_s)
            threads.append(replace(thread, frames=frames, futex=futex, relocks=relocks))
        return tuple(threads)

    def inspection_problems(self, observed: list[Process]) -> list[str]:
        """Return texts about processes that could not be read, with the reason and, where known, what permits it."""
        texts = [] if self.program else [NO_PYSPY]
        reasons: dict[str, list[int]] = {}
        for pid, reason in self.refused.items():
            reasons.setdefault(reason, []).append(pid)
        for reason, pids in reasons.items():
            texts.append(f"pid {', '.join(map(str, pids))} could not be inspected: {reason}")
        for process in observed:
            texts += [f"{process.label}: {text}" for text in process.unseen if text.startswith("stack")]
        return texts


def _semaphore(futex: str, semaphores: proc.Semaphores) -> str:
    """Return "sem:INODE" for a futex in a mapped semaphore; other futexes unchanged."""
    address = int(futex, 16) if futex else -1
    return next((f"sem:{inode}" for start, end, inode in semaphores if start <= address < end), futex)
