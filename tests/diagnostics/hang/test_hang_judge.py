"""The judge: kept snapshots of real hangs and healthy jobs, and small ones made here, get the verdict they should."""

import dataclasses
import json
from pathlib import Path

import pytest

from diagnostics.catalog import load
from diagnostics.hang.judge import causes
from diagnostics.hang.judge.decide import Patience, judge
from diagnostics.hang.judge.verdict import CAUSES
from diagnostics.hang.read import files
from diagnostics.hang.show import document
from diagnostics.hang.snapshot import Collective, Process, Snapshot, SnapshotError, StackFrame, Thread
from tests.diagnostics.hang import bench, bench_repros

KEPT = Path(__file__).parent / "snapshots"
CASES = {case.name: case for case in (*bench.cases(), *bench_repros.cases())}
C10D = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def rank(number, *frames, pid=None, world=3, **more):
    """A rank whose main thread has these frames, and sleeps."""
    pid = pid or 100 + number
    thread = Thread(
        pid,
        "MainThread",
        frames,
        samples=3,
        stem=len(frames),
        runnable=0.0,
        asleep_s=400.0,
        state="S",
        syscall="futex",
        futex="0x1",
    )
    thread = dataclasses.replace(thread, **more.pop("thread", {}))
    values = {"role": "trainer", "rank": number, "world": world, "job": "127.0.0.1:1", "state": "S"} | more
    return Process(pid, 1, threads=(thread,), **values)


def gathers(number, line=10, **more):
    return rank(number, StackFrame(C10D, "all_gather", 1), StackFrame("/job/train.py", "step", line), **more)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_snapshot_gets_its_verdict(path):
    """Of a hang the culprit and the class of its cause; of a healthy job no hang; never a victim."""
    case = CASES[path.stem]
    named = {name: set(pids) for name, pids in json.loads(path.with_suffix(".names").read_text()).items()}
    row = bench.score(case, files.read([str(path)]), named)
    assert (row["right_process"], row["right_cause"], row["victim_named"]) == (True, True, False), row


def test_who_ended_while_it_was_looked_at_is_no_dead_process():
    """Something goes on there: its parent is about to ask for its exit code."""
    sentence = judge(files.read([str(KEPT / "healthy_imports.json")])).verdict.sentence
    assert "has just ended, and pid" in sentence
    assert "is dead" not in sentence


def test_there_are_kept_snapshots_of_both_kinds():
    """So that the test above does not pass on nothing."""
    kept = [CASES[path.stem] for path in KEPT.glob("*.json")]
    assert sum(not case.healthy for case in kept) >= 20
    assert sum(case.healthy for case in kept) >= 8


def test_a_launcher_is_not_said_to_be_in_a_collective():
    """It waits for its ranks; the sentence tells what the other ranks are in."""
    kept = files.read([str(KEPT / "HNG001-gather_skipped-0.json")])
    sentence = judge(kept, bench.PATIENCE).verdict.sentence
    assert "is in barrier" in sentence
    assert "while the others are in all_gather" in sentence


@pytest.mark.parametrize("guilty", [0, 1, 2, 3])
def test_who_is_not_in_the_collective_is_named_whichever_rank_it_is(guilty):
    """And the majority never."""
    ranks = [gathers(n, world=4) for n in range(4)]
    ranks[guilty] = rank(
        guilty,
        StackFrame("/job/train.py", "evaluate", 3),
        world=4,
        thread={"syscall": "clock_nanosleep", "futex": ""},
    )
    verdict = judge(Snapshot(tuple(ranks))).verdict
    assert (verdict.outcome, verdict.cause) == ("hang", "absent")
    assert verdict.culprits == (ranks[guilty].key,)
    assert len(verdict.victims) == 3


def test_of_two_ranks_in_different_collectives_both_are_named():
    """There is no majority between them."""
    one, other = (
        gathers(0, world=2),
        rank(1, StackFrame(C10D, "barrier"), StackFrame("/job/train.py", "save", 9), world=2),
    )
    verdict = judge(Snapshot((one, other))).verdict
    assert (verdict.cause, set(verdict.culprits)) == ("mismatch", {one.key, other.key})


