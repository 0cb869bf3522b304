"""The client of `vllm serve` samples, updates the weights of a paused server, and refuses wrong answers.

It also detects lost weights and a server that cannot be used. The server is simulated.
"""

import json
import threading
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.rollout.engine import Engine, EngineError, EngineTimeoutError
from grpo_core.rollout.vllm_requests import mix_seed
from grpo_core.rollout.vllm_server_engine import VllmServerEngine
from grpo_core.types import Request, SamplingParams
from tests.grpo_core.simulated_server import simulate_server

END = 11
PARAMS = SamplingParams(max_tokens=6, temperature=0.8, stop_ids=(END,))
REQUESTS = [Request(f"r{i}", (1, 2, 3 + i), seed=100 + i) for i in range(5)]
WEIGHTS = {"a.weight": torch.arange(4.0).reshape(2, 2), "b.weight": torch.ones(3)}


class SimulatedVllm:
    """SIMULATED: the endpoints of vLLM 0.31.0 that the client uses, with responses that a test can change.

    Attributes:
        done: The paths of POST calls other than completions, in order.
        mark: The server's weight version.
        bend: A function that changes a completion's choice and response before they are sent.
    """

    paths = (
        "/v1/completions", "/v1/models", "/version", "/pause", "/resume",
        "/reset_prefix_cache", "/collective_rpc", "/weight_info", "/update_weight_version",
    )  # fmt: skip
    fields = (
        "model", "prompt", "seed", "stop_token_ids", "ignore_eos", "logprobs", "return_tokens_as_token_ids",
        "return_token_ids", "watermarking",
    )  # fmt: skip

    def __init__(self, model_dir="") -> None:
        self.completion_requests: list[dict] = []
        self.done: list[str] = []
        self.mark, self.bend = "default", lambda choice, answer: None
        self.mode, self.model_dir, self.loaded = "processed_logprobs", str(model_dir), None
        self.failing: dict[str, tuple[int, dict]] = {}
        self.fixed = {
            "/version": {"version": "0.31.0"}, "/pause": {"status": "paused"}, "/resume": {"status": "resumed"},
            "/reset_prefix_cache": {"success": True},
        }  # fmt: skip
        # While the first is set, completions wait for the second.
        self.hold_completions, self.release_completions = threading.Event(), threading.Event()

    def __call__(self, call) -> None:
        path = call.path.partition("?")[0]
        if call.method == "POST" and path != "/v1/completions":
            self.done.append(call.path)
        if path in self.failing:
            status, document = self.failing[path]
            call.answer(document, status=status)
        elif path in self.fixed:
            call.answer(self.fixed[path])
        else:
            known = getattr(self, "on_" + path.strip("/").replace("/", "_").replace(".", "_"), None)
            if known is None:
                call.answer({"detail": "Not Found"}, status=404)
            else:
                known(call)

    def on_openapi_json(self, call) -> None:
        schemas = {"CompletionRequest": {"properties": dict.fromkeys(self.fields)}}
        call.answer({"paths": dict.fromkeys(self.paths), "components": {"schemas": schemas}})

    def on_v1_models(self, call) -> None:
        call.answer({"data": [{"id": "the-model", "root": self.model_dir, "max_model_len": 64}]})

    def on_v1_completions(self, call) -> None:
        """Answer with ids that continue the prompt, bent by `bend`; a call for top log-probs gets those of the mode."""
        body = call.document()
        if body["logprobs"]:  # the client's check of the log-probs mode; completions have 0
            spread = 1.0 if self.mode == "raw_logprobs" else 1 / body["temperature"]
            top = {"token_id:1": -1.0, "token_id:2": -1.0 - spread}
            return call.answer({"choices": [{"logprobs": {"top_logprobs": [top]}}]})
        self.completion_requests.append(body)
        if self.hold_completions.is_set():
            self.release_completions.wait(500)
        last = body["prompt"][-1]
        ids, reason = [(last + place) % 10 for place in range(body["max_tokens"])], "length"
        if last % 2 == 0:
            ids[-1], reason = END, "stop"
        choice = {
            "finish_reason": reason,
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"tokens": [f"token_id:{i}" for i in ids], "token_logprobs": [-0.5] * len(ids)},
        }
        answer = {"id": f"cmpl-{body['request_id']}", "choices": [choice]}
        self.bend(choice, answer)
        return call.answer(answer)

    def on_collective_rpc(self, call) -> None:
        body = call.document()
        self.loaded = load_file(f"{body['kwargs']['weights_path']}/model.safetensors")
        call.answer({"results": [None]})

    def on_update_weight_version(self, call) -> None:
        self.mark = call.document()["new_version"]
        call.answer({"success": True, "new_version": self.mark})

    def on_weight_info(self, call) -> None:
        call.answer({"weight_version": self.mark})


