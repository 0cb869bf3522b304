"""CFG113: an option of another release: TRL's own parser refuses what it does not know."""

from __future__ import annotations

import tempfile

from repro.drivers import calls


def _parse(mitigation: str | None) -> None:
    from trl import GRPOConfig, TrlParser

    option = ["--vllm_mode", "colocate"] if mitigation == "rename" else ["--vllm_device", "cuda:1"]
    words = ["--output_dir", tempfile.mkdtemp(), "--use_cpu", "true", "--bf16", "false", *option]
    TrlParser((GRPOConfig,)).parse_args_and_config(words)


REPRO = calls.repro(
    "CFG113",
    "An option that this release does not have",
    needs=("trl",),
    modules=("trl",),
    trigger=("vllm_device", "TrlParser is given --vllm_device, which ended with TRL 0.18"),
    call=_parse,
    failure=(
        "ValueError",
        'raise ValueError(f"Some specified arguments are not used by the HfArgumentParser: {remaining_args}")',
        "parse_args_into_dataclasses",
    ),
    says="vllm_device",
    helps={"rename": "--vllm_mode colocate, which this release has"},
)
