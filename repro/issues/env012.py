"""ENV012: TRL's trainer is to use vLLM, which is not installed."""

from __future__ import annotations

from repro import upstream
from repro.base import InapplicableError
from repro.drivers import calls, tiny_trl


def _make(mitigation: str | None) -> None:
    del mitigation
    if upstream.installed(upstream.VLLM) is not None:
        raise InapplicableError("vLLM is installed here")
    calls.trl_step(lambda completions, **_: [0.0] * len(completions), use_vllm=True)


REPRO = calls.repro(
    "ENV012",
    "A package is not installed in this environment",
    needs=("trl",),
    modules=tiny_trl.MODULES,
    trigger=("use_vllm", "GRPOTrainer with use_vllm=True and no vLLM"),
    call=_make,
    failure=("ImportError", "raise ImportError(", ""),
    says="vLLM is not available",
    untried={"install": "it changes the environment: run this in one with vLLM"},
)
