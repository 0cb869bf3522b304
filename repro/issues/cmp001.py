"""CMP001: configure unmodified vLLM for a device on a machine where it detects no platform.

If no platform is detected, vLLM falls back to `UnspecifiedPlatform`, whose inherited `is_async_output_supported` raises
`NotImplementedError` with an empty message. Without a named device, vLLM fails earlier ("Failed to infer device type").
TRL 0.14 and 0.15 name a device in their trainer, and so get this error.

A machine without a GPU detects no platform, so nothing is simulated for the failure. For the mitigation
`detect_platform`, metadata name vLLM's CPU build.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from repro import upstream
from repro.base import Trigger, Work, repro
from repro.drivers import stub_model, subprocess_worker

FUNCTION = "is_async_output_supported"
_SETTINGS = {"VLLM_USE_V1": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def make_plan(mitigation: str | None) -> dict[str, Any]:
    """Return the settings of an attempt: the options of EngineArgs, and whether a platform is to be detected."""
    # TRL names the device after those of the trainer. A detected platform accepts only its own device.
    options: dict[str, Any] = {"device": "cpu" if mitigation == "detect_platform" else "cuda:1"}
    if mitigation == "async_output_off":
        options["disable_async_output_proc"] = True
    if mitigation == "unnamed_device":
        options = {}
    return {"options": options, "detected": mitigation == "detect_platform"}


def named_device(mitigation: str | None) -> Work:
    """Configure vLLM in another process, because vLLM detects the platform once, when it is imported."""
    report = subprocess_worker.run_program(__name__, make_plan(mitigation), os.environ | _SETTINGS)
    platform = f"vLLM's platform: {report['platform']}"
    if "failure" in report:
        raise subprocess_worker.make_error(report["failure"], platform)
    configured = ", ".join(f"{name} {value}" for name, value in report["configured"].items())
    note = f"{platform}; {configured}"
    return Work.of_checks({"engine": True}, "configurations are made", note)


# The functions from here to `_configure` run in the other process.
def configure_as_planned(plan: dict[str, Any]) -> dict[str, Any]:
    """Make vLLM's configuration; return the configuration or the failure, and the platform."""
    folder = Path(tempfile.mkdtemp())
    if plan["detected"]:
        _claim_cpu_build(folder / "metadata")
    report: dict[str, Any] = {}
    try:
        report["configured"] = _configure(folder, plan["options"])
    except BaseException as error:  # noqa: BLE001 - every end is a result
        report["failure"] = subprocess_worker.describe_error(error)
    import vllm.platforms

    return report | {"platform": type(vllm.platforms.current_platform).__name__}


def _claim_cpu_build(folder: Path) -> None:
    """Put metadata of a CPU build first on the path, because vLLM chooses the platform by the text of its version."""
    version = f"{metadata.version('vllm')}+cpu"
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    sys.path.insert(0, str(folder))


def _configure(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Call `EngineArgs(...).create_engine_config()`, and return the device and whether async output is on."""
    from vllm.engine.arg_utils import EngineArgs

    stub_model.write_and_register(folder)
    config = EngineArgs(model=str(folder), skip_tokenizer_init=True, **options).create_engine_config()
    return {
        "device": config.device_config.device_type,
        "async output": bool(config.model_config.use_async_output_proc),
    }


def inapplicable() -> str | None:
    """Return the reason why the failure cannot occur with the installed vLLM; None if it can."""
    # EngineArgs of releases up to 0.8.5.post1 have this text; from 0.9.0 on vLLM uses the platform's device.
    return upstream.lacks("vllm/platforms/interface.py", f"def {FUNCTION}") or upstream.lacks(
        "vllm/engine/arg_utils.py", "DeviceConfig(device=self.device)"
    )


repro(
    "CMP001",
    assertion="raise NotImplementedError",
    raises="NotImplementedError",
    function=FUNCTION,
    distributions=("vllm",),
    simulated=(
        "the model under named_device (a registered class that is never made)",
        "under detect_platform, metadata that name vLLM's CPU build",
    ),
    triggers=[Trigger("named_device", named_device)],
    recommended={"other_version": "huggingface/trl#2816"},
    inapplicable=inapplicable,
)

if __name__ == "__main__":
    subprocess_worker.answer_plan(configure_as_planned)
