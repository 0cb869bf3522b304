"""Stand-in for the PyTorch plug-in of an accelerator: reports a number of devices, and computes nothing.

It registers itself by PyTorch's interface for out-of-tree devices, as the real plug-in does; PyTorch and the trainer
are unmodified. Only `evaluation.repro.swift_arguments` and the triage corpus have it on their path, to test how
ms-swift checks its arguments on a machine with N accelerators.
"""

from __future__ import annotations

import os
import types
from typing import NoReturn

import torch

COUNT = "GRPO_DOCTOR_ACCELERATORS"


def _count() -> int:
    return int(os.environ.get(COUNT, "0"))


def _do_nothing(*_: object) -> None:
    """Ignore all arguments."""


def _compute(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("a stand-in for an accelerator: it computes nothing")


def __getattr__(name: str) -> object:
    if name.startswith("npu_"):  # operators that transformers imports and does not call here
        return _compute
    raise AttributeError(name)


_device = types.ModuleType("torch.npu")
for _name, _value in {
    "device_count": _count,
    "is_available": lambda: _count() > 0,
    "is_initialized": lambda: False,
    "_is_in_bad_fork": lambda: False,
    "current_device": lambda: 0,
    "set_device": _do_nothing,
    "manual_seed_all": _do_nothing,
    "empty_cache": _do_nothing,
    "is_bf16_supported": lambda *_: True,
    "get_amp_supported_dtype": lambda: [torch.bfloat16],
}.items():
    setattr(_device, _name, _value)
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", _device)
