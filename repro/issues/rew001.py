"""REW001: math-verify in a worker thread: every right answer is worth 0.

math-verify limits its own time by SIGALRM, and Python lets a main thread alone handle signals. Whoever computes rewards
beside the rollout does it in a thread. What then happens depends on the release: 0.4 to 0.7 swallow Python's error
and answer "not equal", 0.8 and newer raise one of their own, and a caller that swallows that one is back at 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module, metadata
from typing import Any

from repro import upstream
from repro.base import OTHER_RELEASE, InapplicableError, Trigger, Work, repro
from repro.drivers import elsewhere

_NAMES = ("math-verify",)
_VERL = "verl.utils.reward_score.math_verify"
# Messages of the releases that raise, in math_verify/parser.py and grader.py.
_OWN_ERROR = "doesn't support threaded environment"
ASSERTION = "raise ValueError("
# Completions that are right, each with the answer that is expected.
ANSWERS = (
    *((rf"So it is \boxed{{{number}}}.", str(number)) for number in range(3, 9)),
    (r"So it is \boxed{\frac{1}{2}}.", "0.5"),
    (r"So it is \boxed{2^{10}}.", "1024"),
)


def reward(completion: str, answer: str, **limits: Any) -> float:
    """Return what math-verify makes of a completion, by the two calls that its readme shows.

    Args:
        completion: the text.
        answer: the expected answer.
        limits: `seconds`, if any are to be set; None is no limit.
    """
    from math_verify import parse, verify

    parsing = {"parsing_timeout": limits["seconds"]} if limits else {}
    verifying = {"timeout_seconds": limits["seconds"]} if limits else {}
    expected = parse(f"${answer}$", **parsing)
    return float(verify(expected, parse(completion, **parsing), **verifying))


def verl_reward(completion: str, answer: str, **limits: Any) -> float:
    """Return what verl's own `compute_score` makes of a completion.

    Raises:
        InapplicableError: verl is not installed, or a limit is to be set, for which it has no argument.
    """
    if limits:
        raise InapplicableError("verl's compute_score has no argument for math-verify's limits")
    return float(import_module(_VERL).compute_score(completion, answer))


REWARDS = {"false_in_thread": reward, "raises_in_thread": reward, "verl_reward": verl_reward}


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Compute the rewards in this process's main thread; the program behind the mitigation `own_process`."""
    return {"rewards": _rewards(REWARDS[plan["trigger"]])}


def _rewards(function: Callable[..., float], **limits: Any) -> list[float]:
    return [function(completion, answer, **limits) for completion, answer in ANSWERS]


def _carry_out(trigger: str, mitigation: str | None) -> Work:
    _check_applicable(trigger)
    function = REWARDS[trigger]
    if mitigation == "main_thread":
        result = _rewards(function)
    elif mitigation == "own_process":
        result = elsewhere.run_program("repro.issues.rew001", {"trigger": trigger}, os.environ)["rewards"]
    else:
        limits = {"seconds": None} if mitigation == "no_timeout" else {}
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(_rewards, function, **limits).result()
    return count_rewarded(result)


def count_rewarded(rewards: list[float]) -> Work:
    """Count the right answers that were rewarded."""
    names = [f"answer {answer}" for _, answer in ANSWERS]
    received = [(name, 1) for name, value in zip(names, rewards, strict=True) if value == 1.0]
    mean = sum(rewards) / len(rewards)
    return Work(
        dict.fromkeys(names, 1),
        received,
        note=f"mean reward {mean:.3f}",
        counted="right answers are rewarded",
    )


def _check_applicable(trigger: str) -> None:
    """Raise InapplicableError if a trigger cannot fail with the installed math-verify, or verl does not call it."""
    release = f"math-verify {metadata.version('math-verify')}"
    raises = _OWN_ERROR in (upstream.source("math_verify/parser.py", _NAMES) or "")
    if trigger == "false_in_thread" and raises:
        raise InapplicableError(f"{release} raises in a thread instead: see raises_in_thread")
    if trigger == "raises_in_thread" and not raises:
        raise InapplicableError(f"{release} raises nothing in a thread: see false_in_thread")
    if trigger == "verl_reward":
        text = upstream.source("verl/utils/reward_score/math_verify.py", ("verl",))
        if text is None:
            raise InapplicableError("there is no verl with such a reward here")
        if "ProcessPoolExecutor" in text:
            version = metadata.version("verl")
            raise InapplicableError(f"verl {version} compares in processes of its own, not in a thread")


def inapplicable() -> str | None:
    """Return why the failure can't occur with the installed packages, or None."""
    distribution = upstream.installed(_NAMES)
    if distribution is None:
        return "math-verify is not installed here"
    if distribution.version.startswith(("0.1.", "0.2.", "0.3.")):
        return f"math-verify {distribution.version} lets Python's own error through, at the first call"
    return None


repro(
    "REW001",
    assertion=ASSERTION,
    raises="ValueError",
    function="parse",
    distributions=_NAMES,
    modules=("math_verify",),
    helpful_modules=(_VERL,),
    simulated=("under verl_reward, verl's reward loop: a thread of ours calls its compute_score",),
    triggers=[
        Trigger("false_in_thread", partial(_carry_out, "false_in_thread"), silent=True),
        Trigger("raises_in_thread", partial(_carry_out, "raises_in_thread")),
        Trigger("verl_reward", partial(_carry_out, "verl_reward"), silent=True),
    ],
    mitigations={
        "no_timeout": (
            "parsing_timeout=None and timeout_seconds=None",
            "math-verify's own message, huggingface/trl#5281",
        ),
        "own_process": ("compare in another process's main thread", "verl, from 0.8.0 on"),
        "main_thread": "compare in the main thread",
        "upgrade": "math-verify 0.8 or newer, which raises",
    },
    untried=dict.fromkeys(("upgrade",), OTHER_RELEASE),
    inapplicable=inapplicable,
)

if __name__ == "__main__":
    elsewhere.answer_plan(run)
