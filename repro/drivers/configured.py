"""A process that has vLLM make an engine's configuration, on whatever platform vLLM detects; a program for `elsewhere`.

Each attempt has a process of its own, because vLLM detects the platform once, when it is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from repro.drivers import elsewhere

# One layer of nothing: the configuration is all that is made of it.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# vLLM looks into a model's class in another process, where an old release may not import beside today's PyTorch. A
# class that is registered is looked into at once.
STUB = "ConfiguredOnlyForCausalLM"


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Has the configuration made.

    Args:
        plan: `trigger`; `options` for EngineArgs or LLM; `detected`: vLLM is made to think it is its CPU build.
    """
    folder = Path(tempfile.mkdtemp())
    if plan["detected"]:
        _claim_cpu_build(folder / "metadata")
    report: dict[str, Any] = {}
    try:
        if plan["trigger"] == "trl_trainer":
            unable = _patched_by_trl()
            if unable:
                return {"inapplicable": unable}
            _train(folder, plan["options"])
            report["configured"] = {}
        else:
            report["configured"] = _configure(folder, plan["options"])
    except BaseException as error:  # noqa: BLE001 - every end is a result
        report["failure"] = elsewhere.told(error)
    import vllm.platforms

    return report | {"platform": type(vllm.platforms.current_platform).__name__}


def _patched_by_trl() -> str | None:
    """Says why the module that TRL 0.14 and 0.15 patch before they make the engine can't be imported, or None."""
    try:
        importlib.import_module("vllm.worker.worker")
    except ImportError as error:
        return f"the trainer patches vllm.worker.worker first, which can't be imported here: {error}"
    return None


def _claim_cpu_build(folder: Path) -> None:
    """Puts metadata before the wheel's own that name a CPU build: vLLM takes its platform from that version's text."""
    version = f"{metadata.version('vllm')}+cpu"
    found = folder / f"vllm-{version}.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    sys.path.insert(0, str(folder))


def _configure(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Calls `EngineArgs(...).create_engine_config()`, and says what came out."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import ModelRegistry

    _write_model(folder, STUB)
    ModelRegistry.register_model(STUB, _stub())
    config = EngineArgs(model=str(folder), skip_tokenizer_init=True, **options).create_engine_config()
    return {
        "device": config.device_config.device_type,
        "async output": bool(config.model_config.use_async_output_proc),
    }


def _write_model(folder: Path, architecture: str) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | {"architectures": [architecture]}))


def _stub() -> type:
    """Returns a class that vLLM takes for a model that generates text."""
    from torch import nn

    class ConfiguredOnly(nn.Module):  # type: ignore[misc] # PyTorch is looked into in cells alone
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()
            del vllm_config, prefix

        def forward(
            self, input_ids: Any, positions: Any, kv_caches: Any = None, attn_metadata: Any = None
        ) -> Any:
            raise NotImplementedError

        def compute_logits(self, hidden_states: Any, sampling_metadata: Any) -> Any:
            raise NotImplementedError

        def sample(self, logits: Any, sampling_metadata: Any) -> Any:
            raise NotImplementedError

        def load_weights(self, weights: Any) -> Any:
            raise NotImplementedError

    return ConfiguredOnly


def _train(folder: Path, options: dict[str, Any]) -> None:
    """Makes TRL's trainer; in 0.14 and 0.15 it makes vLLM's engine in its constructor."""
    os.environ["VLLM_USE_V1"] = "0"
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = _tokenizer(PreTrainedTokenizerFast)
    tokenizer.save_pretrained(folder)
    LlamaForCausalLM(LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"})).save_pretrained(
        folder
    )
    settings = GRPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, use_vllm=True, report_to=[], bf16=False, **options
    )
    GRPOTrainer(
        model=str(folder),
        args=settings,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["a b"] * 8}),
    )


def _tokenizer(kind: Any) -> Any:
    """Makes a tokenizer of five words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    unknown = {"unk_token": "<unk>"}
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}
    made = Tokenizer(models.WordLevel(words, **unknown))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return kind(tokenizer_object=made, **unknown, **special)


if __name__ == "__main__":
    elsewhere.answer(run)
