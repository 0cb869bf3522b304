"""What is computed of the catalogue is kept beside the bytecode, for as long as its files are as they were."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics import catalog, uncollected
from diagnostics.catalog import anchors, kept, loader
from diagnostics.collect import late, secrets
from diagnostics.output import personal
from diagnostics.triage import endings, leads, metrics, rules


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to keep it in, where Python may write."""
    monkeypatch.setattr(kept, "HERE", tmp_path / "kept")
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    return tmp_path / "kept"


@pytest.fixture
def source(tmp_path):
    """A file that something is computed of."""
    path = tmp_path / "a.toml"
    path.write_text("one")
    return path


def test_it_is_made_once_and_again_when_a_file_changes(here, source):
    """Another size, another time, another file: each is a change."""
    made = []

    def make():
        made.append(source.read_text())
        return made[-1:]

    assert [kept.kept("x", [source], make) for _ in range(3)] == [["one"]] * 3
    assert made == ["one"]
    source.write_text("other")
    assert kept.kept("x", [source], make) == ["other"]
    os.utime(source, ns=(1, 1))
    kept.kept("x", [source], make)
    kept.kept("x", [source, source], make)
    assert len(made) == 4


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\x00", pickle.dumps([]), pickle.dumps({"of": 3})[:-2], pickle.dumps({"of": [], "made": 1})],
)
def test_what_is_damaged_is_made_again(here, source, damage):
    """And nothing of it is believed."""
    assert kept.kept("x", [source], lambda: [1]) == [1]
    (path,) = here.iterdir()
    path.write_bytes(damage)
    assert kept.kept("x", [source], lambda: [2]) == [2]


def test_where_nothing_can_be_kept_it_is_computed(here, source, monkeypatch):
    """A folder that is a file; and a Python that was told to write no bytecode."""
    here.write_text("")
    assert [kept.kept("x", [source], lambda: [1]) for _ in range(2)] == [[1], [1]]
    here.unlink()
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert kept.kept("x", [source], lambda: [1]) == [1]
    assert not here.exists()


def test_what_is_kept_of_the_catalogue_is_what_its_files_say(here):
    """Read, kept, and read again: each entry is the one that its file gives; so are the texts of a first look."""
    first, again = loader.load(), loader.load()
    assert {path.name.split(".")[0] for path in here.iterdir()} == {"entries"}
    loader._kept.cache_clear()
    assert all(loader._one("issues", loader.FOLDER / f"{code}.toml") == one for code, one in first.items())
    checks = loader.load_checks()
    assert all(loader._one("checks", loader.CHECKS / f"{code}.toml") == one for code, one in checks.items())
    loader._kept.cache_clear()
    alone = {path.stem: loader.load_file(path) for path in loader.FOLDER.glob("*.toml")}
    assert first == again == dict(sorted(alone.items()))
    known = rules._known()
    assert rules._known() == known
    patterns = [one for each in first.values() if each.signature for one in each.signature.any]
    assert all(tuple(known.get(one) or ()) == anchors.literals(one) for one in patterns)
    with_config = [each.code for each in catalog.with_config({"CFG001"})]
    assert with_config == [code for code, each in first.items() if each.config and code != "CFG001"]


def test_entries_are_made_again_when_what_makes_them_changes():
    """All of ours that is loaded to read an entry is in what the kept ones depend on."""
    program = (
        "import sys, diagnostics.catalog.entries, diagnostics.tables;"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('diagnostics.')))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = {Path(each) for each in told.split() if not each.endswith("__init__.py")}
    carries = {Path(each.__file__) for each in (loader, kept, uncollected)}
    assert loaded - carries == set(loader._MAKERS)


@pytest.mark.parametrize(
    "module", [secrets, personal, endings, leads, metrics], ids=lambda module: module.__name__
)
def test_every_late_pattern_is_one(module):
    """Which is else found out when it is first used."""
    found = [each for each in vars(module).values() if isinstance(each, late._Late)]
    assert found
    for each in found:
        each.search("")
        assert each.search.__self__.pattern == each.pattern
