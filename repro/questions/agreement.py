"""How far vLLM's log-probs of what it sampled are from a plain forward pass of the same weights in transformers.

    python -m repro.questions.agreement [--json]

vLLM's own `LLM` and the same tiny model in transformers, both in float32, nothing simulated. Sampled at temperature 1
from the whole vocabulary, where vLLM's default log-probs are those of the distribution it sampled from. One prompt is
long and asked twice, so that the second answer rests on cached keys and values.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from repro import upstream
from repro.drivers import whole_engine
from repro.drivers.scratch import scratch

SCHEMA = "grpo-doctor.logprobs.v1"
BOUND = 1e-4
WHY = (
    "float32 keeps 24 bits, and both sides add the same few hundred terms in another order: 1e-6 to 1e-5 came of it in "
    "every release looked at; another temperature, another mask or old weights show from 1e-2 on"
)
SEEDS = 8


def observe() -> dict[str, Any]:
    """Samples and compares.

    Returns:
        The document of `--json`; `outcome` is `ok`, or `failed` with the reason in `error`.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "dtype": "float32", "bound": BOUND, "why": WHY}
    try:
        document |= compared(*_sampled())
        error = None
        if not document["max_difference"] <= BOUND:
            error = f"apart by up to {document['max_difference']:.1e}, more than {BOUND:g}"
    except Exception as failure:  # noqa: BLE001 - whatever it is goes on record
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}"
    outcome = "failed" if error else "ok"
    return document | {"outcome": outcome, "error": error, "versions": upstream.versions()}


def _sampled() -> tuple[list[float], list[float]]:
    """Returns the engine's log-probs, and those of the forward pass, token by token."""
    held = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(held))
    prompts = [*whole_engine.PROMPTS, whole_engine.LONG]
    found: list[whole_engine.Sampled] = []
    for seed in range(SEEDS):
        params = [whole_engine.params(seed * len(prompts) + place) for place in range(len(prompts))]
        found += whole_engine.sample(llm, prompts, params)
    engine = [value for one in found for value in one.logprobs]
    return engine, [value for one in found for value in whole_engine.trainers(held, one)]


def compared(engine: Sequence[float], trainer: Sequence[float]) -> dict[str, Any]:
    """Returns what the differences come to; a value that is no number counts as infinitely far off.

    >>> compared([-1.0, -2.0], [-1.0, -2.5])["max_difference"]
    0.5
    >>> compared([math.nan], [-1.0])["max_difference"]
    inf
    """
    apart = [
        abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf
        for a, b in zip(engine, trainer, strict=True)
    ]
    return {
        "tokens": len(apart),
        "max_difference": max(apart, default=math.inf),
        "mean_difference": sum(apart) / max(1, len(apart)),
        "least_logprob": min(trainer, default=0.0),
    }


def main() -> int:
    """Prints what was found; 0: within the bound, 1: not."""
    parser = argparse.ArgumentParser(description="Compare vLLM's log-probs with a forward pass.")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is not the answer
    with scratch():
        document = observe()
    said = (
        document["error"] or f"{document['tokens']} tokens, apart by at most {document['max_difference']:.1e}"
    )
    print(json.dumps(document) if options.json else f"log-probs: {said}", file=answer)
    answer.close()
    sys.stderr.flush()
    # vLLM's threads outlive main in some releases; the answer is out.
    os._exit(0 if document["error"] is None else 1)


if __name__ == "__main__":
    main()
