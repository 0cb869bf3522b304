"""An audit never takes more tokens than allowed, and names what it takes at least."""

import pytest

from diagnostics.__main__ import main
from diagnostics.audit.live.probe_inputs import MIN_TOKENS, Budget
from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.results import FAULT, AuditError
from tests.diagnostics.audit.standin import Engine, serving


def test_least_number_of_tokens_is_never_exceeded(trained):
    """With wrong weights, which take a second comparison if tokens are left."""
    with serving(Engine(trained / "base", "bfloat16")) as url:
        audit = audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500, tokens=MIN_TOKENS))
        with pytest.raises(AuditError, match=r"this audit takes \d+ at least"):
            audit_server(LiveAudit(url, trained / "checkpoint-120", (), None, (url,) * 9, MIN_TOKENS, 500.0))
    assert audit.tokens <= MIN_TOKENS
    assert [item.family for item in audit.select(FAULT)] == ["weights/version"]


def test_more_tokens_than_usual_are_more_for_what_was_not_decided():
    usual, more = Budget(4000, 256), Budget(12000, 256)
    assert more.sampling >= 3 * usual.sampling
    assert more.second(0) >= 3 * usual.second(0)
    assert more.first == usual.first


def test_budget_below_the_minimum_is_refused_in_one_line(capsys):
    """Before the server is contacted."""
    options = ["--server", "http://127.0.0.1:9", "--checkpoint", "nowhere", f"--tokens={MIN_TOKENS - 1}"]
    assert main(["audit", *options]) == 2
    assert str(MIN_TOKENS) in capsys.readouterr().err
