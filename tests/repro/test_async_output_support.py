"""CMP001: requests to vLLM under each mitigation, and the answers of its real configuration code, by cell."""

import json

import pytest

from repro.base import REGISTRY, InapplicableError
from repro.issues import cmp001 as repro
from tests.cells import run_in_cell

# Lines at which `is_async_output_supported` raises in vllm/platforms/interface.py of each release.
LINES = {
    "vllm-0.6.6.post1+trl-0.14.0": 165,
    "vllm-0.7.2+trl-0.15.2": 201,
    "vllm-0.7.3+trl-0.16.1": 204,
    "vllm-0.8.5.post1+trl-0.17.0": 214,
}


def test_a_mitigation_changes_the_options_alone():
    """Async output is an option of the engine; a detected platform is an environment, with its own device."""
    assert repro.make_plan("named_device", None)["options"] == {"device": "cuda:1"}
    off = repro.make_plan("named_device", "async_output_off")
    assert off == {
        "trigger": "named_device",
        "options": {"device": "cuda:1", "disable_async_output_proc": True},
        "detected": False,
    }
    assert repro.make_plan("named_device", "unnamed_device")["options"] == {}
    assert repro.make_plan("named_device", "detect_platform")["detected"]
    assert repro.OPTIONS["named_device"] == {"device": "cuda:1"}


def test_another_release_is_not_tried_from_within_this_one():
    """The mitigation is listed as not tested, with the reason."""
    with pytest.raises(InapplicableError, match="another release"):
        REGISTRY["CMP001"].trigger("named_device").run("other_version")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("config = DeviceConfig(device=self.device)", None),
        ("config = DeviceConfig(device=current_platform.device_type)", "does not pass on a device"),
    ],
)
def test_a_release_that_ignores_the_device_named_is_inapplicable(monkeypatch, arguments, reason):
    """From 0.9 on the empty name of the undetected platform is refused before async output is checked."""
    files = {
        "vllm/platforms/interface.py": f"def {repro.FUNCTION}(): ...",
        "vllm/engine/arg_utils.py": arguments,
    }
    monkeypatch.setattr(repro.upstream, "source", files.get)
    reported = repro.inapplicable()
    assert reported is None if reason is None else reason in reported


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("cell", LINES)
def test_the_question_is_asked_of_an_undetected_platform(cell):
    """In each of these releases; async output off gets past it, and naming no device gets a clear message."""
    done = run_in_cell(
        cell, "-m", "repro", "run", "CMP001", "--trigger", "named_device", "--timeout", "200", "--json"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = {
        result["mitigation"]: result for result in json.loads(done.stdout)["codes"]["CMP001"]["attempts"]
    }
    bare = attempts[None]
    assert (bare["outcome"], bare["function"]) == ("reproduced", repro.FUNCTION)
    assert bare["where"] == f"vllm/platforms/interface.py:{LINES[cell]}"
    assert "UnspecifiedPlatform" in bare["detail"]
    assert attempts["detect_platform"]["outcome"] == "mitigated"
    assert "CpuPlatform" in attempts["detect_platform"]["detail"]
    assert attempts["async_output_off"]["outcome"] == "mitigated"
    assert "UnspecifiedPlatform" in attempts["async_output_off"]["detail"]
    assert attempts["unnamed_device"]["outcome"] == "not_mitigated"
    assert "Failed to infer device type" in attempts["unnamed_device"]["detail"]


@pytest.mark.vllm
@pytest.mark.slow
def test_where_no_device_can_be_named_the_failure_is_inapplicable():
    """vLLM 0.10.2 has the method, and no way to it from the engine's arguments."""
    done = run_in_cell("vllm-0.10.2+trl-0.24.0", "-m", "repro", "run", "CMP001", "--json")
    code = json.loads(done.stdout)["codes"]["CMP001"]
    assert (done.returncode, code["outcome"]) == (0, "inapplicable")
    assert "does not pass on a device" in code["attempts"][0]["detail"]
