"""HNG011: a reward never comes back: math-verify compares a tower of powers, in a thread, without a time limit.

The limit is off because in a thread math-verify 0.8 and newer refuse to have one: REW001's mitigation `no_timeout`
leads here.
"""

from __future__ import annotations

import os
import threading
import time

from repro.drivers import hangs, standing

NAMES = ("the reward",)
COMPLETION = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"
LIMIT_S = 3.0
# No answer of a task in mathematics has as many powers in each other.
MOST_POWERS = 3


def tower_in_thread(mitigation: str) -> None:
    """A tower of five powers is compared in a thread with timeout_seconds=None."""
    from math_verify import parse, verify

    gold = parse(r"\boxed{3}", parsing_timeout=None)
    standing.say("ready", NAMES[0])

    def reward() -> None:
        if mitigation == "bound_input" and COMPLETION.count("^") > MOST_POWERS:
            return
        verify(gold, parse(COMPLETION, parsing_timeout=None), timeout_seconds=None)

    if mitigation == "own_process":
        _apart(reward)
    else:
        # A pool of threads, as a trainer's reward loop has; a daemon, so that this program can be ended.
        thread = threading.Thread(target=reward, daemon=True)
        thread.start()
        thread.join()
    standing.say("done", NAMES[0])


def _apart(reward: object) -> None:
    """In a process that is ended after its limit: the reward is 0 then."""
    assert callable(reward)
    child = os.fork()
    if not child:
        reward()
        os._exit(0)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.05)
    os.kill(child, 9)


PROGRAMS = {"tower_in_thread": tower_in_thread}
REPRO = hangs.repro(
    "HNG011",
    "A reward never comes back",
    programs=PROGRAMS,
    names=NAMES,
    counted="rewards came back",
    helps={
        "own_process": "compute rewards in processes that can be ended",
        "bound_input": "refuse what is too large before it is compared",
    },
    needs=("math-verify",),
    simulated=("the trainer's reward loop: a thread of ours makes the calls",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
