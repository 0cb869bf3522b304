"""Publishing merges final answers into the published table.

Verdicts without a final answer stay. Verdicts whose cell or layer no longer exists are dropped and listed. The command
exits with 3 if a layer has neither a published nor a final answer. User names in paths and secrets are redacted.
"""

import json

import pytest

from diagnostics import compat_table
from diagnostics.matrix.context import ROOT
from diagnostics.matrix.publish import make_publication
from diagnostics.matrix.results import ResultsGrid
from tests.matrix.questions import answer_event, load_questions

CHOSEN = ("resolve", "install")
FIRST, SECOND = "vllm-1.0+trl-1.0", "vllm-2.0+trl-1.0"
COMPLETE = {(cell, layer): "pass" for cell in (FIRST, SECOND) for layer in CHOSEN}

FACTS = (("package", "torch", "2.5.1+hf_abcdefghijklmnopqrstuvwxyz01234567"),)


@pytest.fixture
def publish(tmp_path, kit):
    """Return a function that publishes answers, {(cell, layer): outcome}, over an existing document."""

    def publish_answers(answers, published, *, cells=("1.0", "2.0"), layers=CHOSEN, updated=None, others=()):
        text = kit.HEAD.replace('"trl=={trl}"', "") + "".join(
            kit.cell_table(vllm, "1.0", layers) for vllm in cells
        )
        for name in others:
            text += kit.cell_table("3.0", "1.0", others[name]).replace("vllm-3.0+trl-1.0", name)
        matrix, questions = load_questions(tmp_path / "matrix.toml", text)
        events = [
            answer_event(item, outcome, f"saw {outcome}", ran_with=(("trl", "at /home/qz/trl"),), facts=FACTS)
            for item in questions
            if (outcome := answers.get(item.key))
        ]
        grid = ResultsGrid(questions, events)
        return make_publication(grid, published, "today", updated or {cell.id for cell in matrix.cells})

    return publish_answers


def verdicts(publication):
    """Return {(cell, layer): verdict} of the published cells."""
    return {
        (cell["id"], name): layer["verdict"]
        for cell in publication.document["cells"]
        for name, layer in cell["layers"].items()
    }


def test_missing_answers_keep_published_verdicts(publish):
    """One new answer changes its verdict and that of its cell; all other published verdicts stay."""
    complete = publish(COMPLETE, {})
    assert (complete.kept_count, complete.dropped, complete.unanswered) == (0, [], [])
    assert complete.document["cells"][0]["layers"]["install"]["ran_with"] == {"trl": "at /home/<user>/trl"}
    assert complete.document["cells"][0]["torch"] == "2.5.1+<secret>"
    publication = publish({(FIRST, "install"): "fail"}, complete.document)
    assert verdicts(publication) == {**verdicts(complete), (FIRST, "install"): "fail"}
    assert [cell["verdict"] for cell in publication.document["cells"]] == ["fail", "pass"]
    assert publication.changed == [
        f"{FIRST} install: fail, was pass: saw fail",
        f"{FIRST}: the cell is fail, was pass",
    ]
    assert (publication.kept_count, publication.dropped, publication.unanswered) == (3, [], [])


def test_unfinished_answers_change_nothing(publish):
    """An infrastructure error or a timeout does not replace a published verdict."""
    complete = publish(COMPLETE, {}).document
    publication = publish({(FIRST, "install"): "infra_error", (FIRST, "resolve"): "timeout"}, complete)
    assert (verdicts(publication)[FIRST, "install"], publication.changed) == ("pass", [])


def test_other_trainers_are_published_apart(publish, tmp_path):
    """Cells of other trainers stand under `trainer_cells`, keep their answers, and are read by `versions`."""
    name = "vllm-3.0+verl-1.0"
    cell = {"install": "pass", "import": "pass", "config": "pass", "rollout": "pass", "loss": "pass"}
    answers = {(name, layer): outcome for layer, outcome in cell.items()}
    complete = publish({**COMPLETE, **answers}, {}, others={name: tuple(cell)}).document
    assert [item["id"] for item in complete["cells"]] == [FIRST, SECOND]
    (published,) = complete["trainer_cells"]
    assert {key: published[key] for key in ("id", "vllm", "trainer", "version", "verdict")} == {
        "id": name, "vllm": "3.0", "trainer": "verl", "version": "1.0", "verdict": "pass",
    }  # fmt: skip
    again = publish({}, complete, others={name: tuple(cell)})
    assert (again.document["trainer_cells"], again.dropped) == ([published], [])
    path = tmp_path / "compat.json"
    path.write_text(json.dumps(complete))
    assert [item.outcome for item in compat_table.load(path).trainer_cells] == ["ran"]
    published["layers"]["rollout"]["verdict"] = "expected_fail"
    path.write_text(json.dumps(complete))
    assert [item.outcome for item in compat_table.load(path).trainer_cells] == ["part"]
    published["verdict"] = "fail"
    path.write_text(json.dumps(complete))
    assert [item.outcome for item in compat_table.load(path).trainer_cells] == ["fails"]


