"""The matrix's store survives torn writes, returns the latest answer, and merges untrusted stores safely.

Links, pipes, and a store of another user are refused.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from diagnostics import UserError
from diagnostics.matrix import environments
from diagnostics.matrix.command import open_job
from diagnostics.matrix.context import ROOT, Context
from diagnostics.matrix.store import Event, Store, StoreBusyError, StoreError, is_flaky, latest, parse_event
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome
from tests.limits import file_size_limit

LOG = "logs/cell/import.log"
REFUSED_LOGS = [
    "../sitecustomize.py", "logs/../../sitecustomize.py", "/tmp/x", "logs/x.log", "logs/a/b/c", "logs//x", "logs/./x",
    "logs/cell/..", "logs/cell/.bashrc", "store.jsonl", "logs/cell/a\nb", "logs/cell/a\0b", "logs/cell/" + "a" * 300,
    "~/x", "logs/cell/-rf",
]  # fmt: skip


def make_event(
    identity="a", outcome="pass", summary="ünï\ncode", codes=(), started="2026-01-01T00:00:00Z", log=""
):
    """Return an event whose summary has a line break and non-ASCII characters."""
    facts = {"facts": (("package", "torch", "2.8.0"),), "ran_with": (("torch", "2"),), "signs": ("s",)}
    answer = Answer(Outcome(outcome), summary, EvidenceLevel.EXECUTED, codes=codes, log=log, **facts)
    inputs = (("python", "3.11"),)
    return Event(identity, "vllm-1+trl-1", "import", answer, inputs, "nox …", started, 1.5, "r")


def test_event_round_trips():
    """An event with line breaks and non-ASCII characters is one line, and is read back equal."""
    line = make_event().to_line()
    assert "\n" not in line
    assert parse_event(line) == make_event()


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", '{"schema": "other"}', '{"schema": "grpo-doctor.event.v1"}', "[" * 100_000],
)
def test_invalid_lines_are_refused(line, tmp_path):
    """`parse_event` refuses an invalid line; reading a store skips it."""
    with pytest.raises(ValueError, match=r"."):
        parse_event(line)
    store = Store(tmp_path)
    store.path.write_text(f"{line}\n{make_event().to_line()}\n")
    assert store.read_events() == [make_event()]


def test_truncated_store_keeps_complete_events(tmp_path):
    """After a write that was torn at any length, complete events stay, and the next event is complete."""
    lines = [(make_event(name).to_line() + "\n").encode() for name in "abc"]
    data = b"".join(lines)
    second = len(lines[0]) + len(lines[1])
    for length in range(len(lines[0]), len(data), 7):
        store = Store(tmp_path / str(length))
        store.folder.mkdir()
        store.path.write_bytes(data[:length])
        with store.locked():
            store.append(make_event("new"))
        expected = ["a"] + ["b"] * (length >= second) + ["new"]
        assert [item.identity for item in store.read_events()] == expected


def test_locked_store_refuses_a_second_run_and_other_users(tmp_path, monkeypatch):
    """A second run is refused with the process id of the first; afterwards the store can be locked again.

    A store of another user is refused, because a run executes the environments in it.
    """
    store = Store(tmp_path)
    with store.locked(), pytest.raises(StoreBusyError, match=r"process \d+"), store.locked():
        pass
    with store.locked():
        pass
    with suppress(PermissionError):
        os.chown(tmp_path, 4, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(StoreError, match="belongs to user"), store.locked():
        pass


def test_link_named_as_store_is_opened_as_a_link(tmp_path):
    """The owner of a link counts, so a command does not replace it by the folder that it leads to."""
    (tmp_path / "link").symlink_to(tmp_path)
    job = open_job({"file": ROOT / "matrix.toml", "store": tmp_path / "link", "programs": tmp_path})
    assert job.context.store.folder == tmp_path / "link"


@pytest.mark.parametrize("folder", ["report", "logs/cell"])
def test_folder_outside_the_store_is_refused(tmp_path, folder):
    """A link in a store from somebody else leads no report or log to another folder."""
    (tmp_path / "victim").mkdir()
    link = tmp_path / "store" / folder.partition("/")[0]
    link.parent.mkdir()
    link.symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="out of the store"):
        Context(None, Store(tmp_path / "store")).folder(*folder.split("/"))
    assert not list((tmp_path / "victim").iterdir())


def test_link_in_place_of_an_environment_or_folder_is_refused(tmp_path):
    """Neither a fresh `install` nor making room removes a file behind a link among the environments.

    A link within the store in place of a folder that is emptied is named.
    """
    context, victim = Context(None, Store(tmp_path / "store")), tmp_path / "victim"
    victim.mkdir()
    (victim / environments.MARKER).touch()
    link = context.folder("environments") / "cell"
    link.symlink_to(victim)
    with pytest.raises(UserError, match="a link in place of an environment"):
        environments.remove_environment(link)
    cell = SimpleNamespace(id="another", recipe=SimpleNamespace(disk_gb=1e9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environments, "existing_environment", lambda *_: None)
        assert environments.make_room(context, cell) == []
    context.folder("stage").rename(tmp_path / "store" / "real")
    (tmp_path / "store" / "stage").symlink_to("real")
    with pytest.raises(UserError, match=r"stage: a link in place of a folder"):
        _ = context.stage
    assert (victim / environments.MARKER).exists()


@pytest.mark.parametrize("name", ["lock", "store.jsonl"])
def test_links_and_pipes_in_a_store_are_refused(tmp_path, name):
    """A link, a hard link and a pipe as lock or event file are refused; the link's target stays unchanged."""
    victim, store = tmp_path / "victim", tmp_path / "store"
    victim.write_text("unfinished line")
    store.mkdir()
    for link_to in (Path.symlink_to, Path.hardlink_to):
        link_to(store / name, victim)
        with pytest.raises(StoreError), Store(store).locked():
            pytest.fail("locked")
        assert victim.read_text() == "unfinished line"
        (store / name).unlink()
    os.mkfifo(store / name)
    if name == "store.jsonl":
        with pytest.raises(StoreError):
            Store(store).read_events()


