"""How questions are handed out to nodes and taken in again: on made-up nodes, so that each fault has its moment."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest

from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.plan.verdicts import Answer, Outcome
from diagnostics.matrix.records.events import Event, to_line
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.report.progress import Lines
from diagnostics.matrix.run.board import Question, Standing
from diagnostics.matrix.run.cluster.dispatch import ATTEMPTS, Dispatch, FailedError, LostError
from diagnostics.matrix.run.cluster.placement import RayNode
from diagnostics.matrix.run.runner import MatrixRun, Options, ordered
from diagnostics.tables import TableError

STARTED = "2026-01-01T00:00:00Z"
SMALL = {name: RayNode(name, name, cpus=1.0, memory_gb=8.0, gpus=0.0) for name in ("a", "b")}
GPU = RayNode("g", "g", cpus=4.0, memory_gb=64.0, gpus=1.0)


@dataclass
class Nodes:
    """A cluster that answers at once, oldest job first, as its `answer` says."""

    all: list[RayNode]
    answer: object
    asked: list[tuple[str, ...]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    jobs: dict[int, tuple[RayNode, dict[str, object]]] = field(default_factory=dict)

    def nodes(self):
        return self.all

    def submit(self, node, needs, job):
        going = [there for there, _ in self.jobs.values() if there.id == node.id]
        assert len(going) < node.cpus or job["task"] == "drop", "more than the node has"
        self.asked.append((node.name, *(job[key] for key in ("cell", "layer") if key in job)))
        self.jobs[len(self.asked)] = (node, job)
        return len(self.asked)

    def wait(self, handles, timeout_s):
        return sorted(handles)[:1]

    def result(self, handle):
        return self.answer(*self.jobs.pop(handle))

    def cancel(self, handles):
        self.cancelled += handles


@dataclass
class Table:
    """A run and what to look at after it."""

    run: MatrixRun
    due: list[Question]

    def on(self, *nodes, answer=None):
        """Runs it on these nodes and returns them."""
        made = Nodes(list(nodes), answer or self.passes)
        Dispatch(self.run, self.due, made, patience_s=0.0).finish()
        return made

    def passes(self, node, job, outcome=Outcome.PASS):
        """What a node returns that asked."""
        if job["task"] == "drop":
            return {"notes": []}
        (item,) = (it for it in self.due if (it.cell.id, it.layer.name) == (job["cell"], job["layer"]))
        answer = Answer(outcome, f"on {node.name}", item.layer.evidence, log=f"logs/{item.cell.id}/x.log")
        event = Event(
            item.identity, item.cell.id, item.layer.name, answer, item.inputs, "c", STARTED, 1.0, job["run"]
        )
        return {"line": to_line(event), "log": b"said", "notes": []}

    @property
    def outcomes(self):
        events = self.run.workplace.store.read()
        return {(event.cell, event.layer): event.answer.outcome.value for event in events}


@pytest.fixture
def table(tmp_path, kit):
    """Makes a table of cells; `head` may say what layers need."""

    def make(*cells, head="", **options):
        path = tmp_path / "matrix.toml"
        path.write_text(kit.head + head + "".join(cells))
        workplace = Workplace(load(path), Store(tmp_path / "store"))
        workplace.store.folder.mkdir()
        due = ordered([
            Question(cell, BY_NAME[layer], (("cell", cell.id), ("layer", layer)))
            for cell in workplace.matrix.cells
            for layer in cell.layers
        ])  # fmt: skip
        return Table(MatrixRun(workplace, Options(**options), Lines(sys.stderr), Standing(due, [])), due)

    return make


def nodes_of(asked, cell):
    """Returns the nodes that were asked of a cell's environment."""
    light = {"resolve", "contract"}
    return [where for where, *rest in asked if len(rest) == 2 and rest[0] == cell and rest[1] not in light]


