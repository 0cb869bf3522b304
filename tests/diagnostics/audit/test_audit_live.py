"""A live audit of a server with one fault, and of a server without faults."""

import json
import shutil

import pytest
import torch

from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.results import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, make_document, shareable
from tests.diagnostics.audit.standin import Engine, Wrong, loaded, serving

approx = pytest.approx


@pytest.fixture(scope="module")
def folders(trained, tmp_path_factory):
    """Weights that a server may hold: the checkpoints, one with a layer of an older one, and one with noise."""
    folder = tmp_path_factory.mktemp("served")
    older, mixed, noisy = (loaded(trained / f"checkpoint-{step}", "float32") for step in (110, 120, 120))
    layer = {name: tensor for name, tensor in older.state_dict().items() if ".layers.1." in name}
    mixed.load_state_dict(mixed.state_dict() | layer)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for item in noisy.parameters():
            item.add_(0.01 * item.std() * torch.randn(item.shape, generator=generator))
    for name, model in (("mixed", mixed), ("noisy", noisy)):
        shutil.copytree(trained / "checkpoint-120", folder / name)
        model.save_pretrained(folder / name)
    return {"mixed": folder / "mixed", "noisy": folder / "noisy"}


def audit_standin(trained, wrong=None, *, dtype="bfloat16", folder="checkpoint-120", **options):
    """Audit a stand-in that serves a folder, against checkpoint-120."""
    engine = Engine(trained / folder, dtype, wrong, 1)
    with serving(engine) as url:
        audit = audit_server(LiveAudit(url, trained / "checkpoint-120", timeout_s=500, **options))
    json.dumps(shareable(make_document(audit)), allow_nan=False)
    assert audit.tokens <= options.get("tokens", 4000)
    return audit


def fault_values(audit):
    """Its faults, each with the first estimated value."""
    return {item.family: item.estimates[0].value if item.estimates else None for item in audit.select(FAULT)}


def trainer_file(folder, **settings):
    (folder / "trainer.json").write_text(json.dumps({"temperature": 1.0} | settings))
    return folder / "trainer.json"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_server_without_faults_is_clean_in_every_type(trained, dtype):
    """In 16 bits, too, where the numbers are never the checkpoint's."""
    audit = audit_standin(trained, dtype=dtype)
    assert (fault_values(audit), audit.outcome) == ({}, CLEAN)


FAULTS = {
    "temperature": (Wrong(law={"temperature": 0.83}), {"sampling/temperature": approx(0.83, abs=0.02)}),
    "top-p": (Wrong(law={"top_p": 0.913}), {"sampling/top_p": approx(0.913, abs=0.005)}),
    "repetition penalty": (
        Wrong(law={"repetition_penalty": 1.07}), {"sampling/repetition_penalty": approx(1.07, abs=0.01)}
    ),
    "top-k": (Wrong(law={"top_k": 23}), {"sampling/top_k": 23}),
    "bias on a rare id that is sampled": (Wrong(bias=(300, 2.0)), {"sampling/bias": 300}),
    "shifted log-probs": (Wrong(shift=1), {"logprobs/shift": -1}),
    "greedy": (Wrong(greedy=True), {"sampling/greedy": None}),
    "one seed": (Wrong(one_seed=True), {"sampling/seed": None}),
    "second BOS": (Wrong(double_bos=True), {"ids/special": None}),
    "chat template": (Wrong(template="{{ messages[0]['content'] }}"), {"ids/template": None}),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "faults"), FAULTS.values(), ids=FAULTS)
def test_fault_is_found_alone_and_with_its_value(trained, wrong, faults):
    """The values are on no grid of the search."""
    assert fault_values(audit_standin(trained, wrong)) == faults


def test_law_of_two_parameters_is_found(trained):
    """It was taken for a min-p with a residual far above rounding."""
    faults = fault_values(audit_standin(trained, Wrong(law={"temperature": 0.93, "top_p": 0.96})))
    assert faults == {
        "sampling/temperature": approx(0.93, abs=0.02),
        "sampling/top_p": approx(0.96, abs=0.005),
    }


