"""Parse the dumps of PyTorch's flight recorder: JSON, and pickles of the NCCL and gloo backends.

`load_pickle` reads plain data only and runs no code of a pickle. `to_snapshot` returns one rank, by its last collective
and the counters of its first process group. `rank_process` builds a rank also for the other parsers.
"""

import io
import math
import pickle
import re
from collections.abc import Iterable
from typing import Any

from diagnostics.hang.collect.stacks import parse_frame
from diagnostics.hang.collectives import normalized_operation
from diagnostics.hang.parsers import ParseError
from diagnostics.hang.snapshot import MAX_TEXT, Collective, Process, Snapshot, StackFrame, Thread
from diagnostics.output.redact import truncate

C10D = "torch/distributed/distributed_c10d.py"
BETWEEN_COLLECTIVES = StackFrame("flight recorder", "between_collectives")
"""Placeholder frame of a rank that is between two collectives: it completed one and has not started the next."""
MAX_ITEMS = 4_000_000
"""Limit of values in a dump; a dump of 20,000 collectives has half as many."""
_MAX_ENTRY = 1_000_000  # characters of one collective; 200 frames of C++ have a fifth
_RANK = re.compile(r"(\d{1,6})(?:\.\w+)?$")
# The allowed opcodes, for numbers, texts and containers; none of them names a class or runs code.
_OPCODES = b"\x80\x95.}])(N\x88\x89KMJG\x8aX\x8c\x8dUTCBqr\x94hjaesut\x85\x86\x87"
_CONTAINERS = b"}])(t\x85\x86\x87"  # with the mark, for which the unpickler makes a list

# The unpickler in C has no table from which opcodes could be removed.
_PurePythonUnpickler: Any = pickle._Unpickler  # noqa: SLF001


def _counted(load: Any, code: int) -> Any:
    """Let an opcode that makes a container fail after MAX_ITEMS: each takes 64 bytes of memory, and one of the file."""

    def load_container(unpickler: Any) -> None:
        unpickler.containers += 1
        if unpickler.containers > MAX_ITEMS:
            raise pickle.UnpicklingError(f"more than {MAX_ITEMS} lists, tuples, dicts and marks")
        load(unpickler)

    return load_container if code in _CONTAINERS else load


class _DataUnpickler(_PurePythonUnpickler):  # type: ignore[misc]  # typed Any above
    """Unpickler for plain data: refuses classes and functions, and dict keys other than strings and numbers."""

    dispatch = {code: _counted(_PurePythonUnpickler.dispatch[code], code) for code in _OPCODES}  # noqa: RUF012
    containers = 0

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}; nothing of it was run")

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_setitems()

    def _check_keys(self, keys: list[Any]) -> None:
        # Hashing nested tuples can take exponential time.
        if not all(isinstance(key, (str, bytes, int, float)) for key in keys):
            raise pickle.UnpicklingError("a key is neither text nor number")

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def load_pickle(data: bytes, name: str) -> dict[str, Any]:
    """Load a flight recorder's pickle as plain data; nothing that it names is imported or run.

    Raises:
        ParseError: The data is not a flight recorder's pickle.
    """
    try:
        document = _DataUnpickler(io.BytesIO(data)).load()
        check_values(document, MAX_ITEMS)
    except Exception as error:  # noqa: BLE001 - a broken pickle can raise anything
        opcode = "nothing of it was run: opcode " if isinstance(error, KeyError) else ""
        reason = truncate(f"{opcode}{error}", 120)
        raise ParseError(f"{name}: no flight recorder's pickle: {reason}") from None
    if not is_recorder(document):
        raise ParseError(f"{name}: a pickle, but not of PyTorch's flight recorder")
    recorder: dict[str, Any] = document
    return recorder


def check_values(document: Any, limit: float = math.inf) -> None:
    """Refuse NaN, numbers of more than 63 bits, and more values than `limit`; shared references could be endless.

    Raises:
        ValueError: The document is refused.
    """
    queue, count = [document], 0
    while queue:
        value = queue.pop()
        count += 1
        if isinstance(value, dict):
            queue += value.values()
        elif isinstance(value, list | tuple):
            queue += value
        elif isinstance(value, int | float) and not abs(value) < 2**63:
            raise ValueError("a number that is too large, or none")
        if count + len(queue) > limit:
            raise ValueError("more items than a recorder has")


def to_int(value: Any) -> int:
    """Return an untrusted number or its text as an integer, None and "" as 0; raise ValueError above 63 bits."""
    number = int(value or 0)
    check_values(number)
    return number


def _check_text(entry: dict[str, Any], name: str) -> None:
    """Refuse an entry whose text, in which shared values are repeated, would be longer than any real one."""
    queue: list[Any] = [entry]
    size = 0
    while queue:
        value = queue.pop()
        size += len(value) if isinstance(value, (str, bytes)) else 1
        if isinstance(value, dict):
            queue += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            queue += value
        if size + len(queue) > _MAX_ENTRY:
            raise ParseError(f"{name}: broken: the last collective has more text than a recorder writes")


def is_recorder(document: Any) -> bool:
    """Return whether a document looks like PyTorch's flight recorder."""
    return isinstance(document, dict) and isinstance(document.get("entries"), list)


def rank_process(
    rank: int, operation: str, callers: Iterable[StackFrame] = (), *, job: str = "reported"
) -> Process:
    """Return a rank as a process in a collective operation or, if that is empty, between two collectives."""
    frame = StackFrame(C10D, operation) if operation else BETWEEN_COLLECTIVES
    thread = Thread(rank + 1, "MainThread", (frame, *callers))
    return Process(rank + 1, rank=rank, role="trainer", job=job, threads=(thread,), numbered=True)


def to_snapshot(document: dict[str, Any], name: str) -> Snapshot:
    """Return one rank's flight recorder as a snapshot; the rank is in the document or at the end of the file's name.

    An empty recorder gives a snapshot without processes.

    Raises:
        ParseError: The rank is unknown, or the last collective has more text than a recorder writes.
        AttributeError, KeyError, TypeError, ValueError: A value is missing or has another type.
    """
    entries = [entry for entry in document["entries"] if isinstance(entry, dict)]
    match = _RANK.search(name.rpartition("/")[2].removesuffix(".pickle").removesuffix(".pkl"))
    rank = document.get("rank", int(match[1]) if match else None)
    if not isinstance(rank, int):
        raise ParseError(f"{name}: unknown rank: the file's name should end with the rank's number")
    if not entries:
        empty = f"{name}: the recorder is empty (is TORCH_FR_BUFFER_SIZE 0?)"
        return Snapshot(source="flight recorder", blind=(empty,))
    last, status = entries[-1], document.get("pg_status") or {}
    _check_text(last, name)
    group: dict[str, Any] = next(iter(status.values()), {}) if isinstance(status, dict) else {}
    enqueued = to_int(group.get("last_enqueued_collective", last.get("collective_seq_id", 0)))
    completed = to_int(group.get("last_completed_collective", -1))
    operation = truncate(str(last.get("profiling_name") or ""), MAX_TEXT)
    pending = str(last.get("state")) != "completed" or completed < enqueued
    function = normalized_operation(operation.partition(" ")[0]) or "collective"
    callers = map(parse_frame, last.get("frames") or ())
    process = rank_process(rank, function if pending else "", callers, job="recorded")
    sizes = truncate(str(last.get("input_sizes", "")), MAX_TEXT)
    collective = Collective(rank, str(last.get("process_group", "")), enqueued, completed, operation, sizes)
    return Snapshot((process,), collectives=(collective,), source="flight recorder")
