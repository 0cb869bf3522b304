"""Every release of a package in turn: what is fetched of its wheel, what is asked, kept, told and drawn."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import zipfile
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from diagnostics import catalog, processes
from diagnostics.catalog.model import Affected
from diagnostics.matrix import __main__ as cli
from diagnostics.matrix.ask import attempts
from diagnostics.matrix.ask.registry import load
from diagnostics.matrix.build import sources, wheels
from diagnostics.matrix.build.environments import BuildError
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.report.progress import Lines
from diagnostics.matrix.run.board import board
from diagnostics.matrix.sweep import asking, command, environment, picture, results
from diagnostics.matrix.sweep.plan import SWEEPS, Sweep
from tests.matrix.conftest import CRASH, CURED, NOTHING, PYTHON, cell, toy_vllm

SWEEP = Sweep("toy", "vllm", "1.0", ("SCH001",), PYTHON, ("beside",), (), "a toy", timeout_s=500)


@pytest.fixture
def place(world):
    """A workplace whose sweep has a lock, beside a matrix file that is of no matter."""
    path = world.write(cell("1.0", "1.0", ("resolve",), recipe=None))
    world.index.add("beside", "1.0")
    made = Workplace(
        load(path), Store(world.store), environ=world.environ, programs=world.folder / "programs"
    )
    made.locks.mkdir()
    made.store.folder.mkdir()
    environment.lock(made, SWEEP)
    return made


def test_only_the_python_files_of_a_wheel_are_fetched(world, tmp_path):
    """By range, as the release has them; again without a network; nothing of what is compiled."""
    text = "x = 1\n" * 5000
    files = {"vllm/__init__.py": text, "vllm/_C.abi3.so": "machine code " * 50_000, "vllm/data.json": "{}"}
    world.index.add("vllm", "1.0", files)
    where = {"cache": tmp_path / "cache", "environ": world.environ}
    found = wheels.unpack("vllm", "1.0", tmp_path / "out", **where)
    assert (found / "vllm" / "__init__.py").read_text() == text
    assert (found / "vllm" / "data.json").read_text() == "{}"
    assert (found / "vllm-1.0.dist-info" / "RECORD").exists()
    assert not (found / "vllm" / "_C.abi3.so").exists()
    (world.index.folder / "vllm-1.0-py3-none-any.whl").unlink()
    assert wheels.unpack("vllm", "1.0", tmp_path / "out", **where) == found


def test_compressed_members_and_those_outside(tmp_path, world):
    """Deflated as real wheels are; a member that would be written elsewhere is refused."""
    path = world.index.folder / "vllm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vllm/a.py", "a = 1\n" * 1000)
        archive.writestr("../evil.py", "")
    where = {"cache": tmp_path / "cache", "environ": world.environ}
    with pytest.raises(sources.WheelError, match=r"\.\./evil\.py"):
        wheels.unpack("vllm", "1.0", tmp_path / "out", **where)
    assert not (tmp_path / "out" / "1.0" / "evil.py").exists()


def test_releases_are_final_or_post_and_in_order(world):
    """No release candidates, none before the first, by version and not by text."""
    for version in ("0.9", "1.10", "1.2", "1.2.post1", "1.3rc1"):
        world.index.add("vllm", version)
    assert wheels.releases("vllm", "1.0", world.environ) == ["1.2", "1.2.post1", "1.10"]


def questions(place, versions):
    """One question a release of the toy sweep."""
    releases = dict.fromkeys(versions, SWEEP)
    return asking.questions(place, releases, asking.of_repros, attempts.SCHEMA, attempts.told)


class Seen(Lines):
    """Notes which releases were answered."""

    def __init__(self):
        self.cells = []

    def started(self, item, now, where=""):
        """Nothing."""

    def note(self, text):
        """Nothing."""

    def finished(self, square, now):
        """Notes it."""
        self.cells.append(square.question.cell.id)


def _swept(place, versions, seen=None):
    asked, seen = questions(place, versions), seen or Seen()
    with place.store.locked():
        found = asking.ask(place, asked, seen, fresh=False, jobs=2)
    return results.document(SWEEP, versions, versions, asking.answers(found)), seen.cells


def test_a_sweep_asks_once_and_tells_what_helps_where(world, place):
    """Each release by its own code; what is answered is not asked again; a release without wheel has no answer."""
    world.index.add("vllm", "1.0", toy_vllm("1.0", CRASH, CURED))
    world.index.add("vllm", "1.1", toy_vllm("1.1", NOTHING, {**CURED, "outcome": "inapplicable"}))
    found, asked = _swept(place, ["1.0", "1.1", "1.2"])
    assert sorted(asked) == ["vllm-1.0", "vllm-1.1", "vllm-1.2"]
    assert found["without_an_answer"] == ["1.2"]
    assert found["codes"]["SCH001"] == {
        "places": {"vllm/core/scheduler.py:7": ["1.0"]},
        "outcomes": {
            "lost_step": {
                "unmitigated": {"reproduced": ["1.0"], "not_reproduced": ["1.1"]},
                "abort_orphans": {"mitigated": ["1.0"], "inapplicable": ["1.1"]},
            }
        },
    }
    assert results.summary(found)[-1] == "no answer: 1.2"
    assert not list((place.store.folder / "sweeps" / "vllm").glob("*/site-packages"))
    assert _swept(place, ["1.0", "1.1"])[1] == []


@pytest.mark.parametrize(
    ("file", "asked"),
    [
        ("repro/issues/sch001.py", ["vllm"]),
        ("repro/drivers/rollout/engine.py", ["verl"]),
        ("repro/worker.py", ["verl", "vllm"]),
        ("repro/issues/tok001.py", []),
        ("diagnostics/matrix/build/wheels.py", ["verl", "vllm"]),
        ("diagnostics/matrix/sweep/picture.py", []),
    ],
)
def test_an_answer_rests_on_its_own_repro_and_on_no_other(file, asked):
    """By what is imported: a release is asked again where its repro or the way there changed."""
    code = Workplace(load(ROOT / "matrix.toml"), Store(ROOT)).code
    found = {
        name: code.files((asking.__name__, asking.ASKING, "repro", *asking.repros(sweep.codes)), ("run",))
        for name, sweep in SWEEPS.items()
    }
    assert [name for name in sorted(found) if file in found[name]] == asked


def test_publishing_one_sweep_keeps_what_is_known_of_the_others(tmp_path, monkeypatch):
    """The file and its picture hold both; a sweep that is no longer made goes."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "PUBLISHED", tmp_path / "sweep.json")
    item = {"package": "vllm", "releases": [], "without_an_answer": [], "beside": {}, "codes": {}}
    command.PUBLISHED.write_text(results.to_text({"vllm": item, "gone": item}, "2026-01-01"))
    command._publish({"verl": {**item, "package": "verl"}})
    assert list(published()) == ["verl", "vllm"]
    assert "verl: every release" in (tmp_path / "docs" / "results" / "sweep.svg").read_text()


