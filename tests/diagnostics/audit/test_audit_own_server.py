"""A live audit against the real process of `python -m grpo_core serve`, which samples and scores nothing."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.results import CLEAN, FAULT, NOT_ASKED, AuditError
from grpo_core.rollout.build import EngineSpec
from grpo_core.rollout.server.process import ServerProcess
from tests.diagnostics.audit import proxy
from tests.diagnostics.audit.standin import Wrong


@pytest.fixture(scope="module")
def own_server(trained):
    """One that holds checkpoint-120; its address with its key."""
    with closing(
        ServerProcess(EngineSpec("transformers", str(trained / "checkpoint-120"), 320), timeout_s=500)
    ) as up:
        yield up


def audited(address, token, trained, name="checkpoint-120", **asked):
    audit = audit_server(
        LiveAudit(address.replace("//", f"//any:{token}@"), trained / name, timeout_s=500, **asked)
    )
    return audit, {
        item.family: item.estimates[0].value if item.estimates else None for item in audit.select(FAULT)
    }


def address_of(own_server):
    return f"http://{own_server.host}:{own_server.port}"


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_nothing_wrong_is_clean_as_far_as_asked(own_server, trained, tmp_path, temperature):
    """For any trainer temperature; impossible checks are listed with what they need."""
    (tmp_path / "trainer.json").write_text(json.dumps({"temperature": temperature}))
    audit, faults = audited(
        address_of(own_server), own_server.token, trained, trainer=tmp_path / "trainer.json"
    )
    assert (faults, audit.outcome) == ({}, CLEAN)
    assert audit.subject["server"] == "grpo_core serve"
    assert {item.family for item in audit.select(NOT_ASKED)} == {"ids", "weights", "cache", "replicas"}
    assert audit.tokens <= 500


def test_another_temperature_is_named(own_server, trained):
    """On its way from the audit to the server it becomes another."""
    with proxy.between(address_of(own_server), Wrong(law={"temperature": 0.83})) as address:
        _, faults = audited(address, own_server.token, trained)
    assert faults == {"sampling/temperature": pytest.approx(0.83, abs=0.02)}


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint-20",
        *(pytest.param(single, marks=pytest.mark.long) for single in ("checkpoint-110", "base")),
    ],
)
def test_other_weights_are_told_by_the_samples(own_server, trained, name):
    """The server holds checkpoint-120; where that is a neighbour of the trainer's checkpoint, it is named."""
    audit, faults = audited(address_of(own_server), own_server.token, trained, name)
    assert faults == {"weights/version": "checkpoint-120"}
    (answer,) = audit.select(FAULT)
    assert answer.residual < 1e-4 < answer.runner_up.residual


def test_without_its_key_it_says_what_is_missing(own_server, trained, monkeypatch):
    """In one line, with the variable's name."""
    for name in ("VLLM_API_KEY", "GRPO_CORE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AuditError, match="GRPO_CORE_TOKEN"):
        audit_server(LiveAudit(address_of(own_server), trained / "checkpoint-120", timeout_s=500))


def test_unknown_weights_are_not_reported_as_a_temperature(own_server, trained, tmp_path):
    """No checkpoint near explains the samples."""
    (tmp_path / "checkpoint-20").symlink_to(trained / "checkpoint-20")
    address = address_of(own_server)
    _, faults = audited(address, own_server.token, tmp_path, "checkpoint-20", against=(trained / "base",))
    assert list(faults) == ["sampling/law"]
