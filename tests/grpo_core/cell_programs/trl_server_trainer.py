"""Run TRL 1.16.0's GRPOTrainer against our server in its cell, as far as TRL allows without CUDA.

Usage: trl_server_trainer.py URL MODEL STEPS. First as TRL is meant to be used, `vllm_mode="server"`; the error is
written down word for word. Then by TRL's own way for other samplers, `rollout_func`: TRL's client samples on our
server, our client uploads the trained weights before, and their arrival is proven. Prints one JSON document.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from urllib.parse import urlparse

OUT = os.dup(1)
os.dup2(2, 1)
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func is experimental in 1.16.0
URL, MODEL, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.generation.vllm_client import VLLMClient  # noqa: E402

from grpo_core.rollout.remote import RemoteEngine  # noqa: E402
from grpo_core.rollout.weights.digest import fingerprint_like  # noqa: E402

torch.set_num_threads(1)
LETTERS = "abcdefghij"
WORDS = [f"{a}{b}>" for a in LETTERS for b in LETTERS]


def reward(prompts, completions, **_):
    """Return the share of the prompt's word that is copied at the right position."""
    pairs = zip(prompts, completions, strict=True)
    return [sum(a == b for a, b in zip(prompt[:-1], text, strict=False)) / 2 for prompt, text in pairs]


def trainer(folder, rollout_func=None, **options):
    """The tiny model, prompts of two letters, eight completions each."""
    arguments = GRPOConfig(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=64, num_generations=8, use_cpu=True,
        max_completion_length=3, learning_rate=3e-3, beta=0.0, report_to=[], save_strategy="no", logging_steps=1,
        disable_tqdm=True, bf16=False, temperature=1.0, seed=0, **options,
    )  # fmt: skip
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL).float(),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": WORDS}),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        rollout_func=rollout_func,
    )


def in_server_mode(folder):
    """Try `vllm_mode="server"`; return the error, and the line of TRL that raised it."""
    try:
        trainer(folder, use_vllm=True, vllm_mode="server", vllm_server_base_url=URL).train()
    except Exception as error:  # noqa: BLE001 - any exception is recorded
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = where.filename.rpartition("site-packages/")[2]
        return f"{type(error).__name__}: {error}", f"{place}, {where.name}"
    return None, None


class Rollouts:
    """TRL's `rollout_func`: publishes the policy to our server, proves it, and samples with TRL's client."""

    def __init__(self):
        self.client = VLLMClient(base_url=URL)
        address = urlparse(URL)
        self.engine = RemoteEngine(address.hostname, address.port, timeout_s=120)
        self.proven, self.published = 0, -1

    def __call__(self, prompts, held):
        step = held.state.global_step
        if step != self.published:
            weights = list(held.accelerator.unwrap_model(held.model).named_parameters())
            self.engine.update_weights(weights, step)
            found = self.engine.fingerprint()
            assert found == fingerprint_like(found, weights, step)
            self.proven, self.published = self.proven + 1, step
        ids = held.processing_class(prompts)["input_ids"]
        answer = self.client.generate(ids, n=1, max_tokens=held.max_completion_length, temperature=1.0)
        logprobs = [[value[0] for value in row] for row in answer["logprobs"]]
        return {"prompt_ids": ids, "completion_ids": answer["completion_ids"], "logprobs": logprobs}


with tempfile.TemporaryDirectory() as folder:
    error, where = in_server_mode(folder)
    rollouts = Rollouts()
    learning = trainer(folder, rollouts)
    learning.train()
    rewards = [entry["reward"] for entry in learning.state.log_history if "reward" in entry]
    seen = {
        "server_mode": {"raised": error, "where": where},
        "rollout_func": {
            "steps": learning.state.global_step,
            "syncs_proven": rollouts.proven,
            "policy_version": rollouts.engine.policy_version,
            "rewards": rewards,
        },
    }
os.write(OUT, json.dumps(seen).encode())
os._exit(0)
