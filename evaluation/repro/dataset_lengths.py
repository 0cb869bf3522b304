"""Reproduce SCH002 by the prompt lengths of a data set: with 1,000 rows all is well, with 20,000 the scheduler fails.

The prompt lengths are random (log-normal): most are short, few are very long. The first 1,000 rows are equal in both
data sets. Generation is as in EasyR1 with vLLM: `generate()` on batches of 512 prompts, with chunked prefill, async
output and a budget of 8,192 tokens per step. The scheduler and its stop checker are those of the installed wheel; the
forward pass is simulated (see `repro.drivers.schedulers.v0`).

Usage: python -m evaluation.repro.dataset_lengths [--rows 1000 20000] [--mitigation NAME ...] [--seed N] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from repro import judge, upstream
from repro.drivers.schedulers import callers, v0
from repro.drivers.schedulers.v0 import FinishedRequest, RefusedRequestError, SchedulerRequest, V0Setup

LIMIT, BUDGET, BATCH, MAX_TOKENS = 4096, 8192, 512, 8
MEDIAN, SPREAD = 250, 0.75  # tokens; standard deviation of their logarithm
SEED = 5  # of eight tried, one of two that end in the assertion; see docs/engine-v0.md
MITIGATIONS = ("filter_overlong", "chunked_prefill_off", "async_output_off")
SCHEMA = "grpo-doctor.dataset-lengths.v1"


@dataclass(frozen=True)
class GenerationResult:
    """The result of generating from a data set.

    Args:
        rows: Number of rows in the data set.
        longest: Length of the longest prompt in tokens.
        overlong: Number of prompts longer than `LIMIT`.
        first: Index of the first such prompt; None without one.
        mitigation: Name of the mitigation, or None.
        outcome: "passed", "failed" (SCH002's assertion), "refused" (by LLMEngine) or "lost" (rows without a
            completion).
        ended_in: First row of the batch whose generate() raised; None if no call raised.
        where: `path:line` of the assertion, or the message of the refusal.
        asked: Number of rows in the generate() calls that returned.
        answered: Number of completions that these calls returned.
        empty: Number of these completions without a token.
        tokens: Number of tokens in these completions.
        leaked_blocks: Number of KV cache blocks still in use at the end.
        seconds: CPU time in seconds.
    """

    rows: int
    longest: int
    overlong: int
    first: int | None
    mitigation: str | None
    outcome: str
    ended_in: int | None
    where: str
    asked: int
    answered: int
    empty: int
    tokens: int
    leaked_blocks: int
    seconds: float


def lengths(rows: int, seed: int = SEED) -> list[int]:
    """Return the prompt lengths of a data set in tokens; a smaller data set is the beginning of a larger one.

    >>> lengths(3), lengths(5)[:3] == lengths(3)
    ([461, 80, 237], True)
    """
    chance = random.Random(seed)
    return [max(1, round(MEDIAN * chance.lognormvariate(0.0, SPREAD))) for _ in range(rows)]


def generate_from(prompts: Sequence[int], mitigation: str | None = None) -> GenerationResult:
    """Generate from all rows, batch by batch, until a call raises; return the result."""
    started = time.process_time()
    engine = v0.V0Engine(
        V0Setup(
            chunked=mitigation != "chunked_prefill_off",
            async_output=mitigation != "async_output_off",
            max_model_len=LIMIT,
            token_budget=BUDGET,
            max_num_seqs=256,
            blocks=1 << 16,
        )
    )
    selected = [
        row for row, length in enumerate(prompts) if mitigation != "filter_overlong" or length <= LIMIT
    ]
    requested, received, end = _all_batches(engine, prompts, selected)
    if end.outcome == "passed" and len(received) < requested:
        end = _Outcome("lost")
    overlong = [row for row, length in enumerate(prompts) if length > LIMIT]
    return GenerationResult(
        rows=len(prompts),
        longest=max(prompts),
        overlong=len(overlong),
        first=overlong[0] if overlong else None,
        mitigation=mitigation,
        outcome=end.outcome,
        ended_in=end.batch,
        where=end.where,
        asked=requested,
        answered=len(received),
        empty=sum(not done.tokens for done in received),
        tokens=sum(done.tokens for done in received),
        leaked_blocks=engine.leaked_blocks(),
        seconds=round(time.process_time() - started, 1),
    )


@dataclass(frozen=True)
class _Outcome:
    """The end of a run: its outcome, the first row of the batch that raised, and where it raised."""

    outcome: str
    batch: int | None = None
    where: str = ""


def _all_batches(
    engine: v0.V0Engine, prompts: Sequence[int], selected: Sequence[int]
) -> tuple[int, list[FinishedRequest], _Outcome]:
    """Return the number of rows of the calls that returned, their completions, and the outcome."""
    requested, received = 0, list[FinishedRequest]()
    for start in range(0, len(selected), BATCH):
        batch = selected[start : start + BATCH]
        try:
            received += _generate(
                engine, [SchedulerRequest(str(row), prompts[row], MAX_TOKENS) for row in batch]
            )
        except RefusedRequestError as error:
            return requested, received, _Outcome("refused", batch[0], str(error))
        except AssertionError as error:
            return requested, received, _Outcome("failed", batch[0], _locate_assertion(error))
        requested += len(batch)
    return requested, received, _Outcome("passed")


def _generate(engine: v0.V0Engine, requests: list[SchedulerRequest]) -> list[FinishedRequest]:
    [completions] = callers.take_turns([callers.generate(engine, requests)])
    return completions


def _locate_assertion(error: AssertionError) -> str:
    """Return `path:line: statement` of SCH002's assertion; raise any other AssertionError again."""
    last = error.__traceback__
    while last and last.tb_next:
        last = last.tb_next
    assert last is not None
    path, line = last.tb_frame.f_code.co_filename, last.tb_lineno
    statement = judge.failed_statement(path, line)
    if statement != "assert len(self._async_stopped) == 0":
        raise error
    return f"{judge.below_site_packages(path)}:{line}: {statement}"


