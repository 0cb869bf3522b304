"""The token budget is never exceeded, and tests that were left out are reported."""

import pytest

from diagnostics.__main__ import main
from diagnostics.audit.live.probe_inputs import MIN_TOKENS, Budget
from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.results import FAULT
from tests.diagnostics.audit.standin import Engine, serving


@pytest.mark.parametrize(
    "tokens", [MIN_TOKENS, *(pytest.param(so_many, marks=pytest.mark.long) for so_many in (700, 1000)), 1499]
)
def test_few_tokens_are_never_exceeded(trained, tokens):
    """With weights that are wrong, which is looked at twice."""
    with serving(Engine(trained / "base", "bfloat16")) as url:
        audit = audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500, tokens=tokens))
    assert audit.tokens <= tokens
    assert [item.family for item in audit.select(FAULT)] == ["weights/version"]


def test_what_is_said_to_be_enough_is():
    """For each length of a call, and with other servers."""
    for longest in (40, 128, 256):
        for replicas in (0, 3):
            few = Budget(MIN_TOKENS, longest, replicas)
            assert (few.replica_calls, few.cache_prompts) == (0, 0)
            more = Budget(few.needed_for_all, longest, replicas)
            assert more.replica_calls > 0
            assert more.cache_prompts == 1


def test_more_tokens_than_usual_are_more_for_what_was_not_decided():
    """Else the advice would lead nowhere."""
    usual, more = Budget(4000, 256), Budget(12000, 256)
    assert more.sampling >= 3 * usual.sampling
    assert more.second(0) >= 3 * usual.second(0)
    assert more.first == usual.first


def test_a_budget_below_the_minimum_is_refused_in_one_line(capsys):
    """Before the server is contacted."""
    options = ["--server", "http://127.0.0.1:9", "--checkpoint", "nowhere", f"--tokens={MIN_TOKENS - 1}"]
    assert main(["audit", *options]) == 2
    assert str(MIN_TOKENS) in capsys.readouterr().err
