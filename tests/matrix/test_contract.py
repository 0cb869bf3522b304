"""The contract layer finds missing, optional, guarded and undecided uses of the engine's API in synthetic packages.

The uses are names, arguments, attributes, patched paths, HTTP routes and launch options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from packaging.version import Version

from diagnostics.api_index.surface import SourceFacts, Surface
from diagnostics.matrix.layers.contract import compare_apis, is_grpo_file
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "contract_cases.yaml")

GRPO = "trl/trainer/grpo_trainer.py"


@dataclass
class MemorySources:
    """Source modules of a package, in memory."""

    files: Mapping[str, str]

    def names(self):
        return frozenset(self.files)

    def read(self, name):
        return self.files[name]


ENGINE = CASES["engine"]


def compare_with_engine(trainer, *, version="1.0", file=GRPO, engine=ENGINE, added=None, more=None):
    """Compare one file of a trainer, and its files in `more`, with the engine, without the behaviour rules."""
    surface = Surface(SourceFacts(MemorySources({**engine, **(added or {})})), "vllm")
    return compare_apis(MemorySources({file: trainer, **(more or {})}), surface, Version(version), ())


def classify_uses(trainer, **rest):
    """Compare a trainer with the engine; return its missing, its guarded and its undecided uses as texts."""
    result = compare_with_engine(trainer, **rest)
    texts = lambda items: sorted({item.use.text for item in items})  # noqa: E731
    undecided = [f"{it.subject}: {it.why}" for it in result.undecided]
    return texts(result.missing), texts(result.guarded), undecided


MISSING_NAME = "from vllm import Nothing"


@each_case(CASES["names"])
def test_name_is_found_or_missing(line, missing):
    """A name is found however it is defined; a lazy name without a target and an import in a function are checked."""
    assert classify_uses(line) == (missing, [], [])


@pytest.mark.parametrize("case", CASES["uses"], ids=lambda case: case["id"])
def test_uses_are_classified(case):
    """A use of a name, argument, attribute, patched path, route or launch option is missing, guarded or undecided."""
    options = {name: case[name] for name in ("version", "file", "engine", "added", "more") if name in case}
    expected = tuple(case.get(name, []) for name in ("missing", "guarded", "undecided"))
    assert classify_uses(case["trainer"], **options) == expected


@each_case(CASES["conditions"])
def test_condition_decides_whether_a_missing_name_counts(condition, outcome):
    """A missing name counts if its condition is true, not in dead code; with an unknown condition it is undecided."""
    trainer = f"def f(self):\n    if {condition}:\n        {MISSING_NAME}"
    missing, guarded, undecided = classify_uses(trainer)
    assert (missing == ["vllm.Nothing"], guarded) == (outcome == "missing", [])
    assert [item.partition(":")[0] for item in undecided] == ["vllm.Nothing"] * (outcome == "undecided")


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        ("self.regex", "body"),
        ("args.vllm_regex is not None", "body"),
        ("self.regex is None", "orelse"),
        ("self.mode == 'x' and self.regex", "body"),
    ],
)
def test_use_behind_an_option_breaks_only_with_it(condition, where):
    """A use behind an option that is off by default is optional; a use in the other branch is missing."""
    settings = "class GRPOConfig:\n    vllm_regex: str | None = field(default=None, metadata={})\n    mode: str = 'x'\n"
    more = {"trl/trainer/grpo_config.py": settings}
    for branch in ("body", "orelse"):
        bodies = {"body": "pass", "orelse": "pass", branch: MISSING_NAME}
        trainer = f"def f(self):\n    if {condition}:\n        {bodies['body']}\n    else:\n        {bodies['orelse']}"
        result = compare_with_engine(trainer, more=more)
        names = [[item.use.text for item in items] for items in (result.optional, result.missing)]
        assert names == ([["vllm.Nothing"], []] if branch == where else [[], ["vllm.Nothing"]])


def test_other_trainers_do_not_break_grpo():
    """A name that the file of another TRL trainer misses is marked."""
    other = "trl/trainer/online_dpo_trainer.py"
    result = compare_with_engine(MISSING_NAME, more={other: MISSING_NAME})
    places = {item.location: is_grpo_file(item.use.file) for item in result.missing}
    assert places == {f"{other}:1": False, f"{GRPO}:1": True}


def test_unparsable_grpo_file_is_undecided():
    """The reason has the line; another file of the wheel is ignored (see `uses` in contract_cases.yaml)."""
    (undecided,) = classify_uses("from vllm import LLM\nprint 'x'")[2]
    assert undecided.startswith(f"{GRPO}: {GRPO}:2 cannot be parsed by this Python")
