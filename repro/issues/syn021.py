"""SYN021: vLLM's encoder is given a function, and pickle is not allowed."""

from __future__ import annotations

import os

from repro.drivers import calls


def _double(value: int) -> int:
    return 2 * value


def _encode(mitigation: str | None) -> None:
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1" if mitigation == "allow" else "0"
    from vllm.v1.serial_utils import MsgpackEncoder

    MsgpackEncoder().encode(["double" if mitigation == "by_name" else _double])


REPRO = calls.repro(
    "SYN021",
    "The engine refuses to hand over a function or tensor without pickle",
    needs=("vllm",),
    modules=("vllm.v1.serial_utils",),
    trigger=("function", "MsgpackEncoder.encode of a function, as collective_rpc calls it"),
    call=_encode,
    failure=("TypeError", "raise TypeError(", "enc_hook"),
    says="VLLM_ALLOW_INSECURE_SERIALIZATION",
    helps={"allow": "VLLM_ALLOW_INSECURE_SERIALIZATION=1", "by_name": "a method's name"},
)