def test_an_interrupted_sweep_ends_what_runs_and_keeps_what_is_done(world, place):
    """Ctrl-C while one release hangs: its process is gone, the other's answer stays, the next run asks the rest."""
    world.index.add("vllm", "1.0", toy_vllm("1.0", CRASH))
    note = f"open({str(world.folder / 'pid')!r}, 'w').write(str(os.getpid()))"
    hanging = f"import os; {note}; os.mkfifo('f'); open('f')"
    world.index.add("vllm", "1.1", toy_vllm("1.1", before=hanging))

    class Interrupting(Seen):
        def finished(self, square, now):
            super().finished(square, now)
            while not (world.folder / "pid").exists() or not (world.folder / "pid").read_text():
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _swept(place, ["1.0", "1.1"], Interrupting())
    finally:
        signal.signal(signal.SIGINT, before)
    assert processes._start_time(int((world.folder / "pid").read_text())) is None
    known = board(questions(place, ["1.0", "1.1"]), place.store.read())
    assert set(asking.answers(known)) == {"1.0"}


def test_a_repro_that_says_nothing_is_no_answer_of_the_release(world, place):
    """A crash of ours is an infrastructure error: the release is asked again next time."""
    world.index.add("vllm", "1.0", toy_vllm("1.0", before="raise SystemExit(7)"))
    found, _ = _swept(place, ["1.0"])
    assert found["without_an_answer"] == ["1.0"]
    assert _swept(place, ["1.0"])[1] == ["vllm-1.0"]


