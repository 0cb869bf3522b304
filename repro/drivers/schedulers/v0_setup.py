"""What an engine and its requests are made of: settings, the engine's check of a prompt, upstream's configurations."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from repro import upstream
from repro.base import InapplicableError


@dataclass(frozen=True)
class Setup:
    """How the engine is configured; lengths in tokens.

    Args:
        chunked: chunked prefill.
        async_output: asynchronous output processing: a step's output is processed during the next step.
        max_model_len: prompt and completion together.
        token_budget: `max_num_batched_tokens`, for one step.
        max_num_seqs: requests running at once.
        blocks: KV cache blocks.
        block_size: tokens in a block.
    """

    chunked: bool = False
    async_output: bool = True
    max_model_len: int = 64
    token_budget: int = 64
    max_num_seqs: int = 8
    blocks: int = 64
    block_size: int = 16


@dataclass(frozen=True)
class SchedulerRequest:
    """A request as a caller makes it; lengths in tokens. `stop`: every sampled token is a stop token to it."""

    id: str
    prompt: int
    max_tokens: int
    min_tokens: int = 0
    stop: bool = False


@dataclass(frozen=True)
class Delivered:
    """A finished request as it comes out of a step."""

    id: str
    tokens: int


class ForwardPassError(Exception):
    """Raised where a simulated forward pass fails, as one out of memory does."""


class RefusedRequestError(InapplicableError):
    """Raised when the engine refuses a prompt before its scheduler sees it; the text is upstream's."""


def prompt_inputs(length: int) -> Any:
    """Returns a prompt of that many tokens as the engine hands it on; `token_inputs` is there since vLLM 0.6.4."""
    import vllm.inputs

    ids = [1] * length
    if hasattr(vllm.inputs, "token_inputs"):
        return vllm.inputs.token_inputs(ids)
    return vllm.inputs.LLMInputs(prompt_token_ids=ids)


def check_prompt(length: int, max_model_len: int) -> None:
    """Has `LLMEngine` judge a prompt of that many tokens: its own method, on the little it reads of an engine.

    Raises:
        RefusedRequestError: it is refused.
    """
    try:
        from vllm.engine.llm_engine import LLMEngine
    except ImportError as error:
        _read_check(length, max_model_len, error)
        return
    model = SimpleNamespace(max_model_len=max_model_len, is_multimodal_model=False)
    # The last is asked for up to 0.6.3.
    engine = SimpleNamespace(model_config=model, tokenizer=None, is_encoder_decoder_model=lambda: False)
    for name in ("_validate_model_input", "_validate_model_inputs"):
        if hasattr(LLMEngine, name):
            setattr(engine, name, getattr(LLMEngine, name).__get__(engine))
    try:
        check = engine._validate_model_inputs  # noqa: SLF001 - upstream's own check
        lora = [None] * (len(inspect.signature(check).parameters) - 1)  # a second argument since 0.6.4
        check(prompt_inputs(length), *lora)
    except ValueError as error:
        raise RefusedRequestError(
            f"LLMEngine refuses the prompt before the scheduler sees it: {error}"
        ) from error


def _read_check(length: int, max_model_len: int, why: ImportError) -> None:
    """Reads the check in the source where the engine's module can't be imported (0.10.2 wants openai_harmony)."""
    tree = ast.parse(upstream.source("vllm/engine/llm_engine.py") or "")
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    if length > max_model_len and any("is longer than the maximum model length" in text for text in texts):
        raise RefusedRequestError(
            f"LLMEngine refuses the prompt, as its source says; it can't be imported here: {why}"
        )


def configs(setup: Setup) -> tuple[Any, Any]:
    """Returns vLLM's own `SchedulerConfig` and `CacheConfig` for a setup."""
    from vllm.config import CacheConfig, SchedulerConfig

    scheduler = _build(
        SchedulerConfig,
        task="generate",  # its name in 0.6.4, and that since 0.6.5
        runner_type="generate",
        max_num_batched_tokens=setup.token_budget,
        max_num_seqs=setup.max_num_seqs,
        max_model_len=setup.max_model_len,
        enable_chunked_prefill=setup.chunked,
    )
    cache = _build(
        CacheConfig, block_size=setup.block_size, gpu_memory_utilization=0.5, swap_space=0, cache_dtype="auto"
    )
    cache.num_gpu_blocks, cache.num_cpu_blocks = setup.blocks, 0
    return scheduler, cache


def _build(cls: Any, **options: Any) -> Any:
    known = inspect.signature(cls).parameters  # not cls.__init__: from 0.9 on these are pydantic dataclasses
    return cls(**{name: value for name, value in options.items() if name in known})
