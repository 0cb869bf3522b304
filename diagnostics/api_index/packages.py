"""List the indexed packages, with the releases and files to read of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IndexedPackage:
    """Settings for reading one package.

    Attributes:
        name: Name on the package index.
        modules: Top-level packages to read.
        since: The oldest indexed release; for a trainer, the first with GRPO.
        since_day: Releases before this day are not indexed.
        outlined: Folders with model definitions; only top-level classes and functions of their files are read.
        whole: Folders inside outlined ones that are read completely.
        left_out: Folders that are not read at all.
        configs: Whether its YAML config files are read.
        uses: Other packages whose names it uses; these uses are recorded.
        used_kinds: Kinds of uses that are recorded; empty for all.
        same_release_as: For a plugin: the package that it extends. Each release of the plugin is for the release of
            the same number, without that package's CUDA requirements.
    """

    name: str
    modules: tuple[str, ...]
    since: str = "0"
    since_day: str = "2024-09-01"
    outlined: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    configs: bool = False
    uses: tuple[str, ...] = ()
    used_kinds: tuple[str, ...] = ()
    same_release_as: str = ""

    def includes(self, path: str) -> bool:
        """Return whether a file is read."""
        return path.partition("/")[0] in self.modules and not path.startswith(self.left_out or ("//",))

    def is_outlined(self, path: str) -> bool:
        """Return whether only the outline of a file is read."""
        is_whole = path.startswith(self.whole or ("//",)) or path.endswith("/__init__.py")
        return path.startswith(self.outlined or ("//",)) and not is_whole


_STACK = ("vllm", "transformers", "peft", "accelerate", "trl")
PACKAGES = {
    package.name: package
    for package in (
        IndexedPackage("trl", ("trl",), since="0.14", uses=("vllm", "transformers", "peft", "accelerate")),
        IndexedPackage("verl", ("verl",), since_day="2024-01-01", configs=True, uses=_STACK),
        IndexedPackage("openrlhf", ("openrlhf",), since="0.5", uses=_STACK),
        IndexedPackage("peft", ("peft",), since="0.12", uses=("transformers", "accelerate")),
        IndexedPackage("accelerate", ("accelerate",), since="0.34", uses=("transformers",)),
        IndexedPackage("ms-swift", ("swift",), since="3.1", uses=_STACK),
        IndexedPackage(
            "transformers",
            ("transformers",),
            since="4.46",
            outlined=(
                "transformers/models/",
                "transformers/pipelines/",
                "transformers/data/",
                "transformers/quantizers/",
            ),
            whole=("transformers/models/auto/",),
            left_out=("transformers/kernels/", "transformers/utils/dummy_"),
        ),
        IndexedPackage(
            "vllm",
            ("vllm",),
            since="0.6",
            outlined=(
                "vllm/model_executor/models/",
                "vllm/models/",
                "vllm/model_executor/layers/",
                "vllm/model_executor/kernels/",
                "vllm/attention/",
                "vllm/v1/attention/",
                "vllm/compilation/",
                "vllm/vllm_flash_attn/",
                "vllm/transformers_utils/",
                "vllm/tool_parsers/",
                "vllm/reasoning/",
                "vllm/entrypoints/openai/tool_parsers/",
                "vllm/distributed/kv_transfer/",
                "vllm/_",
                "vllm/v1/kv_offload/",
                "vllm/v1/spec_decode/",
                "vllm/benchmarks/",
            ),
            uses=("transformers",),
            used_kinds=("registered",),
        ),
        IndexedPackage("deepspeed", ("deepspeed",), left_out=("deepspeed/ops/csrc/",)),
        IndexedPackage("unsloth-zoo", ("unsloth_zoo",), uses=_STACK),
        IndexedPackage("unsloth", ("unsloth",), uses=_STACK),
        IndexedPackage(
            "sglang",
            ("sglang",),
            outlined=(
                "sglang/srt/models/",
                "sglang/srt/layers/",
                "sglang/srt/mem_cache/",
                "sglang/srt/speculative/",
                "sglang/srt/disaggregation/",
                "sglang/srt/configs/",
            ),
            left_out=("sglang/multimodal_gen/", "sglang/kernels/", "sglang/jit_kernel/"),
            uses=("transformers",),
        ),
        IndexedPackage(
            "ray",
            ("ray",),
            left_out=("ray/dashboard/", "ray/rllib/", "ray/_private/", "ray/thirdparty_files/"),
        ),
        IndexedPackage(
            "vllm-ascend", ("vllm_ascend",), uses=("vllm", "transformers"), same_release_as="vllm"
        ),
        IndexedPackage("skyrl", ("skyrl",), configs=True, uses=_STACK),
        IndexedPackage("skyrl-train", ("skyrl_train",), configs=True, uses=_STACK),
        IndexedPackage("areal", ("areal",), uses=_STACK),
    )
}