@pytest.fixture
def vllm(model_dir):
    """Return the state and handlers of the simulated server."""
    return SimulatedVllm(model_dir)


@pytest.fixture
def server(vllm):
    """Yield the simulated server."""
    with simulate_server(vllm) as running:
        yield running


@pytest.fixture
def engine(server, tmp_path):
    """Yield a client connected to the simulated server."""
    with closing(connect_engine(server, tmp_path)) as built:
        built._shapes = {name: tuple(tensor.shape) for name, tensor in WEIGHTS.items()}
        yield built


def connect_engine(server, tmp_path, **options) -> VllmServerEngine:
    """Connect a client to the simulated server."""
    return VllmServerEngine("127.0.0.1", server.port, timeout_s=500, folder=tmp_path / "weights", **options)


def test_client_reports_its_capabilities(engine):
    """Each missing capability has an explanation."""
    assert isinstance(engine, Engine)
    able = engine.capabilities
    assert (able.seeds, able.update, able.fingerprint, able.sleep) == (True, True, False, False)
    assert set(able.why_not) == {"fingerprint", "sleep"}


def test_request_sets_sampling_parameters(engine, vllm):
    """Each call has its own seed and id, and sets sampling and stop parameters itself, also those with a default."""
    completions = engine.generate(REQUESTS, PARAMS)
    assert [completion.request_id for completion in completions] == [request.id for request in REQUESTS]
    assert {body["seed"] for body in vllm.completion_requests} == {mix_seed(request) for request in REQUESTS}
    assert len({body["request_id"] for body in vllm.completion_requests}) == 5
    pinned = {
        "model": "the-model", "n": 1, "max_tokens": 6, "min_tokens": 0, "temperature": 0.8, "top_p": 1.0, "top_k": 0,
        "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "stop": [],
        "stop_token_ids": [END], "ignore_eos": True, "logprobs": 0, "return_token_ids": True,
        "return_tokens_as_token_ids": True, "echo": False, "stream": False, "watermarking": False,
        "use_beam_search": False, "add_special_tokens": False, "skip_special_tokens": False,
    }  # fmt: skip
    for body in vllm.completion_requests:
        assert pinned == {key: body[key] for key in body.keys() - {"prompt", "seed", "request_id"}}
    assert [c.finish_reason for c in completions] == ["length", "stop", "length", "stop", "length"]
    assert {v for c in completions for v in c.versions} == {-1}


def change_choice(**changes):
    """Return a function that changes a choice of the response, or its `id`."""

    def apply(choice, answer) -> None:
        for key, value in changes.items():
            (answer if key == "id" else choice)[key] = value

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_choice(id="cmpl-another"), "is to another request"),
        (change_choice(prompt_token_ids=[9]), "is to another request"),
        (change_choice(token_ids=[1, 2, 3, 4, 5, 6, 7]), "7 ids, but log-probs of"),
        (change_choice(logprobs=None), "the answer is no completion"),
        (
            change_choice(logprobs={"tokens": ["token_id:1"], "token_logprobs": [None]}),
            "the answer is no completion",
        ),
        (change_choice(token_ids=None), "the answer is no completion"),
        (change_choice(finish_reason="stop"), r"it ended at id 8, which is none of the stop ids \[11\]"),
        (change_choice(finish_reason="error"), "ended with reason 'error'"),
        (change_choice(finish_reason="abort"), "ended with reason 'abort'"),
        (lambda choice, answer: answer["choices"].append(choice), "the answer is no completion"),
        (lambda choice, answer: answer.pop("choices"), "the answer is no completion"),
        (
            lambda choice, answer: choice["logprobs"].update(token_logprobs=[float("nan")] * 6),
            "log-probs that are none",
        ),
        (
            lambda choice, answer: [choice["token_ids"].pop(), *map(list.pop, choice["logprobs"].values())],
            "5 ids came where 6 were asked for",
        ),
    ],
)
def test_mismatched_or_altered_completions_are_refused(engine, vllm, change, message):
    """The error names the request; no value is guessed."""
    vllm.bend = change
    with pytest.raises(EngineError, match=f"request r0.*{message}"):
        engine.generate([REQUESTS[0]], PARAMS)


