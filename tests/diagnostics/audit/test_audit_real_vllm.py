"""A live audit of a real `vllm serve` in bfloat16 is clean if nothing differs.

If the server has another checkpoint or sampling parameter than expected, the audit names it.
The tests are marked `vllm` and `slow`: they start vLLM in a cell.
"""

import pytest

from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.results import CLEAN, FAULT
from evaluation.audit import proxy
from tests.cells import cell_python
from tests.diagnostics.audit.fake_vllm_server import ServerFaults
from tests.processes import free_port
from tests.servers import MAX_MODEL_LEN, serving

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

# vLLM 0.10.2 did not start with this model on a CPU.
CELL = "vllm-0.32.0+trl-1.16.0"


@pytest.fixture(scope="module")
def server_url(trained, tmp_path_factory):
    """Start vLLM with checkpoint-120; yield its address."""
    port = free_port()
    command = [
        str(cell_python(CELL)), "-m", "vllm.entrypoints.openai.api_server",
        f"--model={trained / 'checkpoint-120'}", "--host=127.0.0.1", f"--port={port}", "--dtype=bfloat16",
        "--enforce-eager", f"--max-model-len={MAX_MODEL_LEN}", "--logprobs-mode=processed_logprobs",
        "--max-num-batched-tokens=4096", "--no-enable-chunked-prefill",
    ]  # fmt: skip
    with serving(command, tmp_path_factory.mktemp("serve") / "log", timeout_s=1500):
        yield f"http://127.0.0.1:{port}"


def audit_faults(url, trained, name="checkpoint-120"):
    """Audit the server against a checkpoint; return the audit and the first estimate of each fault."""
    audit = audit_server(url, trained / name, timeout_s=500)
    faults = audit.select(FAULT)
    return audit, {item.family: item.estimates[0].value if item.estimates else None for item in faults}


def test_healthy_server_is_clean_and_another_checkpoint_is_named(server_url, trained):
    """Only the cache and the settings may stay unchecked."""
    audit, faults = audit_faults(server_url, trained)
    assert (faults, audit.outcome) == ({}, CLEAN)
    assert {item.family for item in audit.select("not_asked")} <= {"cache", "settings"}
    _, faults = audit_faults(server_url, trained, "checkpoint-110")
    assert faults == {"weights/version": "checkpoint-120"}


@pytest.mark.parametrize(
    ("name", "value", "tolerance"),
    [("temperature", 0.77, 0.02), ("top_p", 0.873, 0.005), ("repetition_penalty", 1.13, 0.01)],
)
def test_other_sampling_parameter_is_named(server_url, trained, name, value, tolerance):
    """A proxy changes the sampling parameter between client and engine; the audit estimates its value."""
    with proxy.run_proxy(server_url, ServerFaults(sampling={name: value})) as url:
        _, faults = audit_faults(url, trained)
    assert list(faults) == [f"sampling/{name}"]
    assert faults[f"sampling/{name}"] == pytest.approx(value, abs=tolerance)
