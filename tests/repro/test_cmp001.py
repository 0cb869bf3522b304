"""CMP001 has a plan for each mitigation, and reproduces with vLLM's real configuration code in each cell.

CMP001: vLLM checks async output on a platform that it did not detect.
"""

import json

import pytest

from repro.issues import cmp001 as repro
from tests.cells import attempts_in_cell, run_in_cell

# Lines at which `is_async_output_supported` raises in vllm/platforms/interface.py of each release.
LINES = {
    "vllm-0.6.6.post1+trl-0.14.0": 165,
    "vllm-0.7.2+trl-0.15.2": 201,
    "vllm-0.7.3+trl-0.16.1": 204,
    "vllm-0.8.5.post1+trl-0.17.0": 214,
}


def test_mitigation_changes_one_option_or_the_environment():
    """A mitigation changes an engine option, or makes vLLM detect a platform."""
    assert repro.make_plan(None) == {"options": {"device": "cuda:1"}, "detected": False}
    off = {"device": "cuda:1", "disable_async_output_proc": True}
    assert repro.make_plan("async_output_off") == {"options": off, "detected": False}
    assert repro.make_plan("unnamed_device")["options"] == {}
    assert repro.make_plan("detect_platform") == {"options": {"device": "cpu"}, "detected": True}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("config = DeviceConfig(device=self.device)", None),
        ("config = DeviceConfig(device=current_platform.device_type)", "does not pass on a device"),
    ],
)
def test_release_that_ignores_the_device_is_inapplicable(monkeypatch, arguments, reason):
    """A release that does not pass the device option on is inapplicable."""
    files = {
        "vllm/platforms/interface.py": f"def {repro.FUNCTION}(): ...",
        "vllm/engine/arg_utils.py": arguments,
    }
    monkeypatch.setattr(repro.upstream, "source", files.get)
    result = repro.inapplicable()
    assert result is None if reason is None else reason in result


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("cell", LINES)
def test_undetected_platform_fails_in_each_release(cell):
    """The failure occurs in each release; async output off or a detected platform helps, no device name does not."""
    attempts = attempts_in_cell(cell, "CMP001", "--timeout", "200")
    bare, detected, off, unnamed = (
        attempts["named_device", name]
        for name in (None, "detect_platform", "async_output_off", "unnamed_device")
    )
    assert (bare["outcome"], bare["function"]) == ("reproduced", repro.FUNCTION)
    assert bare["where"] == f"vllm/platforms/interface.py:{LINES[cell]}"
    assert "UnspecifiedPlatform" in bare["detail"]
    assert detected["outcome"] == off["outcome"] == "mitigated"
    assert "CpuPlatform" in detected["detail"]
    assert "UnspecifiedPlatform" in off["detail"]
    assert unnamed["outcome"] == "not_mitigated"
    assert "Failed to infer device type" in unnamed["detail"]


@pytest.mark.vllm
@pytest.mark.slow
def test_release_without_a_device_option_is_inapplicable():
    """In vLLM 0.10.2 the repro is inapplicable: the method exists, but no engine argument reaches it."""
    done = run_in_cell("vllm-0.10.2+trl-0.24.0", "-m", "repro", "run", "CMP001", "--json")
    code = json.loads(done.stdout)["codes"]["CMP001"]
    assert (done.returncode, code["outcome"]) == (0, "inapplicable")
    assert "does not pass on a device" in code["attempts"][0]["detail"]