def test_refused_completions_fail_the_rollout(engine, vllm):
    """The error has the server's message and a request."""
    engine.generate(REQUESTS, PARAMS)
    vllm.failing["/v1/completions"] = (400, {"error": {"message": "max_tokens too large"}})
    with pytest.raises(EngineError, match=r"/v1/completions: status 400: max_tokens too large \(request r"):
        engine.generate(REQUESTS, PARAMS)


@pytest.mark.parametrize(
    ("request_", "params", "message"),
    [
        (Request("long", (0,) * 60, 0), PARAMS, "request long has 60 prompt tokens and asks for 6 more"),
        (Request("none", (), 0), PARAMS, "request none has 0 prompt tokens"),
        (REQUESTS[1], SamplingParams(4, temperature=0.001), "temperature 0.001 is below 0.01"),
    ],
)
def test_unusable_requests_are_refused_before_they_are_sent(engine, vllm, request_, params, message):
    """A prompt that is empty or too long for the engine, and a temperature near 0, are refused before any request."""
    with pytest.raises(EngineError, match=message):
        engine.generate([REQUESTS[0], request_], params)
    assert vllm.completion_requests == []


def test_update_pauses_the_server(engine, vllm, tmp_path):
    """Order: pause, mark as unfinished, load, clear the cache, mark as this version, resume; no file remains."""
    engine.update_weights(WEIGHTS.items(), 7)
    assert vllm.done == [
        "/pause?mode=wait",
        "/update_weight_version",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/resume",
    ]
    assert vllm.mark.startswith("grpo-core: 7-")
    assert vllm.loaded.keys() == WEIGHTS.keys()
    assert all(torch.equal(vllm.loaded[name], value) for name, value in WEIGHTS.items())
    assert not (tmp_path / "weights").exists()
    assert engine.policy_version == 7
    assert {v for c in engine.generate(REQUESTS, PARAMS) for v in c.versions} == {7}


def test_closed_client_refuses(engine):
    """Closing twice is allowed."""
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="generate: the engine is closed"):
        engine.generate(REQUESTS, PARAMS)
    with pytest.raises(EngineError, match="update_weights: the engine is closed"):
        engine.update_weights(WEIGHTS.items(), 1)


@pytest.mark.parametrize(
    "failing", ["/update_weight_version", "/collective_rpc", "/reset_prefix_cache", "/pause"]
)
def test_failed_update_blocks_sampling_until_one_succeeds(engine, vllm, failing):
    """The server continues for other clients; for this client it has no version."""
    engine.update_weights(WEIGHTS.items(), 1)
    document = {"success": False} if failing == "/reset_prefix_cache" else {"error": {"message": "no"}}
    vllm.failing[failing] = (200 if failing == "/reset_prefix_cache" else 500, document)
    with pytest.raises(EngineError, match=failing):
        engine.update_weights(WEIGHTS.items(), 2)
    assert vllm.done[-1] == ("/pause?mode=wait" if failing == "/pause" else "/resume")
    assert engine.policy_version == -1
    with pytest.raises(EngineError, match="the last update failed; send the weights again"):
        engine.generate(REQUESTS, PARAMS)
    vllm.failing.clear()
    engine.update_weights(WEIGHTS.items(), 2)
    assert {v for c in engine.generate(REQUESTS, PARAMS) for v in c.versions} == {2}


