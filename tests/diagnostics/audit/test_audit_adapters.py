"""Checkpoints that are adapters: added as they should be, twice, by half, not at all, and those of an older step."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from diagnostics.audit.live.probe_plan import LiveAudit, audit_server
from diagnostics.audit.live.reference import Reference, sibling_checkpoints
from diagnostics.audit.results import CLEAN, FAULT, AuditError
from tests.diagnostics.audit.standin import Engine, loaded, serving

RANK, ALPHA = 4, 8


@pytest.fixture(scope="module")
def adapters(trained, tmp_path_factory):
    """checkpoint-10 and checkpoint-20, adapters to checkpoint-120."""
    folder = tmp_path_factory.mktemp("adapters")
    base = trained / "checkpoint-120"
    state = loaded(base, "float32").state_dict()
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for name, tensor in state.items():
        if "_proj" in name:
            key = f"base_model.model.{name.removesuffix('.weight')}"
            for part, shape in (("A", (RANK, tensor.shape[1])), ("B", (tensor.shape[0], RANK))):
                tensors[f"{key}.lora_{part}.weight"] = 0.07 * torch.randn(shape, generator=generator)
    settings = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "base_model_name_or_path": str(base),
        "target_modules": sorted({name.split(".")[-2] for name in state if "_proj" in name}),
    }  # fmt: skip
    for step, share in ((10, 0.6), (20, 1.0)):
        built = folder / f"checkpoint-{step}"
        built.mkdir()
        (built / "adapter_config.json").write_text(json.dumps(settings))
        drift = torch.Generator().manual_seed(step)
        of_step = {
            name: share * single + 0.02 * torch.randn(single.shape, generator=drift)
            for name, single in tensors.items()
        }
        save_file(of_step, built / "adapter_model.safetensors")
    return folder


def served_folder(adapters, times, tmp_path, step=20):
    """Save the base with the adapter added so many times, without the code under test."""
    from safetensors.torch import load_file

    reported = json.loads((adapters / f"checkpoint-{step}" / "adapter_config.json").read_text())
    parts = load_file(adapters / f"checkpoint-{step}" / "adapter_model.safetensors")
    model = loaded(reported["base_model_name_or_path"], "float32")
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            key = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{key}.lora_A.weight" in parts:
                product = parts[f"{key}.lora_B.weight"] @ parts[f"{key}.lora_A.weight"]
                tensor.add_(times * ALPHA / RANK * product)
    shutil.copytree(reported["base_model_name_or_path"], tmp_path / "served")
    model.save_pretrained(tmp_path / "served")
    return tmp_path / "served"


def audit_faults(adapters, folder, wrong=None):
    """The faults of an audit against checkpoint-20, with their first values."""
    with serving(Engine(folder, "bfloat16", wrong)) as url:
        audit = audit_server(LiveAudit(url, adapters / "checkpoint-20", timeout_s=500))
    return {item.family: item.estimates[0].value for item in audit.select(FAULT)}, audit.outcome


def test_an_adapter_that_is_added_once_is_clean(adapters, tmp_path):
    """Merged, as most trainers send it."""
    assert audit_faults(adapters, served_folder(adapters, 1, tmp_path)) == ({}, CLEAN)


@pytest.mark.parametrize("times", [2.0, 0.5])
def test_how_often_it_is_added_is_told(adapters, tmp_path, times):
    """Twice after a resume, by half with another alpha."""
    faults, _ = audit_faults(adapters, served_folder(adapters, times, tmp_path))
    assert list(faults) == ["weights/adapter"]
    assert faults["weights/adapter"] == pytest.approx(times, abs=0.05)


def test_one_that_is_not_added_is_the_base(adapters, trained):
    """An adapter that the server does not apply is reported as the base checkpoint, by folder name."""
    assert audit_faults(adapters, trained / "checkpoint-120")[0] == {"weights/version": "checkpoint-120"}


def test_an_older_one_is_named(adapters, tmp_path):
    """The audit names an older adapter, as it does for whole weights."""
    folder = served_folder(adapters, 1, tmp_path, step=10)
    assert audit_faults(adapters, folder)[0] == {"weights/version": "checkpoint-10"}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_it_is_what_peft_makes_of_it(adapters, trained):
    """Scale, sides and names."""
    peft = pytest.importorskip("peft")
    base = loaded(trained / "checkpoint-120", "float32")
    merged = peft.PeftModel.from_pretrained(base, adapters / "checkpoint-20").merge_and_unload()
    ours = Reference(adapters / "checkpoint-20").state
    theirs = merged.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)


def test_what_stands_beside_it_are_its_siblings_and_its_base(adapters, trained):
    """So that none of them has to be named."""
    audit = sibling_checkpoints(adapters / "checkpoint-20")
    assert audit == [(adapters / "checkpoint-10").resolve(), trained / "checkpoint-120"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base_model_name_or_path": "org/name"}, "expected a folder of weights"),
        ({"use_dora": True}, "use_dora is not supported: merge"),
        ({"peft_type": "IA3"}, "IA3 is not supported: merge"),
    ],
)
def test_what_is_not_computed_is_said(adapters, tmp_path, change, said):
    """In place of numbers that would be wrong."""
    shutil.copytree(adapters / "checkpoint-20", tmp_path / "one")
    path = tmp_path / "one" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(AuditError, match=said):
        Reference(tmp_path / "one")


def test_truncated_adapter_weights_are_refused_by_file_name(adapters, tmp_path):
    shutil.copytree(adapters / "checkpoint-20", tmp_path / "truncated")
    path = tmp_path / "truncated" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(AuditError, match=r"adapter_model\.safetensors"):
        _ = Reference(tmp_path / "truncated").state