def test_the_catalogue_is_held_to_the_runs():
    """A release that is claimed and does not show it, and one that shows it and is not claimed, are both named."""
    outcomes = {"t": {"unmitigated": {"reproduced": ["1.0", "1.1"], "inapplicable": ["1.2"]}}}
    found = {
        "package": "vllm",
        "releases": ["1.0", "1.1", "1.2", "1.3"],
        "codes": {"X": {"outcomes": outcomes}},
    }
    claim = Affected("vllm", ">=1.1,<1.4", (), "static", "here")
    lines = results.disagreements(found, {"X": SimpleNamespace(affected=[claim])})
    assert [re.sub(":.*", "", line) for line in lines] == ["X, vllm 1.0", "X, vllm 1.2"]


def published():
    """The committed results."""
    return json.loads(command.PUBLISHED.read_text(encoding="utf-8"))["sweeps"]


def test_the_published_sweep_answers_for_every_release_and_agrees_with_the_catalogue():
    """No release without an answer; what the catalogue claims is what was run."""
    for found in published().values():
        assert found["without_an_answer"] == []
        assert results.disagreements(found, catalog.load()) == []


def test_the_published_sweep_is_drawn_as_it_is():
    """The picture in the docs is the one of the committed results, and well-formed."""
    drawn = (ROOT / "docs" / "results" / "sweep.svg").read_text(encoding="utf-8")
    assert drawn == picture.svg(published())
    ET.fromstring(drawn)


def test_a_square_of_the_picture_says_the_worst_that_is_known():
    """Helps here and not there is `some`; where nothing applies, `none`; where nothing is known, `unknown`."""
    outcomes = {
        "a": {"unmitigated": {"reproduced": ["1", "2"]}, "m": {"mitigated": ["1", "2"]}},
        "b": {
            "unmitigated": {"reproduced": ["1"], "inapplicable": ["2"]},
            "m": {"not_mitigated": ["1"], "inapplicable": ["2"]},
        },
        "*": {"unmitigated": {"inapplicable": ["3"]}},
    }
    columns = [(name, [name]) for name in "1234"]
    assert dict(picture.rows(outcomes, columns)) == {
        "a": ["bad", "bad", "none", "unknown"],
        "b": ["bad", "none", "none", "unknown"],
        "with m": ["some", "good", "none", "unknown"],
    }


def test_what_applies_to_no_release_has_no_row():
    """Neither a trigger nor a mitigation: both stay in the results, and are not drawn."""
    outcomes = {
        "a": {"unmitigated": {"reproduced": ["1"]}, "m": {"inapplicable": ["1"]}},
        "b": {"unmitigated": {"inapplicable": ["1"]}, "n": {"inapplicable": ["1"]}},
    }
    assert picture.rows(outcomes, [("1", ["1"])]) == [("a", ["bad"])]
    found = {"releases": ["1"], "without_an_answer": [], "codes": {"X": {"outcomes": outcomes}}}
    assert results.summary(found) == ["X", "  a: reproduced 1"]


def test_the_lock_is_asked_for_by_name_where_it_is_missing(place):
    """One line that says which command makes it."""
    other = dataclasses.replace(SWEEP, name="other")
    with pytest.raises(BuildError, match="--all-versions --sweep other --lock"):
        environment.lock_digest(place, other)


def test_bad_usage_is_one_line(capsys):
    """Exit code 2, and what was wrong."""
    for arguments in (["--jobs", "0"], ["--sweep", "nothing"], ["--publish", "--releases", "1"]):
        try:
            code = cli.main(["sweep", *arguments])
        except SystemExit as ended:
            code = ended.code
        assert code == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_release_is_asked_again_by_the_command_that_its_answer_names(place):
    """The sweep's, for that release alone."""
    (item,) = questions(place, ["1.0"])
    assert item.command == "nox -s repro -- --all-versions --sweep toy --releases 1.0 --fresh"
