"""Register a stub Llama with vLLM, for configurations and schedulers that never run the model."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

_NAME = "StubForCausalLM"
_CONFIG = {
    "architectures": [_NAME],
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


def write_and_register(folder: str | Path) -> None:
    """Write the model's config.json into a folder, and register its class with vLLM.

    A class that is not registered is inspected by vLLM in another process, where the import of an old vLLM may fail
    with a newer PyTorch.
    """
    Path(folder, "config.json").write_text(json.dumps(_CONFIG))
    _register()


@functools.cache
def _register() -> None:
    """Register the stub's class with vLLM, once."""
    from torch import nn
    from vllm import ModelRegistry

    class StubForCausalLM(nn.Module):  # type: ignore[misc] # PyTorch is not checked outside of cells
        """Model with the methods that vLLM requires of a model that generates text; none is called."""

        def __init__(self, *, vllm_config: Any = None, prefix: str = "") -> None:
            del vllm_config, prefix
            super().__init__()

        def embed_input_ids(self, input_ids: Any) -> Any: ...

        def forward(
            self, input_ids: Any, positions: Any, kv_caches: Any = None, attn_metadata: Any = None
        ) -> Any: ...

        def compute_logits(self, hidden_states: Any, sampling_metadata: Any = None) -> Any: ...

        def sample(self, logits: Any, sampling_metadata: Any) -> Any: ...

        def load_weights(self, weights: Any) -> Any: ...

    ModelRegistry.register_model(_NAME, StubForCausalLM)
