"""Runs inside a cell: drives VllmEngine on a tiny random model and prints what was seen as one JSON document.

Usage: python vllm_engine.py WORK_FOLDER. The assertions are in tests/grpo_core/test_engine_vllm.py, outside.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm.engine import VllmEngine
from grpo_core.types import Request, SamplingParams

STOP_ID = 7
EOS_IN_CONFIG, EOS_IN_FILE = 8, 12  # both often sampled, neither asked for as a stop id
VOCABULARY = 32
# Longer than one KV block of the CPU build (128 tokens): only whole blocks are cached between requests, so a
# shorter prompt could not tell a forgotten cache reset.
PROMPT_TOKENS = 150
COMPLETION_TOKENS = 24


def tiny_model(folder: Path) -> LlamaForCausalLM:
    """A random Llama whose generation_config.json would change every sample if anyone read it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # heads of 32: the CPU build refuses 16
        num_key_value_heads=1,
        max_position_embeddings=4096,
        initializer_range=0.1,
        tie_word_embeddings=False,
        eos_token_id=EOS_IN_CONFIG,
    )
    model = LlamaForCausalLM(config).float().eval()
    model.save_pretrained(folder)
    poisoned = {
        "do_sample": True,
        "temperature": 0.1,
        "top_k": 1,
        "repetition_penalty": 5.0,
        "eos_token_id": EOS_IN_FILE,
    }
    (folder / "generation_config.json").write_text(json.dumps(poisoned))
    return model


def prompts(count: int, *, tokens: int = PROMPT_TOKENS) -> list[tuple[int, ...]]:
    """Seeded, so the same in every call."""
    draw = random.Random(1)
    return [tuple(draw.randrange(VOCABULARY) for _ in range(tokens)) for _ in range(count)]


def requests(count: int) -> list[Request]:
    """Two requests a prompt, as a group has."""
    return [Request(f"r{i}", prompts(count)[i // 2], seed=1000 + i) for i in range(count)]


@torch.no_grad()
def largest_difference(model, asked, completions, temperature: float) -> float:
    """Largest |engine's log-prob - transformers' log-prob| over all sampled tokens."""
    worst = 0.0
    for request, completion in zip(asked, completions, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *completion.ids]])
        logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1]
        expected = torch.log_softmax(logits / temperature, -1)
        expected = expected[torch.arange(len(completion.ids)), torch.tensor(completion.ids, dtype=torch.long)]
        differences = (expected - torch.tensor(completion.logprobs)).abs().tolist()
        worst = max(worst, *differences, 0.0)
    return worst


