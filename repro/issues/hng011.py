"""HNG011: a reward never comes back: symbols or a pattern that computes for ever, in a thread, without a time limit.

The limit is off because in a thread math-verify 0.8 and newer refuse to have one: REW001's mitigation `no_timeout`
leads here.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING

from repro.drivers import hangs, standing

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("the reward",)
COMPLETION = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"
LIMIT_S = 3.0
# No answer of a task in mathematics has as many powers in each other, and no answer as many words.
MOST_POWERS, MOST_WORDS = 3, 20
# A reward that wants words between tags, and backtracks over each way to cut them where the tag is missing.
PATTERN = r"<answer>(\w+\s?)+</answer>"


def tower_in_thread(mitigation: str) -> None:
    """A tower of five powers is compared in a thread with timeout_seconds=None."""
    from math_verify import parse, verify

    gold = parse(r"\boxed{3}", parsing_timeout=None)
    _computed(
        lambda: verify(gold, parse(COMPLETION, parsing_timeout=None), timeout_seconds=None),
        mitigation,
        small=COMPLETION.count("^") <= MOST_POWERS,
    )


def answer_in_log(mitigation: str) -> None:
    """The parsed answer, a tower of five powers, is printed in a line of the log: str() of it never comes back."""
    from math_verify import parse

    small = COMPLETION.count("^") <= MOST_POWERS
    _computed(lambda: str(parse(COMPLETION, parsing_timeout=None)), mitigation, small=small)


def pattern_backtracks(mitigation: str) -> None:
    """A pattern of words and spaces is searched in an answer whose closing tag is missing."""
    text = "<answer>" + "ab" * MOST_WORDS * 2
    _computed(lambda: re.search(PATTERN, text), mitigation, small=len(text) <= MOST_WORDS)


def _computed(reward: Callable[[], object], mitigation: str, *, small: bool) -> None:
    standing.say("guilty", *NAMES)
    standing.say("ready", *NAMES)
    if mitigation == "own_process":
        _apart(reward)
    elif mitigation != "bound_input" or small:
        # A pool of threads, as a trainer's reward loop has; a daemon, so that this program can be ended.
        thread = threading.Thread(target=reward, daemon=True)
        thread.start()
        thread.join()
    standing.say("done", *NAMES)


def _apart(reward: Callable[[], object]) -> None:
    """In a process that is ended after its limit: the reward is 0 then."""
    child = os.fork()
    if not child:
        reward()
        os._exit(0)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.05)
    os.kill(child, 9)


TRIGGERS = {
    "tower_in_thread": hangs.Standing(tower_in_thread, NAMES, ("math-verify",)),
    "answer_in_log": hangs.Standing(answer_in_log, NAMES, ("math-verify",)),
    "pattern_backtracks": hangs.Standing(
        pattern_backtracks,
        NAMES,
        (),
        ("the trainer's reward loop and its pattern: a thread of ours, Python's re",),
    ),
}
REPRO = hangs.repro(
    "HNG011",
    "A reward never comes back",
    triggers=TRIGGERS,
    counted="rewards came back",
    helps={
        "own_process": "compute rewards in processes that can be ended",
        "bound_input": "refuse what is too large before it is compared",
    },
    simulated=("the trainer's reward loop: a thread of ours makes the calls",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
