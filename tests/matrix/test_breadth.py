"""The generated cells: which there are, what is expected of them, and what is made of their answers."""

from __future__ import annotations

import contextlib
import copy
import datetime
import hashlib
import json
import os
import random
import select
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.compat_table import Compat
from diagnostics.compat_table import load as load_compat
from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.build.resolving import packages
from diagnostics.matrix.plan import breadth, releases
from diagnostics.matrix.plan.releases import Release, Releases
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.matrix.records.events import Event, from_line
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.report import findings, findings_document, html
from diagnostics.matrix.report.publish import breadth as breadth_of
from diagnostics.matrix.report.publish import compat
from diagnostics.matrix.run.board import Question, Standing, board
from diagnostics.tables import TableError

TABLE = """
[breadth]
python = "3.11"
trl_since = "1.0"
vllm_since = "0.2"
aside = 2
resolved = 3
days = 10

[[breadth.expect]]
layer = "contract"
trl = ">=1.1"
vllm = ">=0.8"
outcome = "fail"
reason = "It is gone."
shows = ["gone"]
"""
DAY = datetime.date(2025, 1, 1)


def released(version, day=0, vllm=None, python=">=3.9"):
    """A release, uploaded so many days after the first."""
    return Release(version, DAY + datetime.timedelta(days=day), python, vllm)


KNOWN = Releases(
    datetime.date(2025, 3, 1),
    (
        released("0.9", 0, ""),
        released("1.0.0", 1, ">=0.4,<0.10"),
        released("1.0.1", 5, ">=0.4"),
        released("1.1.0", 30, "==0.5"),
        released("1.2.0", 40, "", python=">=3.12"),
    ),
    (*(released(f"0.{minor}", 4 * minor) for minor in range(1, 12)), released("0.12", 58)),
)


@pytest.fixture
def matrix(tmp_path, kit):
    """A matrix with one written cell, and the list of releases."""

    def _load(table=TABLE, known=KNOWN, more=""):
        (tmp_path / "locks").mkdir(exist_ok=True)
        (tmp_path / "locks" / releases.FILE).write_text(releases.render(known))
        (tmp_path / "matrix.toml").write_text(
            kit.head + kit.cell("0.6", "1.1.0", kit.light, more=more) + table
        )
        return load(tmp_path / "matrix.toml")

    return _load


def test_each_minor_release_meets_what_it_declares_and_two_on_each_side(matrix):
    """The newest of each minor release; a range, a pin, an open bound; nothing older than asked, no other Python."""
    found = {}
    for cell in breadth.cells(matrix()):
        found.setdefault(cell.trl, []).append(cell.vllm)
    assert found == {
        "1.0.1": [f"0.{minor}" for minor in range(2, 13)],
        "1.1.0": ["0.3", "0.4", "0.5", "0.6", "0.7"],
    }


def test_all_are_read_and_some_of_the_allowed_ones_are_resolved(matrix):
    """Of an open bound's releases the ends and some between are resolved, and every forbidden one."""
    resolved = [
        cell.vllm for cell in breadth.cells(matrix()) if cell.trl == "1.0.1" and "resolve" in cell.layers
    ]
    assert resolved == ["0.2", "0.3", "0.4", "0.8", "0.12"]
    assert all("contract" in cell.layers for cell in breadth.cells(matrix()))


def test_the_date_cut_follows_the_later_upload_and_ends_today(matrix):
    """Ten days after the later of both; never after the day on which the index was read."""
    cuts = {cell.id: cell.exclude_newer for cell in breadth.cells(matrix())}
    assert cuts["vllm-0.3+trl-1.0.1"] == DAY + datetime.timedelta(days=12 + 10)
    assert cuts["vllm-0.3+trl-1.1.0"] == DAY + datetime.timedelta(days=30 + 10)
    assert cuts["vllm-0.12+trl-1.0.1"] == KNOWN.read


