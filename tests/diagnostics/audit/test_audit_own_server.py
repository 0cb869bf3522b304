"""A live audit against the real process of `python -m grpo_core serve`, which cannot score given ids."""

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
    """A server that holds checkpoint-120."""
    spec = EngineSpec("transformers", str(trained / "checkpoint-120"), 320)
    with closing(ServerProcess(spec, timeout_s=500)) as server:
        yield server


def address_of(own_server):
    return f"http://{own_server.host}:{own_server.port}"


def run_audit(address, token, folder, name="checkpoint-120", **options):
    """Return the audit and its faults with their first values."""
    url = address.replace("//", f"//any:{token}@")
    audit = audit_server(LiveAudit(url, folder / name, timeout_s=500, **options))
    faults = audit.select(FAULT)
    return audit, {item.family: item.estimates[0].value if item.estimates else None for item in faults}


def test_healthy_server_is_clean_and_lists_what_it_cannot_check(own_server, trained, tmp_path):
    (tmp_path / "trainer.json").write_text(json.dumps({"temperature": 0.6}))
    options = {"trainer": tmp_path / "trainer.json"}
    audit, faults = run_audit(address_of(own_server), own_server.token, trained, **options)
    assert (faults, audit.outcome) == ({}, CLEAN)
    assert audit.subject["server"] == "grpo_core serve"
    assert {item.family for item in audit.select(NOT_ASKED)} == {"ids", "weights", "cache", "replicas"}
    assert audit.tokens <= 500


def test_another_temperature_is_named(own_server, trained):
    """A proxy changes it on its way to the server."""
    with proxy.run_proxy(address_of(own_server), Wrong(law={"temperature": 0.83})) as address:
        _, faults = run_audit(address, own_server.token, trained)
    assert faults == {"sampling/temperature": pytest.approx(0.83, abs=0.02)}


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("checkpoint-110", "base")]


@pytest.mark.parametrize("name", ["checkpoint-20", *LONG])
def test_other_weights_are_shown_by_the_samples(own_server, trained, name):
    audit, faults = run_audit(address_of(own_server), own_server.token, trained, name)
    assert faults == {"weights/version": "checkpoint-120"}
    (result,) = audit.select(FAULT)
    assert result.residual < 1e-4 < result.runner_up.residual


def test_unknown_weights_are_not_reported_as_a_temperature(own_server, trained, tmp_path):
    """No checkpoint nearby explains the samples."""
    (tmp_path / "checkpoint-20").symlink_to(trained / "checkpoint-20")
    options = {"against": (trained / "base",)}
    _, faults = run_audit(address_of(own_server), own_server.token, tmp_path, "checkpoint-20", **options)
    assert list(faults) == ["sampling/law"]


def test_missing_key_is_named(own_server, trained, monkeypatch):
    for name in ("VLLM_API_KEY", "GRPO_CORE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AuditError, match="GRPO_CORE_TOKEN"):
        audit_server(LiveAudit(address_of(own_server), trained / "checkpoint-120", timeout_s=500))
