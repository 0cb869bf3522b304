"""A live audit of the fake server reports each injected fault; a healthy server is clean.

A changed sampling parameter is reported with its value, a bias on an id as log-probs that no parameters explain. Faults
are in sampling, log-probs, tokenizer, weights, cache and replicas. Truncation that the trainer states is only a notice.
`audit_fake_server` also checks the token limit. An unreadable tokenizer, or raw log-probs if temperature 1 is expected,
leave the audit undecided.
"""

import json
import shutil

import pytest

from diagnostics.audit.live import reference
from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.results import CLEAN, FAULT, NOT_DECIDED, SKIPPED, make_document
from diagnostics.output.text_filters import redact_for_sharing
from evaluation.audit.live_bench import write_mixed_checkpoint, write_noisy_checkpoint
from tests.diagnostics.audit.fake_vllm_server import Engine, ServerFaults, load_rounded, serving

approx = pytest.approx
pytestmark = pytest.mark.usefixtures("models_loaded_once")


def audit_fake_server(
    trained, wrong=None, *, dtype="bfloat16", folder="checkpoint-120", others=("checkpoint-110",), **options
):
    """Start a fake server with a folder and faults; audit it against checkpoint-120, and check the token limit.

    `others` are further folders that may have the server's weights; without any, those beside checkpoint-120. A server
    with faults reports its dtype, if it reports settings.
    """
    options["against"] = [trained / parameters for parameters in others]
    engine = Engine(trained / folder, dtype, wrong, 1)
    if wrong and wrong.settings:
        wrong.settings["dtype"] = dtype
    with serving(engine) as url:
        audit = audit_server(url, trained / "checkpoint-120", timeout_s=500, **options)
    json.dumps(redact_for_sharing(make_document(audit)), allow_nan=False)
    assert audit.tokens <= options.get("tokens", 4000)
    return audit


def fault_values(audit):
    """Return the family and the first estimate of each fault."""
    return {item.family: item.estimates[0].value if item.estimates else None for item in audit.select(FAULT)}


def notices(audit):
    """Return the values of each notice."""
    return [fact.values for item in audit.results for fact in item.evidence if fact.name == "notice"]


def trainer_file(folder, **settings):
    """Write the file for `--trainer-config`; return its path."""
    (folder / "trainer.json").write_text(json.dumps({"temperature": 1.0} | settings))
    return folder / "trainer.json"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_healthy_server_is_clean_in_16_and_32_bits(trained, dtype):
    """A healthy server is clean in 16 bits too, although its log-probs differ from the float32 checkpoint's."""
    audit = audit_fake_server(trained, dtype=dtype, others=())
    assert (fault_values(audit), audit.outcome) == ({}, CLEAN)


FAULTS = {
    "temperature, second BOS and chat template": (
        ServerFaults(sampling={"temperature": 0.83}, double_bos=True, template="{{ messages[0]['content'] }}"),
        {"ids/special": None, "ids/template": None, "sampling/temperature": approx(0.83, abs=0.02)},
    ),
    "repetition penalty": (
        ServerFaults(sampling={"repetition_penalty": 1.07}), {"sampling/repetition_penalty": approx(1.07, abs=0.01)}
    ),
    "temperature and top-p": (
        ServerFaults(sampling={"temperature": 0.93, "top_p": 0.96}),  # an earlier version reported a min-p
        {"sampling/temperature": approx(0.93, abs=0.02), "sampling/top_p": approx(0.96, abs=0.005)},
    ),
    "bias on an id": (ServerFaults(bias=(300, 2.0)), {"sampling/law": None}),
    "greedy": (ServerFaults(greedy=True), {"sampling/greedy": None}),
    "one seed": (ServerFaults(one_seed=True), {"sampling/seed": None}),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "faults"), FAULTS.values(), ids=FAULTS)
def test_fault_is_reported_alone(trained, wrong, faults):
    """No other fault is reported. A sampling parameter is estimated between the grid points of the search."""
    assert fault_values(audit_fake_server(trained, wrong)) == faults


def test_top_k_is_found_in_float16(trained):
    wrong = ServerFaults(sampling={"top_k": 23})
    assert fault_values(audit_fake_server(trained, wrong, dtype="float16")) == {"sampling/top_k": 23}


def test_other_top_p_than_the_trainer_states_is_a_fault(trained, tmp_path):
    wrong, trainer = ServerFaults(sampling={"top_p": 0.913}), trainer_file(tmp_path, top_p=0.8)
    audit = audit_fake_server(trained, wrong, trainer=trainer)
    assert fault_values(audit) == {"sampling/top_p": approx(0.913, abs=0.005)}
    assert notices(audit) == []


def test_stated_top_p_and_top_k_together_are_notices(trained, tmp_path):
    """Both are tested as stated, before one of them is estimated alone; a notice has the stated value."""
    stated = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    audit = audit_fake_server(trained, trainer=trainer_file(tmp_path, **stated))
    assert fault_values(audit) == {}
    assert notices(audit) == [
        {"name": name, "stated": stated[name], "code": "NUM002"} for name in ("top_p", "top_k")
    ]