def test_what_is_expected_follows_from_metadata_and_rules(matrix):
    """A forbidden pair has no solution, twice; a rule speaks of its ranges only; a written cell keeps its own."""
    own = '[CELL.expect.contract]\noutcome = "fail"\nreason = "its own"\n'
    cells = {cell.id: cell for cell in breadth.cells(matrix(more=own))}
    forbidden = cells["vllm-0.7+trl-1.1.0"]
    assert {layer: forbidden.expectation(layer).outcome for layer in ("resolve", "resolve:today")} == {
        "resolve": Outcome.UNRESOLVABLE, "resolve:today": Outcome.UNRESOLVABLE,
    }  # fmt: skip
    assert "declares vllm==0.5" in forbidden.expectation("resolve").reason
    assert forbidden.expectation("contract") is None
    assert cells["vllm-0.8+trl-1.0.1"].expectation("contract") is None
    written = cells["vllm-0.6+trl-1.1.0"]
    assert written.expectation("contract").reason == "its own"
    assert (
        written.expectation("resolve") is None
    )  # the file says so, and the file is right or wrong by itself
    assert written.expectation("resolve:today").outcome is Outcome.UNRESOLVABLE
    assert written.exclude_newer == datetime.date(2025, 6, 1)


def test_a_rule_speaks_of_its_ranges(matrix):
    """Where TRL and vLLM both lie in a rule's ranges, its expectation holds."""
    table = TABLE.replace(">=1.1", ">=1.0")
    cells = {cell.id: cell for cell in breadth.cells(matrix(table))}
    assert cells["vllm-0.8+trl-1.0.1"].expectation("contract").reason == "It is gone."
    assert cells["vllm-0.7+trl-1.0.1"].expectation("contract") is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('trl_since = "1.0"', 'trl_since = "one"', "trl_since is 'one': expected a version, as '0.14'"),
        ('trl = ">=1.1"', 'trl = "from 1.1"', "trl is 'from 1.1': expected a range of versions"),
        ('layer = "contract"', 'layer = "install"', "expected one of resolve, resolve:today, contract"),
        ('outcome = "fail"', 'outcome = "pass"', "a pass needs no entry"),
        ("aside = 2", "aside = -2", "expected a number from 0 on"),
        ("days = 10", "dayz = 10", "did you mean days"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_with_its_place(matrix, old, new, said):
    """One line: file, line, key, value and what was expected."""
    with pytest.raises(TableError) as refused:
        matrix(TABLE.replace(old, new))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_broken_list_of_releases_is_refused(matrix, tmp_path):
    """A list that is something else is named, with the command that writes it."""
    matrix()
    (tmp_path / "locks" / releases.FILE).write_text('{"schema": "grpo-doctor.releases.v1"}')
    with pytest.raises(TableError, match=r"`python -m diagnostics.matrix releases` writes it again"):
        load(tmp_path / "matrix.toml")


def test_a_list_of_releases_comes_back_as_it_was(tmp_path):
    """Written and read: the same releases; one line each."""
    path = tmp_path / "releases.json"
    path.write_text(releases.render(KNOWN))
    assert releases.load(path) == KNOWN
    assert sum('"version"' in line for line in path.read_text().splitlines()) == len(KNOWN.trl) + len(
        KNOWN.vllm
    )


def test_the_project_s_breadth_covers_what_it_promises():
    """Every minor release of TRL since 0.14, at least 150 resolved cells, two releases on each side of a range."""
    matrix = load(ROOT / "matrix.toml")
    cells = breadth.cells(matrix)
    lines = {item.line for item in matrix.releases.trl if item.line >= (0, 14)}
    assert {tuple(map(int, cell.trl.split(".")[:2])) for cell in cells} == lines
    assert sum("resolve" in cell.layers for cell in cells) >= 150
    aside = [cell.vllm for cell in cells if cell.trl == "0.25.1" and not breadth.allowed(cell)]
    assert aside == ["0.10.1", "0.10.1.1", "0.11.0", "0.11.1"]
    assert {cell.vllm for cell in cells if cell.trl == "0.25.1" and breadth.allowed(cell)} == {"0.10.2"}


def answered(item, outcome, *signs, lock="", started="2025-01-01T00:00:00Z"):
    """An event that answers a question."""
    facts = (*packages(lock.split()), *(("missing", sign.partition(":")[0], "at import") for sign in signs))
    answer = Answer(outcome, "summary", EvidenceLevel.STATIC, signs=signs, facts=facts, excerpt=lock)
    return Event(item.identity, item.cell.id, item.layer.name, answer, item.inputs, "", started, 0.1, "run")


def asked(matrix):
    """All questions of the generated cells."""
    return [
        Question(cell, BY_NAME[layer], (("cell", cell.id), ("layer", layer)))
        for cell in breadth.cells(matrix)
        for layer in cell.layers
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_board_taken_in_answer_by_answer_is_the_board_of_the_store(matrix, seed):
    """Repeated, unfinished and disagreeing answers in any order: the same as judging all of them at once."""
    questions, dice, events = asked(matrix()), random.Random(seed), []
    standing = Standing(questions, [])
    for _ in range(120):
        event = answered(
            dice.choice(questions), dice.choice([Outcome.PASS, Outcome.FAIL, Outcome.INFRA_ERROR])
        )
        events.append(event)
        standing.add(event)
    assert standing.board == board(questions, events)


def test_the_findings_name_what_metadata_and_source_disagree_on(matrix):
    """Allowed and broken, forbidden and whole, lost since: each in its list, and the open ones in none."""
    questions = asked(matrix())
    by = {(item.cell.id, item.layer.name): item for item in questions}
    events = [
        answered(by["vllm-0.9+trl-1.0.1", "contract"], Outcome.FAIL, "vllm.gone: no gone in vllm (a.py:1)"),
        answered(by["vllm-0.7+trl-1.1.0", "contract"], Outcome.PASS),
        answered(by["vllm-0.3+trl-1.1.0", "contract"], Outcome.FAIL, "vllm.new: no new in vllm (a.py:1)"),
        answered(by["vllm-0.5+trl-1.1.0", "resolve"], Outcome.PASS, lock="torch==2.6"),
        answered(by["vllm-0.5+trl-1.1.0", "resolve:today"], Outcome.UNRESOLVABLE),
        answered(by["vllm-0.4+trl-1.0.1", "resolve"], Outcome.PASS, lock="torch==2.6\nnumpy==1.0"),
        answered(by["vllm-0.4+trl-1.0.1", "resolve:today"], Outcome.PASS, lock="torch==3.0\nnumpy==1.0"),
    ]
    text = findings.render(board(questions, events))
    assert "names are missing in that vLLM: 1 pairs\n  TRL 1.0.1, declares vllm>=0.4: 0.9: vllm.gone" in text
    assert "all names are there: 1 pairs\n  TRL 1.1.0, declares vllm==0.5: 0.7" in text
    assert "  Lost: vllm-0.5+trl-1.1.0" in text
    assert "1 get other packages today, half of them at least 1. " in text
    assert "torch 2 → 3 in 1." in text
    assert "\n1.0.1    ???????✘???\n" in text
    assert "\n1.1.0     ·???○\n" in text


def test_the_page_shows_what_metadata_and_source_disagree_on(matrix):
    """A pair that was only read is no pair that ran, and each list can be opened."""
    questions = asked(matrix())
    by = {(item.cell.id, item.layer.name): item for item in questions}
    events = [
        answered(by["vllm-0.7+trl-1.1.0", "contract"], Outcome.PASS),
        answered(by["vllm-0.7+trl-1.1.0", "resolve"], Outcome.UNRESOLVABLE),
        answered(by["vllm-0.5+trl-1.1.0", "resolve"], Outcome.PASS, lock="torch==2.6\nnumpy==1.0"),
        answered(by["vllm-0.5+trl-1.1.0", "resolve:today"], Outcome.PASS, lock="torch==2.7\nnumpy==1.0"),
    ]
    page = html.render(board(questions, events), "2025-01-01", published=Compat())
    assert "vLLM 0.7 with TRL 1.1: cannot be installed together" in page
    assert "pairs that were tried ran with their engine, 0 in part; 1 cannot work." in page
    assert "<summary>Not allowed by TRL&#39;s metadata, and all names are there: 1 pairs</summary>" in page
    assert "1 of 2 packages differ from the pair&#39;s own date\ntorch 2.6 → 2.7" in page


def test_what_is_published_of_the_breadth_is_what_was_answered(matrix):
    """By TRL, layer and outcome; an unanswered question stands nowhere, an unfinished one neither."""
    questions = asked(matrix())
    by = {(item.cell.id, item.layer.name): item for item in questions}
    events = [
        answered(by["vllm-0.9+trl-1.0.1", "contract"], Outcome.FAIL, "vllm.z: no z", "vllm.gone: no gone"),
        answered(by["vllm-0.7+trl-1.1.0", "contract"], Outcome.PASS),
        answered(by["vllm-0.6+trl-1.1.0", "contract"], Outcome.PASS),
        answered(by["vllm-0.5+trl-1.1.0", "contract"], Outcome.INFRA_ERROR),
        answered(by["vllm-0.3+trl-1.1.0", "resolve"], Outcome.UNRESOLVABLE, "because"),
    ]
    found = breadth_of(board(questions, events))
    assert found["trl"] == {
        "1.0.1": {"declares": ">=0.4", "contract": {"fail vllm.gone": "0.9"}},
        "1.1.0": {
            "declares": "==0.5",
            "contract": {"pass": "0.6 0.7"},
            "resolve": {"unresolvable": "0.3"},
        },
    }
    assert (found["questions"], found["answered"]) == (len(questions), 4)


def test_the_document_says_what_was_run_read_and_not_answered(matrix):
    """Each list from the store: run against metadata, read against metadata, two dates, failures with their codes."""
    made = matrix()
    questions = asked(made)
    by = {(item.cell.id, item.layer.name): item for item in questions}
    gone = (
        "vllm.sampling_params.GuidedDecodingParams: no GuidedDecodingParams in vllm.sampling_params (a.py:1)"
    )
    wide = [
        answered(by["vllm-0.9+trl-1.0.1", "contract"], Outcome.FAIL, gone),
        answered(by["vllm-0.5+trl-1.1.0", "resolve"], Outcome.PASS, lock="torch==2.6"),
        answered(by["vllm-0.5+trl-1.1.0", "resolve:today"], Outcome.UNRESOLVABLE),
    ]
    ran = Question(
        replace(made.cells[0], vllm="0.7", id="vllm-0.7+trl-1.1.0"), BY_NAME["engine"], (("a", "b"),)
    )
    event = answered(ran, Outcome.PASS)
    event = replace(event, answer=replace(event.answer, evidence=EvidenceLevel.EXECUTED))
    text = findings_document.render(board(questions, wide), board([ran], [event]), KNOWN, "2025-01-01")
    assert (
        "Not allowed, and layers passed: 1.\n\n- `vllm-0.7+trl-1.1.0` (TRL declares vllm==0.5): passed engine"
        in text
    )
    assert "Allowed, and a layer failed: none." in text
    assert "TRL 1.0.1, declares vllm>=0.4: 0.9: vllm.sampling_params.GuidedDecodingParams" in text
    assert "| `vllm-0.5+trl-1.1.0` | 2025-02-10 | no solution any more |" in text
    assert "| contract | CMP002 | not as expected" in text
    assert f"{len(questions)} questions of\n16 generated pairs, 3 answered" in text


@pytest.mark.parametrize("seed", range(5))
def test_the_table_agrees_with_the_store(matrix, tmp_path, seed):
    """Whatever the store holds: every pair reads back as it was answered, and no pair beside them."""
    made, dice = matrix(), random.Random(seed)
    questions = asked(made)
    by = {"contract": [Outcome.PASS, Outcome.FAIL], "resolve": [Outcome.PASS, Outcome.UNRESOLVABLE]}
    events = [
        answered(
            item, dice.choice([*by[item.layer.name.partition(":")[0]], Outcome.INFRA_ERROR]), "gone: why"
        )
        for item in dice.sample(questions, 2 * len(questions) // 3)
    ]
    wide = board(questions, events)
    path = tmp_path / "compat.json"
    path.write_text(compat(board([], []), "2025-01-01", wide))
    table = load_compat(path)
    known = {
        (item.cell, item.layer): item.answer.outcome.value
        for item in events
        if item.answer.outcome is not Outcome.INFRA_ERROR
    }
    for cell in breadth.cells(made):
        read = table.read(cell.vllm, cell.trl)
        told = (read.contract, read.resolve, read.today) if read else (None, None, None)
        assert told == tuple(
            known.get((cell.id, layer)) for layer in ("contract", "resolve", "resolve:today")
        )
        assert read is None or read.allowed is breadth.allowed(cell)
    assert {f"vllm-{vllm}+trl-{trl}" for vllm, trl in table.pairs()} == {cell for cell, _layer in known}


def test_the_shipped_table_keeps_its_schema():
    """docs/compat-v1.schema.json describes what is shipped; it refuses an outcome and a layer it doesn't know."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(
        json.loads((ROOT / "docs" / "compat-v1.schema.json").read_text())
    )
    validator.check_schema(validator.schema)
    shipped = json.loads((ROOT / "diagnostics" / "data" / "compat.json").read_text())
    assert [error.message for error in validator.iter_errors(shipped)] == []
    trl = next(iter(shipped["breadth"]["trl"]))
    for wrong in (
        {"contract": {"perhaps": "0.12.0"}},
        {"engine": {"pass": "0.12.0"}},
        {"contract": {"pass": ""}},
    ):
        broken = copy.deepcopy(shipped)
        broken["breadth"]["trl"][trl] |= wrong
        assert not validator.is_valid(broken), wrong


def toy(world, kit):
    """A toy index with two vLLM and two TRL releases, and a matrix that generates from it."""
    for version in ("1.0", "2.0"):
        world.index.add("vllm", version, kit.vllm(version))
    world.index.add("trl", "1.0", kit.trl("from vllm import LLM"), extras={"vllm": ("vllm<2",)})
    world.index.add("trl", "2.0", kit.trl("from vllm import Newest"), extras={"vllm": ("vllm>=1.0",)})
    table = TABLE.replace("3.11", kit.python).replace('"0.2"', '"1.0"').partition("[[")[0]
    world.write(kit.cell("1.0", "1.0", kit.light, recipe=None), head=kit.head)
    path = world.folder / "matrix.toml"
    path.write_text(path.read_text() + table)


def test_a_breadth_is_read_from_the_index_asked_and_not_asked_again(world, kit):
    """The list is fetched, cells are generated, several are asked at a time; the second run asks nothing."""
    toy(world, kit)
    refused = world.run("run", "--profile", "breadth")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "`python -m diagnostics.matrix releases` writes it" in refused.stderr
    fetched = world.run("releases")
    assert fetched.returncode == 0, fetched.stderr
    assert json.loads((world.folder / "locks" / "releases.json").read_text())["trl"][0]["vllm"] == "<2"
    first = world.run("run", "--profile", "breadth", "--jobs", "3")
    assert first.returncode == 1, first.stdout + first.stderr
    assert (
        "names are missing in that vLLM: 2 pairs\n  TRL 2.0, declares vllm>=1.0: 1.0, 2.0: vllm.Newest"
        in first.stdout
    )
    assert "all names are there: 1 pairs\n  TRL 1.0, declares vllm<2: 2.0" in first.stdout
    assert "Not as expected: 2" in first.stdout
    before = (world.store / "store.jsonl").read_bytes()
    second = world.run("run", "--profile", "breadth", "--jobs", "3")
    assert (second.stdout, second.returncode) == (first.stdout, 1)
    assert (world.store / "store.jsonl").read_bytes() == before
    assert (world.store / "report" / "breadth" / "index.html").exists()
    assert world.run("lock", "--profile", "breadth").returncode == 0
    lines = [
        line.split("  ") for line in (world.folder / "locks" / "breadth.txt").read_text().splitlines()[3:]
    ]
    assert [line[0] for line in lines] == ["vllm-1.0+trl-1.0", "vllm-1.0+trl-2.0", "vllm-2.0+trl-2.0"]
    assert all(line[3].startswith("sha256:") for line in lines)
    aside = world.folder / "aside"
    one = ("--cells", "vllm-2.0+trl-2.0", "--into", str(aside))
    assert world.run("lock", "--profile", "breadth", *one).returncode == 0
    lock = (aside / "vllm-2.0+trl-2.0.txt").read_text().partition("files.\n")[2]
    assert f"sha256:{hashlib.sha256(lock.encode()).hexdigest()}" == lines[2][3]


def test_an_interrupt_ends_every_resolver(world, kit):
    """SIGTERM while several wait for a hanging index: the map, no resolver left, nothing half-answered kept."""
    toy(world, kit)
    assert world.run("releases").returncode == 0
    world.index.hold = threading.Event()
    process = subprocess.Popen(
        world.command("run", "--profile", "breadth", "--jobs", "3"),
        env={**world.environ, "UV_CACHE_DIR": str(world.folder / "empty")},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert world.index.asked.wait(500)
    process.terminate()
    output, errors = process.communicate(timeout=500)
    for item in Path("/proc").glob("[0-9]*"):
        if _bears(item, str(world.folder / "empty")):
            with contextlib.suppress(ProcessLookupError):  # killed, it ends when the kernel comes to it
                left = os.pidfd_open(int(item.name))
                assert select.select([left], [], [], 500)[0], item
                os.close(left)
    world.index.hold.set()
    assert process.returncode == 143, errors
    assert "0 of" in output
    assert Store(world.store).read() == []


def _bears(process, text):
    """Tells whether a process has a text in its environment."""
    try:
        return text.encode() in (process / "environ").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.heavy
def test_killed_at_25_moments_the_breadth_ends_as_an_undisturbed_one(world, kit, tmp_path):
    """SIGKILL with several questions at work, 25 times: nothing finished is lost, the end is the same."""
    for version in ("1.0", "2.0", "3.0"):
        world.index.add("vllm", version, kit.vllm(version))
        world.index.add(
            "trl", version, kit.trl("from vllm import LLM"), extras={"vllm": (f"vllm>={version}",)}
        )
    table = TABLE.replace("3.11", kit.python).replace('"0.2"', '"1.0"').partition("[[")[0]
    world.write(kit.cell("1.0", "1.0", kit.light, recipe=None), head=kit.head)
    path = world.folder / "matrix.toml"
    path.write_text(path.read_text() + table)
    assert world.run("releases").returncode == 0
    run = ("run", "--profile", "breadth", "--jobs", "3")
    began = time.monotonic()
    undisturbed = world.run(*run, store=tmp_path / "undisturbed")
    whole_s = time.monotonic() - began
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    dice, finished = random.Random(25), []
    for _ in range(25):
        process = subprocess.Popen(
            world.command(*run),
            env=world.environ,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(timeout=dice.uniform(0.1, 0.9 * whole_s))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        now = Store(world.store).read()
        assert now[: len(finished)] == finished
        finished = now
    last = world.run(*run)
    assert (last.returncode, last.stdout) == (0, undisturbed.stdout)
    assert Store(world.store).read()[: len(finished)] == finished
    lines = (world.store / "store.jsonl").read_text().splitlines()
    assert all(from_line(line) is not None for line in lines)
