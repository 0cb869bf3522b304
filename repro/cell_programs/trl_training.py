"""Take three steps with the unmodified GRPOTrainer of this environment's TRL, and check that the weights moved.

    python -m repro.cell_programs.trl_training alone|vllm [--json]

`observe` returns the report. With `alone`, TRL samples with transformers. With `vllm`, TRL samples with vLLM in TRL's
own process (`vllm_mode="colocate"`); if TRL has no such mode, the outcome is `not_run`. The model is tiny and random.
The report of an exception has its message and the last frame of its traceback in an installed package. Three finite
losses and a weight that moved make the outcome `ok`.
"""

import dataclasses
import math
import os
import time
import traceback
from typing import Any

from repro import judge, render, upstream
from repro.cell_programs import run_program
from repro.drivers import tiny_trl, whole_engine

SCHEMA = "grpo-doctor.peer.v1"
STEPS, LENGTH = 3, 8
ENGINES = ("alone", "vllm")
# TRL's names of the metrics that are recorded for each step.
LOGGED = ("loss", "reward", "kl", "sampling/sampling_logp_difference/mean")


def observe(engine: str) -> dict[str, Any]:
    """Train for three steps and return the report.

    Args:
        engine: One of ENGINES.

    Returns:
        The report. `outcome` is `ok`, or `failed` or `not_run` with the reason in `error`.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "engine": engine, "steps": 0, "error": None, "where": None}
    try:
        missing = explain_missing_mode() if engine == "vllm" else None
        if missing is None:
            document |= train(engine)
        error = missing or find_failure(document)
        outcome = "not_run" if missing else "failed" if error else "ok"
        document |= {"outcome": outcome, "error": error}
    except Exception as failure:  # noqa: BLE001 - any exception is recorded
        render.print_to_stderr(traceback.format_exc())
        document |= {"outcome": "failed", "error": f"{type(failure).__name__}: {failure}"}
        document["where"] = find_failing_line(failure)
    return document | {"versions": upstream.versions()}


def explain_missing_mode() -> str | None:
    """Return the reason why this TRL cannot sample with vLLM in its own process; None if it can."""
    options = option_names()
    if "vllm_mode" in options:
        return None
    # TRL 0.16 and 0.17 still have the option `vllm_device`, but do not use it.
    if "vllm_server_host" in options:
        return "this TRL samples with vLLM only on a server, which receives weights by NCCL: not without GPUs"
    return "this TRL gives vLLM a GPU of its own (vllm_device); there is none"


def option_names() -> set[str]:
    """Return the option names of this TRL's GRPOConfig."""
    from trl import GRPOConfig

    return {field.name for field in dataclasses.fields(GRPOConfig)}


def train(engine: str) -> dict[str, Any]:
    """Run the trainer; return the part of the report about it: steps, seconds, largest weight change, metrics."""
    policy, settings = _model_and_options(engine)
    trainer = tiny_trl.trainer(tiny_trl.reward_by_letters, policy=policy, **settings)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    began = time.monotonic()
    trainer.train()
    pairs = zip(before, trainer.model.parameters(), strict=True)
    moved = max(float((old - new.detach()).abs().max()) for old, new in pairs)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    complete = [name for name in LOGGED if logged and all(name in entry for entry in logged)]
    return {
        "steps": trainer.state.global_step,
        "seconds": round(time.monotonic() - began, 1),
        "moved": moved,
        "logged": {name: [entry[name] for entry in logged] for name in complete},
        "simulated": [],
    }


def _model_and_options(engine: str) -> tuple[Any, dict[str, Any]]:
    """Return the model to train (None: the default tiny one) and the `GRPOConfig` options."""
    sizes = {"max_steps": STEPS, "max_completion_length": LENGTH, "learning_rate": 0.01}
    settings: dict[str, Any] = tiny_trl.GROUP | sizes | {"logging_strategy": "steps", "logging_steps": 1}
    if engine == "alone":
        return None, settings
    # Settings that any vLLM needs on a CPU; TRL and vLLM themselves are not changed.
    os.environ.update(whole_engine.environment() | {"VLLM_USE_AOT_COMPILE": "0"})
    settings |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
    # TRL's default lengths exceed the tiny model's; the option's name depends on the release.
    lengths, options = {"max_prompt_length": 16, "vllm_max_model_length": 64}, option_names()
    return _load_from_folder(), settings | {name: lengths[name] for name in lengths if name in options}


def _load_from_folder() -> Any:
    """Save the tiny model to a folder for vLLM, and load it from there."""
    from transformers import AutoModelForCausalLM

    folder = whole_engine.save(tiny_trl.model())
    tiny_trl.tokenizer().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).float()


def find_failure(document: dict[str, Any]) -> str | None:
    """Return the reason why the run did not train; None if it did."""
    losses = document["logged"].get("loss", [])
    if document["steps"] != STEPS or len(losses) != STEPS:
        return f"{document['steps']} steps with {len(losses)} losses, where {STEPS} were asked for"
    if not all(map(math.isfinite, losses)):
        return f"the losses {losses} are not finite"
    return None if document["moved"] > 0 else "the weights did not move"


def find_failing_line(failure: BaseException) -> str | None:
    """Return `file:line in function` of the last frame within an installed package; None without one."""
    for frame in reversed(traceback.extract_tb(failure.__traceback__)):
        if path := judge.below_site_packages(frame.filename):
            return f"{path}:{frame.lineno} in {frame.name}"
    return None


def main() -> None:
    """Print the report and exit with code 1 if the training failed, else 0 (also if TRL has no such mode)."""
    run_program("Take three steps with this environment's TRL.", observe, engine=ENGINES)


if __name__ == "__main__":
    main()