def test_older_checkpoint_is_named(trained):
    faults = fault_values(audit_fake_server(trained, folder="checkpoint-110"))
    assert faults == {"weights/version": "checkpoint-110"}


def test_raw_logprobs_are_detected_from_the_samples(trained, tmp_path):
    """Samples at temperature 0.6 with log-probs at temperature 1 are reported as raw log-probs."""
    trainer = trainer_file(tmp_path, temperature=0.6)
    faults = fault_values(audit_fake_server(trained, ServerFaults(raw=True, settings=None), trainer=trainer))
    assert faults["logprobs/raw"] == approx(0.6, abs=0.15)


@pytest.mark.parametrize("wrong", [{"sampling": {"temperature": 0.87}, "bias": (300, 2.0)}, {}])
def test_raw_logprobs_leave_the_sampling_undecided(trained, wrong):
    """If temperature 1 is expected, raw log-probs leave the sampling undecided.

    The result names the server option that decides.
    """
    audit = audit_fake_server(trained, ServerFaults(raw=True, settings=None, **wrong))
    (result,) = (item for item in audit.results if item.topic == "sampling")
    assert (audit.outcome, result.outcome) == (NOT_DECIDED, NOT_DECIDED)
    assert "--logprobs-mode processed_logprobs" in result.needed[0].text


def test_large_model_rules_out_distant_checkpoints_with_few_ids(trained, monkeypatch):
    """For a large model only checkpoints near the expected one are computed for all ids."""
    monkeypatch.setattr(reference, "_LARGE", 0)
    audit = audit_fake_server(trained, others=("base", "checkpoint-20", "checkpoint-110"))
    assert (fault_values(audit), audit.outcome) == ({}, CLEAN)
    distant = {fact.values["name"] for item in audit.results for fact in item.evidence if fact.name == "away"}
    assert distant >= {"base", "checkpoint-20"}


@pytest.mark.long
def test_layer_with_older_weights_is_named(trained):
    folder = write_mixed_checkpoint(trained, "layer 1", "checkpoint-110", "checkpoint-120")
    audit = audit_fake_server(trained, folder=folder)
    assert fault_values(audit) == {"weights/partial": ("layer 1",)}


def test_weights_with_one_percent_noise_are_a_fault(trained):
    """They are reported as unknown weights, and mask the results for sampling and log-probs."""
    folder = write_noisy_checkpoint(trained, 3, "checkpoint-120")
    audit = audit_fake_server(trained, folder=folder)
    assert list(fault_values(audit)) == ["weights/unknown"]
    assert {item.family for item in audit.select("masked")} == {"sampling", "logprobs"}


def test_unreadable_tokenizer_leaves_the_audit_undecided(trained, tmp_path):
    """Without the tokenization check, which needs the tokenizer, the audit is not clean."""
    shutil.copytree(trained / "checkpoint-120", tmp_path / "checkpoint-120")
    for path in (tmp_path / "checkpoint-120").glob("tokenizer*"):
        path.write_text("{")
    with serving(Engine(trained / "checkpoint-120", "float32")) as url:
        audit = audit_server(url, tmp_path / "checkpoint-120", timeout_s=500)
    assert audit.outcome == NOT_DECIDED
    assert [item.family for item in audit.select(SKIPPED) if item.decisive] == ["ids"]


def test_stale_cache_and_wrong_weights_stay_within_the_token_limit(trained, tmp_path):
    """Both are reported within the token limit in an expensive case: long prompts, a stale cache and other weights."""
    prompts = ["a prompt that is long " * 40, "another one of these " * 40, "and a third one " * 40]
    wrong = ServerFaults(stale_cache=load_rounded(trained / "checkpoint-20", "bfloat16"))
    trainer = trainer_file(tmp_path, prompts=prompts)
    options = {"folder": "base", "others": ("base",), "trainer": trainer, "tokens": 3300}
    faults = fault_values(audit_fake_server(trained, wrong, **options))
    assert list(faults) == ["weights/version", "cache/stale"]


@pytest.mark.long
def test_logprobs_of_other_tokens_are_found(trained):
    assert "logprobs/token" in fault_values(audit_fake_server(trained, ServerFaults(argmax_logprobs=True)))


@pytest.mark.long
def test_replicas_with_different_weights_are_reported(trained):
    """Two replicas with different weights are reported, and the checks that depend on the weights are masked."""
    wrong = ServerFaults(second=load_rounded(trained / "base", "bfloat16"))
    audit = audit_fake_server(trained, wrong, others=("base",))
    assert list(fault_values(audit)) == ["replicas/weights"]
    assert {item.masked_by for item in audit.select("masked")} == {"replicas/weights"}
