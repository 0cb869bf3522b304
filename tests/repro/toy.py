"""A repro of nothing upstream, whose attempts behave as their names say: what the runner is tested with."""

import os
import signal
import threading

from repro.base import Mitigation, NotApplicableError, Repro, Trigger, Work


def _hang(mitigation):
    threading.Event().wait()


def _crash(mitigation):
    os.kill(os.getpid(), signal.SIGSEGV)


def _own_assertion(mitigation):
    assert mitigation == "never", "the harness is wrong"


def _works(mitigation):
    if mitigation == "senseless":
        raise NotApplicableError("it has no meaning here")
    return Work({"a": 3, "b": 2}, {"a": 3, "b": 2 if mitigation == "helps" else 1}, leaked_blocks=0)


TOY = Repro(
    code="TOY001",
    title="Nothing upstream",
    assertion="assert upstream",
    modules=(),
    simulated=("everything",),
    triggers=(
        Trigger("hang", "waits for ever", _hang),
        Trigger("crash", "dies of a signal", _crash),
        Trigger("own_assertion", "fails in our own code", _own_assertion),
        Trigger("silent", "loses a token without a word", _works, silent=True),
    ),
    mitigations=(
        Mitigation("helps", "does", frozenset({"silent"})),
        Mitigation("useless", "is recorded to help and does not", frozenset({"silent"})),
        Mitigation("senseless", "has no meaning", frozenset()),
    ),
    inapplicable=lambda: None,
)
