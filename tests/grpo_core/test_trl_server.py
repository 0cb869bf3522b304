"""The client of `trl vllm-serve` by its old protocol, against a SIMULATED server."""

from __future__ import annotations

import pytest

from grpo_core.config import RolloutConfig
from grpo_core.rollout.engine import Engine, EngineError
from grpo_core.rollout.http_client import PROTOCOL
from grpo_core.rollout.remote import check_trainable, engine_for
from grpo_core.rollout.trl_serve import TrlServerEngine, connect
from grpo_core.rollout.vllm_requests import mixed_seed
from grpo_core.types import Request, SamplingParams
from tests.grpo_core.scripted import simulated

END = 11
PARAMS = SamplingParams(max_tokens=4, temperature=0.8, stop_ids=(END,))
REQUESTS = [Request(f"r{i}", (1, 2, 3 + i), seed=100 + i) for i in range(3)]
TEXT = {"items": {"type": "string"}, "type": "array"}
IDS = {"items": {"items": {"type": "integer"}, "type": "array"}, "type": "array"}


class SimulatedTrl:
    """SIMULATED: the endpoints of TRL 1.10.0's server that the client uses, with an answer that can be bent."""

    def __init__(self) -> None:
        self.fields = {"prompts": {"anyOf": [TEXT, IDS]}, "generation_kwargs": {}, "logprobs": {}}
        self.answers = {"completion_ids": {}, "logprobs": {}, "logprob_token_ids": {}}
        self.asked: list[dict] = []
        self.bend = lambda answer: None

    def __call__(self, call) -> None:
        if call.path == "/openapi.json":
            schemas = {
                "GenerateRequest": {"properties": self.fields},
                "GenerateResponse": {"properties": self.answers},
            }
            call.answer({"paths": {"/generate/": {}}, "components": {"schemas": schemas}})
        elif call.path == "/generate/":
            body = call.document()
            self.asked.append(body)
            last = body["prompts"][0][-1]
            ids = [last] * body["max_tokens"]
            if last % 2 == 0:
                ids = [*ids[:1], END]
            answer = {
                "prompt_ids": body["prompts"],
                "completion_ids": [ids],
                "logprobs": [[[-0.5] for _ in ids]],
                "logprob_token_ids": [[[i] for i in ids]],
            }
            self.bend(answer)
            call.answer(answer)
        elif call.path == "/reset_prefix_cache/":
            call.answer({"message": "Request received, resetting prefix cache status: True"})
        else:
            call.answer({"detail": "Not Found"}, status=404)


@pytest.fixture
def trl():
    return SimulatedTrl()


def connected(server) -> TrlServerEngine:
    return TrlServerEngine("127.0.0.1", server.port, timeout_s=50000)


def test_each_completion_is_one_call_with_its_own_seed(trl):
    """Everything that shapes it is sent; why it ended follows from its ids."""
    with simulated(trl) as server:
        engine = connected(server)
        assert isinstance(engine, Engine)
        completions = engine.generate(REQUESTS, PARAMS)
        engine.reset_prefix_cache()
    assert [(c.request_id, c.finish_reason, len(c.ids)) for c in completions] == [
        ("r0", "length", 4),
        ("r1", "stop", 2),
        ("r2", "length", 4),
    ]
    assert [body["prompts"] for body in trl.asked] == [[[1, 2, 3]], [[1, 2, 4]], [[1, 2, 5]]]
    assert [body["generation_kwargs"]["seed"] for body in trl.asked] == list(map(mixed_seed, REQUESTS))
    for body in trl.asked:
        assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (
            1.0,
            -1,
            0.0,
            1.0,
        )
        assert body["generation_kwargs"]["stop_token_ids"] == [END]
        assert body["generation_kwargs"]["ignore_eos"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a.update(prompt_ids=[[9]]), "is to another request"),
        (lambda a: a.update(logprob_token_ids=[[[0]] * 4, *a["logprob_token_ids"]]), "is not one completion"),
        (lambda a: a.update(logprob_token_ids=[[[9]] * 4]), "its log-probs are of other ids"),
        (lambda a: a.update(completion_ids=[]), "is not one completion"),
        (lambda a: a.update(logprobs=None), "is not one completion"),
        (lambda a: a.update(logprobs=[[[None]] * 4]), "is not one completion"),
        (
            lambda a: [a[key][0].pop() for key in ("completion_ids", "logprobs", "logprob_token_ids")],
            "it ended after 3 of 4 ids, on none of the stop ids",
        ),
    ],
)
def test_other_answers_are_refused_by_name(trl, change, says):
    """Nothing is guessed."""
    trl.bend = change
    with simulated(trl) as server, pytest.raises(EngineError, match=f"request r0.*{says}"):
        connected(server).generate(REQUESTS[:1], PARAMS)


def release(trl: SimulatedTrl, version: str) -> SimulatedTrl:
    """The fields of that release, as its source has them."""
    if version in ("0.17.0", "0.24.0"):
        trl.fields["prompts"] = TEXT
        del trl.answers["logprob_token_ids"]
    if version == "0.17.0":
        del trl.fields["generation_kwargs"]
    return trl


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        ("0.17.0", {"generate", "seeds", "logprobs"}),
        ("0.24.0", {"generate", "logprobs"}),
        ("0.29.1", set()),
        ("1.10.0", set()),
    ],
)
def test_what_a_release_lacks_is_said_before_use(trl, version, lacks):
    """None takes weights but by NCCL; those before 0.29.1 take no token ids, those before 0.19 no seeds."""
    with simulated(release(trl, version)) as server:
        engine = connected(server)
        able = engine.capabilities
        assert set(able.why_not) == lacks | {"update", "abort", "fingerprint", "sleep", "slices"}
        assert "by NCCL alone" in able.why_not["update"]
        assert (able.update, able.seeds) == (False, "seeds" not in lacks)
        if lacks:
            with pytest.raises(EngineError, match=r"token ids are taken from TRL 0.29.1 on"):
                engine.generate(REQUESTS, PARAMS)
    with pytest.raises(EngineError, match="update_weights: TRL's server takes weights by NCCL alone"):
        engine.update_weights([], 0)
    with pytest.raises(EngineError, match="abort: its protocol has no call for it"):
        engine.abort()


def test_our_own_server_is_not_taken_for_trls():
    """Though it speaks TRL's protocol, too."""

    def handle(call):
        call.answer({"schema": PROTOCOL})

    with (
        simulated(handle) as server,
        pytest.raises(EngineError, match="expected `trl vllm-serve`, but `python -m"),
    ):
        connect("127.0.0.1", server.port, timeout_s=500)


@pytest.mark.parametrize("wanted", ["auto", "trl"])
def test_it_is_not_trained_with(trl, tmp_path, wanted):
    """A run ends at its start, with the reason and what to use instead."""
    with (
        simulated(trl) as server,
        pytest.raises(
            EngineError,
            match=r"it can't be trained with \(update\): TRL's server takes weights by NCCL alone",
        ),
    ):
        check_trainable(
            engine_for(RolloutConfig(server=wanted, timeout_s=500), "127.0.0.1", server.port, tmp_path)
        )
