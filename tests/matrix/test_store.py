"""The store: what it keeps when it is cut off anywhere, and what counts as the latest answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.matrix.records.events import Event, from_line, to_line
from diagnostics.matrix.records.store import Store, StoreBusyError, flaky, latest


def event(identity="a", outcome="pass", summary="ünï\ncode", codes=()):
    """An event with a hostile summary."""
    answer = Answer(
        Outcome(outcome),
        summary,
        EvidenceLevel.EXECUTED,
        codes=codes,
        signs=("s",),
        ran_with=(("torch", "2"),),
    )
    return Event(
        identity,
        "vllm-1+trl-1",
        "import",
        answer,
        (("python", "3.11"),),
        "nox …",
        "2026-01-01T00:00:00Z",
        1.5,
        "r",
    )


def test_an_event_survives_the_way_to_disk_and_back():
    """Line breaks and other scripts included; one event is one line."""
    line = to_line(event())
    assert "\n" not in line
    assert from_line(line) == event()


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "null", '{"schema": "other"}', '{"schema": "grpo-doctor.event.v1"}']
)
def test_a_line_that_is_no_event_is_none(line):
    """Garbage is left out, not an error."""
    assert from_line(line) is None


def test_a_store_cut_off_anywhere_keeps_all_complete_events(tmp_path):
    """For every length a torn write can leave: complete events stay, the torn one goes, the next is whole."""
    whole = "".join(to_line(event(name)) + "\n" for name in "abc").encode()
    first = len((to_line(event("a")) + "\n").encode())
    second = first + len((to_line(event("b")) + "\n").encode())
    for length in range(first, len(whole), 7):
        store = Store(tmp_path / str(length))
        store.folder.mkdir()
        store.path.write_bytes(whole[:length])
        with store.locked():
            store.append(event("new"))
        kept = [item.identity for item in store.read()]
        # A line that lacks only its end is complete.
        assert kept == [
            "a",
            *(["b"] if length >= second - 1 else []),
            *(["c"] if length >= len(whole) - 1 else []),
            "new",
        ]


def test_a_torn_character_does_no_harm(tmp_path):
    """A write cut off inside a character of several bytes is dropped like any other."""
    store = Store(tmp_path)
    data = to_line(event()).encode()
    store.path.write_bytes(data[: data.index("ü".encode()) + 1])
    assert store.read() == []
    with store.locked():
        store.append(event())
    assert store.read() == [event()]


def test_one_run_at_a_time(tmp_path):
    """A store that is held refuses, says by whom, and is free again afterwards."""
    store = Store(tmp_path)
    with store.locked(), pytest.raises(StoreBusyError, match=r"process \d+"), store.locked():
        pass
    with store.locked():
        pass


def test_a_finished_answer_outlives_a_later_unfinished_one():
    """A timeout after a pass (asked again with --fresh) doesn't take the pass away."""
    found = latest([event("a", "pass"), event("a", "timeout"), event("b", "infra_error"), event("b", "fail")])
    assert (found["a"].answer.outcome, found["b"].answer.outcome) == (Outcome.PASS, Outcome.FAIL)


def test_the_last_finished_answer_counts():
    """Asked again, the newer answer stands."""
    assert latest([event("a", "pass", "old"), event("a", "pass", "new")])["a"].answer.summary == "new"


def test_answers_that_disagree_are_flaky():
    """A different outcome or different codes for the same inputs; open questions don't count."""
    events = [
        event("a", "pass"),
        event("a", "fail"),
        event("b", "timeout"),
        event("b", "pass"),
        event("c", "fail", codes=("X",)),
        event("c", "fail"),
    ]
    assert flaky(events) == {"a", "c"}


def test_merged_stores_answer_as_one_whatever_the_order(tmp_path):
    """Either into the other, and twice: nothing doubled, the newest answer counts, logs come along."""
    old = replace(event("a", "fail"), started="2026-01-01T00:00:00Z")
    new = replace(event("a"), started="2026-01-02T00:00:00Z")
    logged = replace(event("b"), answer=replace(event().answer, log="logs/cell/import.log"))
    held = {"one": [new, logged], "two": [old, event("c", "timeout")]}
    for first, second in (("one", "two"), ("two", "one")):
        stores = {name: Store(tmp_path / f"{first}-{name}") for name in held}
        for name, store in stores.items():
            with store.locked():
                for item in held[name]:
                    store.append(item)
        log = stores["one"].folder / "logs" / "cell" / "import.log"
        log.parent.mkdir(parents=True)
        log.write_text("seen")
        into, other = stores[first], stores[second]
        with into.locked():
            assert (into.merge(other), into.merge(other)) == (2, 0)
        found = latest(into.read())
        assert {name: item.answer.outcome for name, item in found.items()} == {
            "a": "pass",
            "b": "pass",
            "c": "timeout",
        }
        assert (into.folder / "logs" / "cell" / "import.log").read_text() == "seen"
    assert flaky([old, new]) == {"a"}
