"""A live audit stays within its token budget, yields to the trainer, and refuses servers that it cannot audit."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnostics.__main__ import main
from diagnostics.audit.live import probe_plan, servers
from diagnostics.audit.live.probe_inputs import MIN_TOKENS, Budget
from diagnostics.audit.live.probe_plan import audit_server
from diagnostics.audit.live.servers import Server, check_awake
from diagnostics.audit.results import CLEAN, FAULT, AuditError, NotAvailableError
from tests.diagnostics.audit.standin import Engine, ServerFaults, serving


@pytest.fixture(scope="module")
def url(trained):
    """Start a healthy fake server; yield its address."""
    with serving(Engine(trained / "checkpoint-120", "float32", ServerFaults(versions=["7"]))) as address:
        yield address


def test_minimum_token_budget_is_never_exceeded(trained):
    """ServerFaults weights lead to a second comparison, which also stays within the budget."""
    with serving(Engine(trained / "base", "bfloat16")) as address:
        audit = audit_server(address, trained / "checkpoint-120", timeout_s=500, tokens=MIN_TOKENS)
    assert audit.tokens <= MIN_TOKENS
    assert [item.family for item in audit.select(FAULT)] == ["weights/version"]


def test_extra_tokens_go_to_sampling_and_the_second_comparison():
    default, larger = Budget(4000, 256), Budget(12000, 256)
    assert larger.sampling >= 3 * default.sampling
    assert larger.second_comparison(0) >= 3 * default.second_comparison(0)
    assert larger.first_comparison == default.first_comparison


def test_too_small_token_budget_is_refused_with_the_minimum(capsys):
    options = ["--server", "http://127.0.0.1:9", "--checkpoint", "nowhere", f"--tokens={MIN_TOKENS - 1}"]
    assert main(["audit", *options]) == 2
    assert str(MIN_TOKENS) in capsys.readouterr().err


@pytest.mark.parametrize("refused", [False, True])
def test_requests_have_the_lowest_priority(trained, refused):
    """The trainer's requests have priority 0; after one refusal the audit sends no priority."""
    engine = Engine(trained / "checkpoint-120", "bfloat16", ServerFaults(no_priority=refused))
    with serving(engine) as address:
        audit = audit_server(address, trained / "checkpoint-120", timeout_s=500)
    assert audit.outcome == CLEAN
    priorities = [item for item in engine.priorities if item]
    assert (len(priorities) == 1) is refused
    assert min(priorities) > 0
    assert engine.calls > 10


def test_weight_update_during_the_audit_gives_no_verdict(trained):
    """The audit ends without a verdict, because its scores and samples come from two policy versions."""
    engine = Engine(trained / "checkpoint-120", "bfloat16", ServerFaults(versions=["7", "8"]))
    with serving(engine) as address, pytest.raises(NotAvailableError, match="from 7 to 8 meanwhile"):
        audit_server(address, trained / "checkpoint-120", timeout_s=500)


def test_server_with_an_unfinished_weight_update_gets_no_request(trained):
    """The audit is refused if vLLM's counters show an update that started and did not finish."""
    engine = Engine(trained / "checkpoint-120", "float32", ServerFaults(updating=True))
    with serving(engine) as address, pytest.raises(NotAvailableError, match="being updated"):
        audit_server(address, trained / "checkpoint-120", timeout_s=500)
    assert engine.priorities == []


def test_unknown_model_is_refused_with_the_served_names(trained, url):
    with pytest.raises(AuditError, match=r"--model nobody: .* serves policy"):
        audit_server(url, trained / "checkpoint-120", model="nobody")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ("no server", 2, "no server listens there"),
        ("no weights", 2, "no config.json"),
        ("no log-probs", 2, "its samples have no log-probs"),
        ("paused", 3, "it is paused"),
        ("trainer", 2, "expected a number"),
    ],
)
def test_missing_input_is_a_one_line_error(trained, tmp_path, capsys, change, code, message):
    """The exit code is 2 for wrong usage, or 3 if the server is not available now."""
    wrong = ServerFaults(no_logprobs=change == "no log-probs", paused=change == "paused")
    (tmp_path / "trainer.json").write_text(json.dumps({"temperature": "hot"}))
    with serving(Engine(trained / "checkpoint-120", "float32", wrong)) as url:
        options = ["--server", "http://127.0.0.1:9" if change == "no server" else url, "--timeout", "500"]
        options += ["--checkpoint", str(tmp_path if change == "no weights" else trained / "checkpoint-120")]
        options += ["--trainer-config", str(tmp_path / "trainer.json")] if change == "trainer" else []
        capsys.readouterr()  # the progress bar of the stand-in server's model
        assert main(["audit", *options]) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.strip().count("\n") == 0


class FakeClient:
    """A client that returns prepared responses by path."""

    address = "http://127.0.0.1:1"

    def __init__(self, **answers):
        self.answers = answers

    def try_call(self, path, _=None):
        return self.answers.get(path.strip("/"))

    get = try_call


def test_other_servers_than_vllm_are_refused():
    """Servers of ms-swift and of older TRL releases are refused, because they have other paths."""
    with pytest.raises(AuditError, match="not vllm serve"):
        Server(FakeClient(**{"v1/models": {}}))


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
def test_sleeping_or_updating_server_is_recognised(answers, awake):
    """The state is read from a gauge, from two counters or from two paths; a server without them counts as awake."""
    if awake:
        assert check_awake(FakeClient(**answers)) == ""
    else:
        with pytest.raises(NotAvailableError):
            check_awake(FakeClient(**answers))


def test_long_texts_of_the_server_are_not_repeated():
    """Masking them for the report would take minutes."""
    answers = {
        "v1/models": {"data": [{"id": "m" * 1_000_000}]},
        "server_info?config_format=json": {
            "model_config": {"dtype": "torch.float32", "quantization": "q" * 201}
        },
        "version": {"version": "9" * 5_000_000},
        "weight_info": {"weight_version": "w" * 5_000_000},
    }
    settings = Server(FakeClient(**answers)).settings()
    assert settings == {
        "dtype": "float32",
        "quantization": "a text of 201 characters",
        "release": "a text of 5000000 characters",
    }
    assert check_awake(FakeClient(**answers)) == "a text of 5000000 characters"
    with pytest.raises(AuditError, match=r"serves a text of 1000000 characters$"):
        Server(FakeClient(**answers), "other")


@pytest.mark.parametrize("length", [-5, 1, 9])
def test_server_that_takes_too_few_tokens_is_refused(monkeypatch, length):
    """With a negative length the audit would look for a short enough sequence for ever."""
    monkeypatch.setattr(
        probe_plan, "Server", lambda *_: SimpleNamespace(settings=lambda: {"max_model_len": length})
    )
    monkeypatch.setattr(probe_plan, "Reference", lambda _: None)
    monkeypatch.setattr(probe_plan, "_load_tokenizer", lambda _: (None, ""))
    monkeypatch.setattr(servers, "check_awake", lambda _: "")
    with pytest.raises(AuditError, match=f"max_model_len {length} is too short"):
        probe_plan.audit_server("http://127.0.0.1:1", Path())