def summary_line(result: GenerationResult) -> str:
    """Return a result as one line of text."""
    head = f"{result.rows} rows, longest {result.longest} of {LIMIT} tokens, {result.overlong} over it"
    head += f" (the first is row {result.first})" if result.first is not None else ""
    under = f"with {result.mitigation}" if result.mitigation else "as it is"
    ended = f" in the batch from row {result.ended_in}" if result.ended_in is not None else ""
    done = f"{result.answered} of {result.asked} rows answered, {result.tokens} tokens"
    parts = [
        done,
        f"{result.empty} empty" if result.empty else "",
        f"{result.leaked_blocks} KV cache blocks taken in the end" if result.leaked_blocks else "",
        result.where,
        f"{result.seconds} s",
    ]
    return f"{head}; {under}: {result.outcome}{ended}; {'; '.join(filter(None, parts))}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate from each data set, without and with each requested mitigation.

    Returns:
        0: all passed. 1: a run did not pass. 2: this interpreter has no suitable vLLM, or wrong usage.
    """
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.repro.dataset_lengths", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1000, 20000], metavar="N", help="sizes of the data sets"
    )
    parser.add_argument(
        "--mitigation", nargs="*", default=[], choices=MITIGATIONS, help="run also with these mitigations"
    )
    parser.add_argument(
        "--seed", type=int, default=SEED, metavar="N", help=f"seed of the lengths (default: {SEED})"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    options = parser.parse_args(arguments)
    if min(options.rows) < 1:
        parser.error(f"--rows {min(options.rows)}: expected at least 1")
    missing = upstream.explain_missing_code("vllm/core/scheduler.py", "assert len(self._async_stopped) == 0")
    if missing:
        print(f"dataset_lengths: {missing}; run it with the Python of a cell", file=sys.stderr)
        return 2
    results = []
    for rows in options.rows:
        for mitigation in (None, *options.mitigation):
            results.append(generate_from(lengths(rows, options.seed), mitigation))
            print(summary_line(results[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps(_document(results, options.seed), indent=1))
    return 0 if all(result.outcome == "passed" for result in results) else 1


def _document(result: Sequence[GenerationResult], seed: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "versions": upstream.versions(),
        "simulated": list(v0.SIMULATED),
        "seed": seed,
        "median": statistics.median(lengths(max(result.rows for result in result), seed)),
        "runs": [asdict(result) for result in result],
    }


if __name__ == "__main__":
    sys.exit(main())
