"""The weaker look at a text that no reader understands: which class its words are of, and when nothing is said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from diagnostics.hang import mechanisms
from diagnostics.hang.judge import causes
from diagnostics.hang.judge.decide import judge
from diagnostics.hang.judge.verdict import CAUSES, HANG, UNKNOWN
from diagnostics.hang.read import ReadError, files, weighed
from diagnostics.hang.snapshot import Process, Said, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from diagnostics.hang.judge.verdict import HangVerdict

# Of each class a text in a form of its own: prose, calls with arrows, a log, names alone.
CASES = {
    "calls with arrows": (
        "The job is stuck.\n- r0: `step -> sync_grads -> all_reduce`\n- r1: `step -> eval -> all-gather`\n",
        "absent", "HNG002",
    ),
    "a sentence of two ranks": (
        "Everything freezes: one rank waits in the barrier, and the other ranks are past it.\n", "absent", "HNG002",
    ),
    "what one check says among many words of collectives": (
        "It hangs in allgather and reduce_scatter, over NCCL.\n"
        "NCCL WARN NET/IB : collective mismatch error local size 1 remote 2\nNCCL INFO AllGather: opCount 7\n",
        "mismatch", "HNG001",
    ),
    "names of a driver": (
        "The process never comes back from here:\n  libcuda.so.1 | cuStreamSynchronize | cudaMemcpyAsync\n",
        "device", "",
    ),
    "two threads and a mutex": (
        "It is wedged: thread 4 has the GIL and wants the mutex of the allocator, which thread 9 holds.\n",
        "lock", "HNG006",
    ),
    "what is denied of one and said of another": (
        "No hang with one thread; with two it is stuck: thread 4 has the GIL and wants the mutex.\n",
        "lock", "HNG006",
    ),
    "a log of a lock file": (
        "training never ends\nDEBUG filelock: Attempting to acquire lock 14 on /c/a.lock\n"
        "DEBUG filelock: Attempting to acquire lock 15 on /c/a.lock\nloading\n",
        "file_lock", "HNG007",
    ),
    "an answer that does not come": (
        "The client hangs: it waits for a reply of the worker, whose response never arrives in the queue.\n",
        "lost_message", "HNG016",
    ),
    "a death that others wait for": (
        "The server was killed (SIGKILL), and the client blocked for ever, waiting for its response: stuck.\n",
        "dead", "HNG005",
    ),
}  # fmt: skip

_HELD = "It hangs: thread 4 has the GIL and wants the mutex of the allocator.\n"
# Nothing is said of these: denied, over, ended by an error, work, as much of one as of another, one word alone, long.
SILENT = {
    "denied": "It does not hang any more: the mutex is taken after the GIL.\n",
    "denied in other words": "Nothing is frozen, no hang: the mutex is free, and nobody has the GIL.\n",
    "a zombie beside who runs": "Nothing is stuck: 7 runs, the child 8 has died, a zombie; its response came.\n",
    "all is well at its end": f"{_HELD}Later: all good\n",
    "nobody says that it stands": "The mutex of the allocator is taken by who holds the GIL.\n",
    "it went on": f"{_HELD}train: 12%|#\n",
    "an error": f"{_HELD}ValueError: no such mutex\n",
    "work": "It is stuck for long: torch.compile and inductor compile, then warmup and loading weights.\n",
    "two causes": "It hangs, in all_reduce over gloo or at the mutex of the GIL.\n",
    "one word": "It hangs in gloo.\n",
    "a death alone": "The worker died, and the node crashed: it never came up.\n",
    "what is longer than a piece": _HELD + "".join(f"line {n} of a page\n" for n in range(200)),
}


@pytest.fixture
def told(tmp_path: Path) -> Callable[[str], HangVerdict]:
    def of(text: str) -> HangVerdict:
        path = tmp_path / "dump.txt"
        path.write_text(text, encoding="utf-8")
        return causes.named(judge(files.read([str(path)]))).verdict

    return of


@pytest.mark.parametrize("name", CASES)
def test_the_words_tell_a_class(name: str, told: Callable[[str], HangVerdict]) -> None:
    """As a hypothesis, with the lines that say so, and nobody is accused."""
    text, cause, code = CASES[name]
    verdict = told(text)
    assert (verdict.outcome, verdict.cause, verdict.code) == (HANG, cause, code)
    assert (verdict.certainty, verdict.culprits, verdict.chain) == ("hypothesis", (), ())
    assert verdict.evidence
    assert set(verdict.evidence) <= {line.strip() for line in text.splitlines()}


@pytest.mark.parametrize("name", SILENT)
def test_where_no_class_leads_nothing_is_said(name: str, told: Callable[[str], HangVerdict]) -> None:
    """It is not even read, as before."""
    assert weighed.read(SILENT[name]) is None
    with pytest.raises(ReadError, match="expected a bundle"):
        told(SILENT[name])


def test_a_name_is_the_same_words_in_every_notation() -> None:
    """Capitals, underscores, dashes, colons, paths."""
    same = ("AllReduce", "all_reduce", "all-reduce", "all::reduce", "all/reduce", "all reduce")
    assert {mechanisms.words(name) for name in same} == {"all reduce"}


def test_what_a_reader_tells_stands() -> None:
    """Words are asked only where the judge knows nothing, and never of processes that are there."""
    rank = Process(-1, role="serving engine", python=False)
    known = judge(Snapshot((rank,), source="a log", said=Said("lock", ("mutex",)))).verdict
    assert known.cause == "lost_answer"
    live = judge(Snapshot((Process(7, state="S"),))).verdict
    assert (live.outcome, live.evidence) == (UNKNOWN, ())


def test_workers_at_rest_wait_for_nothing_that_is_lost(told: Callable[[str], HangVerdict]) -> None:
    """All that is seen of them waits for a message: that is how they rest, whatever is said beside them."""
    text = (
        "Between two requests it is always blocked in the queue, until a message comes.\n"
        'Thread 7 (idle): "MainThread"\n    poll (zmq/sugar/poll.py:106)\n'
        "    acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:674)\n"
        "    dequeue (vllm/distributed/device_communicators/shm_broadcast.py:755)\n"
        "    worker_busy_loop (vllm/v1/executor/multiproc_executor.py:963)\n"
    )
    said = weighed.read(text)
    assert said is not None
    assert said.cause == "lost_message"
    assert told(text).outcome == UNKNOWN


def test_each_class_has_its_words_in_the_verdicts() -> None:
    """A phrase each, and no cause that no verdict has."""
    named = {name for _, row in mechanisms.ROWS for name in row.groupindex}
    assert named == set(mechanisms.PHRASES)
    assert named <= set(CAUSES)
    assert {one for follow in mechanisms.FOLLOWS.values() for one in follow} <= named


def test_a_bundle_keeps_it() -> None:
    """What was read is judged elsewhere as here."""
    seen = Snapshot(source="a log", said=Said("device", ("cuStreamSynchronize",)))
    assert Snapshot.from_json(seen.to_json()) == seen
    assert judge(seen).verdict.cause == "device"
    assert replace(seen, said=None).to_json().get("said") is None