def test_huge_store_without_line_ends_is_refused(tmp_path):
    """A sparse store of 1 TiB without a line end is refused, and stays as it is."""
    store = Store(tmp_path)
    store.path.touch()
    os.truncate(store.path, 1 << 40)
    with pytest.raises(StoreError, match="its last line is longer than 64 MiB"), store.locked():
        pytest.fail("locked")
    assert store.path.stat().st_size == 1 << 40


def test_failed_write_is_reported(tmp_path):
    """An event for which there is no room raises an error with the file and the reason."""
    reason = r"store\.jsonl: cannot be written: File too large"
    with file_size_limit(10), pytest.raises(StoreError, match=reason):
        Store(tmp_path).append(make_event())


def test_the_latest_finished_answer_counts():
    """A timeout after a pass does not replace the pass; a newer answer does."""
    timed_out_later = [make_event("a", outcome) for outcome in ("pass", "timeout")]
    assert latest(timed_out_later).answer.outcome is Outcome.PASS
    events = [("infra_error", ""), ("fail", "old"), ("fail", "new")]
    assert latest([make_event("b", *values) for values in events]).answer.summary == "new"
    assert latest([]) is None


@pytest.mark.parametrize(
    ("answers", "flaky"),
    [
        ([("pass",), ("fail",)], True),
        ([("fail", "", ("X",)), ("fail",)], True),
        ([("timeout",), ("pass",)], False),
    ],
)
def test_only_disagreeing_finished_answers_are_flaky(answers, flaky):
    """Different outcomes or codes for the same inputs are flaky; unfinished answers do not count."""
    assert is_flaky([make_event("a", *values) for values in answers]) is flaky


