"""CMP001: vLLM runs on a platform it did not detect, and asks it whether it supports asynchronous output.

Where no platform is detected, vLLM falls back to `UnspecifiedPlatform`, whose `is_async_output_supported` is that of
the base class and only raises `NotImplementedError`, with an empty message. Whoever names no device is told so before
("Failed to infer device type"). Whoever does, as TRL 0.14 and 0.15 do in their trainer, gets past that and falls here.

A machine without a GPU is one where nothing is detected: nothing has to be arranged for this failure. What is arranged
is one of its mitigations: a detected platform is had by metadata that name vLLM's CPU build.
"""

from __future__ import annotations

import os
from functools import partial
from importlib import metadata
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers import elsewhere

ASSERTION = "raise NotImplementedError"
FUNCTION = "is_async_output_supported"
_PLATFORM = "vllm/platforms/interface.py"
_ARGUMENTS = "vllm/engine/arg_utils.py"
# With one GPU left to vLLM, TRL names the next device: cuda:1. Without any GPU it refuses that by itself; with a device
# that is named in its settings it goes on.
OPTIONS = {"named_device": {"device": "cuda:1"}, "trl_trainer": {"vllm_device": "cpu"}}
_SETTINGS = {"VLLM_USE_V1": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def planned(trigger: str, mitigation: str | None) -> dict[str, Any]:
    """Returns what the other process is asked to do.

    Raises:
        InapplicableError: the mitigation can't be tried here, or does not apply.
    """
    options: dict[str, Any] = dict(OPTIONS[trigger])
    if mitigation == "other_version":
        raise InapplicableError("it is another release: run this there")
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
    plan = planned(trigger, mitigation)
    report = elsewhere.ask("repro.drivers.configured", plan, os.environ | _SETTINGS)
    if "inapplicable" in report:
        raise InapplicableError(report["inapplicable"])
    platform = f"vLLM's platform: {report['platform']}"
    if "failure" in report:
        raise elsewhere.failed(report["failure"], platform)
    made = ", ".join(f"{name} {value}" for name, value in report["configured"].items())
    return Work({"engine": 1}, [("engine", 1)], note=f"{platform}; {made}", nouns=("configurations", "made"))


def inapplicable() -> str | None:
    """Says which piece of the failure the installed vLLM lacks; None if all are there."""
    distribution = upstream.installed(upstream.VLLM)
    release = f"{distribution.metadata['Name']} {distribution.version}" if distribution else "vLLM"
    text = upstream.source(_PLATFORM)
    if text is None or f"def {FUNCTION}" not in text:
        return f"{_PLATFORM} of {release} has no {FUNCTION}"
    # Up to 0.8.5.post1; from 0.9.0 on the device is that of the platform, and the field is read by nobody.
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
    inapplicable=inapplicable,
)
