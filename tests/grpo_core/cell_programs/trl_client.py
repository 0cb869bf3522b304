"""Run TRL's unmodified VLLMClient against our server at the given address, in a cell with vLLM.

Usage: trl_client.py URL MODEL [FOLDER]; FOLDER holds another TRL than the cell's, if one is given. Each step is
written down as it went: what the client returned, or the error it raised, word for word. Prints one JSON document.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from urllib.parse import urlparse

OUT = os.dup(1)
os.dup2(2, 1)  # what the libraries print goes to stderr
URL, MODEL = sys.argv[1:3]
sys.path[:0] = sys.argv[3:]

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

try:
    from trl.generation.vllm_client import VLLMClient
except ImportError:
    from trl.extras.vllm_client import VLLMClient

PROMPTS = [[0, 1, 10], [2, 10]]
SEEN: dict[str, object] = {}


def step(name, call):
    """Make one call of the client and write down how it went."""
    try:
        SEEN[name] = {"returned": call()}
    except Exception as error:  # noqa: BLE001 - any exception is recorded
        SEEN[name] = {"raised": f"{type(error).__name__}: {error}"}


def connect():
    """Connect with the arguments that this release has."""
    if "base_url" in inspect.signature(VLLMClient.__init__).parameters:
        return VLLMClient(base_url=URL)
    address = urlparse(URL)
    return VLLMClient(host=address.hostname, server_port=address.port)


def largest_difference(answer):
    """Return the largest difference of a log-prob between the server's and this process's own model."""
    model = AutoModelForCausalLM.from_pretrained(MODEL).float().eval()
    worst = 0.0
    for place, (ids, logprobs) in enumerate(zip(answer["completion_ids"], answer["logprobs"], strict=True)):
        prompt = PROMPTS[place // 2]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / 0.8
        own = torch.log_softmax(logits, -1)[range(len(ids)), ids]
        theirs = torch.tensor([value[0] if isinstance(value, list) else value for value in logprobs])
        worst = max(worst, float((own - theirs).abs().max()))
    return worst


client = connect()
takes_ids = "list[list[int]]" in str(inspect.signature(client.generate).parameters["prompts"].annotation)
prompts = PROMPTS if takes_ids else ["ab>", "c>"]
step("generate", lambda: client.generate(prompts, n=2, max_tokens=5, temperature=0.8))
answer = SEEN["generate"].get("returned")
if isinstance(answer, dict) and answer.get("logprobs"):
    SEEN["logprob_difference"] = largest_difference(answer)
step("generate text", lambda: client.generate(["ab>"], n=1, max_tokens=3))
step("generate with top_p", lambda: client.generate(prompts, top_p=0.9))
step("generate with a regex", lambda: client.generate(prompts, **{
    next(name for name in inspect.signature(client.generate).parameters if name.endswith("_regex")): "a+"
}))  # fmt: skip
for name in ("get_world_size", "get_server_info"):
    if hasattr(client, name):
        step(name, getattr(client, name))
takes_device = "device" in inspect.signature(client.init_communicator).parameters
step("init_communicator", lambda: client.init_communicator(*(["cpu"] if takes_device else [])))
step("update_named_param", lambda: client.update_named_param("lm_head.weight", torch.zeros(13, 64)))
step("reset_prefix_cache", client.reset_prefix_cache)
step("close_communicator", client.close_communicator)
os.write(OUT, json.dumps(SEEN).encode())
os._exit(0)  # the client closes its communicator at exit, which has been seen already
