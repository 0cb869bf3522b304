"""REW001: compute rewards with unmodified math-verify in a worker thread, where right answers get reward 0 or an error.

math-verify limits its run time with SIGALRM, which Python handles only in the main thread. In another thread,
math-verify 0.4 to 0.7 swallow Python's error and return "not equal". From 0.8 on math-verify raises its own error; if
the caller swallows it, as verl's reward does, the reward is 0 again. The repro does not apply to 0.1 to 0.3, which let
Python's error through. The mitigations compute in the main thread, in another process, or without time limits.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

from repro import processes, upstream
from repro.registry import InapplicableError, Tally, Trigger, repro

_NAMES = ("math-verify",)
_VERL = "verl.utils.reward_score.math_verify"
# Right completions, each with the expected answer.
ANSWERS = (
    *((rf"So it is \boxed{{{number}}}.", str(number)) for number in range(3, 9)),
    (r"So it is \boxed{\frac{1}{2}}.", "0.5"),
    (r"So it is \boxed{2^{10}}.", "1024"),
)


def reward(completion: str, answer: str, **limits: Any) -> float:
    """Return math-verify's reward for a completion, from `parse` and `verify` as in its README.

    Args:
        completion: The completion.
        answer: The expected answer.
        limits: `seconds` for math-verify's time limits, None for no limit; without it, math-verify's default.
    """
    from math_verify import parse, verify

    parsing = {"parsing_timeout": limits["seconds"]} if limits else {}
    verifying = {"timeout_seconds": limits["seconds"]} if limits else {}
    expected = parse(f"${answer}$", **parsing)
    return float(verify(expected, parse(completion, **parsing), **verifying))


def verl_reward(completion: str, answer: str, **limits: Any) -> float:
    """Return the reward that verl's own `compute_score` gives a completion.

    Raises:
        InapplicableError: A limit is given, for which `compute_score` has no argument.
    """
    if limits:
        raise InapplicableError("verl's compute_score has no argument for math-verify's limits")
    return float(import_module(_VERL).compute_score(completion, answer))


REWARDS = {"false_in_thread": reward, "raises_in_thread": reward, "verl_reward": verl_reward}


def _compute_rewards(function: Callable[..., float], **limits: Any) -> list[float]:
    return [function(completion, answer, **limits) for completion, answer in ANSWERS]


def _reward_answers(trigger: str, mitigation: str | None) -> Tally:
    """Compute the rewards of right answers in a worker thread, or as the mitigation says; return their tally."""
    if mitigation == "upgrade":
        raise InapplicableError("it is another release: run this there")
    function = REWARDS[trigger]
    if mitigation == "main_thread":
        return count_rewarded(_compute_rewards(function))
    if mitigation == "own_process":
        return count_rewarded(processes.run_isolated(lambda: _compute_rewards(function)))
    limits = {"seconds": None} if mitigation == "no_timeout" else {}
    with ThreadPoolExecutor(1) as pool:
        return count_rewarded(pool.submit(_compute_rewards, function, **limits).result())


def count_rewarded(rewards: list[float]) -> Tally:
    """Count the right answers that were rewarded."""
    passed = {f"answer {answer}": value == 1.0 for (_, answer), value in zip(ANSWERS, rewards, strict=True)}
    mean = sum(rewards) / len(rewards)
    return Tally.of_checks(passed, "right answers are rewarded", f"mean reward {mean:.3f}")


def explain_inapplicable_trigger(trigger: str) -> str | None:
    """Return the reason why a trigger does not apply to the installed math-verify or verl; None if it does."""
    release = upstream.release_name(_NAMES)
    # Releases that raise an error in a thread have this message in math_verify/parser.py and grader.py.
    message = "doesn't support threaded environment"
    raises = upstream.explain_missing_code("math_verify/parser.py", message, _NAMES) is None
    if trigger == "false_in_thread" and raises:
        return f"{release} raises in a thread instead: see raises_in_thread"
    if trigger == "raises_in_thread" and not raises:
        return f"{release} raises nothing in a thread: see false_in_thread"
    if trigger == "verl_reward":
        text = upstream.source("verl/utils/reward_score/math_verify.py", ("verl",))
        if text is None:
            return "there is no verl with such a reward here"
        if "ProcessPoolExecutor" in text:
            return f"{upstream.release_name(('verl',))} compares in processes of its own, not in a thread"
    return None


def inapplicable_reason() -> str | None:
    """Return the reason why the failure cannot occur with the installed packages; None if it can."""
    distribution = upstream.first_installed(_NAMES)
    if distribution is None:
        return "math-verify is not installed here"
    if distribution.version.startswith(("0.1.", "0.2.", "0.3.")):
        return f"math-verify {distribution.version} lets Python's own error through, at the first call"
    return None


repro(
    "REW001",
    assertion="raise ValueError(",
    raises="ValueError",
    function="parse",
    distributions=_NAMES,
    modules=("math_verify",),
    helpful_modules=(_VERL,),
    simulated=("under verl_reward, verl's reward loop: a thread calls its compute_score",),
    triggers=[
        Trigger(
            name,
            partial(_reward_answers, name),
            silent=name != "raises_in_thread",
            missing_requirement=partial(explain_inapplicable_trigger, name),
        )
        for name in REWARDS
    ],
    inapplicable_reason=inapplicable_reason,
)
