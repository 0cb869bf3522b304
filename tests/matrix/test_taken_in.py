"""What others wrote for a store: taken in whole or not at all, and nothing of it lands outside of logs/."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from diagnostics.matrix import __main__ as cli
from diagnostics.matrix.build import locks, sources
from diagnostics.matrix.build.resolving import pins
from diagnostics.matrix.plan.verdicts import Outcome
from diagnostics.matrix.records import taken_in
from diagnostics.matrix.records.store import Store, StoreError
from diagnostics.matrix.sweep import results
from diagnostics.tables import TableError
from tests.diagnostics.programs import fuzz_readers, fuzz_stores
from tests.diagnostics.programs.fuzz_readers import event
from tests.matrix.test_dispatch import SMALL, table  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
ELSEWHERE = [
    "../sitecustomize.py",
    "logs/../../sitecustomize.py",
    "/tmp/x",
    "logs/x.log",
    "logs/a/b/c",
    "logs//x",
    "logs/./x",
    "logs/cell/..",
    "logs/cell/",
    "logs/cell/.bashrc",
    "store.jsonl",
    "logs/cell/a\nb",
    "logs/cell/a\0b",
    "logs\\cell\\x",
    "logs/cell/" + "a" * 300,
    "~/x",
    "logs/cell/-rf",
]


@pytest.fixture
def stores(tmp_path):
    """Two stores, ours and another's with one event, which may be changed; and a file that is nobody's business."""
    (tmp_path / "secret").write_text("secret")
    mine, theirs = Store(tmp_path / "mine"), tmp_path / "theirs"
    (theirs / "logs" / "cell").mkdir(parents=True)
    (theirs / "logs" / "cell" / "import.log").write_text("seen")

    def merge(change=lambda one: None, tail=""):
        one = event()
        change(one)
        (theirs / "store.jsonl").write_text(json.dumps(one) + "\n" + tail)
        with mine.locked():
            return mine.merge(Store(theirs))

    merge.mine, merge.theirs, merge.outside = mine, theirs, tmp_path
    return merge


def test_an_event_comes_with_its_log_and_once(stores):
    """A torn last line is left out; twice is once."""
    assert (stores(tail='{"schema'), stores()) == (1, 0)
    assert (stores.mine.folder / "logs" / "cell" / "import.log").read_text() == "seen"


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_log_lies_in_its_cell_s_folder_of_logs_or_nothing_is_taken(stores, name):
    """Neither read from elsewhere nor written there."""
    (stores.outside / "sitecustomize.py").unlink(missing_ok=True)
    with pytest.raises(StoreError, match=r"store\.jsonl:1: log: .*expected logs/CELL/NAME"):
        stores(lambda one: one["answer"].update(log=name))
    assert stores.mine.read() == []
    assert {path.name for path in stores.outside.iterdir()} == {"secret", "mine", "theirs"}
    assert {path.name for path in stores.mine.folder.iterdir()} == {"lock"}


@pytest.mark.parametrize("place", ["logs/cell/import.log", "logs/cell", "logs"])
@pytest.mark.parametrize("side", ["theirs", "mine"])
def test_no_link_is_followed_on_either_side(stores, place, side):
    """What a link of theirs leads to is not copied into what is published; what one of ours leads to is not written."""
    target = stores.outside / "target"
    target.mkdir()
    (target / "cell").mkdir()
    (target / "import.log").write_text("secret")
    (target / "cell" / "import.log").write_text("secret")
    link = getattr(stores, side) / place if side == "theirs" else stores.mine.folder / place
    if side == "theirs":
        if place.endswith(".log"):
            link.unlink()
        else:
            import shutil

            shutil.rmtree(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target / "import.log" if place.endswith(".log") else target)
    if side == "mine" and place.endswith(".log"):
        assert stores() == 1  # evidence that is here stands, whatever it is
    else:
        with pytest.raises(StoreError, match=r"no link|regular file"):
            stores()
    kept = [path for path in stores.mine.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert all("secret" not in path.read_text() for path in kept)
    assert {path.read_text() for path in target.rglob("*.log")} == {"secret"}


@pytest.mark.parametrize("reader", fuzz_stores.READERS, ids=lambda reader: reader.__name__)
def test_what_passes_every_check_of_form_does_nothing_either(reader):
    """A few of the cases of `python -m tests.diagnostics.programs.fuzz_stores`, which is run with many."""
    _outcomes, _slowest, wrong = fuzz_readers.run(reader, 40, 0)
    assert not wrong, "\n".join(text for _case, text in wrong)


def test_a_log_that_is_no_file_is_not_waited_for(stores):
    """A pipe in its place."""
    log = stores.theirs / "logs" / "cell" / "import.log"
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(StoreError, match="regular file"):
        stores()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.update(cell="../x"), "cell: "),
        (lambda one: one.update(layer=3), "layer: expected str"),
        (lambda one: one.update(seconds=float("inf")), "seconds: expected float"),
        (lambda one: one.update(schema="other"), "schema: "),
        (lambda one: one.update(started="yesterday"), "started: "),
        (lambda one: one.update(started=""), "started: "),
        (lambda one: one.update(started="9999-99-99T99:99:99Z"), "started: "),
        (lambda one: one.update(started="2026-01-01T00:00:00Z\n"), "started: "),
        (lambda one: one["answer"].update(outcome="fine"), "answer: "),
        (lambda one: one["answer"].update(codes="A"), "codes: expected a list"),
        (lambda one: one["answer"].update(ran_with=[["a"]]), "expected pairs"),
        (lambda one: one["answer"].update(facts=[[]]), "facts"),
        (lambda one: one["answer"].update(facts=[["package"]]), "facts: ['package']: expected what a layer"),
        (lambda one: one["answer"].update(facts=[["package", "a'; x", "1"]]), "facts: "),
        (lambda one: one["answer"].update(facts=[["lock", "a\nb", "1"]]), "facts: "),
        (lambda one: one["answer"].update(facts=[["said", "static"]]), "facts: "),
        (lambda one: one["answer"].update(facts=[["document", "["]]), "facts: "),
        (lambda one: one["answer"].update(codes=["hf_abc"]), "codes: 'hf_abc': expected a code"),
        (lambda one: one["answer"].update(summary="\ud800"), "half of a character"),
        (lambda one: one.pop("identity"), "identity: is missing"),
    ],
)
def test_an_event_of_another_shape_is_not_taken(stores, change, said):
    """By file, line and field; nothing of that store is."""
    with pytest.raises(StoreError, match=r"store\.jsonl:1: ") as refused:
        stores(change)
    assert said in str(refused.value)
    assert stores.mine.read() == []


def test_a_store_with_something_else_among_its_events_is_refused(stores, capsys, tmp_path):
    """Deep nesting too; by the command it is exit 2 in one line, and our store is as it was."""
    with pytest.raises(StoreError, match=r"store\.jsonl:2: no JSON"):
        stores(tail="[" * 100_000 + "\n" + json.dumps(event()) + "\n")
    (tmp_path / "matrix.toml").write_bytes((ROOT / "matrix.toml").read_bytes())
    code = cli.main(
        [
            "merge",
            "--file",
            str(tmp_path / "matrix.toml"),
            "--store",
            str(tmp_path / "new"),
            str(stores.theirs),
        ]
    )
    assert (code, capsys.readouterr().err.count("\n")) == (2, 1)
    assert Store(tmp_path / "new").read() == []


# What nodes answer.


@pytest.mark.parametrize("name", [*ELSEWHERE[:5], "logs/cell/x.log"])
def test_a_node_s_log_lies_in_logs(table, kit, name):  # noqa: F811
    """Or it is no answer: another node is asked, then the fault is stored."""
    made = table(kit.cell("1.0", "1.0", ("resolve",), recipe=None))
    root = made.run.workplace.store.folder

    def answer(node, job):
        reply = made.passes(node, job)
        return {**reply, "line": reply["line"].replace(f"logs/{job['cell']}/x.log", name)}

    made.on(SMALL["a"], answer=answer)
    good = name == "logs/cell/x.log"
    assert set(made.outcomes.values()) == {"pass" if good else "infra_error"}
    assert (root / "logs" / "cell" / "x.log").exists() == good
    assert {path.name for path in root.parent.iterdir()} == {"matrix.toml", "store"}


@pytest.mark.parametrize(
    "spoil",
    [
        {"line": 3},
        {"line": "[" * 100_000},
        {"log": "text"},
        {"log": b"x" * (3 * taken_in.LOG_BYTES)},
        {"refused": "", "line": None},
    ],
)
def test_an_answer_of_another_shape_is_a_fault_of_the_node(table, kit, spoil):  # noqa: F811
    """Said, and not the end of the run."""
    made = table(kit.cell("1.0", "1.0", ("resolve",), recipe=None))
    made.on(SMALL["a"], answer=lambda node, job: made.passes(node, job) | spoil)
    assert set(made.outcomes.values()) == {Outcome.INFRA_ERROR.value}


# Documents that are published.


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{}",
        '{"schema": "grpo-doctor.sweep.v1"}',
        '{"schema": "x", "generated": "", "sweeps": {}}',
    ],
)
def test_a_sweep_of_another_shape_is_not_gone_on_from(tmp_path, text):
    """What it said would be lost."""
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(TableError, match=r"sweep\.json: "):
        results.read(tmp_path / "sweep.json")


def test_the_published_sweep_is_of_its_shape(tmp_path):
    """And a missing one is none yet."""
    assert results.read(ROOT / "diagnostics" / "data" / "sweep.json")
    assert results.read(tmp_path / "sweep.json") == {}


def test_a_published_table_of_another_shape_is_not_gone_on_from(tmp_path, capsys):
    """`publish` says so in one line and writes nothing."""
    path = tmp_path / "compat.json"
    path.write_text('{"schema": "grpo-doctor.compat.v1", "cells": [{"id": 3}]}')
    before = path.read_bytes()
    code = cli.main(
        [
            "publish",
            "--file",
            str(ROOT / "matrix.toml"),
            "--store",
            str(tmp_path / "store"),
            "--output",
            str(path),
        ]
    )
    assert (code, path.read_bytes()) == (2, before)
    assert "cells[0].id: expected str" in capsys.readouterr().err


# What is installed.


def test_every_lock_that_is_installed_from_has_hashes():
    """But for what a folder of wheels gives, which the lock's head names."""
    for path in sorted((ROOT / "locks").glob("*.txt")):
        text = path.read_text()
        if path.name == "breadth.txt" or not pins(text):
            continue
        bare = locks.bare(text)
        assert {line.partition("==")[0] for line in bare} <= {"torch"}, path.name
        assert not bare or f"no hash for {bare[0]}" in text, path.name


def test_a_wheel_that_is_not_the_index_s_is_not_read(world, tmp_path):
    """A small one is fetched whole, and held to the hash."""
    world.index.add("vllm", "1.0", {"vllm/a.py": "a = 1\n"})
    found = sources.find_wheel("vllm", "1.0", cache=tmp_path / "cache", environ=world.environ)
    other = sources.WheelSources("vllm", "1.0", "0" * 64, found.address, tmp_path / "cache")
    assert found.read("vllm/a.py") == "a = 1\n"
    with pytest.raises(sources.WheelError, match="hash"):
        other.read("vllm/a.py")


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "vllm/../../evil.py"])
def test_a_member_of_a_wheel_is_kept_in_its_folder(tmp_path, name):
    """Its name is the wheel's own word."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr(name, "evil = 1\n")
    wheel = sources.WheelSources("w", "1", "0" * 8, str(tmp_path / "w.whl"), tmp_path / "cache")
    with pytest.raises(sources.WheelError, match="outside"):
        wheel.read(name)
    assert not (tmp_path / "cache").exists()