def test_only_selected_cells_are_updated(publish):
    """Cells that are not selected stay as published, even if the store has other results."""
    complete = publish(COMPLETE, {}).document
    answers = {(FIRST, "install"): "fail", (SECOND, "install"): "fail"}
    publication = publish(answers, complete, updated={SECOND})
    assert [verdicts(publication)[cell, "install"] for cell in (FIRST, SECOND)] == ["pass", "fail"]


def test_verdicts_without_a_cell_are_dropped_and_listed(publish):
    """Verdicts of a removed cell and of a removed layer are dropped and listed; a missing answer is listed, too."""
    complete = publish(COMPLETE, {}).document
    publication = publish({}, complete, cells=("1.0",), layers=("resolve",))
    assert publication.dropped == [
        f"{FIRST} install: pass",
        f"{SECOND} resolve: pass",
        f"{SECOND} install: pass",
    ]
    publication = publish({(FIRST, "resolve"): "pass"}, {}, cells=("1.0",))
    assert publication.unanswered == [f"{FIRST} install: not_run: not run yet with these inputs"]


def test_shipped_table_follows_its_schema():
    """The shipped table is valid against docs/compat-v1.schema.json."""
    schema = json.loads((ROOT / "docs" / "compat-v1.schema.json").read_text())
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema)
    validator.check_schema(schema)
    shipped = json.loads((ROOT / "diagnostics" / "data" / "compat.json").read_text())
    assert [error.message for error in validator.iter_errors(shipped)] == []


def test_empty_store_keeps_the_published_cells(tmp_path):
    """An empty store keeps the cells of the table; an output that is a link is replaced."""
    from diagnostics.matrix import command

    target, victim = tmp_path / "compat.json", tmp_path / "victim"
    shipped = ROOT / "diagnostics" / "data" / "compat.json"
    victim.write_bytes(shipped.read_bytes())
    target.symlink_to(victim)
    assert command.main(["publish", "--store", str(tmp_path / "store"), "--output", str(target)]) == 0
    assert (target.is_symlink(), victim.read_bytes()) == (False, shipped.read_bytes())
    kept, written = (json.loads(path.read_text()) for path in (shipped, target))
    assert written == kept | {key: written[key] for key in ("generated", "harness")}


def test_publish_needs_an_answer_and_names_dropped_verdicts(project, kit):
    """The exit code is 3 without any answer; a verdict without a cell is dropped and listed; --dry-run only prints.

    Unknown cells and an unreadable table exit with 2.
    """
    target = project.folder / "out" / "compat.json"
    project.index.add("vllm", "1.0")
    project.index.add("trl", "1.0", extras={"vllm": ("vllm",)})
    project.write(kit.cell_table("1.0", "1.0", ("resolve",), recipe=None))
    command = ("publish", "--output", str(target))
    open_question = project.run(*command)
    assert (open_question.returncode, target.exists()) == (3, False)
    assert "no answer: vllm-1.0+trl-1.0 resolve" in open_question.stderr
    assert project.run("run").returncode == 0
    assert (project.run(*command, "--dry-run").returncode, target.exists()) == (0, False)
    assert project.run(*command).returncode == 0
    document = json.loads(target.read_text())
    removed = {**document["cells"][0], "id": "vllm-0.9+trl-1.0"}
    target.write_text(json.dumps({**document, "cells": [*document["cells"], removed]}))
    again = project.run(*command)
    assert (again.returncode, "dropped: vllm-0.9+trl-1.0 resolve: pass" in again.stderr) == (0, True)
    assert [cell["id"] for cell in json.loads(target.read_text())["cells"]] == ["vllm-1.0+trl-1.0"]
    assert project.run(*command, "--cells", "vllm-9*").returncode == 2
    target.write_text("torn")
    assert (project.run(*command).returncode, target.read_text()) == (2, "torn")
