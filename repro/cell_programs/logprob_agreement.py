"""Compare the log-probs that unmodified vLLM reports with a forward pass of the same weights in transformers.

    python -m repro.cell_programs.logprob_agreement [--json]

`observe` returns the report. Both sides run the same tiny model in float32. vLLM samples at temperature 1 from the
whole vocabulary; then its default log-probs are those of the sampling distribution. Each prompt is used for eight
completions. With prefix caching, the default of vLLM V1, those of the long prompt read cached keys and values, except
the first. The exit code is 1 if a difference exceeds 1e-4 or the engine fails, else 0.
"""

import math
import traceback
from collections.abc import Sequence
from typing import Any

from repro import render, upstream
from repro.cell_programs import run_program
from repro.drivers import whole_engine

SCHEMA = "grpo-doctor.logprobs.v1"
BOUND = 1e-4
WHY = (
    "float32 has 24 bits, and both sides add the same few hundred terms in different orders: the measured releases "
    "differ by 1e-6 to 1e-5; another temperature, another mask or old weights differ by 1e-2 or more"
)
SEEDS = 8


def observe() -> dict[str, Any]:
    """Sample, compare the log-probs, and return the report; `outcome` is `ok`, or `failed` with `error`."""
    document: dict[str, Any] = {"schema": SCHEMA, "dtype": "float32", "bound": BOUND, "why": WHY}
    error = None
    try:
        document |= compare_logprobs(*_sample_and_score())
        if not document["max_difference"] <= BOUND:
            error = f"apart by up to {document['max_difference']:.1e}, more than {BOUND:g}"
    except Exception as failure:  # noqa: BLE001 - any exception is recorded
        render.print_to_stderr(traceback.format_exc())
        error = f"{type(failure).__name__}: {failure}"
    outcome = "failed" if error else "ok"
    return document | {"outcome": outcome, "error": error, "versions": upstream.versions()}


def _sample_and_score() -> tuple[list[float], list[float]]:
    """Return the log-probs of the engine and of the forward pass, token by token."""
    policy, llm = whole_engine.start_model()
    prompts = [*whole_engine.PROMPTS, whole_engine.LONG_PROMPT]
    samples: list[whole_engine.SampledCompletion] = []
    for seed in range(SEEDS):
        params = [whole_engine.params(seed * len(prompts) + index) for index in range(len(prompts))]
        samples += whole_engine.sample(llm, prompts, params)
    engine = [value for sample in samples for value in sample.logprobs]
    return engine, [value for sample in samples for value in whole_engine.trainer_logprobs(policy, sample)]


def compare_logprobs(engine: Sequence[float], trainer: Sequence[float]) -> dict[str, Any]:
    """Return a summary of the log-prob differences; a difference with NaN or infinity counts as infinite.

    >>> compare_logprobs([-1.0, -2.0], [-1.0, -2.5])["max_difference"]
    0.5
    >>> compare_logprobs([math.nan], [-1.0])["max_difference"]
    inf
    """
    differences = [
        abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf
        for a, b in zip(engine, trainer, strict=True)
    ]
    return {
        "tokens": len(differences),
        "max_difference": max(differences, default=math.inf),
        "mean_difference": sum(differences) / max(1, len(differences)),
        "least_logprob": min(trainer, default=0.0),
    }


def main() -> None:
    """Print the report and exit with code 0 if all differences are within the bound, else 1."""
    run_program("Compare vLLM's log-probs with a forward pass.", observe)


if __name__ == "__main__":
    main()
