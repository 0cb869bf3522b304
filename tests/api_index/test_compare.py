"""`compare` finds missing, guarded and undecided uses of an engine's API in synthetic packages.

A guarded use is missing, but in a `try` with an alternative that works. A use under a condition counts if a run can
reach it. The uses are names, arguments, attributes, patched paths, HTTP routes and launch options.
"""

import pytest
from packaging.version import Version

from diagnostics.api_index.compare import compare
from diagnostics.api_index.extract import extract
from diagnostics.api_index.uses import collect_uses
from tests.api_index.conftest import api_of_files
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "compare_cases.yaml")

GRPO = "trl/trainer/grpo_trainer.py"
ENGINE = CASES["engine"]


def classify_uses(trainer, *, version="1.0", file=GRPO, engine=ENGINE, added=None, server=""):
    """Compare a file of a trainer with the engine; return its missing, its guarded and its undecided uses as texts."""
    uses = collect_uses(trainer, file, {"vllm"})
    own = extract(server, "trl.scripts.vllm_serve")
    own_routes = frozenset(name.removeprefix("route:") for name in own if name.startswith("route:"))
    api = api_of_files("vllm", {**engine, **(added or {})})
    result = compare(uses, api, {"vllm": Version(version)}, own_routes)
    texts = lambda items: sorted({item.use.text for item in items})  # noqa: E731
    undecided = [f"{item.use.text}: {item.why}" for item in result.unsure]
    undecided += [f"{use.text}: {reason} (line {use.line})" for use, reason in result.unfollowed]
    return texts(result.missing), texts(result.guarded), undecided


MISSING_NAME = "from vllm import Nothing"


@each_case(CASES["names"])
def test_name_is_found_or_missing(line, missing):
    """A name is found if it is defined directly, lazily, by a star import or in a `try`; a missing one is reported."""
    assert classify_uses(line) == (missing, [], [])


@pytest.mark.parametrize("case", CASES["uses"], ids=lambda case: case["id"])
def test_uses_are_classified(case):
    """A use of a name, argument, attribute, patched path, route or launch option is missing, guarded or undecided."""
    options = {name: case[name] for name in ("version", "file", "engine", "added", "server") if name in case}
    expected = tuple(case.get(name, []) for name in ("missing", "guarded", "undecided"))
    assert classify_uses(case["trainer"], **options) == expected


@each_case(CASES["conditions"])
def test_condition_decides_whether_a_missing_name_counts(condition, outcome):
    """A missing name counts if a run can reach it, not in dead code; with an unknown condition it is undecided."""
    trainer = f"def f(self):\n    if {condition}:\n        {MISSING_NAME}"
    missing, guarded, undecided = classify_uses(trainer)
    assert (missing == ["vllm.Nothing"], guarded) == (outcome == "missing", [])
    assert [item.partition(":")[0] for item in undecided] == ["vllm.Nothing"] * (outcome == "undecided")


@each_case(CASES["options"])
def test_use_behind_an_option_needs_it(condition, where):
    """A use in one branch of a condition is reached only with the option, a use in the other also without."""
    for branch in ("body", "orelse"):
        bodies = {"body": "pass", "orelse": "pass", branch: MISSING_NAME}
        trainer = f"def f(self):\n    if {condition}:\n        {bodies['body']}\n    else:\n        {bodies['orelse']}"
        (use,) = (use for use in collect_uses(trainer, GRPO, {"vllm"}) if use.kind == "name")
        assert bool(use.option({"regex", "vllm_regex"})) is (branch == where)
