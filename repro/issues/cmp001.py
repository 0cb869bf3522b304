"""CMP001: configure unmodified vLLM for a device on a machine where vLLM detects no platform.

From vLLM 0.6.5 to 0.8.5.post1, if no platform is detected and a device is named, vLLM calls the method
`is_async_output_supported` that `UnspecifiedPlatform` inherits. It raises `NotImplementedError` with an empty message.
Without a named device, vLLM fails earlier ("Failed to infer device type"). TRL 0.14 and 0.15 name a device in their
trainer, and so get this error.

vLLM detects no platform on a machine without a GPU, so the failure needs no simulated part except the model. For the
mitigation `detect_platform`, metadata name vLLM's CPU build.
"""

import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from repro import upstream
from repro.drivers import stub_model
from repro.registry import Tally, Trigger, UpstreamFailureError, repro

FUNCTION = "is_async_output_supported"
_SETTINGS = {"VLLM_USE_V1": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def _configure_device(mitigation: str | None) -> Tally:
    """Configure vLLM with a named device; return a tally of one configuration."""
    os.environ.update(_SETTINGS)
    folder = Path(tempfile.mkdtemp())
    # TRL names the device after those of the trainer.
    options: dict[str, Any] = {"device": "cuda:1"}
    if mitigation == "async_output_off":
        options["disable_async_output_proc"] = True
    elif mitigation == "unnamed_device":
        options = {}
    elif mitigation == "detect_platform":
        options = {"device": "cpu"}  # a detected platform accepts only its own device
        _claim_cpu_build(folder / "metadata")
    try:
        from vllm.engine.arg_utils import EngineArgs

        stub_model.write_and_register(folder)
        config = EngineArgs(model=str(folder), skip_tokenizer_init=True, **options).create_engine_config()
    except Exception as error:
        raise UpstreamFailureError.from_exception(error, _platform()) from error
    asynchronous = bool(config.model_config.use_async_output_proc)
    note = f"{_platform()}; device {config.device_config.device_type}, async output {asynchronous}"
    return Tally.of_checks({"engine": True}, "configurations are made", note)


def _platform() -> str:
    import vllm.platforms

    return f"vLLM's platform: {type(vllm.platforms.current_platform).__name__}"


def _claim_cpu_build(folder: Path) -> None:
    """Put metadata of a CPU build first on the path: vLLM reads its version, and chooses the platform by it."""
    version = f"{metadata.version('vllm')}+cpu"
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    sys.path.insert(0, str(folder))


def inapplicable_reason() -> str | None:
    """Return the reason why the failure cannot occur with the installed vLLM; None if it can."""
    # EngineArgs of releases up to 0.8.5.post1 have this text; from 0.9.0 on vLLM uses the platform's device.
    return upstream.explain_missing_code(
        "vllm/platforms/interface.py", f"def {FUNCTION}"
    ) or upstream.explain_missing_code("vllm/engine/arg_utils.py", "DeviceConfig(device=self.device)")


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
    triggers=[Trigger("named_device", _configure_device)],
    inapplicable_reason=inapplicable_reason,
)
