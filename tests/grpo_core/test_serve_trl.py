"""TRL's two protocols over real HTTP, as its clients send them; test_serve_trl_client.py has TRL's own code."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from fastapi import HTTPException

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.rollout.child.frames import end_child, start_child
from grpo_core.rollout.connect.trl.endpoints import ServedModel
from grpo_core.rollout.http.remote import RemoteEngine
from grpo_core.tasks.model import load_model, make_tiny
from grpo_core.types import Request, SamplingParams

END = 11  # of the tiny model
LONG = 12_000  # tokens: many seconds of sampling, unless it is ended
NATIVE = {  # as VLLMClient.generate of TRL 1.16.0 writes it
    "prompt": [[0, 1, 10], [2, 10]],
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "n": 2,
    "repetition_penalty": 1.0,
    "temperature": 0.8,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "max_tokens": 5,
    "logprobs": 0,
}
OLDER = {  # as VLLMClient.generate of TRL 0.29.1 writes it
    "prompts": [[0, 1, 10], [2, 10]],
    "images": None,
    **{key: value for key, value in NATIVE.items() if not key.startswith(("prompt", "return"))},
    "truncate_prompt_tokens": None,
    "structured_outputs_regex": None,
    "generation_kwargs": {},
}


class Server:
    """A server process with a model of long context, under the policy `abort`."""

    def __init__(self, folder) -> None:
        make_tiny(folder, ModelConfig(max_length=LONG + 500), TaskConfig().letters, seed=0)
        self.model = str(folder)
        options = {"model.path": folder, "model.max_length": LONG + 500, "rollout.on_update": "abort"}
        self.process = start_child(
            [
                "grpo_core",
                "serve",
                "--exit-with-stdin",
                "--allow-unauthenticated",
                *(f"--{k}={v}" for k, v in options.items()),
            ],
            threads=1,
        )
        where = json.loads(self.process.stdout.readline())
        self.host, self.port = where["host"], where["port"]
        self.engine = RemoteEngine(self.host, self.port, timeout_s=500)

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=500)
        with closing(connection):
            text = json.dumps(body).encode() if body is not None else b""
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def busy(self, running) -> bool:
        """Asks until a call runs or waits; False: it has ended and was never seen."""
        while not self.call("GET", "/info")[1]["calls"]:
            if running.done():
                return False
        return True


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("long"))
    yield server
    end_child(server.process, grace_s=500)
    server.process.stdout.close()


def test_both_protocols_sample_what_our_own_samples(server):
    """Prompt by prompt, completion k of seed s by seed s + k; log-probs of the sampled ids, none other."""
    params = SamplingParams(max_tokens=5, temperature=0.8, stop_ids=(END,))
    requests = [Request(f"{p}.{k}", tuple(NATIVE["prompt"][p]), 7 + k) for p in (0, 1) for k in (0, 1)]
    own = server.engine.generate(requests, params)
    status, native = server.call("POST", "/v1/completions", {**NATIVE, "model": server.model, "seed": 7})
    assert status == 200, native
    choices = native["choices"]
    assert [choice["token_ids"] for choice in choices] == [list(c.ids) for c in own]
    assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [list(c.logprobs) for c in own]
    assert [choice["finish_reason"] for choice in choices] == [c.finish_reason for c in own]
    assert [choice["versions"] for choice in choices] == [list(c.versions) for c in own]
    assert [choice["prompt_token_ids"] for choice in choices[::2]] == NATIVE["prompt"]
    assert choices[0]["logprobs"]["tokens"] == [f"token_id:{token}" for token in own[0].ids]
    status, older = server.call("POST", "/generate/", {**OLDER, "generation_kwargs": {"seed": 7}})
    assert status == 200, older
    assert older["completion_ids"] == [list(c.ids) for c in own]
    assert older["logprobs"] == [[[value] for value in c.logprobs] for c in own]
    assert older["logprob_token_ids"] == [[[token] for token in c.ids] for c in own]
    assert older["prompt_ids"] == NATIVE["prompt"]


def test_log_probs_have_the_shape_that_the_clients_release_reads(server):
    """TRL 0.23 to 0.28 don't ask for log-probs, and read one number a token."""
    status, answer = server.call("POST", "/generate/", {k: v for k, v in OLDER.items() if k != "logprobs"})
    assert status == 200, answer
    assert all(isinstance(value, float) for row in answer["logprobs"] for value in row)
    assert "logprob_token_ids" not in answer


