"""Repros of options that TRL's configuration and its parser refuse."""

from __future__ import annotations

import tempfile
from functools import partial

from repro.drivers import calls, tiny_trl

_repro = partial(calls.repro, needs=("trl",), modules=("trl",))


@_repro(
    "CFG101",
    trigger="sizes",
    failure=("ValueError", "raise ValueError(", "__post_init__"),
    says="must be divisible by num_generations",
    changes={"group_divides": "groups of 3"},
)
def cfg101_sizes(mitigation: str | None) -> None:
    """TRL's configuration refuses a generation that does not hold whole groups."""
    group = 3 if mitigation == "group_divides" else 8
    tiny_trl.config(num_generations=group, per_device_train_batch_size=3)


@_repro(
    "CFG110",
    trigger="one",
    failure=("ValueError", "raise ValueError(", "__post_init__"),
    says="at least 2 generations",
    changes={"a_group": "num_generations=8"},
)
def cfg110_one(mitigation: str | None) -> None:
    """TRL's configuration refuses a group of one completion."""
    group = 8 if mitigation == "a_group" else 1
    tiny_trl.config(num_generations=group, per_device_train_batch_size=8)


@_repro(
    "CFG111",
    trigger="both",
    failure=("ValueError", "raise ValueError(", "__post_init__"),
    says="can not be both configured",
    changes={"one_of_them": "generation_batch_size alone"},
)
def cfg111_both(mitigation: str | None) -> None:
    """TRL's configuration refuses two options of which one may be set."""
    both = {"generation_batch_size": 8, "steps_per_generation": 2}
    if mitigation == "one_of_them":
        del both["steps_per_generation"]
    tiny_trl.config(**both)


@_repro(
    "CFG113",
    trigger="vllm_device",
    failure=(
        "ValueError",
        'raise ValueError(f"Some specified arguments are not used by the HfArgumentParser: {remaining_args}")',
        "parse_args_into_dataclasses",
    ),
    says="vllm_device",
    changes={"rename": "--vllm_mode colocate, which this release has"},
)
def cfg113_vllm_device(mitigation: str | None) -> None:
    """An option of another release: TRL's own parser refuses what it does not know."""
    from trl import GRPOConfig, TrlParser

    option = ["--vllm_mode", "colocate"] if mitigation == "rename" else ["--vllm_device", "cuda:1"]
    words = ["--output_dir", tempfile.mkdtemp(), "--use_cpu", "true", "--bf16", "false", *option]
    TrlParser((GRPOConfig,)).parse_args_and_config(words)
