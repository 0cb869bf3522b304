"""One conformance suite for every engine that runs here: embedded, in its own process, and behind HTTP."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from grpo_core.engines import EngineSpec, build_engine
from grpo_core.engines.base import Engine, EngineError, Sleeper
from grpo_core.engines.process import ProcessEngine
from grpo_core.engines.remote import RemoteEngine
from grpo_core.engines.transformers import choose
from grpo_core.engines.wire import decode_completions, encode_completions
from grpo_core.logprobs import completion_logprobs
from grpo_core.model import load_model
from grpo_core.serve.launch import ServerProcess
from grpo_core.types import Completion, Request, SamplingParams
from grpo_core.weights import fingerprint_of

END = 11
PARAMS = SamplingParams(max_tokens=12, temperature=0.8, stop_ids=(END,))
# Prompts of several lengths, groups of three: r0..r2 share one, and so on.
PROMPTS = [(0, 1, 2, 10), (3, 10), (4, 5, 6, 7, 8, 10), (9, 9, 9, 10)]
REQUESTS = [Request(f"r{i}", PROMPTS[i // 3], seed=100 + i) for i in range(12)]


@pytest.fixture(scope="module", params=["embedded", "process", "remote"])
def engine(request, model_dir):
    """Each kind of engine, on the tiny model."""
    spec = EngineSpec("transformers", str(model_dir), max_model_len=64)
    if request.param == "embedded":
        torch.set_num_threads(1)
        with closing(build_engine(spec)) as built:
            yield built
    elif request.param == "process":
        with closing(ProcessEngine(spec, timeout_s=100)) as built:
            yield built
    else:
        with closing(ServerProcess(spec, timeout_s=100)) as server:
            yield RemoteEngine(server.host, server.port, timeout_s=100)


@pytest.fixture
def trained(model_dir, engine):
    """The trainer's model, with weights of its own that the engine has been given as version 5."""
    model = load_model(model_dir)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    engine.update_weights(model.named_parameters(), 5)
    return model


def recomputed(model, request: Request, completion: Completion) -> torch.Tensor:
    """The trainer's log-probs of a completion."""
    with torch.no_grad():
        return completion_logprobs(
            model,
            torch.tensor([[*request.prompt_ids, *completion.ids]]),
            torch.tensor([len(request.prompt_ids)]),
            torch.tensor([len(completion.ids)]),
            temperature=PARAMS.temperature,
            chunk=64,
        )[0][0]


def test_it_is_an_engine(engine):
    """It has the protocol's members, and says what it can do."""
    assert isinstance(engine, Engine)
    assert engine.capabilities.seeds
    assert engine.capabilities.fingerprint


def test_log_probs_are_the_trainers(engine, trained):
    """At the sampling temperature, on the published weights, for every token."""
    for request, completion in zip(REQUESTS, engine.generate(REQUESTS, PARAMS), strict=True):
        expected = recomputed(trained, request, completion)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, rtol=0, atol=1e-5)


def test_completions_answer_the_requests_in_order(engine, trained):
    """Paired by id, every token with its version, and ended by the stop id or the length."""
    completions = engine.generate(REQUESTS, PARAMS)
    assert [completion.request_id for completion in completions] == [request.id for request in REQUESTS]
    for completion in completions:
        assert set(completion.versions) == {5}
        if completion.finish_reason == "stop":
            assert completion.ids.index(END) == len(completion.ids) - 1
        else:
            assert (completion.finish_reason, len(completion.ids)) == ("length", 12)
            assert END not in completion.ids
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}


def test_the_same_requests_give_the_same_bits(engine, trained):
    """Ids and log-probs alike."""
    assert engine.generate(REQUESTS, PARAMS) == engine.generate(REQUESTS, PARAMS)


def test_neighbours_do_not_change_what_is_sampled(engine, trained):
    """Alone, reversed or in the batch: the same ids; log-probs the same up to rounding."""
    together = engine.generate(REQUESTS, PARAMS)
    alone = [engine.generate([request], PARAMS)[0] for request in REQUESTS]
    backwards = engine.generate(REQUESTS[::-1], PARAMS)[::-1]
    for one, two, three in zip(together, alone, backwards, strict=True):
        assert one.ids == two.ids == three.ids
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)
        assert one.logprobs == pytest.approx(three.logprobs, abs=1e-5)


def test_other_seeds_give_other_samples(engine, trained):
    """A group's samples share the prompt and differ in the seed alone."""
    assert len({completion.ids for completion in engine.generate(REQUESTS, PARAMS)}) == len(REQUESTS)


