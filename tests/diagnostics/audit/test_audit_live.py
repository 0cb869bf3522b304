"""A live audit of a server with one fault, and of a server without faults."""

import json
import shutil

import pytest
import torch

from diagnostics.__main__ import main
from diagnostics.audit import report
from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.results import CLEAN, FAULT, NOT_DECIDED
from tests.diagnostics.audit.standin import Engine, Wrong, loaded, serving


def audit_standin(trained, wrong=None, *, dtype="bfloat16", folder="checkpoint-120", seed=1, **asked):
    """Audit a stand-in that serves a folder, against checkpoint-120."""
    with serving(Engine(trained / folder, dtype, wrong, seed)) as url:
        audit = audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500, **asked))
    json.dumps(report.shareable_document(audit), allow_nan=False)
    assert audit.tokens <= asked.get("tokens", 4000)
    return audit


def fault_values(found):
    """Its faults, each with the first value that was found out."""
    return {item.family: item.estimates[0].value if item.estimates else None for item in found.select(FAULT)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nothing_wrong_is_clean_as_far_as_asked(trained, dtype):
    """In an engine of 16 bits, too, whose numbers are never the checkpoint's."""
    audit = audit_standin(trained, dtype=dtype)
    assert fault_values(audit) == {}
    assert audit.outcome == CLEAN


@pytest.mark.parametrize(
    ("law", "family", "value", "near"),
    [
        ({"temperature": 0.83}, "sampling/temperature", 0.83, 0.02),
        ({"top_p": 0.913}, "sampling/top_p", 0.913, 0.005),
        ({"repetition_penalty": 1.07}, "sampling/repetition_penalty", 1.07, 0.01),
        ({"top_k": 23}, "sampling/top_k", 23, 0),
    ],
)
def test_the_law_is_named_with_its_value(trained, law, family, value, near):
    """The value is on no grid."""
    audit = fault_values(audit_standin(trained, Wrong(law=law)))
    assert list(audit) == [family]
    assert audit[family] == pytest.approx(value, abs=near)


def test_an_older_checkpoint_is_named(trained):
    """And nothing else, since the law is judged by the weights that the engine holds."""
    audit = audit_standin(trained, folder="checkpoint-110")
    assert fault_values(audit) == {"weights/version": "checkpoint-110"}


def test_what_the_trainers_staleness_allows_is_no_fault(trained, tmp_path):
    """One checkpoint behind, where the trainer says that it may be."""
    (tmp_path / "trainer.json").write_text(json.dumps({"max_staleness": 1, "temperature": 1.0}))
    assert (
        fault_values(audit_standin(trained, folder="checkpoint-110", trainer=tmp_path / "trainer.json")) == {}
    )


def test_log_probs_before_the_temperature_are_told_by_the_samples(trained, tmp_path):
    """Temperature 0.6 is requested and used for sampling, but reported log-probs are at 1."""
    (tmp_path / "trainer.json").write_text(json.dumps({"temperature": 0.6}))
    audit = audit_standin(trained, Wrong(raw=True, settings=None), trainer=tmp_path / "trainer.json")
    assert {"logprobs/raw"} <= fault_values(audit).keys()
    assert fault_values(audit)["logprobs/raw"] == pytest.approx(0.6, abs=0.15)


@pytest.mark.parametrize(
    ("wrong", "family"),
    [
        (Wrong(shift=1), "logprobs/shift"),
        pytest.param(Wrong(permuted=True), "pairing", marks=pytest.mark.long),
        (Wrong(greedy=True), "sampling/greedy"),
        (Wrong(one_seed=True), "sampling/seed"),
        (Wrong(double_bos=True), "ids/special"),
        pytest.param(Wrong(neighbour=True), "logprobs/token", marks=pytest.mark.long),
        (Wrong(template="{{ messages[0]['content'] }}"), "ids/template"),
        (Wrong(settings={"logprobs_mode": "processed_logprobs", "dtype": "torch.bfloat16"}), None),
    ],
)
def test_what_stands_beside_what(trained, wrong, family):
    """The family of each, and where nothing is wrong none."""
    audit = fault_values(audit_standin(trained, wrong))
    assert (family in audit) if family else audit == {}


def test_keys_of_older_weights_are_seen(trained):
    """One prompt without and with a fresh cache salt has different log-probs: cached keys of older weights."""
    wrong = Wrong(stale_cache=loaded(trained / "checkpoint-20", "bfloat16"))
    assert list(fault_values(audit_standin(trained, wrong))) == ["cache/stale"]


def test_tensors_that_did_not_arrive_are_named(trained, tmp_path):
    """All of a layer."""
    older, newer = (loaded(trained / name, "float32") for name in ("checkpoint-110", "checkpoint-120"))
    state = newer.state_dict()
    state.update({name: single for name, single in older.state_dict().items() if ".layers.1." in name})
    newer.load_state_dict(state)
    shutil.copytree(trained / "checkpoint-120", tmp_path / "mixed")
    newer.save_pretrained(tmp_path / "mixed")
    with serving(Engine(tmp_path / "mixed", "bfloat16")) as url:
        audit = audit_server(
            LiveAudit(url, trained / "checkpoint-120", (trained / "checkpoint-110",), timeout_s=500)
        )
    assert fault_values(audit) == {"weights/partial": ("layer 1",)}


def test_weights_that_are_one_percent_off_are_seen(trained, tmp_path):
    """Which a limit of 0.01 on the mismatch KL lets pass."""
    model = loaded(trained / "checkpoint-120", "float32")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for item in model.parameters():
            item.add_(0.01 * item.std() * torch.randn(item.shape, generator=generator))
    shutil.copytree(trained / "checkpoint-120", tmp_path / "off")
    model.save_pretrained(tmp_path / "off")
    with serving(Engine(tmp_path / "off", "bfloat16")) as url:
        audit = audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500))
    assert list(fault_values(audit)) == ["weights/unknown"]
    assert {item.family for item in audit.select("masked")} == {"sampling", "logprobs"}


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ("nobody", 2, "no server listens there"),
        ("no weights", 2, "no config.json"),
        ("no log-probs", 2, "its samples have no log-probs"),
        ("paused", 3, "it is paused"),
        ("trainer", 2, "expected a number"),
    ],
)
def test_what_is_missing_is_said_in_one_line(trained, tmp_path, capsys, change, code, said):
    """The exit code is 2 for wrong usage, or 3 if the server is not available now."""
    wrong = Wrong(no_logprobs=change == "no log-probs", paused=change == "paused")
    (tmp_path / "trainer.json").write_text(json.dumps({"temperature": "hot"}))
    with serving(Engine(trained / "checkpoint-120", "float32", wrong)) as url:
        words = ["--server", "http://127.0.0.1:9" if change == "nobody" else url, "--timeout", "500"]
        words += ["--checkpoint", str(tmp_path if change == "no weights" else trained / "checkpoint-120")]
        words += ["--trainer-config", str(tmp_path / "trainer.json")] if change == "trainer" else []
        assert main(["audit", *words]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.strip().count("\n") == 0


def test_a_tokenizer_that_cannot_be_read_leaves_ids_unasked(trained, tmp_path):
    """Not clean then: ids decide."""
    shutil.copytree(trained / "checkpoint-120", tmp_path / "checkpoint-120")
    for path in (tmp_path / "checkpoint-120").glob("tokenizer*"):
        path.write_text("{")
    with serving(Engine(trained / "checkpoint-120", "float32")) as url:
        audit = audit_server(LiveAudit(url, tmp_path / "checkpoint-120", timeout_s=500))
    assert audit.outcome == "not_decided"
    assert [item.family for item in audit.select("not_asked") if item.decisive] == ["ids"]


@pytest.mark.parametrize(
    "wrong", [{"law": {"temperature": 0.87}}, {"bias": (5, -2.0)}, {"bias": (300, 2.0)}, {}]
)
def test_raw_log_probs_carry_no_sampling_parameters(trained, wrong):
    """vLLM's default is never clean with few tokens: not checked, with the tokens that would decide."""
    audit = audit_standin(trained, Wrong(raw=True, settings=None, **wrong))
    (result,) = (item for item in audit.results if item.topic == "sampling")
    assert (audit.outcome, result.outcome) == (NOT_DECIDED, NOT_DECIDED)
    assert "--logprobs-mode processed_logprobs; or --tokens " in result.needed[0].text


def test_truncation_is_found_in_raw_log_probs(trained):
    """No sampled id lies outside of the nucleus."""
    audit = audit_standin(trained, Wrong(raw=True, settings=None, law={"top_p": 0.8}))
    assert fault_values(audit) == {"sampling/top_p": pytest.approx(0.8, abs=0.02)}


def test_bias_on_a_rare_id_is_found_once_its_log_prob_is_returned(trained):
    audit = audit_standin(trained, Wrong(bias=(300, 2.0)))
    (result,) = audit.select(FAULT)
    assert (result.family, result.values["id"]) == ("sampling/bias", 300)
    assert result.values["value"] == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    ("tokens", "folder"),
    [(3300, "checkpoint-120"), (4000, "base")],
)
def test_an_audit_stays_within_its_token_budget(trained, tmp_path, tokens, folder):
    """The most expensive case: long prompts of the trainer, a stale prefix cache and other weights."""
    prompts = ["a prompt that is long " * 40, "another one of these " * 40, "and a third one " * 40]
    (tmp_path / "trainer.json").write_text(json.dumps({"temperature": 1.0, "prompts": prompts}))
    wrong = Wrong(stale_cache=loaded(trained / "checkpoint-20", "bfloat16"))
    audit = audit_standin(trained, wrong, folder=folder, tokens=tokens, trainer=tmp_path / "trainer.json")
    assert audit.tokens <= tokens


@pytest.mark.long
def test_replicas_with_different_weights_are_reported(trained):
    """Every other call is answered by older weights; checks that depend on the weights are masked."""
    audit = audit_standin(trained, Wrong(second=loaded(trained / "base", "bfloat16")))
    assert list(fault_values(audit)) == ["replicas/weights"]
    assert {item.masked_by for item in audit.select("masked")} == {"replicas/weights"}
