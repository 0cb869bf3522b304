"""Takes a snapshot: finds the processes, samples them over some seconds, and adds who is at the other end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from diagnostics.hang.look import around as around_
from diagnostics.hang.look import find, proc, ras, rights, stacks
from diagnostics.hang.snapshot import Process, Snapshot, Thread

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 1.5
SAMPLES = 3
# With more processes than this two samples must do, or looking would take longer than it is worth.
MANY = 24
NO_TOOL = "py-spy is not installed here, so no stack was seen: pip install 'grpo-doctor[hang]'"


@dataclass(frozen=True)
class Wanted:
    """What is to be looked at, and how long."""

    pids: tuple[int, ...] = ()
    pattern: str = ""
    everything: bool = False
    seconds: float = SECONDS
    samples: int = SAMPLES


class NoProcessError(Exception):
    """Raised when there is nothing to look at; the text says what was looked for."""


def take(wanted: Wanted, *, sleep: Callable[[float], None] = time.sleep) -> Snapshot:
    """Looks.

    Raises:
        NoProcessError: No process fits.
    """
    processes = find.table()
    missing = [pid for pid in wanted.pids if pid not in processes]
    chosen = find.select(
        processes, wanted.pids, wanted.pattern, everything=wanted.everything, ours=os.getpid()
    )
    if missing or not chosen:
        raise NoProcessError(_nothing(wanted, missing))
    around = around_.Surroundings(processes, {}, {})
    around_.survey(around, chosen)
    chosen |= around_.connected(around, chosen)
    chosen = set(sorted(chosen)[: find.MOST])
    program = stacks.tool()
    refused = rights.refusals(chosen)
    seen, seconds = _watch(around, chosen - set(refused), program, wanted, sleep)
    found = [_process(around, pid, seen.get(pid), refused.get(pid, "")) for pid in sorted(chosen)]
    further = around_.holders(around, found) - chosen
    if further:
        blocked = rights.refusals(further)
        again, _ = _watch(
            around, further - set(blocked), program, replace(wanted, samples=1, seconds=0.1), sleep
        )
        found += [_process(around, pid, again.get(pid), blocked.get(pid, "")) for pid in sorted(further)]
    place = ras.listening(around, chosen)
    return Snapshot(
        processes=tuple(found),
        sockets=around_.concerned(around, found),
        locks=around_.locks(around, found),
        collectives=ras.collectives(ras.ask(place), found) if place else (),
        seconds=round(seconds, 2),
        blind=tuple(_blind(found, refused, program)),
    )


def _nothing(wanted: Wanted, missing: list[int]) -> str:
    if missing:
        return f"--pid {missing[0]}: there is no such process here (another container, or gone)"
    if wanted.pattern:
        return f"--match {wanted.pattern!r}: no process has a command line that fits"
    return (
        "no process here looks like a part of a job (ranks of torchrun or accelerate, vLLM, Ray): "
        "name it by --pid or --match"
    )


def _watch(
    around: around_.Surroundings,
    pids: set[int],
    program: str | None,
    wanted: Wanted,
    sleep: Callable[[float], None],
) -> tuple[dict[int, _Seen], float]:
    """Samples of stacks, and counts before and after."""
    started = time.monotonic()
    seen = {pid: _Seen(*_counts(pid)) for pid in pids}
    # A dead process has no stack.
    asked = [p for p in sorted(pids) if around.processes[p].python and (proc.stat(p) or "X")[0] not in "ZX"]
    samples = 2 if len(asked) > MANY and wanted.samples > 2 else max(1, wanted.samples)
    for number in range(samples):
        if number:
            sleep(max(0.0, started + wanted.seconds * number / (samples - 1) - time.monotonic()))
        # Who has not run since its last stack was taken has the same stack: it is not asked again.
        moved = [pid for pid in asked if not seen[pid].samples or seen[pid].ran != _counts(pid)[0]]
        for pid in set(asked) - set(moved):
            seen[pid].samples.append(seen[pid].samples[-1])
        for pid, answer in (stacks.take(program, moved) if program else {}).items():
            if isinstance(answer, str):
                seen[pid].problem = answer
            else:
                seen[pid].samples.append(answer)
    if samples == 1:
        sleep(wanted.seconds)
    passed = time.monotonic() - started
    for pid, one in seen.items():
        one.seconds = passed
        one.ran_after, one.moved_after = _counts(pid)
    return seen, passed


@dataclass
class _Seen:
    """What was taken of one process: how long its threads ran and what it read and wrote, before and after; stacks."""

    ran: dict[int, int | None]
    moved: int | None
    samples: list[tuple[Thread, ...]] = field(default_factory=list)
    problem: str = ""
    ran_after: dict[int, int | None] = field(default_factory=dict)
    moved_after: int | None = None
    seconds: float = 0.0


def _counts(pid: int) -> tuple[dict[int, int | None], int | None]:
    return {tid: proc.runnable_ns(pid, tid) for tid in proc.threads(pid)}, proc.moved(pid)


def _process(around: around_.Surroundings, pid: int, seen: _Seen | None, refused: str) -> Process:
    item = around.processes[pid]
    fields = proc.stat(pid)
    name, rank = find.role(around.processes, item)
    names, semaphores = proc.shared(pid)
    world = item.environment.get("WORLD_SIZE", "")
    threads = _threads(pid, seen, semaphores, around.clocks) if seen else _bare(pid)
    if any(frame.function == "_worker_loop" for thread in threads for frame in thread.frames):
        name = "data loader worker"
    unseen = [refused] if refused else []
    if seen and seen.problem and not seen.samples and fields and fields[0] not in "ZX":
        unseen.append(f"stack: {seen.problem}")
    moved = None
    if seen:
        first, second = seen.moved, seen.moved_after
        moved = first != second if first is not None and second is not None else None
    return Process(
        pid=pid,
        ppid=item.ppid,
        title=item.title,
        role=name,
        rank=rank,
        world=int(world) if rank is not None and name == "trainer" and world.isdecimal() else None,
        job=find.job(item.environment) if name == "trainer" else "",
        python=item.python,
        state=fields[0] if fields else "X",
        age_s=proc.age_s(pid),
        threads=threads,
        fds=around_.resolved(around, proc.descriptors(pid)),
        shared=names,
        io_moved=moved,
        unseen=tuple(unseen),
    )


def _bare(pid: int) -> tuple[Thread, ...]:
    """What every user may see of a process: states and what it sleeps in."""
    return tuple(
        Thread(
            tid=tid,
            state=(proc.read(pid, f"task/{tid}/stat").rpartition(")")[2].split() or [""])[0],
            wchan=proc.read(pid, f"task/{tid}/wchan").strip("0"),
        )
        for tid in proc.threads(pid)[:64]
    )


def _threads(
    pid: int, seen: _Seen, semaphores: list[tuple[int, int, int]], clocks: proc.Clocks
) -> tuple[Thread, ...]:
    by_tid: dict[int, list[Thread]] = {}
    for sample in seen.samples:
        for thread in sample:
            by_tid.setdefault(thread.tid, []).append(thread)
    before, after = seen.ran, seen.ran_after
    found = []
    for tid in proc.threads(pid):
        if tid not in by_tid and tid != pid:
            continue  # a thread without Python: a pool of a library
        thread = stacks.merged(by_tid[tid]) if tid in by_tid else Thread(tid)
        call = proc.system_call(pid, tid)
        state = (proc.read(pid, f"task/{tid}/stat").rpartition(")")[2].split() or [""])[0]
        first, second = before.get(tid), after.get(tid)
        share = None
        if first is not None and second is not None:
            share = min(1.0, (second - first) / 1e9 / max(seen.seconds, 0.001))
        found.append(
            replace(
                thread,
                frames=stacks.hinted(pid, thread.frames),
                state=state,
                syscall=call.name,
                waits_fds=call.fds,
                limited=call.limited,
                futex=_semaphore(call.futex, semaphores),
                wchan=proc.read(pid, f"task/{tid}/wchan").strip("0"),
                runnable=share,
                asleep_s=clocks.asleep_s(pid, tid) if state != "R" else None,
            )
        )
    return tuple(found)


def _semaphore(futex: str, semaphores: list[tuple[int, int, int]]) -> str:
    address = int(futex, 16) if futex else -1
    return next((f"sem:{inode}" for start, end, inode in semaphores if start <= address < end), futex)


def _blind(found: list[Process], refused: dict[int, str], program: str | None) -> list[str]:
    told = []
    if program is None:
        told.append(NO_TOOL)
    reasons: dict[str, list[int]] = {}
    for pid, reason in refused.items():
        reasons.setdefault(reason, []).append(pid)
    for reason, pids in reasons.items():
        told.append(f"pid {', '.join(map(str, pids))} could not be looked into: {reason}")
    for process in found:
        told += [f"{process.label}: {text}" for text in process.unseen if text.startswith("stack")]
    return told