def test_older_checkpoint_is_named_unless_staleness_allows_it(trained, tmp_path):
    """Sampling is judged by the weights that the engine holds."""
    assert fault_values(audit_standin(trained, folder="checkpoint-110")) == {
        "weights/version": "checkpoint-110"
    }
    trainer = trainer_file(tmp_path, max_staleness=1)
    assert fault_values(audit_standin(trained, folder="checkpoint-110", trainer=trainer)) == {}


def test_log_probs_before_the_temperature_are_shown_by_the_samples(trained, tmp_path):
    """Temperature 0.6 is requested and used for sampling, but reported log-probs are at 1."""
    trainer = trainer_file(tmp_path, temperature=0.6)
    faults = fault_values(audit_standin(trained, Wrong(raw=True, settings=None), trainer=trainer))
    assert faults["logprobs/raw"] == approx(0.6, abs=0.15)


@pytest.mark.parametrize("wrong", [{"law": {"temperature": 0.87}}, {"bias": (300, 2.0)}, {}])
def test_raw_log_probs_are_never_clean(trained, wrong):
    """vLLM's default shows no sampling parameters: not checked, with the option that would decide."""
    audit = audit_standin(trained, Wrong(raw=True, settings=None, **wrong))
    (result,) = (item for item in audit.results if item.topic == "sampling")
    assert (audit.outcome, result.outcome) == (NOT_DECIDED, NOT_DECIDED)
    assert "--logprobs-mode processed_logprobs" in result.needed[0].text


def test_tensors_that_did_not_arrive_are_named(trained, folders):
    assert fault_values(audit_standin(trained, folder=folders["mixed"])) == {"weights/partial": ("layer 1",)}


def test_weights_that_are_one_percent_off_are_seen(trained, folders):
    """A limit of 0.01 on the mismatch KL lets them pass."""
    audit = audit_standin(trained, folder=folders["noisy"])
    assert list(fault_values(audit)) == ["weights/unknown"]
    assert {item.family for item in audit.select("masked")} == {"sampling", "logprobs"}


def test_tokenizer_that_cannot_be_read_leaves_ids_unchecked(trained, tmp_path):
    """Not clean then: ids decide."""
    shutil.copytree(trained / "checkpoint-120", tmp_path / "checkpoint-120")
    for path in (tmp_path / "checkpoint-120").glob("tokenizer*"):
        path.write_text("{")
    with serving(Engine(trained / "checkpoint-120", "float32")) as url:
        audit = audit_server(LiveAudit(url, tmp_path / "checkpoint-120", timeout_s=500))
    assert audit.outcome == NOT_DECIDED
    assert [item.family for item in audit.select(NOT_ASKED) if item.decisive] == ["ids"]


def test_stale_cache_and_wrong_weights_stay_within_the_token_budget(trained, tmp_path):
    """The most expensive case: long prompts of the trainer, keys of older weights, and other weights."""
    prompts = ["a prompt that is long " * 40, "another one of these " * 40, "and a third one " * 40]
    wrong = Wrong(stale_cache=loaded(trained / "checkpoint-20", "bfloat16"))
    trainer = trainer_file(tmp_path, prompts=prompts)
    faults = fault_values(audit_standin(trained, wrong, folder="base", trainer=trainer, tokens=3300))
    assert list(faults) == ["weights/version", "cache/stale"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "family"), [(Wrong(permuted=True), "pairing"), (Wrong(neighbour=True), "logprobs/token")]
)
def test_samples_of_other_prompts_and_log_probs_of_other_tokens_are_found(trained, wrong, family):
    assert family in fault_values(audit_standin(trained, wrong))


@pytest.mark.long
def test_replicas_with_different_weights_are_reported(trained):
    """Every other call is answered by older weights; checks that depend on the weights are masked."""
    audit = audit_standin(trained, Wrong(second=loaded(trained / "base", "bfloat16")))
    assert list(fault_values(audit)) == ["replicas/weights"]
    assert {item.masked_by for item in audit.select("masked")} == {"replicas/weights"}
