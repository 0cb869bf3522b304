"""Register a stub Llama with vLLM, for configurations and schedulers that never run the model."""

import functools
import shutil
from pathlib import Path
from typing import Any

_NAME = "StubForCausalLM"


def write_and_register(folder: str | Path) -> None:
    """Write the model's config.json into a folder, and register its class with vLLM.

    A class that is not registered is inspected by vLLM in another process, where the import of an old vLLM may fail
    with a newer PyTorch.
    """
    shutil.copy(Path(__file__).with_suffix(".json"), Path(folder, "config.json"))
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
