"""What a log says of a wait that nobody took a stack of: a scheduler's, a store's, the kernel's own words."""

from __future__ import annotations

import re

from diagnostics.hang.read import deaths, engines, ranks
from diagnostics.hang.snapshot import NOTICED, Process, Snapshot, StackFrame, Thread

_STORE = StackFrame("torch/distributed/rendezvous.py", "rendezvous")
_RAY = StackFrame("ray/_private/worker.py", "get")
_DEVICE = StackFrame("torch_npu/npu/utils.py", "synchronize")
_RING = StackFrame("vllm/distributed/device_communicators/shm_broadcast.py", "dequeue")
# Each with what it is that waits; None: a rank in a collective, of which neither's name is said.
_WORDS: tuple[tuple[str, StackFrame | None, str], ...] = (
    # Ascend's collectives.
    (
        r"wait execution of the Notify register times out|notify wait time ?out|EI0002"
        r"|An exception occurs during the execution on some NPUs in the cluster",
        None,
        "HCCL's words",
    ),
    (
        r"(?i)stream sync(?:hronize)? time ?out|SynchronizeDeviceWithTimeout"
        r"|all tasks in the specified stream are not completed",
        _DEVICE,
        "the words of CANN",
    ),
    (r"EI0006|Getting socket times out", _STORE, "HCCL's words"),
    (r"gloo/transport/\w+/\w+\.(?:cc|h):\d+\] Timed out waiting \d+ms", None, "gloo's words"),
    (
        r"client socket has timed out after \d+\s?m?s while trying to connect to"
        r"|waitForInput: (?:poll for )?socket [^\n]*(?:likely a timeout|timed out after)",
        _STORE,
        "c10d's words",
    ),
    (
        r"RendezvousConnectionError|RendezvousTimeoutError|wait timeout after \d+ms, keys:|Timeout waiting for key:",
        _STORE,
        "c10d's words",
    ),
    # NCCL's, before it has a communicator.
    (
        r"NCCL \w+ [^\n]{0,60}Call to connect returned|Call to connect failed ?:"
        r"|socketPollConnect: connect(?:ing)? [^\n]{0,200}(?:timed out|refused|No route)",
        _STORE,
        "NCCL's log",
    ),
    # vLLM's engine, of a worker that gave no answer.
    (r"RPC call to \w+ timed out", _RING, "vLLM's words"),
    (
        r"(?:actor or task|resource request)\b[^\n]{0,200} cannot (?:currently )?be scheduled"
        r"|because no nodes are available|No available node types can fulfill"
        r"|Failed to create placement group[^\n]*try again",
        _RAY,
        "Ray's words",
    ),
    # JAX's: at its start, and later.
    (r"Barrier timed out\. Id: \[Init\]|cluster registration failed", _STORE, "JAX's words"),
    (r"DEADLINE_EXCEEDED: Barrier timed out", None, "JAX's words"),
    # `ray list actors`.
    (r"(?m)^[^\S\n]*\d+\s+[0-9a-f]{32}\s+\S+\s+PENDING_CREATION\b", _RAY, "ray list actors"),
    # `ray status`: something is asked for, and no node is on its way.
    (
        r"\(no pending nodes\)(?s:.){0,2000}?\d\+? pending (?:placement groups|tasks/actors)",
        _RAY,
        "ray status",
    ),
)
# Words of who noticed that something stands, and says no more.
_NOTICED = re.compile(
    r"[Ww]atchdog timeout \(self\.watchdog_timeout=|No available shared memory broadcast block found"
    r"|Scheduler debug info:|Waiting for \d+ [^\n]{0,20}?core engine proc"
)
_TABLE = tuple((re.compile(pattern), frame, source) for pattern, frame, source in _WORDS)
# The kernel's: a task that slept where no signal reaches it, and a server of files that does not answer.
_BLOCKED = re.compile(r"INFO: task (\S+?):(\d+) blocked for more than \d+ seconds")
_SILENT = re.compile(r"nfs: server (\S+?),? not responding")
_ANSWERS = r"nfs: server {} OK"
# NCCL's log: who began to build a communicator, of how many; nobody has ended.
_BEGUN = re.compile(r"\brank (\d+) nranks (\d+)\b[^\n]{0,200}Init START")
_ENDED = "Init COMPLETE"
# What PyTorch's check prints of each collective before it begins.
_RUNNING = re.compile(
    r"\[Rank (\d+)\] Running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), OpType=(\w+)(?=[,)])"
)
_FEWEST = 2
# What says a line again and again waits for something: for what, is in its words, and not to be read.
_WAITS = re.compile(
    r"(?i)\bwait(?:ing|s|ed)?\b|\bstill\b|no available|not (?:yet )?(?:ready|respond)|retry|heartbeat|pending"
)
# Of a server that does not listen: who asks it again says so, line by line, until it does.
_NOT_UP = re.compile(
    r"(?i)(?:\bnot (?:yet )?(?:up|ready|reachable|available|listening)\b|connection refused"
    r"|(?:failed|unable|could not|cannot|can't) (?:to )?(?:connect|reach))[^\n]{0,200}?(?:retry|again|attempt|waiting)"
)
_CAME_UP = re.compile(r"(?i)\b(?:is (?:now )?(?:up|ready)|connected|succe\w+|200 OK|healthy)\b|\d%|it/s")
_NOISE = 2
# A loop that a call holds up: Ray's warning, as the last word; what asyncio says of a step in its debug mode.
_BLOCKS = re.compile(r"Using blocking ray\.(?:get|wait) inside async")
_STEP = re.compile(r"Executing <(?:Task|Handle|TimerHandle)\b[^\n]{0,300}? took (\d+)\.\d+ seconds")
_LONG_S = 60
_BLOCKED_LOOP = (
    _RAY,
    StackFrame("asyncio/events.py", "_run"),
    StackFrame("asyncio/base_events.py", "_run_once"),
)
_DIGITS = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_OFTEN = 3


