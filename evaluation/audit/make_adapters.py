"""Write LoRA adapters in peft's format without peft: random matrices that differ a little between steps.

`python -m evaluation.audit.make_adapters BASE FOLDER` writes checkpoint-40 and checkpoint-60, adapters for the model in
BASE, and `twice` and `half`, which are checkpoint-60 with lora_alpha multiplied by 2 and 0.5.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.diagnostics.audit.fake_vllm_server import load_rounded

# Some releases of vLLM accept no rank below 8.
RANK, ALPHA = 8, 16
_SIZE, _DRIFT = 0.05, 0.014


def write_adapters(base: Path, folder: Path, steps: dict[int, float]) -> Path:
    """Write an adapter to FOLDER/checkpoint-STEP for each step (step -> scale of its matrices); return `folder`."""
    state = load_rounded(base, "float32").state_dict()
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for name, tensor in state.items():
        if "_proj" in name:
            key = f"base_model.model.{name.removesuffix('.weight')}"
            for part, shape in (("A", (RANK, tensor.shape[1])), ("B", (tensor.shape[0], RANK))):
                tensors[f"{key}.lora_{part}.weight"] = _SIZE * torch.randn(shape, generator=generator)
    settings = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "base_model_name_or_path": str(base.resolve()),
        "target_modules": sorted({name.split(".")[-2] for name in state if "_proj" in name}),
    }  # fmt: skip
    for step, scale in steps.items():
        checkpoint = folder / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "adapter_config.json").write_text(json.dumps(settings))
        drift = torch.Generator().manual_seed(step)
        step_tensors = {
            name: scale * tensor + _DRIFT * torch.randn(tensor.shape, generator=drift)
            for name, tensor in tensors.items()
        }
        save_file(step_tensors, checkpoint / "adapter_model.safetensors")
    return folder


def copy_with_scale(adapter: Path, folder: Path, times: float) -> Path:
    """Copy an adapter with its lora_alpha multiplied by `times`."""
    shutil.copytree(adapter, folder)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"lora_alpha": times * config["lora_alpha"]}))
    return folder


if __name__ == "__main__":
    adapters = write_adapters(Path(sys.argv[1]), Path(sys.argv[2]), {40: 0.6, 60: 1.0})
    for name, times in (("twice", 2.0), ("half", 0.5)):
        copy_with_scale(adapters / "checkpoint-60", adapters / name, times)
