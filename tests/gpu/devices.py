"""Provide the devices of the GPU tests: the CPU, on which the tests themselves are checked, and a GPU.

A test that takes `device` from DEVICES is two tests: the first runs everywhere, the second is marked `gpu` and is
skipped where PyTorch sees no GPU. The module also finds interpreters of cells and `nvidia-smi`, and counts the bytes of
tensors.
"""

import shutil
from pathlib import Path

import pytest
import torch

from tests.cells import cell_python, existing_path

NO_GPU = "needs a GPU: PyTorch sees none"
ON_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU))
DEVICES = ("cpu", pytest.param("cuda", marks=ON_GPU))
# Tolerance: kernels of another device add in another order.
ROUNDING = 2e-4


def on_gpu(test):
    """Mark a test that can't run on a CPU."""
    for mark in ON_GPU:
        test = mark(test)
    return test


def gpu_cell(cell: str) -> Path:
    """Return the interpreter of a cell with its lock's CUDA wheels, or skip with the command that builds one."""
    command = f"uv venv DIR/{cell} && uv pip sync --python DIR/{cell}/bin/python locks/{cell}.txt"
    return existing_path("GRPO_DOCTOR_GPU_CELLS", f"{cell}/bin/python", command)


def cell_on(device: str, cell: str) -> Path:
    """Return the interpreter of the cell with wheels for this device."""
    return cell_python(cell) if device == "cpu" else gpu_cell(cell)


def smi() -> str:
    """Return the path of `nvidia-smi`, or skip."""
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("there is no nvidia-smi here")
    return program


def storage_bytes(tensors) -> int:
    """Count the bytes of these tensors' storages, each once, on any device."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
