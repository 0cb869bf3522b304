"""Every release of a package in turn: what is fetched of its wheel, what is asked, kept, told and drawn."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from diagnostics import catalogue, processes
from diagnostics.catalogue.model import Affected
from diagnostics.matrix.ask.registry import load
from diagnostics.matrix.build import sources
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.records import closure as harness
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.sweep import __main__ as command
from diagnostics.matrix.sweep import environment, picture, results, run, wheels
from diagnostics.matrix.sweep.plan import Sweep
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
    with pytest.raises(sources.SourceError, match=r"\.\./evil\.py"):
        wheels.unpack("vllm", "1.0", tmp_path / "out", **where)
    assert not (tmp_path / "out" / "1.0" / "evil.py").exists()


def test_releases_are_final_or_post_and_in_order(world):
    """No release candidates, none before the first, by version and not by text."""
    for version in ("0.9", "1.10", "1.2", "1.2.post1", "1.3rc1"):
        world.index.add("vllm", version)
    assert wheels.releases("vllm", "1.0", world.environ) == ["1.2", "1.2.post1", "1.10"]


def _swept(place, versions, **options):
    asked = run.questions(place, SWEEP, versions)
    seen = []
    known = run.answers(place, asked)
    due = [item for item in asked if item.version not in known or not known[item.version].finished]
    with place.store.locked():
        run.run(place, due, jobs=2, done=seen.append, **options)
    document = results.document(SWEEP, versions, versions, run.answers(place, asked))
    return document, [event.cell for event in seen]


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


def test_an_answer_rests_on_its_own_repro_and_on_no_other(tmp_path):
    """Imports wherever they stand, and modules started by name; not the list of repros, not another's files."""
    texts = {
        "__main__": "from repro import fuzz",
        "runner": "REGISTRY = 'repro.registry'",
        "registry": "from repro.issues import mine, other",
        "fuzz": "",
        "issues/__init__": "",
        "issues/mine": 'CODE = "X001"\ndef run():\n    from repro.parts import one\n    start("repro.program")',
        "issues/other": 'CODE = "Y001"',
        "program": "",
        "parts/__init__": "",
        "parts/one": "import repro.parts.two",
        "parts/two": "",
    }
    (tmp_path / "repro" / "parts").mkdir(parents=True)
    (tmp_path / "repro" / "issues").mkdir()
    for name, text in texts.items():
        (tmp_path / "repro" / f"{name}.py").write_text(text)
    names = ("__main__", "issues/mine", "parts/__init__", "parts/one", "parts/two", "program", "runner")
    assert harness.files(tmp_path, ["X001"]) == tuple(f"repro/{name}.py" for name in names)


def test_every_known_failure_of_a_sweep_has_its_repro_counted():
    """A code that no file names would leave the answers standing whatever its repro does."""
    found = {name: harness.files(command.ROOT, sweep.codes) for name, sweep in command.SWEEPS.items()}
    assert {"repro/issues/sch001.py", "repro/issues/sch002.py", "repro/drivers/configured.py"} <= set(
        found["vllm"]
    )
    assert {"repro/issues/ray001.py", "repro/drivers/rollout/engine.py"} <= set(found["verl"])


def test_publishing_one_sweep_keeps_what_is_known_of_the_others(tmp_path, monkeypatch):
    """The file and its picture hold both; a sweep that is no longer made goes."""
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "PUBLISHED", tmp_path / "sweep.json")
    item = {"package": "vllm", "releases": [], "without_an_answer": [], "beside": {}, "codes": {}}
    command.PUBLISHED.write_text(results.to_text({"vllm": item, "gone": item}, "2026-01-01"))
    command._publish({"verl": {**item, "package": "verl"}})
    assert list(published()) == ["verl", "vllm"]
    assert "verl: every release" in (tmp_path / "docs" / "sweep.svg").read_text()


def test_an_interrupted_sweep_ends_what_runs_and_keeps_what_is_done(world, place):
    """Ctrl-C while one release hangs: its process is gone, the other's answer stays, the next run asks the rest."""
    world.index.add("vllm", "1.0", toy_vllm("1.0", CRASH))
    note = f"open({str(world.folder / 'pid')!r}, 'w').write(str(os.getpid()))"
    hanging = f"import os; {note}; os.mkfifo('f'); open('f')"
    world.index.add("vllm", "1.1", toy_vllm("1.1", before=hanging))

    def interrupt(_event):
        while not (world.folder / "pid").exists() or not (world.folder / "pid").read_text():
            os.sched_yield()
        raise KeyboardInterrupt

    asked = run.questions(place, SWEEP, ["1.0", "1.1"])
    with place.store.locked(), pytest.raises(KeyboardInterrupt):
        run.run(place, asked, jobs=2, done=interrupt)
    assert processes._start_time(int((world.folder / "pid").read_text())) is None
    assert set(run.answers(place, asked)) == {"1.0"}


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
        assert results.disagreements(found, catalogue.load()) == []


def test_the_published_sweep_is_drawn_as_it_is():
    """The picture in the docs is the one of the committed results, and well-formed."""
    drawn = (Path(command.ROOT) / "docs" / "sweep.svg").read_text(encoding="utf-8")
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
    with pytest.raises(environment.BuildError, match="--all-versions --sweep other --lock"):
        run.questions(place, other, ["1.0"])


def test_bad_usage_is_one_line(capsys):
    """Exit code 2, and what was wrong."""
    for arguments in (["--jobs", "0"], ["--sweep", "nothing"], ["--publish", "--releases", "1"]):
        with pytest.raises(SystemExit) as ended:
            command.main(arguments)
        assert ended.value.code == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
