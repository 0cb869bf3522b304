"""CMP001: vLLM runs on a platform it did not detect, and asks it whether it supports asynchronous output.

Where no platform is detected, vLLM falls back to `UnspecifiedPlatform`, whose `is_async_output_supported` is that of
the base class and only raises `NotImplementedError`, with an empty message. Without a device vLLM reports that before
("Failed to infer device type"). Whoever does, as TRL 0.14 and 0.15 do in their trainer, gets past that and falls here.

A machine without a GPU is one where nothing is detected: nothing has to be arranged for this failure. What is arranged
is one of its mitigations: a detected platform is had by metadata that name vLLM's CPU build.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from repro import upstream
from repro.base import OTHER_RELEASE, InapplicableError, Trigger, Work, repro
from repro.drivers import elsewhere, tiny_trl

ASSERTION = "raise NotImplementedError"
FUNCTION = "is_async_output_supported"
_PLATFORM = "vllm/platforms/interface.py"
_ARGUMENTS = "vllm/engine/arg_utils.py"
# With one GPU left to vLLM, TRL names the next device: cuda:1. Without any GPU it refuses that by itself; with a device
# that is named in its settings it goes on.
OPTIONS = {"named_device": {"device": "cuda:1"}, "trl_trainer": {"vllm_device": "cpu"}}
_SETTINGS = {"VLLM_USE_V1": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def make_plan(trigger: str, mitigation: str | None) -> dict[str, Any]:
    """Return what the other process is asked to do.

    Raises:
        InapplicableError: the mitigation can't be tried here, or does not apply.
    """
    options: dict[str, Any] = dict(OPTIONS[trigger])
    if trigger == "trl_trainer":
        if mitigation:
            raise InapplicableError("past the configuration the trainer needs the device; see named_device")
        _require_trl()
    if mitigation == "async_output_off":
        options["disable_async_output_proc"] = True
    if mitigation == "unnamed_device":
        options = {}
    if mitigation == "detect_platform":
        options["device"] = "cpu"  # a platform that is detected takes its own device alone
    return {"trigger": trigger, "options": options, "detected": mitigation == "detect_platform"}


def _require_trl() -> None:
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:
        raise InapplicableError("TRL is not installed here") from None
    text = upstream.source("trl/trainer/grpo_trainer.py", ("trl",)) or ""
    if "device=vllm_device" not in text:
        raise InapplicableError(f"the trainer of TRL {version} does not name vLLM's device")


def _carry_out(trigger: str, mitigation: str | None) -> Work:
    plan = make_plan(trigger, mitigation)
    report = elsewhere.run_program("repro.issues.cmp001", plan, os.environ | _SETTINGS)
    if "inapplicable" in report:
        raise InapplicableError(report["inapplicable"])
    platform = f"vLLM's platform: {report['platform']}"
    if "failure" in report:
        raise elsewhere.failed(report["failure"], platform)
    built = ", ".join(f"{name} {value}" for name, value in report["configured"].items())
    return Work({"engine": 1}, [("engine", 1)], note=f"{platform}; {built}", nouns=("configurations", "made"))


# The other process: vLLM detects the platform once, when it is imported.
# One layer of nothing: the configuration is all that is made of it.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# vLLM inspects a model's class in another process, where an old release may not import with today's PyTorch. A
# class that is registered is looked into at once.
STUB = "ConfiguredOnlyForCausalLM"


def configure_as_planned(plan: dict[str, Any]) -> dict[str, Any]:
    """Make vLLM's configuration in this process by the plan.

    Args:
        plan: `trigger`; `options` for EngineArgs or LLM; `detected`: vLLM is made to think it is its CPU build.
    """
    folder = Path(tempfile.mkdtemp())
    if plan["detected"]:
        _claim_cpu_build(folder / "metadata")
    report: dict[str, Any] = {}
    try:
        if plan["trigger"] == "trl_trainer":
            unable = _patched_by_trl()
            if unable:
                return {"inapplicable": unable}
            _train(folder, plan["options"])
            report["configured"] = {}
        else:
            report["configured"] = _configure(folder, plan["options"])
    except BaseException as error:  # noqa: BLE001 - every end is a result
        report["failure"] = elsewhere.describe_error(error)
    import vllm.platforms

    return report | {"platform": type(vllm.platforms.current_platform).__name__}


def _patched_by_trl() -> str | None:
    """Return why the module that TRL 0.14 and 0.15 patch before they make the engine can't be imported, or None."""
    try:
        importlib.import_module("vllm.worker.worker")
    except ImportError as error:
        return f"the trainer patches vllm.worker.worker first, which can't be imported here: {error}"
    return None