def test_merge_is_commutative_and_idempotent(tmp_path):
    """Merging in either order, or twice, doubles no event, and the newest answer counts."""
    contents = {
        "one": [make_event("a", started="2026-01-02T00:00:00Z"), make_event("b")],
        "two": [make_event("a", "fail"), make_event("c", "timeout")],
    }
    for first, second in (("one", "two"), ("two", "one")):
        stores = {name: Store(tmp_path / f"{first}-{name}") for name in contents}
        for name, store in stores.items():
            with store.locked():
                for event in contents[name]:
                    store.append(event)
        with stores[first].locked():
            assert (stores[first].merge(stores[second]), stores[first].merge(stores[second])) == (2, 0)
        events = stores[first].read_events()
        newest = {name: latest(event for event in events if event.identity == name) for name in "abc"}
        outcomes = {name: event.answer.outcome for name, event in newest.items()}
        assert outcomes == {"a": "pass", "b": "pass", "c": "timeout"}


@pytest.fixture
def merge_foreign(tmp_path):
    """Return a function that merges a changed event of a foreign store into our store."""
    mine, theirs = Store(tmp_path / "mine"), tmp_path / "theirs"
    theirs.mkdir()

    def merge(change=lambda event: None, tail=""):
        event = msgspec.to_builtins(make_event(log=LOG))
        change(event)
        (theirs / "store.jsonl").write_text(json.dumps(event) + "\n" + tail)
        with mine.locked():
            return mine.merge(Store(theirs))

    merge.mine, merge.theirs, merge.outside = mine, theirs, tmp_path
    return merge


def test_merge_adds_an_event_once_and_no_log(merge_foreign):
    """A second merge adds nothing, a torn last line is skipped, and no log is copied."""
    (merge_foreign.theirs / "logs" / "cell").mkdir(parents=True)
    (merge_foreign.theirs / LOG).write_text("seen")
    assert (merge_foreign(tail='{"schema'), merge_foreign()) == (1, 0)
    assert {path.name for path in merge_foreign.mine.folder.iterdir()} == {"lock", "store.jsonl"}


@pytest.mark.parametrize("name", REFUSED_LOGS)
def test_log_outside_its_folder_is_refused(merge_foreign, name):
    """An event whose log is outside the log folder is refused; no file is written and no event added."""
    with pytest.raises(StoreError, match=r"store\.jsonl:1: "):
        merge_foreign(lambda event: event["answer"].update(log=name))
    assert merge_foreign.mine.read_events() == []
    assert {path.name for path in merge_foreign.outside.iterdir()} == {"mine", "theirs"}
    assert {path.name for path in merge_foreign.mine.folder.iterdir()} == {"lock"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda event: event.update(cell="../x"), "$.cell"),
        (lambda event: event.update(layer=3), "$.layer"),
        (lambda event: event.update(schema="other"), "schema"),
        (lambda event: event.update(started="yesterday"), "$.started"),
        (lambda event: event.update(started="9999-99-99T99:99:99Z"), "$.started"),
        (lambda event: event.update(started="2026-01-01T00:00:00Z\n"), "$.started"),
        (lambda event: event["answer"].update(outcome="fine"), "$.answer.outcome"),
        (lambda event: event["answer"].update(codes="A"), "$.answer.codes"),
        (lambda event: event["answer"].update(codes=["hf_abc"]), "$.answer.codes"),
        (lambda event: event["answer"].update(ran_with=[["a"]]), "$.answer.ran_with"),
        (lambda event: event["answer"].update(facts=[[]]), "$.answer.facts"),
        (lambda event: event["answer"].update(facts=[["package"]]), "$.answer.facts"),
        (lambda event: event["answer"].update(facts=[["package", "a'; x", "1"]]), "facts: "),
        (lambda event: event["answer"].update(facts=[["missing", "vllm.LLM"]]), "$.answer.facts"),
        (lambda event: event["answer"].update(summary="\ud800"), "surrogate"),
        (lambda event: event.pop("identity"), "identity"),
    ],
)
def test_invalid_foreign_event_is_refused(merge_foreign, change, message):
    """An invalid event is refused with file, line and field, and no event of that store is added."""
    with pytest.raises(StoreError, match=r"store\.jsonl:1: ") as refused:
        merge_foreign(change)
    assert message in str(refused.value)
    assert merge_foreign.mine.read_events() == []
