"""What an engine with the V1 scheduler is made of: settings, requests, and vLLM's own configuration objects."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOP = 99  # the stop token of requests that have one
_MODEL = {
    "architectures": ["HarnessForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class V1Setup:
    """How the engine is configured; lengths in tokens.

    Args:
        asynchronous: asynchronous scheduling: a step is scheduled while the one before still runs.
        prefix_caching: prompts share the blocks of equal beginnings.
        chunked: chunked prefill.
        priority: scheduling by priority instead of by arrival.
        max_model_len: prompt and completion together.
        token_budget: `max_num_batched_tokens`, for one step.
        max_num_seqs: requests running at once.
        blocks: KV cache blocks, one of which vLLM keeps for itself.
        block_size: tokens in a block.
    """

    asynchronous: bool = False
    prefix_caching: bool = False
    chunked: bool = False
    priority: bool = False
    max_model_len: int = 24
    token_budget: int = 24
    max_num_seqs: int = 3
    blocks: int = 32
    block_size: int = 4


@dataclass(frozen=True)
class V1Request:
    """A request as a caller makes it; lengths in tokens.

    Args:
        id: its name.
        prompt: all prompts of a family begin alike.
        max_tokens: to generate at most.
        min_tokens: to generate at least.
        stop_at: the sampled token of that number is a stop token; 0: none is.
        family: which beginning its prompt has.
        priority: lower is served first, where the engine goes by priority.
    """

    id: str
    prompt: int
    max_tokens: int
    min_tokens: int = 0
    stop_at: int = 0
    family: int = 0
    priority: int = 0


@functools.cache
def config(setup: V1Setup) -> Any:
    """Returns vLLM's own `VllmConfig` for a setup.

    The model is a stub, registered as vLLM's plugins do it; nothing loads or calls it. The CPU's platform turns
    asynchronous scheduling off because a CPU gains nothing by it; here it is turned on again, as on a GPU.
    """
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig

    _register()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        model = ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=setup.max_model_len,
        )
    scheduler = SchedulerConfig(
        max_num_batched_tokens=setup.token_budget,
        max_num_seqs=setup.max_num_seqs,
        max_model_len=setup.max_model_len,
        is_encoder_decoder=False,
        enable_chunked_prefill=setup.chunked,
        policy="priority" if setup.priority else "fcfs",
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=setup.block_size, enable_prefix_caching=setup.prefix_caching)
    built = VllmConfig(model_config=model, scheduler_config=scheduler, cache_config=cache)
    built.scheduler_config.async_scheduling = setup.asynchronous
    built.cache_config.num_gpu_blocks = setup.blocks
    _same_as_asked(built, setup)
    return built


def _same_as_asked(built: Any, setup: V1Setup) -> None:
    """A platform may change what it is given; a search over other settings than it names would be worth nothing."""
    scheduler, cache = built.scheduler_config, built.cache_config
    have = {
        "chunked": scheduler.enable_chunked_prefill,
        "token_budget": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_model_len": built.model_config.max_model_len,
        "block_size": cache.block_size,
        "prefix_caching": cache.enable_prefix_caching,
    }
    wrong = {name: value for name, value in have.items() if value != getattr(setup, name)}
    if wrong:
        raise RuntimeError(f"vLLM changed what it was configured with: {wrong}, asked for {setup}")


def kv_cache_config(setup: V1Setup) -> Any:
    """Returns vLLM's own `KVCacheConfig`: one group of full attention, no tensors."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=setup.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=setup.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )


@functools.lru_cache(maxsize=1)
def _register() -> None:
    import torch
    from vllm import ModelRegistry

    class HarnessForCausalLM(torch.nn.Module):  # type: ignore[misc]
        """Has the methods that vLLM looks for in a model, and is never called."""

        def __init__(self, *, vllm_config: Any = None, prefix: str = "") -> None:  # noqa: ARG002 - looked for
            super().__init__()

        def embed_input_ids(self, input_ids: Any) -> None:
            """Never called."""

        def forward(self, input_ids: Any, positions: Any) -> None:
            """Never called."""

        def compute_logits(self, hidden_states: Any) -> None:
            """Never called."""

    ModelRegistry.register_model("HarnessForCausalLM", HarnessForCausalLM)
