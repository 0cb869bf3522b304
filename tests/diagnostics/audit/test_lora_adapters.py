"""A live audit with a LoRA checkpoint finds a wrong factor, an older step or a missing adapter.

Adapters that are unsupported, cut off or of another shape are refused.
"""

import json
import shutil

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.results import FAULT, AuditError
from evaluation.audit.make_adapters import write_adapters
from tests.diagnostics.audit.fake_vllm_server import Engine, load_rounded, serving

pytestmark = pytest.mark.usefixtures("models_loaded_once")


@pytest.fixture(scope="module")
def adapters(trained, tmp_path_factory):
    """Make LoRA checkpoints of steps 10 and 20 whose base is checkpoint-120."""
    folder = tmp_path_factory.mktemp("adapters")
    return write_adapters(trained / "checkpoint-120", folder, {10: 0.6, 20: 1.0})


@pytest.fixture(scope="module")
def save_merged(adapters, trained, tmp_path_factory):
    """Return a function that saves the base with a step's adapter merged `times` times by peft."""

    def save(step, times):
        folder = shutil.copytree(trained / "checkpoint-120", tmp_path_factory.mktemp("served") / "merged")
        base = load_rounded(trained / "checkpoint-120", "float32")
        model = peft.PeftModel.from_pretrained(base, adapters / f"checkpoint-{step}")
        for module in model.modules():
            if isinstance(module, peft.tuners.lora.LoraLayer):
                module.scale_layer(times)
        model.merge_and_unload().save_pretrained(folder)
        return folder

    return save


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize(
    ("step", "times", "dtype", "faults"),
    [
        (20, 1, "bfloat16", {}),
        pytest.param(
            20, 2.0, "bfloat16", {"weights/adapter": pytest.approx(2.0, abs=0.05)}, marks=pytest.mark.long
        ),
        (20, 0.5, "float32", {"weights/adapter": pytest.approx(0.5, abs=0.05)}),
        (20, 0, "float32", {"weights/version": "checkpoint-120"}),
        pytest.param(10, 1, "bfloat16", {"weights/version": "checkpoint-10"}, marks=pytest.mark.long),
    ],
    ids=["once", "twice after a resume", "half, another alpha", "not added: the base", "older step"],
)
def test_adapter_merge_factor_and_step_are_identified(adapters, save_merged, step, times, dtype, faults):
    """The merge factor is found in 16 and in 32 bits; a served base gives the hint `--lora-modules`."""
    with serving(Engine(save_merged(step, times), dtype)) as url:
        audit = audit_server(url, adapters / "checkpoint-20", timeout_s=500)
    assert {item.family: item.estimates[0].value for item in audit.select(FAULT)} == faults
    is_missing = [
        any("--lora-modules" in fact.text for fact in item.evidence) for item in audit.select(FAULT)
    ]
    assert is_missing == [times == 0 for _ in faults]


@pytest.mark.parametrize(
    ("shape_a", "shape_b"), [((0, 8), (8, 0)), ((), ()), ((2, 8), (8, 3)), ((1, 4000), (4000, 1))]
)
def test_adapter_of_another_shape_is_refused(adapters, tmp_path, shape_a, shape_b):
    """Its product, which could take gigabytes, is not computed."""
    folder = shutil.copytree(adapters / "checkpoint-20", tmp_path / "adapter")
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("lora_A.weight"))
    tensors[name] = torch.zeros(shape_a)
    tensors[name.replace("lora_A", "lora_B")] = torch.zeros(shape_b)
    save_file(tensors, path)
    with pytest.raises(AuditError, match="shape"):
        _ = Reference(folder).state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model_name_or_path": "org/name"}, "expected a folder of weights"),
        ({"use_dora": True}, "use_dora is not supported: merge"),
        ({"peft_type": "IA3"}, "IA3 is not supported: merge"),
        (None, r"adapter_model\.safetensors"),
    ],
)
def test_unsupported_or_truncated_adapter_is_refused(adapters, tmp_path, change, message):
    folder = shutil.copytree(adapters / "checkpoint-20", tmp_path / "adapter")
    path, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    path.write_text(json.dumps(json.loads(path.read_text()) | (change or {})))
    weights.write_bytes(weights.read_bytes()[: None if change else 100])
    with pytest.raises(AuditError, match=message):
        _ = Reference(folder).state
