"""A live audit refuses an unusable input or server with one line, and gives no verdict if the weights change."""

from types import SimpleNamespace

import pytest

from diagnostics.__main__ import main
from diagnostics.audit.live import server_audit
from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.live.server_settings import read_trainer_settings
from diagnostics.audit.results import AuditError, NotAvailableError
from tests.diagnostics.audit.fake_vllm_server import Engine, ServerFaults, serving


def test_weight_update_during_the_audit_gives_no_verdict(trained, monkeypatch):
    """The audit ends without a verdict, because its scores and samples come from two policy versions."""
    for name in ("check_weights", "check_sampling", "check_cache"):
        monkeypatch.setattr(server_audit._Probes, name, lambda *_: SimpleNamespace(floor=0.0))
    engine = Engine(trained / "checkpoint-120", "bfloat16", ServerFaults(versions=["7", "8"]))
    with serving(engine) as address, pytest.raises(NotAvailableError, match="from 7 to 8 meanwhile"):
        audit_server(address, trained / "checkpoint-120", timeout_s=500)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ("no server", 2, "no server listens there"),
        ("no weights", 2, "no config.json"),
        ("no log-probs", 2, "its samples have no log-probs"),
        ("paused", 3, "it is paused"),
    ],
)
def test_unusable_input_is_a_one_line_error(trained, tmp_path, capsys, change, code, message):
    """The exit code is 3 for a paused server, and 2 for wrong input, no server, or a server without log-probs."""
    wrong = ServerFaults(no_logprobs=change == "no log-probs", paused=change == "paused")
    with serving(Engine(trained / "checkpoint-120", "float32", wrong)) as url:
        options = ["--server", "http://127.0.0.1:9" if change == "no server" else url, "--timeout", "500"]
        options += ["--checkpoint", str(tmp_path if change == "no weights" else trained / "checkpoint-120")]
        capsys.readouterr()  # the progress bar of the stand-in server's model
        assert main(["audit", *options]) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.strip().count("\n") == 0


@pytest.mark.parametrize(
    "text", ['{"top_k": 1e999}', '{"temperature": NaN}', '{"max_prompt_length": -1e999}', '{"temperature": "hot"}']
)  # fmt: skip
def test_trainer_setting_that_is_no_finite_number_is_refused(tmp_path, text):
    (tmp_path / "trainer.json").write_text(text)
    with pytest.raises(AuditError, match="expected a number"):
        read_trainer_settings(tmp_path / "trainer.json")


@pytest.mark.parametrize("length", [-5, 1, 9])
def test_server_that_takes_too_few_tokens_is_refused(trained, length):
    """With a negative length the audit would look for a short enough sequence for ever."""
    engine = Engine(trained / "checkpoint-120", "float32", ServerFaults(max_model_len=length))
    with serving(engine) as url, pytest.raises(AuditError, match=f"max_model_len {length} is too short"):
        audit_server(url, trained / "checkpoint-120")
