"""A live audit does not disturb a working server: lowest priority, and none during a weight update."""

import pytest

from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.live.servers import check_awake, identify_server
from diagnostics.audit.results import CLEAN, AuditError, NotAvailableError
from tests.diagnostics.audit.standin import Engine, Wrong, serving


def audited(trained, wrong, **more):
    """The audit of a stand-in, and the stand-in."""
    engine = Engine(trained / "checkpoint-120", "bfloat16", wrong)
    with serving(engine) as url:
        return audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500, **more)), engine


@pytest.mark.parametrize("refused", [False, True])
def test_its_requests_come_last(trained, refused):
    """A trainer's requests have priority 0; a scheduler without priorities is reported once."""
    audit, engine = audited(trained, Wrong(no_priority=refused))
    assert audit.outcome == CLEAN
    hosts = [item for item in engine.priorities if item]
    assert (len(hosts) == 1) is refused
    assert min(hosts) > 0
    assert engine.calls > 10


def test_a_server_between_two_halves_of_an_update_is_left_alone(trained):
    """vLLM's counters show an update that started and did not finish: nothing is sampled or scored."""
    engine = Engine(trained / "checkpoint-120", "float32", Wrong(updating=True))
    with serving(engine) as url, pytest.raises(NotAvailableError, match="being updated"):
        audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500))
    assert engine.priorities == []


def test_weights_that_change_meanwhile_are_no_verdict(trained):
    """If the weights change during the audit, scores and samples come from two policies: no verdict."""
    with pytest.raises(NotAvailableError, match="from 7 to 8 meanwhile"):
        audited(trained, Wrong(versions=["7", "8"]))
    audit, _ = audited(trained, Wrong(versions=["7"]))
    assert audit.outcome == CLEAN


class Told:
    """A client of a server that answers this."""

    address = "http://127.0.0.1:1"

    def __init__(self, **answers):
        self.results = answers

    def try_call(self, path, _=None):
        """Return the answer for a path."""
        return self.results.get(path.strip("/"))


def test_a_server_that_takes_no_ids_is_told_as_one():
    """ms-swift's server also has TRL's paths, but is not TRL's."""
    paths = {"get_world_size": {"world_size": 1}}
    assert identify_server(Told(**paths)).name == "trl vllm-serve"
    with pytest.raises(AuditError, match="takes messages, not ids"):
        identify_server(Told(**paths, get_engine_type={"engine_type": "LLMEngine"}))


COUNT = 'vllm:rl_weight_update_operation_duration_seconds_count{operation="%s"} %s\n'


@pytest.mark.parametrize(
    ("answers", "awake"),
    [
        ({}, True),
        ({"is_paused": {"is_paused": False}, "metrics": "no metrics"}, True),
        ({"is_sleeping": {"is_sleeping": True}}, False),
        ({"metrics": COUNT % ("start", "2.0") + COUNT % ("finish", "2.0")}, True),
        ({"metrics": COUNT % ("start", "2.0") + COUNT % ("finish", "1.0")}, False),
        ({"metrics": 'vllm:rl_weight_update_operations_in_flight{operation="update"} 1.0'}, False),
        ({"metrics": 'vllm:rl_weight_update_operations_in_flight{operation="update"} 0.0'}, True),
    ],
)
def test_what_a_server_says_of_itself(answers, awake):
    """A gauge, two counts, two paths; an older server has none of them."""
    if awake:
        assert check_awake(Told(**answers)) == ""
    else:
        with pytest.raises(NotAvailableError):
            check_awake(Told(**answers))


def test_a_model_name_the_server_does_not_serve_is_refused_with_those_it_does(trained):
    with pytest.raises(AuditError, match=r"--model nobody: .* serves policy"):
        audited(trained, Wrong(), model="nobody")
