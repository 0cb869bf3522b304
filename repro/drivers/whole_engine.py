"""Run vLLM's whole unmodified engine in this process, and compare its log-probs with those of transformers.

The model is a tiny Llama with random weights, on a CPU unless vLLM finds a GPU. The trainer's side computes the
log-prob of a sampled token from the weights and the temperature that it assumes. `start_model` starts an engine, and
`compare_samples` samples and compares. `push_weights` updates the engine. `repro` registers failures of this engine.
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from repro import registry, upstream
from repro.drivers import tiny_trl
from repro.registry import InapplicableError, Tally

MODULES = ("torch", "transformers", "vllm")
VOCABULARY, MAX_MODEL_LEN, TOLERANCE = 128, 256, 1e-3
PROMPTS = ((5, 9, 17, 33, 65), (7, 7, 7, 12), (100, 50, 25))
# This prompt is longer than a KV cache block, which has 128 tokens in vLLM's CPU build.
LONG_PROMPT = tuple(3 + index % 120 for index in range(200))
# Option with which `LLM` reports log-probs of the distribution from which it sampled.
PROCESSED = {"logprobs_mode": "processed_logprobs"}
# Options that differ from vLLM's defaults: size, type and CPU settings.
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": MAX_MODEL_LEN,
    "enable_chunked_prefill": False,  # a seeded request split over steps ends the CPU engine of 0.31.0
    "max_num_batched_tokens": 4096,
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class SampledCompletion:
    """A completion: its prompt, token ids, and the log-prob that the engine reported for each token."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def environment() -> dict[str, str]:
    """Return the environment variables for the installed release of vLLM.

    With "nobind" the CPU build does not bind threads to cores. Releases before 0.12.0 get "all", because "nobind" ends
    their process with SIGSEGV.
    """
    release = tuple(map(int, re.findall(r"\d+", upstream.versions().get("vllm-cpu", ""))[:2]))
    return ENVIRONMENT | {"VLLM_CPU_OMP_THREADS_BIND": "all" if release and release < (0, 12) else "nobind"}


def inapplicable_reason() -> str | None:
    """Return the reason why no engine can start with the installed packages on this machine; None if one can."""
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        return f"vLLM's engine can't be imported here: {error}"
    if not hasattr(vllm, "LLM") or not (current_platform.is_cpu() or current_platform.is_cuda()):
        return f"vLLM {vllm.__version__} finds no device to run an engine on"
    return None


def model(seed: int) -> Any:
    """Return a tiny Llama with random weights, which are large enough that its distributions are not flat."""
    sizes = {"intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": MAX_MODEL_LEN}
    return tiny_trl.model(seed, VOCABULARY, initializer_range=0.15, pad_token_id=None, **sizes).eval()


def save(model: Any, generation_config: dict[str, Any] | None = None) -> str:
    """Save a model in a new folder, with this generation_config.json or none; return the folder."""
    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    model.save_pretrained(folder, safe_serialization=True)
    path = Path(folder, "generation_config.json")
    path.unlink(missing_ok=True)
    if generation_config is not None:
        path.write_text(json.dumps(generation_config), encoding="utf-8")
    return folder


def start(folder: str, **options: Any) -> Any:
    """Start `vllm.LLM` on a model's folder, with OPTIONS changed by `options`; set unset variables of `environment`.

    Raises:
        InapplicableError: This release does not have one of the options.
    """
    for name, value in environment().items():
        os.environ.setdefault(name, value)
    import vllm

    try:
        return vllm.LLM(folder, **(OPTIONS | options))
    except TypeError as error:
        raise InapplicableError(f"vLLM {vllm.__version__}: {error}") from error


def start_model(defaults: dict[str, Any] | None = None, /, **options: Any) -> tuple[Any, Any]:
    """Start an engine on the model of seed 0; return the model and the engine.

    Args:
        defaults: Content of the folder's generation_config.json; None for no such file.
        options: Options of `start`.
    """
    policy = model(0)
    return policy, start(save(policy, defaults), **options)


