"""A live audit reports each fault of a server alone and with its value, and finds nothing on a healthy server."""

import json
import shutil

import pytest
import torch

from diagnostics.audit.live.probe_plan import LiveAuditOptions, audit_server
from diagnostics.audit.results import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, make_document, shareable
from tests.diagnostics.audit.standin import Engine, Wrong, loaded, serving

approx = pytest.approx


@pytest.fixture(scope="module")
def engine_folders(trained, tmp_path_factory):
    """Make faulty copies of checkpoint-120: `mixed` has a layer of checkpoint-110, `noisy` has 1% noise."""
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
    """Start a fake server with a folder and faults; audit it against checkpoint-120.

    The trainer's requests have priority 0, so those of the audit have a larger number.
    """
    engine = Engine(trained / folder, dtype, wrong, 1)
    with serving(engine) as url:
        audit = audit_server(LiveAuditOptions(url, trained / "checkpoint-120", timeout_s=500, **options))
    assert min(filter(None, engine.priorities)) > 0
    json.dumps(shareable(make_document(audit)), allow_nan=False)
    assert audit.tokens <= options.get("tokens", 4000)
    return audit


def fault_values(audit):
    """Return the family and the first estimate of each fault."""
    return {item.family: item.estimates[0].value if item.estimates else None for item in audit.select(FAULT)}


def trainer_file(folder, **settings):
    """Write the file for `--trainer-config`; return its path."""
    (folder / "trainer.json").write_text(json.dumps({"temperature": 1.0} | settings))
    return folder / "trainer.json"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_healthy_server_is_clean_in_every_dtype(trained, dtype):
    """In 16 bits, too, where log-probs always differ from the float32 checkpoint's."""
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
def test_single_fault_is_reported_alone_with_its_value(trained, wrong, faults):
    """The values lie between the grid points of the parameter search."""
    assert fault_values(audit_standin(trained, wrong)) == faults


def test_two_changed_sampling_parameters_are_found(trained):
    """An earlier version reported a min-p whose residual was far above rounding."""
    faults = fault_values(audit_standin(trained, Wrong(law={"temperature": 0.93, "top_p": 0.96})))
    assert faults == {
        "sampling/temperature": approx(0.93, abs=0.02),
        "sampling/top_p": approx(0.96, abs=0.005),
    }


def test_older_checkpoint_is_named_unless_staleness_allows_it(trained, tmp_path):
    """With `max_staleness=1` the sampling checks use the weights of the engine, not those of the trainer."""
    assert fault_values(audit_standin(trained, folder="checkpoint-110")) == {
        "weights/version": "checkpoint-110"
    }
    trainer = trainer_file(tmp_path, max_staleness=1)
    assert fault_values(audit_standin(trained, folder="checkpoint-110", trainer=trainer)) == {}


def test_raw_logprobs_are_detected_from_the_samples(trained, tmp_path):
    """The server samples at the requested temperature 0.6, but reports log-probs at temperature 1."""
    trainer = trainer_file(tmp_path, temperature=0.6)
    faults = fault_values(audit_standin(trained, Wrong(raw=True, settings=None), trainer=trainer))
    assert faults["logprobs/raw"] == approx(0.6, abs=0.15)


@pytest.mark.parametrize("wrong", [{"law": {"temperature": 0.87}}, {"bias": (300, 2.0)}, {}])
def test_raw_logprobs_leave_the_sampling_undecided(trained, wrong):
    """vLLM's default log-probs do not depend on sampling parameters; the result names the option that would decide."""
    audit = audit_standin(trained, Wrong(raw=True, settings=None, **wrong))
    (result,) = (item for item in audit.results if item.topic == "sampling")
    assert (audit.outcome, result.outcome) == (NOT_DECIDED, NOT_DECIDED)
    assert "--logprobs-mode processed_logprobs" in result.needed[0].text


def test_layer_with_older_weights_is_named(trained, engine_folders):
    assert fault_values(audit_standin(trained, folder=engine_folders["mixed"])) == {
        "weights/partial": ("layer 1",)
    }


def test_weights_with_one_percent_noise_are_a_fault(trained, engine_folders):
    """A threshold of 0.01 on the mismatch KL would miss them."""
    audit = audit_standin(trained, folder=engine_folders["noisy"])
    assert list(fault_values(audit)) == ["weights/unknown"]
    assert {item.family for item in audit.select("masked")} == {"sampling", "logprobs"}


def test_unreadable_tokenizer_leaves_the_audit_undecided(trained, tmp_path):
    """The tokenization check decides about clean, so the audit is not clean without it."""
    shutil.copytree(trained / "checkpoint-120", tmp_path / "checkpoint-120")
    for path in (tmp_path / "checkpoint-120").glob("tokenizer*"):
        path.write_text("{")
    with serving(Engine(trained / "checkpoint-120", "float32")) as url:
        audit = audit_server(LiveAuditOptions(url, tmp_path / "checkpoint-120", timeout_s=500))
    assert audit.outcome == NOT_DECIDED
    assert [item.family for item in audit.select(NOT_ASKED) if item.decisive] == ["ids"]


def test_stale_cache_and_wrong_weights_stay_within_the_token_budget(trained, tmp_path):
    """This is the most expensive case: long trainer prompts, a stale prefix cache, and other weights."""
    prompts = ["a prompt that is long " * 40, "another one of these " * 40, "and a third one " * 40]
    wrong = Wrong(stale_cache=loaded(trained / "checkpoint-20", "bfloat16"))
    trainer = trainer_file(tmp_path, prompts=prompts)
    faults = fault_values(audit_standin(trained, wrong, folder="base", trainer=trainer, tokens=3300))
    assert list(faults) == ["weights/version", "cache/stale"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "family"), [(Wrong(permuted=True), "pairing"), (Wrong(neighbour=True), "logprobs/token")]
)
def test_swapped_samples_and_logprobs_of_other_tokens_are_found(trained, wrong, family):
    assert family in fault_values(audit_standin(trained, wrong))


@pytest.mark.long
def test_replicas_with_different_weights_are_reported(trained):
    """Older weights answer every other call; checks that depend on the weights are masked."""
    audit = audit_standin(trained, Wrong(second=loaded(trained / "base", "bfloat16")))
    assert list(fault_values(audit)) == ["replicas/weights"]
    assert {item.masked_by for item in audit.select("masked")} == {"replicas/weights"}
