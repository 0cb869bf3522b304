"""The built-in reward functions, and the example's for mathematics, return the documented rewards or errors."""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.tasks.reward_functions import exact, letters_in_place, load_functions, soft_overlong

EXAMPLE = Path(__file__).parents[2] / "examples" / "math_reward.py"
(math_answers,) = load_functions([f"{EXAMPLE}:math_answers"]).values()

# In CI its absence is a failure, not a reason to skip.
needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None and "CI" not in os.environ, reason="needs math-verify"
)


def test_letters_in_place_reward():
    """Missing and superfluous letters cost alike; an empty completion gets zero."""
    scores = letters_in_place(["abc", "ab", "abcab", "", "cab"], answer=["abc"] * 5)
    assert scores == [1.0, 2 / 3, 3 / 5, 0.0, 0.0]


def test_exact_match_reward():
    """Surrounding white space is ignored, inner white space is not; numbers are compared as text."""
    scores = exact(["\n42 ", "4 2", "42.0", "", "x"], answer=["42", "42", 42, "", None])
    assert scores == [1.0, 0.0, 0.0, 1.0, None]


@given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 400), st.floats(0, 4))
def test_overlong_penalty_is_equation_13_of_dapo(buffer, room, tokens, penalty):
    """The penalty has the equation's three cases, with L_cache = buffer and L_max = buffer + room."""
    longest = buffer + room
    if tokens <= longest - buffer:
        expected = 0.0
    elif tokens <= longest:
        expected = ((longest - buffer) - tokens) / buffer
    else:
        expected = -1.0
    assert soft_overlong(tokens, longest, buffer, penalty) == pytest.approx(penalty * expected, abs=1e-12)


# Mathematics.

GIVEN = [r"so \boxed{\frac{1}{2}}", "it is 0.5", "$0.4$", "no idea", r"$x = \frac{2}{4}$", "1"]


@needs_math_verify
def test_math_answers_are_compared_by_value():
    """Correct and equivalent answers are rewarded; a row without an expected answer gets no reward."""
    scores = math_answers(GIVEN, answer=[r"\frac{1}{2}"] * 5 + [None])
    assert scores == [1.0, 1.0, 0.0, 0.0, 1.0, None]


@needs_math_verify
def test_math_reward_refuses_worker_threads():
    """The time limit works in the main thread only; without one, some answers take forever."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="works in the main thread only"):
        pool.submit(math_answers, GIVEN, answer=["1/2"] * 6).result()


@needs_math_verify
@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (r"2\sqrt{3}", r"\boxed{2\sqrt{3}}", r"\boxed{2}"), (r"10^{-3}", r"\boxed{0.001}", r"\boxed{10}"),
        ("(1,2)", r"\boxed{(1,2)}", r"\boxed{(1,3)}"), ("x+1", r"$1+x$", r"$x$"),
        (r"\$5", r"\boxed{5}", r"\boxed{6}"), (72, "The answer is 72.", "The answer is 27."),
        (r"We add: $1+1=2$. So \boxed{2}", r"\boxed{2}", r"\boxed{1}"),
    ],
)  # fmt: skip
def test_expected_answer_is_read_completely(gold, right, wrong):
    """math-verify alone would read only the first number of bare LaTeX."""
    assert math_answers([right, wrong], solution=[gold, gold]) == [1.0, 0.0]


@needs_math_verify
def test_unreadable_expected_answer_is_an_error():
    """No completion could ever be correct, so a zero reward would mislead."""
    with pytest.raises(ValueError, match=r"math-verify .* can't read the expected answer ''"):
        math_answers(["4"] * 3, answer=["4", "", "4"])


@needs_math_verify
def test_check_that_times_out_gives_zero_and_a_warning(monkeypatch):
    """A check that times out gives zero and a warning; later completions are checked normally."""
    assert math_answers(["3"], answer=["3"]) == [1.0]  # the first answer imports more
    monkeypatch.setitem(math_answers.__globals__, "CPU_S", 0.5)
    with pytest.warns(UserWarning, match=r"not checked in 0.5 s, so 0: the completion that ends in '\$9\^"):
        scores = math_answers(["$9^{9^{9^{9}}}$", "3"], answer=["3", "3"])
    assert scores == [0.0, 1.0]


def test_math_reward_needs_an_answer_column():
    """The data needs a column `answer` or `solution`."""
    with pytest.raises(ValueError, match=r"the data needs a column answer or solution, found level"):
        math_answers(["1"], level=[1])
