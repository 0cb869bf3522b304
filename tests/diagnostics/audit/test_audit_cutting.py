"""Kernels that truncate to 16 bits do not look like other weights, and other faults are still reported."""

import pytest

from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.live.reference import TRUNCATED
from diagnostics.audit.results import CLEAN, FAULT
from tests.diagnostics.audit.standin import Engine, Wrong, serving


def audited(trained, folder="checkpoint-120", **law):
    """The audit, and by what type the weights were judged."""
    with serving(Engine(trained / folder, "bfloat16", Wrong(cut=True, law=law))) as url:
        audit = audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500))
    weights = next(item for item in audit.results if item.family.partition("/")[0] == "weights")
    return audit, next(item.values["dtype"] for item in weights.evidence if item.name == "type")


def test_numbers_that_are_cut_off_are_clean(trained):
    """They are reported as truncated, with the same noise floor as rounded numbers."""
    audit, dtype = audited(trained)
    assert (audit.outcome, dtype) == (CLEAN, TRUNCATED)


@pytest.mark.long
def test_an_older_checkpoint_is_named_there_and_a_temperature_beside_it(trained):
    """Truncated numbers hide neither an older checkpoint nor a different temperature."""
    audit, dtype = audited(trained, "checkpoint-110", temperature=0.77)
    reported = {item.family: item.estimates[0].value for item in audit.select(FAULT)}
    assert reported.keys() == {"weights/version", "sampling/temperature"}
    assert reported["weights/version"] == "checkpoint-110"
    assert reported["sampling/temperature"] == pytest.approx(0.77, abs=0.02)
    assert dtype == TRUNCATED
