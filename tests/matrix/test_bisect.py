"""Bisecting over releases, and trying a pair that stands in no file."""

from __future__ import annotations

import tomllib

import pytest

from diagnostics.matrix.ask.registry import load
from diagnostics.matrix.run.bisect import BisectVerdict, bisect, contradictions

NAMES = [f"0.{minor}" for minor in range(40)]


def verdict(word):
    """An answered verdict."""
    return BisectVerdict(word, f"{word} seen", answered=True)


@pytest.mark.parametrize("turn", [1, 2, 19, 20, 38, 39])
def test_the_first_changed_release_is_named_with_few_questions(turn):
    """Wherever the change lies, it is found, with no release asked twice and seven of forty asked at most."""
    asked = []

    def ask(name):
        asked.append(name)
        return verdict("pass" if NAMES.index(name) < turn else "fail SCH001")

    found = bisect(NAMES, ask)
    assert (found.first, found.problem) == (NAMES[turn], "")
    assert len(asked) == len(set(asked)) <= 8
    assert [name for name, _verdict in found.asked] == asked


def test_a_third_verdict_between_is_a_change_too():
    """Pass, then fail, then no solution: the first that is not a pass is named, not the last turn."""
    found = bisect(
        NAMES, lambda name: verdict("pass" if name < "0.13" else "fail" if name < "0.3" else "unresolvable")
    )
    words = {name: item.word for name, item in found.asked}
    before = NAMES[NAMES.index(found.first) - 1]
    assert (words[before], words[found.first] != "pass") == ("pass", True)


def test_equal_ends_name_nothing():
    """The same verdict at both ends: two questions, and the reason."""
    found = bisect(NAMES, lambda _name: verdict("pass"))
    assert (found.first, len(found.asked)) == (None, 2)
    assert "the same at both ends (pass)" in found.problem
    assert bisect(["1.0"], lambda _name: verdict("pass")).first is None


def test_what_is_not_answered_ends_the_search():
    """A machine that can't answer for a release blames no release."""
    found = bisect(
        NAMES,
        lambda name: (
            verdict(name) if name in {"0.0", "0.39"} else BisectVerdict("timeout", "", answered=False)
        ),
    )
    assert found.first is None
    assert found.problem.startswith("not answered: 0.19: timeout")


def test_known_verdicts_that_contradict_are_told():
    """What the store knows besides shows whether the change is the only one."""
    found = bisect(NAMES, lambda name: verdict("pass" if NAMES.index(name) < 20 else "fail"))
    assert contradictions(found, {"0.3": "pass", "0.5": "fail", "0.25": "pass", "0.30": "fail"}) == [
        "0.5: fail",
        "0.25: pass",
    ]


@pytest.fixture
def world_of_five(world, kit):
    """Five vLLM releases; from 4.0 on a name is gone, and from 3.0 on the scheduler has a crash."""
    for version in ("1.0", "2.0", "3.0", "4.0", "5.0"):
        files = kit.vllm(version, *([kit.crash] if version >= "3.0" else [kit.nothing]))
        if version >= "4.0":
            files["vllm/__init__.py"] = files["vllm/__init__.py"].replace("class LLM:", "class Gone:")
        world.index.add("vllm", version, files)
    world.index.add("trl", "1.0", kit.trl("from vllm import LLM"), extras={"vllm": ("vllm",)})
    table = f'[breadth]\npython = "{kit.python}"\ntrl_since = "1.0"\nvllm_since = "1.0"\n'
    world.write(kit.cell("1.0", "1.0", kit.deep), head=kit.head)
    path = world.folder / "matrix.toml"
    path.write_text(path.read_text() + table)
    assert world.run("releases").returncode == 0
    return world


def test_bisect_names_the_release_and_keeps_its_verdicts(world_of_five):
    """The release that lost a name is named; asked again, nothing is asked."""
    arguments = ("bisect", "--trl", "1.0", "--vllm", "1.0..5.0", "--layer", "contract")
    done = world_of_five.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "first with another verdict: vllm 4.0 (fail); 3.0 has pass; asked 4 of 5 releases" in done.stdout
    again = world_of_five.run(*arguments)
    assert (again.stdout, "…" in again.stderr) == (done.stdout, False)


@pytest.mark.slow
@pytest.mark.heavy
def test_bisect_runs_what_runs_in_an_environment(world_of_five):
    """With a recipe each release gets its environment, locked beside the store; the crash is found where it came."""
    arguments = ("bisect", "--trl", "1.0", "--vllm", "1.0..5.0", "--layer", "scheduler")
    assert "expected --recipe with one of toy" in world_of_five.run(*arguments).stderr
    refused = world_of_five.run("bisect", "--trl", "1.0", "--vllm", "1.0..9.0", "--layer", "contract")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "no vllm 9.0 in locks/releases.json" in refused.stderr
    done = world_of_five.run(*arguments, "--recipe", "toy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first with another verdict: vllm 3.0 (fail SCH001); 2.0 has pass" in done.stdout
    assert not (world_of_five.folder / "locks" / "vllm-3.0+trl-1.0.cpu.txt").exists()


def test_add_tries_the_newest_and_writes_its_cell(world_of_five):
    """Printed without --write; with it the cell stands in the file, has its lock and is answered already."""
    path = world_of_five.folder / "matrix.toml"
    before = path.read_text()
    printed = world_of_five.run("add", "vllm==2.0")
    assert printed.returncode == 0, printed.stderr
    assert path.read_text() == before
    cell = tomllib.loads(printed.stdout[printed.stdout.index("[cells.") :])["cells"]["vllm-2.0+trl-1.0"]
    assert cell["layers"] == ["resolve", "contract"]
    written = world_of_five.run("add", "vllm==newest", "--write")
    assert written.returncode == 1, written.stderr  # a name is gone there
    assert "vllm.LLM" in written.stdout
    assert load(path).cell("vllm-5.0+trl-1.0").layers == ("resolve", "contract")
    assert "vllm==5.0" in (world_of_five.folder / "locks" / "vllm-5.0+trl-1.0.txt").read_text()
    done = world_of_five.run("run", "--cells", "vllm-5.0+trl-1.0")
    assert (done.returncode, "…" in done.stderr) == (1, False)
