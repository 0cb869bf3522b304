"""In a cell, break one part of the driver of vLLM's V1 scheduler at a time, and record which check detects it.

vLLM's files are unmodified; the engines below misuse the scheduler or the simulated runner. The program prints one
JSON document with the findings for each broken engine. The assertions are in tests/repro/test_fuzzer_in_cells.py,
which runs outside of the cell.
"""

import json
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from repro.drivers.schedulers.v1 import V1Engine  # noqa: E402
from repro.fuzz import stories  # noqa: E402 - standard output is kept before vLLM is imported
from repro.fuzz.v1_actions import V1Actions  # noqa: E402

STEP = [{"do": "schedule"}, {"do": "update"}]
STEPS = [
    {"do": "add", "prompt": 10, "max_tokens": 4},
    {"do": "add", "prompt": 9, "max_tokens": 3},
    *STEP, *STEP, *STEP, *STEP,
    {"do": "add", "prompt": 10, "max_tokens": 3},
    *STEP, *STEP,
    {"do": "drain"},
]  # fmt: skip
SETUP = {"chunked": True, "prefix_caching": True}


class SkipsAnUpdate(V1Engine):
    """An engine that drops its second output, so that it never reaches the scheduler."""

    updates = 0

    def update(self):
        self.updates += 1
        if self.updates == 2:
            self.in_flight.popleft()
        else:
            super().update()


class AppliesAnOutputTwice(V1Engine):
    """An engine whose outputs reach the scheduler twice."""

    def update(self):
        scheduled, output = self.in_flight[0]
        self.scheduler.update_from_output(scheduled, output)
        super().update()


class DeliversTwice(V1Engine):
    """An engine that delivers each output to its client twice."""

    def deliver(self, outputs):
        super().deliver(outputs)
        super().deliver(outputs)


class EndsTwice(V1Engine):
    """An engine that reports the end of each request to its client twice."""

    def deliver(self, outputs):
        super().deliver(outputs)
        for ends in self.ends.values():
            ends.extend(list(ends))


class LosesAnOutput(V1Engine):
    """An engine that does not deliver the last output of a request."""

    def deliver(self, outputs):
        for client in outputs.values():
            client.outputs = [output for output in client.outputs if output.finish_reason is None]
        super().deliver(outputs)


class ExceedsTheBudget(V1Engine):
    """An engine whose scheduler reports one token more than its budget."""

    def schedule(self):
        scheduled = super().schedule()
        if scheduled.num_scheduled_tokens:
            more = 1 + self.setup.token_budget - scheduled.total_num_scheduled_tokens
            scheduled.num_scheduled_tokens[next(iter(scheduled.num_scheduled_tokens))] += more
            scheduled.total_num_scheduled_tokens += more
        return scheduled


class LeaksABlock(V1Engine):
    """An engine that allocates a block without a request."""

    def add(self, request):
        super().add(request)
        self.scheduler.kv_cache_manager.block_pool.get_new_blocks(1)


class QueuesTwice(V1Engine):
    """An engine that also puts a running request into the waiting queue."""

    def update(self):
        super().update()
        if self.scheduler.running:
            self.scheduler.waiting.add_request(self.scheduler.running[0])


class ComputesTooFar(V1Engine):
    """An engine that counts more computed tokens than a request has tokens."""

    def update(self):
        super().update()
        for request in self.scheduler.running:
            request.num_computed_tokens = request.num_tokens + 1


class OverwritesTheCache(V1Engine):
    """An engine that clears the KV cache slots between two steps."""

    def update(self):
        super().update()
        self.runner._slots.clear()


class ForgetsToReset(V1Engine):
    """An engine that changes the weights while requests run, without a prefix cache reset."""

    def update(self):
        super().update()
        self.runner.weights += 1


class SamplesTooEarly(V1Engine):
    """An engine whose runner samples a token in the middle of a prompt."""

    def __init__(self, setup):
        super().__init__(setup)
        right = self.runner._sample
        self.runner._sample = lambda name, end: right(name, end) or [101]


class WithholdsAToken(V1Engine):
    """An engine whose runner never returns the second token of a request."""

    def __init__(self, setup):
        super().__init__(setup)
        right = self.runner._sample
        self.runner._sample = lambda name, end: [token for token in right(name, end) if token != 102]


def finding(engine):
    """Play the story on this engine; return the finding, or None, with plain and with asynchronous scheduling."""
    actions = type("Actions", (V1Actions,), {"make_engine": engine})
    result = {}
    for asynchronous in (False, True):
        setup = SETUP | {"asynchronous": asynchronous}
        _, _, end = stories.play(actions(**setup), STEPS)
        result["asynchronous" if asynchronous else "plain"] = end and end.describe()
    return result


def main():
    """Play the story on the correct engine and on each broken one; print the findings."""
    engines = [V1Engine, *V1Engine.__subclasses__()]
    json.dump({engine.__name__: finding(engine) for engine in engines}, ANSWERS, indent=1)
    ANSWERS.close()


if __name__ == "__main__":
    sys.exit(main())
