"""A resolution becomes a lock with hashes, installs verify the hashes, and unfit locks are reported.

A pair that has wheels only for a newer glibc is resolved for that glibc. The committed locks are current and name no
machine.
"""

import datetime
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnostics.matrix import command, locks, resolve
from diagnostics.matrix.cells import load_matrix
from diagnostics.matrix.context import ROOT, Context
from diagnostics.matrix.layers import LAYERS
from diagnostics.matrix.layers.resolve import resolution_answer
from diagnostics.matrix.resolve import LockedPackage, Resolution, read_pylock
from diagnostics.matrix.store import Store
from diagnostics.matrix.verdicts import Outcome

PYLOCK = Path(__file__).with_name("pylock.toml").read_text(encoding="utf-8")
NO_WHEEL = "No solution found: Because vllm==0.15.0 has no wheels with a matching platform tag"
HINT = f"{NO_WHEEL} hint: Wheels are available on: `manylinux_2_31_aarch64`, `manylinux_2_31_x86_64`"
SOLVED = Resolution((LockedPackage("vllm==0.15.0", ("sha256:0",)),))


def test_pylock_becomes_requirements_with_hashes():
    """A pylock becomes pins with hashes, of wheels if there are any; a file of a local folder has no hash."""
    packages = read_pylock(PYLOCK)
    assert packages == (
        LockedPackage("both==1.0", ("sha256:11", "sha256:22")),
        LockedPackage("source==2.0", ("sha256:33",), source_only=True),
        LockedPackage("torch==2.13.0+cpu", ()),
    )
    assert locks.pins_of(resolve.lock_text(packages)) == ("both==1.0", "source==2.0", "torch==2.13.0+cpu")
    assert "no hash for torch==2.13.0+cpu" in resolve.hash_coverage(packages)


@pytest.mark.parametrize("text", ["packages = 1", "a = 1", "[[packages]]\nname = 'a'", "not TOML"])
def test_invalid_pylock_is_an_error(text):
    with pytest.raises(ValueError, match=r"."):
        read_pylock(text)


def resolve_by_platform(monkeypatch, **results):
    """Resolve a pair whose result depends on the platform; return the result and the platforms tried."""
    tried = []

    def compile_on(_context, _cell, _requirements, arguments, *_rest, **_options):
        tried.append(arguments[-1])
        return results[arguments[-1].rpartition("_")[2]]

    monkeypatch.setattr(resolve, "_compile", compile_on)
    context = SimpleNamespace(matrix=SimpleNamespace(platform="x86_64-manylinux_2_28"))
    cell = SimpleNamespace(
        trainer="trl", version="1.1.0", vllm="0.15.0", exclude_newer=datetime.date(2026, 5, 1)
    )
    return resolve.resolve_declared(context, cell, timeout_s=1), tried


def test_newer_glibc_is_tried(monkeypatch):
    """If uv hints at wheels for a newer glibc, the pair is resolved for it; without a hint it is unresolvable."""
    resolution, tried = resolve_by_platform(monkeypatch, **{"28": Resolution(explanation=HINT), "31": SOLVED})
    assert tried == ["x86_64-manylinux_2_28", "x86_64-manylinux_2_31"]
    answer = resolution_answer(resolution, "no lock")
    assert answer.outcome is Outcome.PASS
    assert (
        answer.summary
        == "1 packages on x86_64 with glibc 2.31: ; none on the matrix's older platform; no lock"
    )
    assert any(NO_WHEEL in line for line in answer.details)
    resolution, tried = resolve_by_platform(monkeypatch, **{"28": Resolution(explanation=NO_WHEEL)})
    answer = resolution_answer(resolution, "no lock")
    assert (len(tried), answer.outcome) == (1, Outcome.UNRESOLVABLE)
    assert answer.summary.endswith("(resolved for x86_64 with glibc 2.28)")


