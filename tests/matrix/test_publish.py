"""Publishing from a store that knows a part: no verdict is lost unasked, and nothing is written that is not whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.plan import breadth
from diagnostics.matrix.verdicts import Answer, Outcome
from diagnostics.matrix.store import Event
from diagnostics.matrix.report import merging, publish
from diagnostics.matrix.run.board import Question, board
from tests.matrix.test_breadth import KNOWN, TABLE

LAYERS = ("resolve", "install")


@pytest.fixture
def make(tmp_path, kit):
    """Publishes what a store with these answers knows, {(cell, layer): outcome}, over what is published."""

    def _make(answers, published, *, cells=("1.0", "2.0"), layers=LAYERS, named=lambda _name: True):
        path = tmp_path / "matrix.toml"
        path.write_text(kit.head + "".join(kit.cell(vllm, "1.0", layers) for vllm in cells) + TABLE)
        matrix = replace(load(path), releases=KNOWN)
        boards = []
        for some in (matrix.cells, breadth.cells(matrix)):
            asked = [
                Question(cell, BY_NAME[name], (("cell", cell.id), ("layer", name)))
                for cell in some
                for name in cell.layers
            ]
            boards.append(board(asked, [_event(item, answers) for item in asked if _key(item) in answers]))
        return merging.merge(publish.document(boards[0], "today", boards[1]), published, *boards, named)

    return _make


def _key(item):
    return item.cell.id, item.layer.name


def _event(item, answers):
    outcome = Outcome(answers[_key(item)])
    answer = Answer(outcome, f"saw {outcome.value}", item.layer.evidence)
    return Event(
        item.identity, item.cell.id, item.layer.name, answer, item.inputs, "", "2026-01-02T00", 1.0, "r"
    )


ONE, TWO = "vllm-1.0+trl-1.0", "vllm-2.0+trl-1.0"
PAIR = "vllm-0.9+trl-1.0.1"
WHOLE = {(cell, layer): "pass" for cell in (ONE, TWO) for layer in LAYERS} | {(PAIR, "contract"): "pass"}


def told(merged):
    """Returns {(cell, layer): verdict} of the written cells."""
    return {
        (cell["id"], name): layer["verdict"]
        for cell in merged.document["cells"]
        for name, layer in cell["layers"].items()
    }


def test_what_a_store_does_not_know_stands_as_published(make):
    """A contributor's store with one answer changes that one; the cell's verdict follows, and the pairs stay."""
    whole = make(WHOLE, {})
    assert (whole.kept, whole.lost, whole.open) == (0, [], [])
    merged = make({(ONE, "install"): "fail"}, whole.document)
    assert told(merged) == {**told(whole), (ONE, "install"): "fail"}
    assert [cell["verdict"] for cell in merged.document["cells"]] == ["fail", "pass"]
    assert merged.document["breadth"]["trl"] == whole.document["breadth"]["trl"]
    assert merged.changed == [
        f"{ONE} install: fail, was pass: saw fail",
        f"{ONE}: the cell is fail, was pass",
    ]
    assert (merged.kept, merged.lost, merged.open) == (4, [], [])


def test_a_fault_of_the_machine_takes_no_verdict_away(make):
    """Nor does an answer that ran out of time."""
    whole = make(WHOLE, {}).document
    merged = make({(ONE, "install"): "infra_error", (ONE, "resolve"): "timeout"}, whole)
    assert (told(merged)[ONE, "install"], merged.changed, merged.open) == ("pass", [], [])


def test_only_the_named_cells_are_brought_up_to_date(make):
    """The others stay as they are, whatever the store says of them."""
    whole = make(WHOLE, {}).document
    answers = {(ONE, "install"): "fail", (TWO, "install"): "fail", (PAIR, "contract"): "fail"}
    merged = make(answers, whole, named=lambda name: name == TWO)
    assert [told(merged)[cell, "install"] for cell in (ONE, TWO)] == ["pass", "fail"]
    assert merged.document["breadth"] == whole["breadth"]


def test_what_nobody_asks_any_more_is_named_as_lost(make):
    """A cell that left the file, a layer that it is not asked any more, a pair that is not generated any more."""
    whole = make(WHOLE, {}).document
    whole["breadth"]["trl"]["0.1"] = {"declares": "", "contract": {"pass": "0.2"}}
    merged = make({}, whole, cells=("1.0",), layers=("resolve",))
    assert merged.lost == [
        f"{ONE} install: pass",
        f"{TWO} resolve: pass",
        f"{TWO} install: pass",
        "vllm-0.2+trl-0.1 contract: pass",
    ]


def test_a_question_that_was_never_answered_is_open(make):
    """A new cell, asked one of its layers."""
    merged = make({(ONE, "resolve"): "pass"}, {}, cells=("1.0",))
    assert merged.open == [f"{ONE} install: not_run: not asked yet"]


def test_the_command_writes_nothing_where_it_does_not_end_well(world, kit):
    """Exit 1 for what would be lost, 3 for what is open; --drop lets go of the one, --dry-run only tells."""
    target = world.folder / "out" / "compat.json"
    world.index.add("vllm", "1.0")
    world.index.add("trl", "1.0", extras={"vllm": ("vllm",)})
    cells = [kit.cell(version, "1.0", ("resolve",), recipe=None) for version in ("1.0", "2.0")]
    world.write(cells[0])
    publish_ = ("publish", "--output", str(target))
    done = world.run(*publish_)
    assert (done.returncode, target.exists()) == (3, False)
    assert "no answer: vllm-1.0+trl-1.0 resolve" in done.stderr
    assert world.run("run").returncode == 0
    assert (world.run(*publish_, "--dry-run").returncode, target.exists()) == (0, False)
    assert world.run(*publish_).returncode == 0
    document = json.loads(target.read_text())
    gone = {**document["cells"][0], "id": "vllm-0.9+trl-1.0"}
    target.write_text(json.dumps({**document, "cells": [*document["cells"], gone]}))
    before = target.read_text()
    done = world.run(*publish_)
    assert (done.returncode, target.read_text()) == (1, before)
    assert "would be lost: vllm-0.9+trl-1.0 resolve: pass" in done.stderr
    assert world.run(*publish_, "--drop").returncode == 0
    assert [cell["id"] for cell in json.loads(target.read_text())["cells"]] == ["vllm-1.0+trl-1.0"]
    assert world.run(*publish_, "--cells", "vllm-9*").returncode == 2
    target.write_text("torn")
    assert (world.run(*publish_).returncode, target.read_text()) == (2, "torn")
