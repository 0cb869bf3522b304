"""HNG006: two threads take the same two locks in a different order."""

from __future__ import annotations

import threading

from repro.drivers import hangs, standing

NAMES = ("the trainer's thread", "the publisher's thread")


def two_orders(mitigation: str) -> None:
    """One thread takes the model's lock first, the other the engine's."""
    model, engine = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def work(name: str, first: threading.Lock, second: threading.Lock) -> None:
        standing.say("ready", name)
        both.wait()
        with first:
            if mitigation != "one_order":
                both.wait()
            with second:
                standing.say("done", name)

    orders = [(model, engine), (model, engine) if mitigation == "one_order" else (engine, model)]
    threads = [
        threading.Thread(target=work, args=(name, *order)) for name, order in zip(NAMES, orders, strict=True)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


PROGRAMS = {"two_orders": two_orders}

REPRO = hangs.repro(
    "HNG006",
    "A lock is not given back, or threads wait for each other's",
    programs=PROGRAMS,
    names=NAMES,
    counted="threads came through",
    helps={"one_order": "both take the model's lock first"},
    simulated=("trainer and publisher: two threads of ours, which meet after the first lock",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