def test_weights_arrive_bit_for_bit(engine, trained):
    """The engine's fingerprint is the trainer's, and moves with it."""
    assert engine.policy_version == 5
    assert engine.fingerprint() == fingerprint_of(trained.named_parameters())
    with torch.no_grad():
        next(trained.parameters())[0, 0] += 1e-6
    assert engine.fingerprint() != fingerprint_of(trained.named_parameters())  # a copy, not the trainer's own
    engine.update_weights(trained.named_parameters(), 6)
    assert engine.policy_version == 6
    assert engine.fingerprint() == fingerprint_of(trained.named_parameters())


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape"])
def test_other_parameters_are_refused_whole(engine, trained, fault):
    """By name; the engine keeps what it had."""
    held = engine.fingerprint()
    tensors = {name: value.detach() * 2 for name, value in trained.named_parameters()}
    if fault == "missing":
        del tensors["lm_head.weight"]
        says = "lm_head.weight is missing"
    elif fault == "unknown":
        tensors["extra"] = torch.zeros(1)
        says = "extra is not in the model"
    else:
        tensors["lm_head.weight"] = torch.zeros(2, 2)
        says = r"lm_head.weight is \(2, 2\), not \(13, 64\)"
    with pytest.raises(EngineError, match=says):
        engine.update_weights(tensors.items(), 9)
    assert (engine.fingerprint(), engine.policy_version) == (held, 5)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request("long", (0,) * 60, seed=0), "request long has 60 prompt tokens and asks for 12 more"),
        (Request("odd", (0, 99), seed=0), "request odd has a token id outside of 0 to 12"),
    ],
)
def test_impossible_requests_are_refused_by_name(engine, trained, request_, says):
    """And the engine goes on working."""
    with pytest.raises(EngineError, match=says):
        engine.generate([REQUESTS[0], request_], PARAMS)
    assert len(engine.generate(REQUESTS, PARAMS)) == len(REQUESTS)


def test_samples_follow_the_distribution():
    """Inverse CDF: each token's share of the unit interval is its probability at the temperature."""
    logits = torch.tensor([2.0, 0.0, -1.0, float("-inf")])
    draws = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    ids, logprobs = choose(logits.expand(4000, 4), draws, temperature=1.5)
    expected = torch.softmax(logits / 1.5, -1)
    shares = torch.bincount(ids, minlength=4) / 4000
    torch.testing.assert_close(shares, expected, rtol=0, atol=5e-4)
    torch.testing.assert_close(logprobs.exp(), expected[ids], rtol=1e-6, atol=0)


def test_the_extremes_of_a_draw_never_hit_an_impossible_token():
    """0 and the last float below 1, with impossible tokens at both ends."""
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).expand(2, 4)
    ids, _ = choose(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), temperature=1.0)
    assert ids.tolist() == [1, 2]


GOOD = [Completion("a", (1, 2), (-0.5, -0.1), (0, 0), "stop"), Completion("b", (3,), (-1.0,), (0,), "length")]
ASKED = [Request("a", (0,), 1), Request("b", (0,), 2)]


def test_the_wire_changes_no_bit():
    """Floats come back as they went."""
    odd = Completion("a", (1,), (-0.1 - 2**-50,), (3,), "stop")
    assert decode_completions(encode_completions([odd]), ASKED[:1], "x") == [odd]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (encode_completions(GOOD[:1]), "2 requests, 1 completions"),
        (encode_completions(GOOD[::-1]), "request a was answered with 'b'"),
        ({"completions": [{"request_id": "a"}]}, "the answer is not a list of completions"),
        ([], "the answer is not a list of completions"),
        (
            encode_completions([Completion("a", (), (), (), "stop"), GOOD[1]]),
            "request a ended without a usable",
        ),
        (
            encode_completions([Completion("a", (1,), (float("nan"),), (0,), "stop"), GOOD[1]]),
            "log-probs that are none",
        ),
        (
            encode_completions([Completion("a", (1,), (0.7,), (0,), "stop"), GOOD[1]]),
            "log-probs that are none",
        ),
    ],
)
def test_other_answers_than_were_asked_for_are_refused(answer, says):
    """Whatever engine they come from."""
    with pytest.raises(EngineError, match="x engine, generate") as caught:
        decode_completions(answer, ASKED, "x")
    assert says in str(caught.value)


def test_a_completion_goes_on_behind_its_prefix(engine, trained):
    """Sampled in slices of two tokens, it is the completion sampled at once, up to rounding of its log-probs."""
    whole = engine.generate(REQUESTS, PARAMS)
    parts: dict[str, list[Completion]] = {request.id: [] for request in REQUESTS}
    unfinished = [replace(request, budget=2) for request in REQUESTS]
    while unfinished:
        for request, part in zip(unfinished, engine.generate(unfinished, PARAMS), strict=True):
            parts[request.id].append(part)
            assert len(part.ids) == 2 or part.finish_reason == "stop"
        unfinished = [
            replace(request, prefix=request.prefix + parts[request.id][-1].ids)
            for request in unfinished
            if parts[request.id][-1].finish_reason == "abort"
        ]
    for expected in whole:
        pieces = parts[expected.request_id]
        assert sum((piece.ids for piece in pieces), ()) == expected.ids
        assert pieces[-1].finish_reason == expected.finish_reason
        given = torch.tensor(sum((piece.logprobs for piece in pieces), ()))
        torch.testing.assert_close(given, torch.tensor(expected.logprobs), atol=1e-5, rtol=0)


def test_asleep_it_refuses_and_awake_it_needs_its_weights(model_dir):
    """What slept holds nothing: sampling needs `wake` and an update, after which it is as before."""
    with closing(build_engine(EngineSpec("transformers", str(model_dir), max_model_len=64))) as engine:
        assert isinstance(engine, Sleeper)
        assert engine.capabilities.sleep
        weights = dict(load_model(model_dir).named_parameters())
        engine.update_weights(weights.items(), 1)
        before = engine.generate(REQUESTS, PARAMS)
        engine.sleep()
        with pytest.raises(EngineError, match="generate: the engine is asleep"):
            engine.generate(REQUESTS, PARAMS)
        with pytest.raises(EngineError, match="update_weights: the engine is asleep"):
            engine.update_weights(weights.items(), 2)
        engine.wake()
        assert engine.policy_version == -1
        engine.update_weights(weights.items(), 1)
        assert engine.generate(REQUESTS, PARAMS) == before