def test_calls_without_a_seed_sample_afresh(server):
    """Neither the completions of one prompt nor two calls are copies of each other."""
    body = {**NATIVE, "prompt": [0, 1, 10], "n": 8, "max_tokens": 20, "logprobs": None}
    answers = [server.call("POST", "/v1/completions", body)[1]["choices"] for _ in range(2)]
    sampled = [tuple(choice["token_ids"]) for choices in answers for choice in choices]
    assert len(set(sampled)) > 12
    assert all(choice["logprobs"] is None for choice in answers[0])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("top_p", 0.9),
        ("top_k", 50),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
        ("frequency_penalty", 0.5),
        ("logprobs", 5),
        ("prompt_logprobs", 1),
        ("structured_outputs", {"regex": "a+"}),
        ("stop", ["a"]),
        ("stream", True),
        ("temperature", 0.0),
        ("n", 5000),
        ("seed", -1),
    ],
)
def test_options_that_the_engine_lacks_are_refused_by_name(server, option, value):
    """In both protocols, and in `generation_kwargs`; none is left aside in silence."""
    calls = [
        ("/v1/completions", {**NATIVE, option: value}),
        ("/generate/", {**OLDER, option: value}),
        ("/generate/", {**OLDER, "generation_kwargs": {option: value}}),
    ]
    for path, body in calls:
        status, answer = server.call("POST", path, body)
        assert status == 422, (path, answer)
        assert f"{option} = {value!a}" in answer["detail"], (path, answer)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "other"}, "model = 'other': this server has"),
        ({"prompt": [[99]]}, "token id outside of 0 to 12"),
        ({"prompt": [["1"]]}, "valid integer"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "0 prompt tokens"),
        ({"prompt": [[1]] * 100, "n": 100}, "more than 4096 completions"),
        ({"max_tokens": 10**6}, "model.max_length"),
    ],
)
def test_impossible_calls_are_refused_with_a_reason(server, change, words):
    """In one line."""
    status, answer = server.call("POST", "/v1/completions", {**NATIVE, **change})
    assert (status, words in answer["detail"], "\n" in answer["detail"]) == (422, True, False), answer


def test_text_is_read_by_the_models_own_tokenizer(server):
    """The same completion as of its ids, and the text of what was sampled."""
    text = server.call("POST", "/v1/completions", {**NATIVE, "prompt": "ab>", "seed": 3, "n": 1})[1]
    ids = server.call("POST", "/v1/completions", {**NATIVE, "prompt": [0, 1, 10], "seed": 3, "n": 1})[1]
    assert text["choices"] == ids["choices"]
    letters = (*TaskConfig().letters, ">")
    sampled = text["choices"][0]["token_ids"]
    assert text["choices"][0]["text"] == "".join(letters[i] for i in sampled if i < len(letters))