def _claim_cpu_build(folder: Path) -> None:
    """Put metadata before the wheel's own that name a CPU build: vLLM takes its platform from that version's text."""
    version = f"{metadata.version('vllm')}+cpu"
    result = folder / f"vllm-{version}.dist-info"
    result.mkdir(parents=True)
    (result / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    sys.path.insert(0, str(folder))


def _configure(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Call `EngineArgs(...).create_engine_config()`, and report what came out."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import ModelRegistry

    _write_model(folder, STUB)
    ModelRegistry.register_model(STUB, _stub())
    config = EngineArgs(model=str(folder), skip_tokenizer_init=True, **options).create_engine_config()
    return {
        "device": config.device_config.device_type,
        "async output": bool(config.model_config.use_async_output_proc),
    }


def _write_model(folder: Path, architecture: str) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | {"architectures": [architecture]}))


def _stub() -> type:
    """Return a class that vLLM takes for a model that generates text."""
    from torch import nn

    class ConfiguredOnly(nn.Module):  # type: ignore[misc] # PyTorch is looked into in cells alone
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()
            del vllm_config, prefix

        def forward(
            self, input_ids: Any, positions: Any, kv_caches: Any = None, attn_metadata: Any = None
        ) -> Any:
            raise NotImplementedError

        def compute_logits(self, hidden_states: Any, sampling_metadata: Any) -> Any:
            raise NotImplementedError

        def sample(self, logits: Any, sampling_metadata: Any) -> Any:
            raise NotImplementedError

        def load_weights(self, weights: Any) -> Any:
            raise NotImplementedError

    return ConfiguredOnly


def _train(folder: Path, options: dict[str, Any]) -> None:
    """Make TRL's trainer; in 0.14 and 0.15 it makes vLLM's engine in its constructor."""
    os.environ["VLLM_USE_V1"] = "0"
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = tiny_trl.tokenizer("ab")
    tokenizer.save_pretrained(folder)
    LlamaForCausalLM(LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"})).save_pretrained(
        folder
    )
    settings = GRPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, use_vllm=True, report_to=[], bf16=False, **options
    )
    GRPOTrainer(
        model=str(folder),
        args=settings,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["a b"] * 8}),
    )


def inapplicable() -> str | None:
    """Return which piece of the failure the installed vLLM lacks; None if all are there."""
    distribution = upstream.installed(upstream.VLLM)
    release = f"{distribution.metadata['Name']} {distribution.version}" if distribution else "vLLM"
    text = upstream.source(_PLATFORM)
    if text is None or f"def {FUNCTION}" not in text:
        return f"{_PLATFORM} of {release} has no {FUNCTION}"
    # Up to 0.8.5.post1; from 0.9.0 on the device is that of the platform, and the field is unused.
    if "DeviceConfig(device=self.device)" not in (upstream.source(_ARGUMENTS) or ""):
        return f"EngineArgs of {release} does not pass on a device that is named: DeviceConfig fails before"
    return None


repro(
    "CMP001",
    assertion=ASSERTION,
    raises="NotImplementedError",
    function=FUNCTION,
    distributions=("vllm",),
    simulated=(
        "the model under named_device (a registered class that is never made)",
        "under detect_platform, metadata that name vLLM's CPU build",
    ),
    triggers=[
        Trigger("named_device", partial(_carry_out, "named_device")),
        Trigger(
            "trl_trainer",
            partial(_carry_out, "trl_trainer"),
            about="TRL's GRPOTrainer with use_vllm and vllm_device='cpu', no platform detected",
        ),
    ],
    mitigations={
        "detect_platform": "vLLM detects a platform, and its device is named",
        "other_version": ("a vLLM that detects the platform another way", "huggingface/trl#2816"),
        "async_output_off": "disable_async_output_proc=True",
        "unnamed_device": "no device named: the state is the same, its message is clear",
    },
    untried=dict.fromkeys(("other_version",), OTHER_RELEASE),
    inapplicable=inapplicable,
)

if __name__ == "__main__":
    elsewhere.answer_plan(configure_as_planned)