def test_a_cell_stays_on_the_node_of_its_environment(table, kit):
    """Two cells on two nodes of one CPU: both work, each cell on one of them, each layer once, its needs before it."""
    made = table(kit.cell("1.0", "1.0", kit.deep), kit.cell("2.0", "1.0", kit.deep))
    cluster = made.on(*SMALL.values())
    homes = [set(nodes_of(cluster.asked, item)) for item in ("vllm-1.0+trl-1.0", "vllm-2.0+trl-1.0")]
    assert sorted(map(sorted, homes)) == [["a"], ["b"]]
    asked = [tuple(rest) for _, *rest in cluster.asked]
    assert sorted(asked) == sorted(set(asked))
    assert [layer for cell, layer in asked if cell == "vllm-1.0+trl-1.0"] == list(kit.deep)
    assert set(made.outcomes.values()) == {"pass"}
    assert (made.run.workplace.store.folder / "logs" / "vllm-1.0+trl-1.0" / "x.log").read_bytes() == b"said"


def test_a_lost_node_is_not_the_cell_s_fault(table, kit, capsys):
    """The cell goes on elsewhere with the layer that was lost; nothing but passes is stored."""
    made = table(kit.cell("1.0", "1.0", kit.deep))
    alive = dict(SMALL)

    def answer(node, job):
        if job["layer"] == "import" and len(alive) == 2:
            del alive[node.id]
            cluster.all.remove(node)
            raise LostError("NodeDiedError")
        return made.passes(node, job)

    cluster = Nodes(list(SMALL.values()), answer)
    Dispatch(made.run, made.due, cluster).finish()
    install, lost, *later = nodes_of(cluster.asked, "vllm-1.0+trl-1.0")
    assert install == lost
    assert later == [*alive] * 2  # import again, scheduler
    assert set(made.outcomes.values()) == {"pass"}
    assert "asking vllm-1.0+trl-1.0 import again elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize("error", [LostError("WorkerCrashedError"), FailedError("no uv executable")])
def test_it_is_tried_so_often_and_no_oftener(table, kit, error):
    """A layer that no node survives ends as an infrastructure fault that says so; what needs it is not asked."""
    made = table(kit.cell("1.0", "1.0", kit.deep))

    def answer(node, job):
        if job["layer"] == "install":
            raise error
        return made.passes(node, job)

    cluster = made.on(*SMALL.values(), answer=answer)
    tried = nodes_of(cluster.asked, "vllm-1.0+trl-1.0")
    assert (len(tried), set(tried)) == (ATTEMPTS, {"a", "b"})
    assert made.outcomes["vllm-1.0+trl-1.0", "install"] == "infra_error"
    assert ("vllm-1.0+trl-1.0", "import") not in made.outcomes
    (event,) = (item for item in made.run.workplace.store.read() if item.layer == "install")
    assert f"{error} (tried 3 times)" in event.answer.summary


def test_a_fault_of_one_machine_is_asked_of_another(table, kit):
    """Full disk on one node, not on the other: a pass, and the fault is not stored."""
    made = table(kit.cell("1.0", "1.0", kit.deep))

    def answer(node, job):
        full = node.id == "a" and job["layer"] == "install"
        return made.passes(node, job, Outcome.INFRA_ERROR if full else Outcome.PASS)

    made.on(SMALL["a"], SMALL["b"], answer=answer)
    assert set(made.outcomes.values()) == {"pass"}


def test_a_failure_is_an_answer(table, kit):
    """It is asked once, and what needs it is not asked."""
    made = table(kit.cell("1.0", "1.0", kit.deep))

    def answer(node, job):
        return made.passes(node, job, Outcome.FAIL if job["layer"] == "install" else Outcome.PASS)

    cluster = made.on(*SMALL.values(), answer=answer)
    assert len(nodes_of(cluster.asked, "vllm-1.0+trl-1.0")) == 1
    assert made.outcomes["vllm-1.0+trl-1.0", "install"] == "fail"