@torch.no_grad()
def shake(model, seed: int) -> None:
    """Moves every parameter well away from where it was."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def refusal(call) -> str:
    """What the engine said when it refused; empty if it did not."""
    try:
        call()
    except EngineError as error:
        return str(error)
    return ""


def observe_updates(engine, model, seen: dict) -> None:
    """Log-probs against transformers, before and after updates, with the same prompts each time."""
    asked = requests(8)
    params = SamplingParams(max_tokens=COMPLETION_TOKENS, temperature=0.8)
    seen["updates"] = []
    for version in range(-1, 6):
        stale = None
        if version >= 0:
            shake(model, version)
            started = time.perf_counter()
            engine.update_weights(model.named_parameters(), version)
            seen["update_seconds"] = time.perf_counter() - started
            stale = largest_difference(model, asked, completions, params.temperature)  # noqa: F821
        completions = engine.generate(asked, params)
        seen["updates"].append(
            {
                "version": engine.policy_version,
                "token_versions": sorted({v for c in completions for v in c.versions}),
                "tokens": sum(len(c.ids) for c in completions),
                "difference": largest_difference(model, asked, completions, params.temperature),
                "difference_to_previous_version": stale,
            }
        )
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    shake(model, 99)  # in place, as an optimizer step does
    again = engine.generate(asked, params)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), kept, strict=True):
            parameter.copy_(value)
    seen["difference_after_trainer_moved_on"] = largest_difference(model, asked, again, params.temperature)


def observe_sampling(engine, seen: dict) -> None:
    """Seeds, neighbours, pairing, stop and length."""
    asked = requests(8)
    params = SamplingParams(max_tokens=COMPLETION_TOKENS)
    first = engine.generate(asked, params)
    seen["ids"] = [c.ids for c in first]
    seen["ids_again"] = [c.ids for c in engine.generate(asked, params)]
    seen["ids_alone"] = [engine.generate([request], params)[0].ids for request in asked]
    seen["ids_reversed"] = [c.ids for c in engine.generate(asked[::-1], params)][::-1]
    seen["request_ids"] = [c.request_id for c in first]
    stopped = engine.generate(requests(16), SamplingParams(max_tokens=40, stop_ids=(STOP_ID,)))
    seen["stops"] = [[c.finish_reason, c.ids] for c in stopped]
    seen["nothing_asked"] = engine.generate([], params)


def observe_refusals(engine, model, seen: dict) -> None:
    """What is refused is refused by name, and leaves the engine as it was."""
    asked = requests(2)
    params = SamplingParams(max_tokens=4)
    before = [c.ids for c in engine.generate(asked, params)]
    named = dict(model.named_parameters())
    first = next(iter(named))
    seen["refusals"] = {
        "missing": refusal(lambda: engine.update_weights([(first, named[first])], 9)),
        "unknown": refusal(lambda: engine.update_weights([*named.items(), ("extra", named[first])], 9)),
        "shape": refusal(lambda: engine.update_weights([*named.items(), (first, named[first][:1])], 9)),
        "length": refusal(lambda: engine.generate(asked, SamplingParams(max_tokens=4096))),
        "empty": refusal(lambda: engine.generate([Request("none", (), 0)], params)),
        "vocabulary": refusal(lambda: engine.generate([Request("odd", (1, VOCABULARY), 0)], params)),
        "temperature": refusal(lambda: engine.generate(asked, SamplingParams(4, temperature=0.001))),
    }
    with engine._owned("first owner"):
        seen["refusals"]["second owner"] = refusal(lambda: engine.generate(asked, params))
    seen["unchanged_by_refusals"] = before == [c.ids for c in engine.generate(asked, params)]
    seen["version_after_refusals"] = engine.policy_version


def observe_abort(engine, model, seen: dict) -> None:
    """From another thread, in the middle of a rollout; what was sampled until then is to be used."""
    asked, params = requests(64), SamplingParams(max_tokens=2000)
    timer = threading.Timer(0.5, engine.abort)
    timer.start()
    completions = engine.generate(asked, params)
    timer.join()
    seen["abort_reasons"] = sorted({c.finish_reason for c in completions})
    seen["abort_tokens"] = [len(c.ids) for c in completions]
    seen["abort_difference"] = largest_difference(model, asked, completions, params.temperature)
    engine.reset_prefix_cache()  # refused by vLLM if requests still held blocks of it
    again = engine.generate(requests(8), SamplingParams(max_tokens=COMPLETION_TOKENS))
    seen["ids_after_abort"] = [c.ids for c in again]


def observe_interruption(engine, seen: dict) -> None:
    """Ctrl-C in the middle of a rollout: vLLM still holds the requests, so the engine must not go on."""

    def interrupt(*_) -> None:
        if engine._broken is not None:  # vLLM has been given the requests; before, there is nothing to mix up
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.5)  # again, if too early or swallowed by a destructor
    try:
        engine.generate(requests(64), SamplingParams(max_tokens=2000))
        seen["interrupted"] = False
    except KeyboardInterrupt:
        seen["interrupted"] = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    seen["after_interruption"] = refusal(lambda: engine.generate(requests(2), SamplingParams(max_tokens=4)))


def main(folder: Path) -> None:
    """Runs everything on one engine, then starts a second one in the same process."""
    sys.stdout.flush()
    document, _ = os.fdopen(os.dup(1), "w"), os.dup2(2, 1)  # vLLM may print: stdout is for the document
    model = tiny_model(folder)
    seen: dict = {"threads": torch.get_num_threads()}
    state = torch.get_rng_state()
    started = time.perf_counter()
    engine = VllmEngine(folder, max_model_len=2304, kv_cache_gib=0.25)
    seen["start_seconds"] = time.perf_counter() - started
    seen["generator_kept"] = bool(torch.equal(state, torch.get_rng_state()))
    seen["threads_kept"] = torch.get_num_threads() == seen["threads"]
    seen["version_at_start"] = engine.policy_version
    seen["engine_version"] = engine.engine_version
    seen["capabilities"] = {**vars(engine.capabilities), "why_not": dict(engine.capabilities.why_not)}
    observe_updates(engine, model, seen)
    observe_sampling(engine, seen)
    observe_refusals(engine, model, seen)
    observe_abort(engine, model, seen)
    observe_interruption(engine, seen)
    engine.close()
    engine.close()
    seen["after_close"] = refusal(lambda: engine.generate(requests(2), SamplingParams(max_tokens=4)))
    second = VllmEngine(folder, max_model_len=256, kv_cache_gib=0.25)
    second.update_weights(model.named_parameters(), 0)
    params = SamplingParams(max_tokens=COMPLETION_TOKENS)
    completions = second.generate(requests(4), params)
    seen["difference_second_engine"] = largest_difference(model, requests(4), completions, 1.0)
    second.close()
    json.dump(seen, document)
    document.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
