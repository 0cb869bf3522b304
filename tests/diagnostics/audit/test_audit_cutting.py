"""An engine whose kernels cut 16 bits off is not one of other weights; what else is wrong with it is told as ever."""

import pytest

from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.live.truncation_error import TRUNCATED
from diagnostics.audit.model import CLEAN, FAULT
from tests.diagnostics.audit.standin import Engine, Wrong, serving


def audited(trained, folder="checkpoint-120", **law):
    """The audit, and by what type the weights were judged."""
    with serving(Engine(trained / folder, "bfloat16", Wrong(cut=True, law=law))) as url:
        found = audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500))
    weights = next(each for each in found.results if each.family.partition("/")[0] == "weights")
    return found, next(each.values["dtype"] for each in weights.evidence if each.name == "type")


def test_numbers_that_are_cut_off_are_clean(trained):
    """And said to be, with the same floor as of numbers that are rounded."""
    found, dtype = audited(trained)
    assert (found.outcome, dtype) == (CLEAN, TRUNCATED)


@pytest.mark.long
def test_an_older_checkpoint_is_named_there_and_a_temperature_beside_it(trained):
    """What is cut off hides neither."""
    found, dtype = audited(trained, "checkpoint-110", temperature=0.77)
    told = {each.family: each.estimates[0].value for each in found.select(FAULT)}
    assert told.keys() == {"weights/version", "sampling/temperature"}
    assert told["weights/version"] == "checkpoint-110"
    assert told["sampling/temperature"] == pytest.approx(0.77, abs=0.02)
    assert dtype == TRUNCATED