def test_text_without_a_tokenizer_is_refused_with_the_remedy(model_dir, tmp_path):
    """Token ids need none."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(model_dir / name, tmp_path)
    served = ServedModel.of(str(tmp_path), 256, seed=0)
    assert asyncio.run(served.ids([[1, 2]])) == [(1, 2)]
    with pytest.raises(HTTPException, match=r"need a tokenizer, and .* no tokenizer there.*send token ids"):
        asyncio.run(served.ids(["ab>"]))


@pytest.mark.parametrize(
    ("text", "ids"), [('{"eos_token_id": [3, 5]}', (3, 5)), ('{"eos_token_id": 4}', (4,)), ("{}", (END,))]
)
def test_the_models_end_tokens_end_a_completion(model_dir, tmp_path, text, ids):
    """Those of generation_config.json, else of config.json."""
    shutil.copy(model_dir / "config.json", tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    assert ServedModel.of(str(tmp_path), 256, seed=0).end_ids == ids


def test_what_the_clients_ask_before_they_sample(server):
    """Health, model, world, configuration: the answers TRL's code reads, with and without the slash."""
    assert server.call("GET", "/health")[0] == server.call("GET", "/health/")[0] == 200
    assert server.call("GET", "/v1/models")[1]["data"][0]["id"] == server.model
    assert server.call("GET", "/get_world_size")[1] == {"world_size": 1}
    assert server.call("GET", "/get_world_size/")[1]["world_size"] == 1
    assert server.call("GET", "/get_tensor_parallel_size/")[1]["tensor_parallel_size"] == 1
    told = server.call("GET", "/server_info?config_format=json")[1]["vllm_config"]
    assert told["weight_transfer_config"] is None
    assert told["model_config"]["logprobs_mode"] == "processed_logprobs"
    for path in ("/reset_prefix_cache", "/reset_prefix_cache/", "/close_communicator/"):
        assert server.call("POST", path)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/init_communicator/",
        "/update_named_param/",
    ],
)
def test_weights_over_nccl_are_refused_with_what_works_instead(server, path):
    """Before the client waits for anybody to join its group; what is held stays."""
    before = server.engine.fingerprint()
    status, answer = server.call("POST", path, {"name": "x", "dtype": "torch.float32", "shape": [1]})
    assert (status, "upload them by POST /weights" in answer["detail"]) == (422, True)
    assert server.engine.fingerprint() == before


def test_weights_end_a_running_call_which_says_so(server):
    """Policy `abort`: what it has is of the old version alone, and the next call of the new one."""
    weights = dict(load_model(server.model).named_parameters())
    server.engine.update_weights(weights.items(), 3)
    requests = [Request("long", (0, 1, 10), seed=1)]
    body = {
        "requests": [{"id": r.id, "prompt_ids": list(r.prompt_ids), "seed": r.seed} for r in requests],
        "params": {"max_tokens": LONG, "temperature": 1.0, "stop_ids": []},
    }
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.call, "POST", "/generate", body)
        assert server.busy(running)
        server.engine.update_weights(weights.items(), 4)
        status, answer = running.result(timeout=500)
    assert status == 200, answer
    (completion,) = answer["completions"]
    assert completion["finish_reason"] == "abort"
    assert len(completion["ids"]) < LONG
    assert set(completion["versions"]) <= {3}
    after = server.engine.generate(requests, SamplingParams(max_tokens=4))
    assert set(after[0].versions) == {4}


def test_trl_never_gets_a_completion_that_was_cut_short(server):
    """An abort is status 503, at which its client asks again by itself; ours gets what there is."""
    body = {**NATIVE, "prompt": [0, 1, 10], "n": 1, "max_tokens": LONG}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.call, "POST", "/v1/completions", body)
        while not running.done():
            assert server.call("POST", "/abort") == (200, {"aborted": True})
        status, answer = running.result()
    # The unlikely other case: an end token came before the first abort did.
    assert status == 503 or answer["choices"][0]["finish_reason"] == "stop", answer
    if status == 503:
        assert answer["detail"] == "the call was ended by an abort; ask again"


def test_weights_that_are_no_numbers_are_told_from_a_fault_of_the_server(server):
    """Status 422 names the version; good weights mend it."""
    weights = {name: tensor.detach() for name, tensor in load_model(server.model).named_parameters()}
    broken = {name: tensor.new_full(tensor.shape, float("nan")) for name, tensor in weights.items()}
    server.engine.update_weights(broken.items(), 5)
    status, answer = server.call("POST", "/v1/completions", NATIVE)
    assert (status, "the weights of version 5 hold NaN" in answer["detail"]) == (422, True)
    server.engine.update_weights(weights.items(), 6)
    assert server.call("POST", "/v1/completions", NATIVE)[0] == 200