def test_a_rank_without_a_process_is_missing():
    """Where the store is on this host, all ranks are."""
    verdict = judge(Snapshot((gathers(0), gathers(2)))).verdict
    assert (verdict.cause, verdict.culprits) == ("missing", ("rank 1",))
    assert "has no process among those that were seen" in verdict.sentence


def test_a_rank_that_computes_is_no_hang_however_the_others_wait():
    """Until it has gone on for very long."""
    busy = rank(
        1,
        StackFrame("/job/train.py", "reward", 7),
        thread={"runnable": 0.99, "syscall": "running", "asleep_s": None},
    )
    short = [gathers(0, thread={"asleep_s": 30.0}), busy, gathers(2, thread={"asleep_s": 30.0})]
    assert judge(Snapshot(tuple(short))).verdict.outcome == "progress"
    verdict = judge(Snapshot((gathers(0, thread={"asleep_s": 900.0}), busy, gathers(2)))).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "spin_native", (busy.key,))


def test_a_process_that_computes_without_a_stack_is_no_hang():
    """As one that ends: whoever waits for it waits for something that goes on."""
    ranks = [gathers(0), gathers(1), rank(2, thread={"runnable": 0.98, "syscall": "running", "futex": ""})]
    verdict = judge(Snapshot(tuple(ranks))).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("progress", "busy", ("/102",))


def test_a_wait_that_is_young_is_no_hang_yet():
    """It says so, and what it would be."""
    young = {"asleep_s": 5.0}
    ranks = (
        gathers(0, thread=young),
        gathers(2, thread=young),
        rank(1, StackFrame("/job/x.py", "f", 1), thread=young | {"syscall": "clock_nanosleep", "futex": ""}),
    )
    verdict = judge(Snapshot(ranks), Patience(60.0)).verdict
    assert (verdict.outcome, document.exit_code(verdict.outcome)) == ("waiting", 3)


def test_all_ranks_in_one_collective_is_not_known():
    """Nobody of them is named: Python's stacks do not tell."""
    verdict = judge(Snapshot(tuple(gathers(n) for n in range(3)))).verdict
    assert (verdict.outcome, verdict.culprits) == ("unknown", ())
    assert any("flight recorder" in line for line in verdict.next)


def test_recorders_tell_who_lags_where_stacks_do_not():
    """The rank that began fewer collectives."""
    told = tuple(Collective(n, "", 3 if n == 2 else 4, -1, "gloo:all_reduce") for n in range(3))
    verdict = judge(
        Snapshot(tuple(gathers(n) for n in range(3)), collectives=told, source="flight recorder")
    ).verdict
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("hang", "absent", ("/102",))


def test_who_could_not_be_seen_is_not_guessed_at():
    """A process without stack and state makes the verdict unknown, not fine."""
    blind = Process(9, 1, role="trainer", rank=0, world=1, unseen=("no rights",))
    verdict = judge(Snapshot((blind,), blind=("pid 9 could not be looked into: …",))).verdict
    assert verdict.outcome == "unknown"
    assert verdict.unseen
    assert document.exit_code(verdict.outcome) == 3


def test_nothing_at_all_is_not_fine():
    """An empty snapshot is unknown."""
    assert judge(Snapshot()).verdict.outcome == "unknown"


def test_codes_of_the_catalogue_name_causes_that_there_are():
    """Every shape of every entry; and each entry of the family is reached by some cause."""
    issues = load()
    for issue in issues.values():
        for shape in issue.hang:
            assert set(shape.causes) <= set(CAUSES), issue.code
    assert {code for code in issues if code.startswith("HNG")} == {c for c, i in issues.items() if i.hang}


