"""Locks carry hashes, installs verify them, and adding hashes changes no identity."""

from __future__ import annotations

import re

import pytest

from diagnostics.matrix import __main__ as cli
from diagnostics.matrix.ask.registry import load
from diagnostics.matrix.build import locks, pylock
from diagnostics.matrix.build.pylock import Locked
from diagnostics.matrix.build.resolving import pins
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.records.store import Store

PYLOCK = """
lock-version = "1.0"

[[packages]]
name = "torch"
version = "2.13.0+cpu"
wheels = [{ url = "file:///wheels/torch.whl", hashes = { sha256 = "aa" } }]

[[packages]]
name = "both"
version = "1.0"
sdist = { url = "https://a/both.tar.gz", hashes = { sha256 = "ff" } }
wheels = [
    { url = "https://a/2.whl", hashes = { sha256 = "22" } },
    { url = "https://a/1.whl", hashes = { sha256 = "11" } },
]

[[packages]]
name = "source"
version = "2.0"
sdist = { url = "https://a/source.tar.gz", hashes = { sha256 = "33" } }
"""  # fmt: skip


def test_the_standard_form_becomes_lines_with_hashes():
    """Wheels before source archives; what lies in a folder of this machine has no hash, and that is said."""
    found = pylock.read(PYLOCK)
    assert found == (
        Locked("both==1.0", ("sha256:11", "sha256:22")),
        Locked("source==2.0", ("sha256:33",), archive=True),
        Locked("torch==2.13.0+cpu", ()),
    )
    assert pins(pylock.text(found)) == ("both==1.0", "source==2.0", "torch==2.13.0+cpu")
    assert "no hash for torch==2.13.0+cpu" in pylock.coverage(found)


def test_another_file_is_another_digest():
    """The digest of a lock depends on its hashes, and not on the order of its packages."""
    one, two = Locked("a==1", ("sha256:00",)), Locked("b==1", ("sha256:01",))
    assert pylock.digest((one, two)) == pylock.digest((two, one))
    assert pylock.digest((one, two)) != pylock.digest((one, Locked("b==1", ("sha256:02",))))


@pytest.mark.parametrize("text", ["packages = 1", "a = 1", "[[packages]]\nname = 'a'", "not TOML"])
def test_what_is_no_lock_is_refused(text):
    """An answer of uv that is something else is an error, never an empty lock."""
    with pytest.raises(ValueError, match=r"."):
        pylock.read(text)


def test_an_install_verifies_hashes(world, kit):
    """A file that is another one than the lock says is refused; with the lock as made it installs."""
    aside = world.folder / "wheels"
    kit.wheel(aside, "local", "1.0+here", {"local/__init__.py": ""})
    world.index.add("local", "0.9")
    world.index.add("vllm", "1.0", kit.vllm("1.0"), requires=("local",))
    world.index.add("trl", "1.0", kit.trl("from vllm import LLM"), extras={"vllm": ("vllm",)})
    world.write(kit.cell("1.0", "1.0", ("resolve", "install")))
    world.environ["PIP_FIND_LINKS"] = str(aside)
    assert world.run("lock").returncode == 0
    lock = world.folder / "locks" / "vllm-1.0+trl-1.0.cpu.txt"
    made = lock.read_text()
    assert pins(made) == ("local==1.0+here", "trl==1.0", "vllm==1.0")
    assert (made.count("--hash=sha256:"), "no hash for local==1.0+here" in made) == (2, True)
    lock.write_text(re.sub(r"(?<=sha256:)[0-9a-f]{4}", "0000", made))
    refused = world.run("run")
    assert (refused.returncode, "Hash mismatch" in refused.stdout) == (3, True), refused.stdout
    lock.write_text(made)
    assert world.run("run").returncode == 0
    assert world.run("lock", "--keep").returncode == 0
    assert lock.read_text() == made


@pytest.fixture
def place(tmp_path, kit):
    """Makes a workplace of one cell whose two locks are there as they should be."""
    folder = tmp_path / "locks"
    folder.mkdir()

    def make(change=lambda text: text):
        text = kit.head + kit.cell("1.0", "1.0", ("resolve", "install"))
        (tmp_path / "matrix.toml").write_text(change(text))
        return Workplace(load(tmp_path / "matrix.toml"), Store(tmp_path / "store"))

    made = make()
    for runs in (False, True):
        head = locks._about(made.matrix.cells[0], runs=runs)
        locks.path(made, made.matrix.cells[0], runs=runs).write_text(f"{head}\ntrl==1.0\nvllm==1.0\n")
    return make


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("", ""), None),
        (("2025-06-01", "2025-06-02"), "was not made for this"),
        (
            ('"trl=={trl}"]', '"trl=={trl}", "numpy>=2"]'),
            "has numpy nowhere where the recipe asks for numpy>=2",
        ),
        (('"trl=={trl}"]', '"trl>1.0"]'), "has trl 1.0 where the recipe asks for trl>1.0"),
    ],
)
def test_a_lock_that_is_stale_is_seen(place, change, said):
    """Made for another date or Python, or without what the recipe asks for now; a whole one is not named."""
    made = place(lambda text: text.replace(*change) if change[0] else text)
    problems = locks.problems(made, made.matrix.cells)
    assert bool(problems) is bool(said)
    assert all(said in line or "was not made for this" in line for line in problems)


def test_a_lock_that_is_missing_or_nobody_s_is_seen(place):
    """Each by its file; the declared one of a cell that has no solution need not be there."""
    made = place()
    (made.locks / "vllm-1.0+trl-1.0.cpu.txt").unlink()
    (made.locks / "vllm-9.0+trl-1.0.txt").write_text("")
    (missing, other) = locks.problems(made, made.matrix.cells)
    assert (
        "vllm-1.0+trl-1.0.cpu.txt: is not there: `nox -s lock -- --cells 'vllm-1.0+trl-1.0'` makes it"
        in missing
    )
    assert "vllm-9.0+trl-1.0.txt: no cell of matrix.toml has this lock" in other


def test_the_committed_locks_and_workflow_are_up_to_date(capsys):
    """What `matrix check` says of the project: nothing."""
    assert (cli.main(["check"]), capsys.readouterr().out) == (0, "")