def test_install_verifies_hashes(project, kit):
    """An install refuses a file whose hash differs from the lock; a wheel of a local folder has no hash."""
    aside = project.folder / "wheels"
    kit.build_wheel(aside, "local", "1.0+here", {"local/__init__.py": ""})
    project.index.add("local", "0.9")
    project.index.add("vllm", "1.0", kit.toy_vllm("1.0"), requires=("local",))
    project.index.add("trl", "1.0", extras={"vllm": ("vllm",)})
    project.write(kit.cell_table("1.0", "1.0", ("resolve", "install")))
    project.environ["PIP_FIND_LINKS"] = str(aside)
    assert project.run("lock").returncode == 0
    lock = project.folder / "locks" / "vllm-1.0+trl-1.0.cpu.txt"
    text = lock.read_text()
    assert locks.pins_of(text) == ("local==1.0+here", "trl==1.0", "vllm==1.0")
    assert (text.count("--hash=sha256:"), "no hash for local==1.0+here" in text) == (2, True)
    lock.write_text(re.sub(r"(?<=sha256:)[0-9a-f]{4}", "0000", text))
    refused = project.run("run")
    assert (refused.returncode, "Hash mismatch" in refused.stdout) == (3, True), refused.stdout
    lock.write_text(text)
    assert project.run("run").returncode == 0


@pytest.fixture
def locked_context(tmp_path, kit):
    """Write two valid locks of a cell; return a function that makes a context with a changed matrix file."""
    (tmp_path / "locks").mkdir()

    def make_context(change=lambda text: text):
        text = kit.HEAD + kit.cell_table("1.0", "1.0", ("resolve", "install"))
        (tmp_path / "matrix.toml").write_text(change(text))
        return Context(load_matrix(tmp_path / "matrix.toml", LAYERS), Store(tmp_path / "store"))

    context = make_context()
    (cell,) = context.matrix.cells
    for runnable in (False, True):
        head = locks._first_line(cell, runnable=runnable)
        locks.lock_path(context, cell, runnable=runnable).write_text(f"{head}\ntrl==1.0\nvllm==1.0\n")
    return make_context


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("", ""), None),
        (("2025-06-01", "2025-06-02"), "was made for something else"),
        (
            ('"trl=={trl}"]', '"trl=={trl}", "numpy>=2"]'),
            "has numpy nowhere where the recipe requires numpy>=2",
        ),
        (('"trl=={trl}"]', '"trl>1.0"]'), "has trl 1.0 where the recipe requires trl>1.0"),
    ],
)
def test_stale_lock_is_reported(locked_context, change, message):
    """A lock of another date, or one that does not meet the recipe's requirements, is reported; a current one isn't."""
    context = locked_context(lambda text: text.replace(*change) if change[0] else text)
    problems = locks.check_locks(context, context.matrix.cells)
    assert bool(problems) is bool(message)
    assert all(message in line for line in problems)


def test_missing_and_orphaned_locks_are_reported(locked_context):
    context = locked_context()
    (context.locks / "vllm-1.0+trl-1.0.cpu.txt").unlink()
    (context.locks / "vllm-9.0+trl-1.0.txt").write_text("")
    (missing, orphan) = locks.check_locks(context, context.matrix.cells)
    assert "vllm-1.0+trl-1.0.cpu.txt: does not exist: `nox -s lock -- --cells vllm-1.0+trl-1.0`" in missing
    assert "vllm-9.0+trl-1.0.txt: no cell of matrix.toml has this lock" in orphan


def test_committed_locks_are_current(capsys):
    assert (command.main(["lock", "--check"]), capsys.readouterr().out) == (0, "")


def test_locks_name_no_machine():
    """Committed locks have no address and no /opt; in locks of cells only torch may lack a hash; the header says so."""
    for path in (ROOT / "locks").glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text
        assert "/opt" not in text
        unhashed = locks.unhashed_pins(text) if path.name.startswith("vllm-") else []
        assert {line.partition("==")[0] for line in unhashed} <= {"torch"}, path.name
        assert not unhashed or f"no hash for {unhashed[0]}" in text, path.name