def test_the_code_with_the_frames_goes_before_the_one_without():
    """A rendezvous that a rank does not come to is HNG015, not any rank that is elsewhere."""
    meets = StackFrame(
        "/opt/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py", "_create_c10d_store", 5
    )
    ranks = (
        rank(0, meets),
        rank(2, meets),
        rank(1, StackFrame("/job/x.py", "f", 1), thread={"syscall": "clock_nanosleep", "futex": ""}),
    )
    assert causes.named(judge(Snapshot(ranks))).verdict.code == "HNG015"
    assert causes.helps("HNG015")["mitigations"]


def test_a_snapshot_survives_json():
    """And something else is refused in a line."""
    snapshot = Snapshot((gathers(0),), blind=("x",), seconds=1.5)
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot
    for bad in (
        {},
        [],
        {"schema": "x"},
        snapshot.to_json() | {"processes": 3},
        snapshot.to_json() | {"more": 1},
    ):
        with pytest.raises(SnapshotError):
            Snapshot.from_json(bad)


def test_a_backward_pass_is_looked_for_in_its_own_thread():
    """The main thread waits for the engine's, which is in a collective."""
    autograd = StackFrame("/opt/env/lib/python3.11/site-packages/torch/autograd/__init__.py", "backward", 266)
    main = Thread(100, "MainThread", (autograd, StackFrame("/job/train.py", "step", 4)), samples=1)
    other = Thread(200, "", (StackFrame(C10D, "all_gather_into_tensor", 9),), samples=1)
    stands = judge(Snapshot((Process(100, threads=(main, other)),), source="py-spy text")).index.stands
    assert [stand.kind for stand in stands.values()] == ["collective"]


def test_a_child_that_has_just_died_is_no_hang():
    """Its parent waits for exactly that; it was seen between the two."""
    waits = Thread(
        1,
        "MainThread",
        (StackFrame("/usr/local/lib/python3.11/subprocess.py", "_wait"), StackFrame("/job/a.py", "f", 1)),
        samples=1,
        state="S",
        syscall="wait4",
        asleep_s=400.0,
        runnable=0.0,
    )
    verdict = judge(Snapshot((Process(1, 0, threads=(waits,), state="S"), Process(2, 1, state="Z")))).verdict
    assert verdict.outcome != "hang"


def test_a_main_thread_that_rests_beside_a_server_is_no_hang():
    """Its other thread waits for requests, and none is open."""
    event = Thread(
        1,
        "MainThread",
        (StackFrame("/usr/local/lib/python3.11/threading.py", "wait"), StackFrame("/job/a.py", "serve", 1)),
        samples=1,
        state="S",
        syscall="futex",
        futex="0x1",
        asleep_s=400.0,
        runnable=0.0,
    )
    loop = Thread(
        2,
        "loop",
        (
            StackFrame("/usr/local/lib/python3.11/selectors.py", "select"),
            StackFrame("/usr/local/lib/python3.11/asyncio/base_events.py", "_run_once"),
        ),
        samples=1,
        state="S",
        syscall="epoll_wait",
        runnable=0.0,
    )
    assert judge(Snapshot((Process(1, 0, threads=(event, loop), state="S"),))).verdict.outcome == "idle"


def test_a_stopped_worker_of_vllm_is_found_through_the_engine():
    """Kept from vLLM 0.31.0 on a CPU: the program waits for the core by ZMQ, the core for its worker by a ring."""
    verdict = judge(files.read([str(KEPT / "vllm" / "worker_stopped.json")])).verdict
    assert (verdict.outcome, verdict.cause) == ("hang", "stopped")
    assert verdict.culprits == ("/2736",)
    assert [edge.target for edge in verdict.chain] == ["/2379", "/2736"]
    assert any("/dev/shm/psm" in line for line in verdict.chain[-1].evidence)


def test_an_idle_engine_is_not_what_holds_a_program_up():
    """Kept from the same, before anything was asked: the program reads its standard input, the engine is at rest."""
    judged = judge(files.read([str(KEPT / "vllm" / "idle.json")]))
    assert (judged.verdict.cause, judged.verdict.culprits) == ("input", ("/723",))
    assert {s.kind for s in judged.index.stands.values() if s.process.role.startswith("engine")} == {"idle"}
