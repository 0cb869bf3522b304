"""The guards (`raise` and `assert`) of a config class get conditions that hold when Python raises.

Guards in loops and handlers are left out. Calls of own methods and validators are recorded.

`lint` evaluates the conditions as Python does. `start_guards` finds guards of released packages.
"""

import itertools
import textwrap
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnostics.api_index.guard_lookup import start_guards
from diagnostics.api_index.guards import CALL, SET, Guard, extract_guards
from diagnostics.api_index.query import Release
from diagnostics.lint import conditions
from diagnostics.lint.conditions import UnknownValueError
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "start_guards.yaml")

CONFIG = Path(__file__).with_name("guarded_config.txt").read_text(encoding="utf-8")
VALUES = {
    "loss": ["grpo", "dapo", "ppo"], "clip": [None, 1, 2], "batch": [1, 4], "steps": [1, 3], "size": [2, 3],
    "groups": [1, 2], "fast": [True, False], "total": [None, 6],
}  # fmt: skip


@cache
def _guards_of_config():
    return extract_guards(CONFIG)


def lookup_in(settings):
    """Return a lookup of these settings; a name that is not among them is unknown."""

    def lookup(name):
        key = name.rpartition(":")[2].removeprefix("self.")
        if key not in settings:
            raise UnknownValueError
        return settings[key]

    return lookup


@pytest.mark.parametrize("chosen", list(itertools.product(*VALUES.values())))
def test_conditions_hold_where_python_raises(chosen):
    """The first guard whose conditions hold is the one that raises when Python runs the method."""
    settings = dict(zip(VALUES, chosen, strict=True))
    names: dict = {}
    exec(CONFIG, names)
    config = names["Config"].__new__(names["Config"])
    vars(config).update(settings)
    try:
        config.__post_init__()
        raised = None
    except (ValueError, AssertionError) as error:
        raised = type(error).__name__, str(error)
    guards = _guards_of_config()
    checks = tuple(
        item for guard in guards if guard.message == "self.check_groups" for item in guard.conditions
    )
    holding = [
        guard
        for guard in guards
        if guard.exception not in {SET, CALL}
        and (
            guard.function != "Config.check_groups"
            or all(conditions.condition_result(c, lookup_in(settings)) for c in checks)
        )
        and all(conditions.condition_result(item, lookup_in(settings)) for item in guard.conditions)
    ]
    assert bool(holding) == (raised is not None)
    if raised:
        assert holding[0].exception == raised[0]
        assert all(part in raised[1] for part in holding[0].message.split("{}"))


def extract_conditions(body):
    guards = extract_guards(textwrap.dedent(body))
    return [(guard.message, guard.conditions) for guard in guards if guard.exception != SET]


def test_state_that_the_source_does_not_show_is_marked():
    """A check in a loop or a handler is left out; a changed attribute is marked, and a filled list keeps its name."""
    assert extract_conditions("""
        def f(self, args):
            for x in args.xs:
                assert x, "in a loop"
            try:
                args.load()
            except OSError:
                raise ValueError("in a handler")
            self.n += 1
            assert self.n, "changed"
            errors = []
            args.check(errors)
            assert not errors, "filled"
    """) == [
        ("changed", ("not changed(self.n)",)),
        ("filled", ("errors",)),
    ]  # fmt: skip


def test_calls_of_own_methods_and_validators_are_recorded():
    guards = extract_guards(
        "class A(B):\n"
        "  def __post_init__(self):\n    super().__post_init__()\n    if self.x: self.check(); self.y = 1\n"
        "  @model_validator(mode='after')\n  def verify(self): assert self.y\n"
    )
    assert guards == [
        Guard("A.__post_init__", CALL, "super.__post_init__", ()),
        Guard("A.__post_init__", CALL, "self.check", ("self.x",)),
        Guard("A.__post_init__", SET, "self.y", ("self.x",)),
        Guard("A", CALL, "self.verify", ()),
        Guard("A.verify", "AssertionError", "", ("not self.y",)),
    ]
    assert [Guard.from_key(guard.to_key()) for guard in guards] == guards


OPERANDS = st.sampled_from(["1", "2", "-3", "0.5", "True", "None", "'a'", "'b'", "(1, 2)", "a", "b", "c"])
EXPRESSIONS = st.recursive(
    OPERANDS,
    lambda inner: st.one_of(
        st.tuples(
            inner,
            st.sampled_from(
                ["+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!=", "in", "is", "and", "or"]
            ),
            inner,
        ).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        inner.map(lambda part: f"(not {part})"),
        st.tuples(inner, inner, inner).map(lambda parts: "({} if {} else {})".format(*parts)),
    ),
    max_leaves=8,
)


@given(
    EXPRESSIONS, st.fixed_dictionaries({name: st.sampled_from([0, 1, 2, None, "a", False]) for name in "abc"})
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_known_result_equals_that_of_python(expression, values):
    """If a condition has a result with some values unknown, Python's result with any values for these is the same."""
    for known in ("abc", "ab", ""):
        result = conditions.condition_result(expression, lookup_in({name: values[name] for name in known}))
        try:
            expected = bool(eval(expression, {}, dict(values)))
        except (TypeError, ZeroDivisionError):
            continue
        assert result in {None, expected}


@each_case(CASES["guards"])
def test_start_guards_include_the_guard_of_a_release(release, function, message):
    """`start_guards` has guards of option classes, their methods, classes that Hydra creates and the main program."""
    guards = [item.guard for item in start_guards(Release(*release.split("==")))]
    assert any(guard.function == function and message in guard.message for guard in guards)
