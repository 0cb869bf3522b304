"""Does the GRPOTrainer of this environment's TRL take steps? Nothing of it is replaced.

    python -m repro.questions.trl_steps alone|vllm [--json]

`alone`: TRL samples with transformers. `vllm`: with vLLM in its own process, `vllm_mode="colocate"`; where TRL has no
such mode, it says so. A tiny random model, three steps, which count when the weights moved. What it raises goes on
record word for word, with the line of the installed packages that raised it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from typing import Any

from repro import upstream
from repro.drivers import tiny_trl, whole_engine
from repro.drivers.scratch import scratch

SCHEMA = "grpo-doctor.peer.v1"
STEPS, LENGTH = 3, 8
ENGINES = ("alone", "vllm")
# As TRL logs them, of each step.
LOGGED = ("loss", "reward", "kl", "sampling/sampling_logp_difference/mean")


def observe(engine: str) -> dict[str, Any]:
    """Trains for three steps.

    Args:
        engine: One of ENGINES.

    Returns:
        The document of `--json`; `outcome` is `ok`, `failed` or `not_run`, the last two with `error`.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "engine": engine, "steps": 0, "error": None, "where": None}
    try:
        missing = _without_colocation() if engine == "vllm" else None
        if missing is None:
            document |= _trained(engine)
        outcome = "ok" if missing is None else "not_run"
        error = missing or _unsound(document)
        document |= {"outcome": "failed" if error and not missing else outcome, "error": error}
    except Exception as failure:  # noqa: BLE001 - whatever it is goes on record
        traceback.print_exc()
        document |= {"outcome": "failed", "error": f"{type(failure).__name__}: {failure}"}
        document["where"] = _where(failure)
    return document | {"versions": upstream.versions()}


def _without_colocation() -> str | None:
    """Says why this TRL does not sample with vLLM in its own process, or None."""
    known = _known()
    if "vllm_mode" in known:
        return None
    # TRL 0.16 and 0.17 still have the setting of before, and no use for it.
    if "vllm_server_host" in known:
        return "this TRL samples with vLLM on a server alone, which takes weights by NCCL: not without GPUs"
    return "this TRL gives vLLM a GPU of its own (vllm_device); there is none"


def _known() -> set[str]:
    """Returns the names of this TRL's settings."""
    from trl import GRPOConfig

    return {field.name for field in dataclasses.fields(GRPOConfig)}


def _trained(engine: str) -> dict[str, Any]:
    """Runs the trainer; returns what it logged, and by how much the weights moved."""
    import transformers

    class Quiet(transformers.TrainerCallback):  # type: ignore[misc] # transformers is looked into in cells alone
        """Does nothing."""

    held, settings = _settings(engine)
    made = tiny_trl.trainer(_reward, Quiet(), held=held, **settings)
    before = [parameter.detach().clone() for parameter in made.model.parameters()]
    began = time.monotonic()
    made.train()
    pairs = zip(before, made.model.parameters(), strict=True)
    moved = max(float((old - new.detach()).abs().max()) for old, new in pairs)
    logged = [entry for entry in made.state.log_history if "loss" in entry]
    return {
        "steps": made.state.global_step,
        "seconds": round(time.monotonic() - began, 1),
        "moved": moved,
        "logged": {name: [entry[name] for entry in logged] for name in LOGGED if _has(logged, name)},
        "simulated": [],
    }


def _settings(engine: str) -> tuple[Any, dict[str, Any]]:
    """Returns the model to train, None for the tiny one as it is made, and settings of `GRPOConfig`."""
    settings: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": LENGTH,
        "learning_rate": 0.01,
        "logging_strategy": "steps",
        "logging_steps": 1,
    }
    if engine == "alone":
        return None, settings
    # What a CPU asks of any vLLM; of TRL and vLLM themselves nothing is changed.
    os.environ.update(whole_engine.environment() | {"VLLM_USE_AOT_COMPILE": "0"})
    held = _from_folder()
    settings |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
    # By default TRL asks for more than the tiny model can hold; which of the two there is depends on the release.
    sizes = {"max_prompt_length": 16, "vllm_max_model_length": 64}
    settings |= {name: value for name, value in sizes.items() if name in _known()}
    return held, settings


def _from_folder() -> Any:
    """Returns the tiny model, loaded from a folder, from which vLLM loads it too."""
    from transformers import AutoModelForCausalLM

    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    tiny_trl.model().save_pretrained(folder, safe_serialization=True)
    tiny_trl.tokenizer().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).float()


def _reward(completions: Sequence[str], **_: Any) -> list[float]:
    """Tells completions of one group apart: TRL's own advantages are zero where all rewards are equal."""
    return [text.count("a") - len(text) / 7 + len(set(text)) for text in completions]


def _has(logged: Sequence[dict[str, Any]], name: str) -> bool:
    return bool(logged) and all(name in entry for entry in logged)


def _unsound(document: dict[str, Any]) -> str | None:
    """Says why what was done is no training, or None."""
    losses = document["logged"].get("loss", [])
    if document["steps"] != STEPS or len(losses) != STEPS:
        return f"{document['steps']} steps with {len(losses)} losses, where {STEPS} were asked for"
    if not all(map(math.isfinite, losses)):
        return f"the losses {losses} are not finite"
    return None if document["moved"] > 0 else "the weights did not move"


def _where(failure: BaseException) -> str | None:
    """Returns `file:line in function` of the last frame within an installed package."""
    for frame in reversed(traceback.extract_tb(failure.__traceback__)):
        _, found, below = frame.filename.rpartition("site-packages/")
        if found:
            return f"{below}:{frame.lineno} in {frame.name}"
    return None


def main() -> int:
    """Prints what was observed; 0: steps were taken, or there is no such mode; 1: not."""
    parser = argparse.ArgumentParser(description="Take three steps with this environment's TRL.")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is not the answer
    with scratch():
        document = observe(options.engine)
    said = f"{document['steps']} steps" if document["outcome"] == "ok" else document["error"]
    print(json.dumps(document) if options.json else f"TRL, {options.engine}: {said}", file=answer)
    answer.close()
    sys.stderr.flush()
    # vLLM's threads and TRL's process groups outlive main in some releases; the answer is out.
    os._exit(1 if document["outcome"] == "failed" else 0)


if __name__ == "__main__":
    main()