def read(text: str) -> Snapshot | None:
    """What is said of a wait; None if nothing is."""
    return (
        _apart(text)
        or _of_kernel(text)
        or engines.read(text)
        or _said(text)
        or _not_up(text)
        or _loop_blocked(text)
        or _begun(text)
        or (Snapshot((ranks.unnamed(1, "one"),), source="NCCL's log") if deaths.closed(text) else None)
        or _again(text)
        or _noticed(text)
    )


def _said(text: str) -> Snapshot | None:
    for pattern, frame, source in _TABLE:
        if not pattern.search(text):
            continue
        if frame is None:
            return Snapshot((ranks.unnamed(1, "one"),), source=source)
        return _main(source, frame)
    return None


def _main(source: str, *stack: StackFrame) -> Snapshot:
    """One process, whose main thread stands in these frames."""
    thread = Thread(1, "MainThread", stack, samples=1, stem=len(stack))
    return Snapshot((Process(1, threads=(thread,)),), source=source)


def _not_up(text: str) -> Snapshot | None:
    """Who asks a server that is not up, where that is how a log ends."""
    lines = [line for line in text.splitlines() if line.strip(" `.")]
    asked = [number for number, line in enumerate(lines) if _NOT_UP.search(line)]
    if len(asked) < _OFTEN or len(lines) - 1 - asked[-1] > _NOISE:
        return None
    after = "\n".join(lines[asked[-1] + 1 :])
    return None if _CAME_UP.search(after) else _main("a log", StackFrame("socket.py", "create_connection"))


def _loop_blocked(text: str) -> Snapshot | None:
    """A server's loop that a call holds up, by its own words."""
    lines = [line for line in text.splitlines() if line.strip(" `")]
    held = any(int(seconds) >= _LONG_S for seconds in _STEP.findall(text))
    if held or any(_BLOCKS.search(line) for line in lines[-_NOISE:]):
        return _main("a log", *_BLOCKED_LOOP)
    return None


def _of_kernel(text: str) -> Snapshot | None:
    found = {int(pid): name for name, pid in _BLOCKED.findall(text)}
    silent = [
        match
        for match in _SILENT.finditer(text)
        if not re.search(_ANSWERS.format(re.escape(match[1])), text[match.end() :])
    ]
    if not found and len(silent) < _FEWEST:
        return None
    where = "nfs" if silent else ""
    processes = [
        Process(pid, title=name, state="D", threads=(Thread(pid, "MainThread", state="D", wchan=where),))
        for pid, name in (found or {1: ""}).items()
    ]
    return Snapshot(tuple(processes), source="the kernel's words")


def _begun(text: str) -> Snapshot | None:
    """Ranks that wait for others to come to NCCL's start; which, where all but some have begun it."""
    told = {int(rank): int(world) for rank, world in _BEGUN.findall(text)}
    worlds = set(told.values())
    if not told or _ENDED in text or len(worlds) > 1 or len(told) >= max(worlds):
        return None
    frame = StackFrame(ranks.C10D, "init_process_group")
    return ranks.of(dict.fromkeys(told, frame), "NCCL's log")


def _apart(text: str) -> Snapshot | None:
    """Ranks that began another collective under one number; where a log may be cut, numbers alone do not tell."""
    seen: dict[int, dict[int, str]] = {}
    for rank, number, kind in _RUNNING.findall(text):
        seen.setdefault(int(number), {})[int(rank)] = kind
    for _, kinds in sorted(seen.items()):
        if len(set(kinds.values())) > 1:
            return ranks.of({rank: ranks.inside(kind) for rank, kind in kinds.items()}, "PyTorch's check")
    return Snapshot(source="PyTorch's check") if seen else None


def _noticed(text: str) -> Snapshot | None:
    return Snapshot(source=NOTICED) if _NOTICED.search(text) else None


def _again(text: str) -> Snapshot | None:
    """The last lines of a log, where these are the same but for their times."""
    lines = [line for line in text.splitlines() if line.strip(" `")]
    last = [_DIGITS.sub("0", line.strip()) for line in lines[-_OFTEN:]]
    if len(last) < _OFTEN or len(set(last)) > 1 or not _WAITS.search(lines[-1]):
        return None
    thread = Thread(
        1, "MainThread", (StackFrame("time.py", "sleep"),), samples=1, stem=1, syscall="nanosleep"
    )
    return Snapshot((Process(1, threads=(thread,)),), source="a log that says the same again and again")