def sample(llm: Any, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[SampledCompletion]:
    """Sample one completion for each prompt, with the sampling parameters of the same index."""
    pairs = zip(prompts, complete(llm, prompts, params), strict=True)
    return [
        SampledCompletion(tuple(prompt), tuple(done.token_ids), reported_logprobs(done))
        for prompt, done in pairs
    ]


def complete(llm: Any, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
    """Return one of vLLM's own `CompletionOutput` objects for each prompt."""
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    return [answer.outputs[0] for answer in llm.generate(requests, list(params), use_tqdm=False)]


def reported_logprobs(completion: Any) -> tuple[float, ...]:
    """Return the log-prob that the engine reported for each token of a `CompletionOutput`."""
    pairs = zip(completion.logprobs, completion.token_ids, strict=True)
    return tuple(float(by_token[token].logprob) for by_token, token in pairs)


def params(seed: int, **options: Any) -> Any:
    """Return vLLM's sampling parameters: 24 tokens, a seed, the sampled tokens' log-probs, and the given options."""
    import vllm

    common = {"max_tokens": 24, "seed": seed, "logprobs": 0, "ignore_eos": True, "detokenize": False}
    return vllm.SamplingParams(**(common | options))


def trainer_logprobs(
    model: Any, sampled: SampledCompletion, temperature: float = 1.0, top_p: float = 1.0
) -> list[float]:
    """Return the model's log-prob of each sampled token, at a temperature and within the nucleus of `top_p`."""
    import torch

    with torch.no_grad():
        ids = torch.tensor([[*sampled.prompt, *sampled.ids]])
        logits = model(ids).logits[0, len(sampled.prompt) - 1 : -1].double() / temperature
    if top_p < 1:
        ordered, order = logits.softmax(-1).sort(-1, descending=True)
        outside = (ordered.cumsum(-1) - ordered) >= top_p
        logits = logits.masked_fill(outside.gather(-1, order.argsort(-1)), -math.inf)
    chosen = torch.tensor(sampled.ids)[:, None]
    return [float(value) for value in logits.log_softmax(-1).gather(-1, chosen)[:, 0]]


def count_agreeing(pairs: Sequence[tuple[float, float]]) -> Tally:
    """Count the pairs (engine's log-prob, trainer's log-prob) that agree, and note the differences."""
    differences = [engine - trainer for engine, trainer in pairs]
    ratio = math.exp(-sum(differences) / len(differences))
    worst = max(map(abs, differences))
    return Tally.of_checks(
        {f"token {index}": abs(value) <= TOLERANCE for index, value in enumerate(differences)},
        "log-probs are the trainer's",
        f"largest difference {worst:.2g}, trainer / engine ratio {ratio:.3f} (geometric mean)",
    )


def compare_samples(llm: Any, model: Any, trainer_temperature: float = 1.0, **options: Any) -> Tally:
    """Sample with these sampling parameters, and count the reported log-probs that agree with the model's.

    Args:
        llm: The engine, or an object with its method `generate`.
        model: The trainer's model.
        trainer_temperature: Temperature that the trainer assumes.
        options: Sampling parameters for vLLM, in addition to those of `params`.
    """
    pairs: list[tuple[float, float]] = []
    for item in sample(llm, PROMPTS, [params(seed, **options) for seed in range(len(PROMPTS))]):
        pairs += zip(item.logprobs, trainer_logprobs(model, item, trainer_temperature), strict=True)
    return count_agreeing(pairs)


def push_weights(llm: Any, model: Any, is_sent: Callable[[str], bool] = lambda _: True) -> None:
    """Load those of a model's tensors whose names `is_sent` selects into a running engine; by default all.

    Raises:
        InapplicableError: This release cannot load weights from an iterator by `reload_weights`.
    """
    import vllm

    tensors = iter([(name, value.detach()) for name, value in model.named_parameters() if is_sent(name)])
    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
    except (AttributeError, TypeError) as error:
        raise InapplicableError(f"vLLM {vllm.__version__} takes no weights this way: {error}") from error


# Register a failure of the whole engine; most are silent, and show in log-probs.
repro = partial(
    registry.repro, distributions=upstream.VLLM, modules=MODULES, inapplicable_reason=inapplicable_reason
)
