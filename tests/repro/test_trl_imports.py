"""CMP002 and CMP003 classify import errors of TRL; the slow test uses real packages if they are installed.

CMP002: TRL imports a name that this vLLM does not have. CMP003: TRL imports a package that is not installed.
"""

import pytest

from repro.base import InapplicableError
from repro.issues import REPROS, trl_imports
from tests.cells import cell_python, read_attempts, repro_beside_trl, run_with

NAME = "ImportError: cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params' (/a/vllm/sampling_params.py)"
GONE = "ModuleNotFoundError: No module named 'vllm.transformers_utils.tokenizer'"
ASCEND = "ModuleNotFoundError: No module named 'vllm_ascend'"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NAME, "CMP002"),
        (GONE, "CMP002"),
        (ASCEND, "CMP003"),
        ("ModuleNotFoundError: No module named 'weave'", "CMP003"),
        ("ModuleNotFoundError: No module named 'torch'", ""),
        ("ImportError: cannot import name 'PreTrainedModel' from 'transformers'", ""),
        ("OSError: libcuda.so.1: cannot open shared object file", ""),
    ],
)
def test_import_error_cause(error, code):
    """The cause is a name that vLLM removed (CMP002), a package that was never installed (CMP003), or neither."""
    assert trl_imports.identify(error) == code


def failed_import(error):
    """Return the report of a failed import."""
    return {"ok": False, "error": error, "where": "/env/trl/scripts/vllm_serve.py:55"}


def test_failure_report_has_location_and_name():
    """The report has the location within the package, without paths of the recording machine."""
    work = trl_imports.judge_import("CMP002", "server", failed_import(NAME))
    assert not work.complete
    assert work.describe() == (
        "0 of 1 modules are imported; trl/scripts/vllm_serve.py:55: "
        "ImportError: cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params'"
    )


def test_success_and_other_issues_are_inapplicable():
    """A success or another issue is inapplicable; an unknown import error is an error of the harness."""
    with pytest.raises(InapplicableError, match="is imported beside"):
        trl_imports.judge_import("CMP002", "trainer", {"ok": True, "error": None, "where": None})
    with pytest.raises(InapplicableError, match="comes first, CMP003"):
        trl_imports.judge_import("CMP002", "trainer", failed_import(ASCEND))
    with pytest.raises(RuntimeError, match="libcuda"):
        trl_imports.judge_import("CMP002", "trainer", failed_import("OSError: libcuda.so.1"))


def test_mitigation_needs_its_release(monkeypatch):
    """Without the other release, the error names the variable that must point to it."""
    monkeypatch.delenv(trl_imports.BESIDE, raising=False)
    with pytest.raises(InapplicableError, match=trl_imports.BESIDE):
        REPROS["CMP002"].trigger("trainer").run("matching_release")


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.heavy
def test_trl_0_28_misreads_a_suffixed_vllm_version():
    """TRL 0.28.0 (in GRPO_DOCTOR_TRL_0_28_0) declares support of vLLM 0.10.2, and can't be imported with it."""
    program = repro_beside_trl(
        "0.28.0", "run", "CMP002", "--trigger", "trainer", "--timeout", "220", "--json"
    )
    done = run_with(cell_python("vllm-0.10.2+trl-0.25.1"), "-c", program, timeout_s=500)
    bare, second = read_attempts(done, "CMP002").values()
    assert bare["outcome"] == "reproduced", bare
    assert "StructuredOutputsParams" in bare["detail"]
    assert second["outcome"] == "inapplicable"
