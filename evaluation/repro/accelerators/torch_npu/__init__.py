"""A stand-in for a maker's PyTorch plug-in: it says how many accelerators there are, and computes nothing.

It registers itself by PyTorch's own interface for devices that live outside its tree, as the real plug-in does; no
code of PyTorch or of the trainer is changed. It is on the path of one program alone,
`evaluation.repro.swift_arguments`, which asks how a trainer checks its arguments on a machine of N accelerators.
"""

from __future__ import annotations

import os
import types
from typing import NoReturn

import torch

COUNT = "GRPO_DOCTOR_ACCELERATORS"


def _count() -> int:
    return int(os.environ.get(COUNT, "0"))


def _nothing(*_: object) -> None:
    """Take what it is given."""


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
    "set_device": _nothing,
    "manual_seed_all": _nothing,
    "empty_cache": _nothing,
    "is_bf16_supported": lambda *_: True,
    "get_amp_supported_dtype": lambda: [torch.bfloat16],
}.items():
    setattr(_device, _name, _value)
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", _device)