def test_incomplete_weights_are_refused(engine, vllm):
    """vLLM would only log a missing parameter."""
    with pytest.raises(EngineError, match=r"b.weight is missing; extra is not in the model"):
        engine.update_weights([("a.weight", WEIGHTS["a.weight"]), ("extra", torch.ones(1))], 1)
    with pytest.raises(EngineError, match=r"b.weight is \(2,\), not \(3,\)"):
        engine.update_weights({**WEIGHTS, "b.weight": torch.ones(2)}.items(), 1)
    assert vllm.done == []


@pytest.mark.parametrize("mark", ["default", "grpo-core: 7-somebody"])
def test_lost_weights_are_detected(engine, vllm, mark):
    """After a restart, or an update by another client, the server's tokens are not used."""
    engine.update_weights(WEIGHTS.items(), 7)
    vllm.mark = mark
    with pytest.raises(EngineError, match="the server lost the weights it was sent"):
        engine.generate(REQUESTS, PARAMS)


def test_rollout_times_out(server, vllm, tmp_path):
    """If the server gives no answer within the time limit, the error names a request."""
    engine = VllmServerEngine("127.0.0.1", server.port, timeout_s=500, folder=tmp_path)
    engine.generate(REQUESTS, PARAMS)
    engine._http.timeout_s = 1
    vllm.hold_completions.set()
    with pytest.raises(EngineTimeoutError, match=r"no answer in 1 s.*\(request r"):
        engine.generate(REQUESTS, PARAMS)
    vllm.release_completions.set()


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("/pause", "vLLM 0.31.0 serves no /pause; start it with VLLM_SERVER_DEV_MODE=1"),
        ("/weight_info", "serves no /weight_info"),
        ("/collective_rpc", "serves no /collective_rpc"),
    ],
)
def test_server_without_updates_is_reported_at_connect(vllm, tmp_path, lacking, message):
    """The server can be sampled from; an update is refused with the reason given at the connection."""
    vllm.paths = [path for path in vllm.paths if path != lacking]
    with simulate_server(vllm) as server:
        engine = connect_engine(server, tmp_path)
        assert not engine.capabilities.update
        assert message in engine.capabilities.why_not["update"]
        assert len(engine.generate(REQUESTS, PARAMS)) == len(REQUESTS)
        with pytest.raises(EngineError, match=message):
            engine.update_weights(WEIGHTS.items(), 1)


@pytest.mark.parametrize(
    ("sync", "updates"), [("auto", True), ("files", True), ("shm", False), ("http", False)]
)
def test_weights_are_sent_by_files_only(server, tmp_path, sync, updates):
    """Another transport is refused with a reason."""
    capabilities = connect_engine(server, tmp_path, sync=sync).capabilities
    assert capabilities.update is updates
    assert ("by files" in capabilities.why_not.get("update", "")) is not updates


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_logprobs_mode_is_detected_if_not_reported(vllm, tmp_path, mode):
    """Log-probs before the temperature are noticed by sampling at two temperatures, and refused."""
    vllm.mode = mode
    with simulate_server(vllm) as server:
        engine = connect_engine(server, tmp_path)
        if mode == "raw_logprobs":
            with pytest.raises(EngineError, match="start it with --logprobs-mode processed_logprobs"):
                engine.generate(REQUESTS, PARAMS)
            assert vllm.completion_requests == []
        else:
            assert len(engine.generate(REQUESTS, PARAMS)) == len(REQUESTS)


def test_unsupported_server_is_refused(vllm, tmp_path):
    """Examples are a release without `ignore_eos` and log-probs, and a server of another kind."""
    vllm.fields = ["model", "prompt", "seed"]
    lacks = pytest.raises(EngineError, match="can't be asked with ignore_eos, logprobs")
    with simulate_server(vllm) as server, lacks:
        connect_engine(server, tmp_path)
    with (
        simulate_server(lambda call: call.answer(text=json.dumps({"hello": 1}).encode())) as server,
        pytest.raises(EngineError, match=r"expected `vllm serve`, or .*; its answers lack KeyError"),
    ):
        connect_engine(server, tmp_path)