def test_a_cell_with_a_layer_for_a_gpu_is_built_where_there_is_one(table, kit):
    """The whole cell goes to the node with the GPU, and one that needs none does not."""
    head = "[layers.engine]\ngpus = 1\nmemory_gb = 16\ncpus = 2\n"
    made = table(kit.cell("1.0", "1.0", (*kit.deep, "engine")), kit.cell("2.0", "1.0", kit.deep), head=head)
    cluster = made.on(SMALL["a"], GPU)
    assert set(nodes_of(cluster.asked, "vllm-1.0+trl-1.0")) == {"g"}
    assert set(nodes_of(cluster.asked, "vllm-2.0+trl-1.0")) == {"a"}


def test_what_no_node_offers_is_said_with_figures(table, kit):
    """A fault of the machine, never a failure of the cell; the other layers are asked all the same."""
    made = table(kit.cell("1.0", "1.0", (*kit.deep, "engine")), head="[layers.engine]\ngpus = 1\n")
    made.on(SMALL["a"])
    (event,) = (item for item in made.run.workplace.store.read() if item.layer == "engine")
    assert event.answer.outcome is Outcome.INFRA_ERROR
    assert "(1 CPU, 1 GPU): a: 1 CPU, 8 GB" in event.answer.summary
    assert made.outcomes["vllm-1.0+trl-1.0", "scheduler"] == "pass"


def test_an_answer_to_another_question_is_none(table, kit):
    """A node with another Python or other code answers something else: refused, with its reason."""
    made = table(kit.cell("1.0", "1.0", ("resolve", "contract"), recipe=None))

    def answer(node, job):
        if job["layer"] == "resolve":
            return {"refused": "here it would be another question: python is 3.9"}
        reply = made.passes(node, job)
        return {**reply, "line": reply["line"].replace('"identity":"', '"identity":"0')}

    made.on(SMALL["a"], answer=answer)
    assert set(made.outcomes.values()) == {"infra_error"}
    (first, *_) = made.run.workplace.store.read()
    assert "python is 3.9" in first.answer.summary


def test_an_interrupt_ends_what_is_under_way_and_keeps_the_rest(table, kit):
    """Ctrl-C while a node works: its job is cancelled, what was answered stays."""
    made = table(kit.cell("1.0", "1.0", kit.deep))

    class Interrupted(Nodes):
        def wait(self, handles, timeout_s):
            if any(job["layer"] == "import" for _, job in self.jobs.values()):
                raise KeyboardInterrupt
            return super().wait(handles, timeout_s)

    cluster = Interrupted([SMALL["a"]], made.passes)
    with pytest.raises(KeyboardInterrupt):
        Dispatch(made.run, made.due, cluster).finish()
    assert cluster.cancelled == list(cluster.jobs)
    assert [layer for _, layer in made.outcomes] == ["resolve", "contract", "install"]


def test_environments_are_dropped_where_they_were_built(table, kit):
    """After the cell's last layer, on every node that the cell was on and that lives."""
    made = table(kit.cell("1.0", "1.0", kit.deep), keep="never")
    built = []

    def answer(node, job):
        if job["task"] == "ask" and job["layer"] == "install":
            built.append(node.id)
        fault = job["task"] == "ask" and job["layer"] == "import" and [node.id] == built
        return made.passes(node, job, Outcome.INFRA_ERROR if fault else Outcome.PASS)

    cluster = made.on(*SMALL.values(), answer=answer)
    assert sorted(where for where, *rest in cluster.asked if len(rest) == 1) == ["a", "b"]


@pytest.mark.parametrize(("line", "said"), [("cpus = -1", "zero or more"), ("gpus = 1.5", "a whole number")])
def test_what_a_layer_needs_is_checked(table, kit, line, said):
    """One line that names the key and what was expected."""
    with pytest.raises(TableError, match=said):
        table(kit.cell("1.0", "1.0", kit.deep), head=f"[layers.engine]\n{line}\n")
