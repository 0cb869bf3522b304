"""Mixtures of experts: routing is told by the engine, replayed in training, recorded, and replayed from the record."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_core import run
from grpo_core.config import ConfigError
from grpo_core.experts.engine import RoutedEngine, check_told, routing
from grpo_core.experts.routes import OWN, Routes, routers
from grpo_core.learn.chosen import policy_for
from grpo_core.learn.forms.update import updater_for
from grpo_core.machine.determinism import settle
from grpo_core.machine.world import World
from grpo_core.modes import colocate
from grpo_core.records.recording import SCHEMA_2, Recorder, read_step
from grpo_core.records.replay import replay
from grpo_core.rollout.build import EngineSpec, build_engine
from grpo_core.rollout.embedded.transformers import TransformersEngine
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.wire import decode_completions, encode_completions
from grpo_core.settings import load
from grpo_core.tasks.model import load_model
from grpo_core.turns.spoken import Routed
from grpo_core.types import Completion, Prompt, Request, Sample, SamplingParams
from tests.grpo_core.experts import KINDS, make_moe

MOE = {"sampling.max_tokens": 8, "train.warmup_updates": 0, "rollout.sync_tolerance": 0.5}


@pytest.fixture(scope="module", params=KINDS)
def moe(request, model_dir, tmp_path_factory):
    """A tiny one of each kind."""
    return make_moe(tmp_path_factory.mktemp(request.param), model_dir, request.param)


@pytest.fixture(scope="module")
def qwen(model_dir, tmp_path_factory):
    """A tiny Qwen3-MoE."""
    return make_moe(tmp_path_factory.mktemp("qwen"), model_dir)


def sampled(folder, *, dtype="float32"):
    """An engine, its requests (prompts of two lengths, one twice) and what it said of them."""
    inner = TransformersEngine(folder, max_model_len=32, dtype=dtype)
    engine = RoutedEngine(inner, load_model(folder), 3)
    prompts = ((1, 2, 10), (3, 4, 5, 10), (1, 2, 10), (2, 2, 10), (7, 4, 5, 10))
    requests = [Request(str(place), ids, place) for place, ids in enumerate(prompts)]
    return inner, requests, engine.generate(requests, SamplingParams(6, stop_ids=(11,)))


def test_the_routing_told_is_that_of_the_models_own_pass(moe):
    """Of each token of prompt and completion but the last, in each layer; and ids are those of the engine alone."""
    settle(1)
    inner, requests, completions = sampled(moe)
    alone = inner.generate(requests, SamplingParams(6, stop_ids=(11,)))
    assert [c.ids for c in alone] == [c.ids for c in completions]
    model = load_model(moe)
    assert routers(model) == 2
    for request, completion in zip(requests, completions, strict=True):
        ids = request.prompt_ids + completion.ids
        with torch.no_grad(), Routes() as routes:
            model.base_model(torch.tensor([ids]))
        expected = torch.stack(routes.seen, 1)[:-1].sort(-1).values
        assert torch.equal(torch.tensor(completion.experts).sort(-1).values, expected)
        assert len(completion.experts) == len(ids) - 1


def test_a_given_choice_is_taken_with_the_models_own_weights(moe):
    """Its own choice given changes no bit of output or gradient; another one does, and routers learn from it."""
    settle(1)
    ids = torch.tensor([[1, 2, 10, 4, 5]])
    found = []
    with torch.no_grad(), Routes() as own:
        load_model(moe).base_model(ids)
    other = [(layer + 1) % 8 for layer in own.seen]
    for given in (None, own.seen, [torch.full_like(layer, OWN) for layer in own.seen], other):
        model = load_model(moe)
        if given is None:
            out = model(ids).logits
        else:
            with Routes(given) as routes:
                out = model(ids).logits
        out.square().sum().backward()
        grads = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        found.append((out.detach(), grads))
    assert routes.moved() > 0.5
    for out, grads in found[1:3]:
        assert torch.equal(out, found[0][0])
        assert all(torch.equal(value, grads[name]) for name, value in found[0][1].items())
    assert not torch.allclose(found[3][0], found[0][0])
    routing = [value for name, value in found[3][1].items() if ".gate.weight" in name]
    assert len(routing) == 2
    assert all(value.any() for value in routing)


def test_training_goes_where_the_engine_went(qwen):
    """In micro-batches of any size: the log-probs are those of a pass whose routers are told what to choose."""
    settle(1)
    _, requests, completions = sampled(qwen)
    wrong = [
        replace(
            c,
            experts=tuple(tuple(tuple((e + 1) % 8 for e in layer) for layer in token) for token in c.experts),
        )
        for c in completions
    ]
    samples = [
        Sample(Prompt(r.id, "", r.prompt_ids), c, "", 1.0, (-1.0) ** place)
        for place, (r, c) in enumerate(zip(requests, wrong, strict=True))
    ]
    found = []
    for size in (2, 5):
        config = load(
            None, [f"--model.path={qwen}", f"--train.micro_batch={size}", "--rollout.replay_experts=true"]
        )
        policy = policy_for(str(qwen), config, World())
        updater = updater_for(policy, config, World())
        batch = policy.make_batch(samples, "cpu")
        with torch.no_grad():
            logprobs = updater.logprobs(batch)[0]
        found.append((logprobs, updater.gradients(batch), policy.causal.model.layers[0].mlp.gate.weight.grad))
    assert torch.allclose(found[0][2], found[1][2], rtol=1e-4, atol=1e-7)
    model = load_model(qwen)
    for row, (request, completion) in enumerate(zip(requests, wrong, strict=True)):
        ids, start = torch.tensor([request.prompt_ids + completion.ids]), len(request.prompt_ids)
        given = [torch.tensor(layer) for layer in zip(*completion.experts, strict=True)]
        with torch.no_grad(), Routes(given):
            everything = torch.log_softmax(model(ids[:, :-1]).logits[0, start - 1 :], -1)
        expected = everything.gather(-1, ids[0, start:, None])[:, 0]
        assert torch.allclose(found[0][0][row, : len(expected)], expected, atol=1e-5)


def trained(short_run, folder, name, **settings):
    """A run's document and its metrics."""
    config = short_run("colocate", **{"model.path": folder, "output.name": name, **MOE, **settings})
    document = run.train(config, lambda entry: None)
    assert document["outcome"] == "ok", document["error"]
    return document, [json.loads(line) for line in Path(document["metrics"]).read_text().splitlines()]


@pytest.mark.slow
def test_in_float32_replay_changes_next_to_nothing_and_in_bfloat16_it_takes_mismatch_away(short_run, qwen):
    """What is left is rounding; the share of choices that would have been others is in the metrics."""
    seen = {}
    for dtype in ("float32", "bfloat16"):
        for replayed in (False, True):
            settings = {
                "rollout.dtype": dtype,
                "rollout.replay_experts": replayed,
                "train.steps": 1,
            }
            _, seen[dtype, replayed] = trained(short_run, qwen, f"{dtype}-{replayed}", **settings)
    first = {key: entries[0] for key, entries in seen.items()}
    assert first["float32", True]["experts/moved"] < 0.01
    assert first["float32", True]["logprob_difference/max"] < 1e-4
    assert 0 < first["bfloat16", True]["experts/moved"] < 0.2
    assert "experts/moved" not in first["bfloat16", False]
    of = {key: entry["logprob_difference/max"] for key, entry in first.items()}
    assert of["bfloat16", True] < of["bfloat16", False]


@pytest.mark.slow
def test_a_step_with_routing_is_recorded_and_replayed(short_run, qwen):
    """To the last bit, from v2, where choices are kept: without them, the same record gives another loss."""
    settings = {"rollout.dtype": "bfloat16", "rollout.replay_experts": True, "output.record_every": 1}
    document, _ = trained(short_run, qwen, "recorded", **settings, **{"train.steps": 1})
    folder = Path(document["metrics"]).parent
    recorded = read_step(folder, 1)
    assert recorded.entry["schema"] == SCHEMA_2
    answers = [sample.completion for sample in recorded.samples]
    assert all(isinstance(answer, Routed) for answer in answers)
    lengths = [len(sample.prompt.ids) + len(sample.completion.ids) - 1 for sample in recorded.samples]
    assert [len(answer.experts) for answer in answers] == lengths
    assert replay(folder, 1, qwen)["outcome"] == "equal"
    wrong = [replace(s, completion=cut(lambda layer: (8, 0))(s.completion)) for s in recorded.samples]
    requests = [Request(s.completion.request_id, s.prompt.ids, 0) for s in wrong]
    Recorder(folder / "wrong", recorded.config).write(1, 0, wrong, requests, {"loss": 0.0})
    with pytest.raises(ConfigError, match="the record tells of expert 8; the model has 8: it is of another"):
        replay(folder / "wrong", 1, qwen)


def test_what_can_tell_no_routing_is_refused(short_run, model_dir):
    """By name: another engine, slices, conversations, and a model without experts, in whichever process it samples."""
    for more in (
        ["--rollout.engine=vllm"],
        ["--rollout.mode=async", "--rollout.partial_tokens=8", "--rollout.max_staleness=2"],
        ["--rollout.environment=a.py:b"],
    ):
        with pytest.raises(ConfigError, match="replay_experts"):
            load(None, ["--rollout.replay_experts=true", *more])
    config = short_run("colocate", **{"model.path": model_dir, "rollout.replay_experts": True})
    with pytest.raises(ConfigError, match="has no router"):
        run.train(config, lambda entry: None)
    assert type(Routed("0", (1,), (-0.5,), (0,), "stop")) is not Completion


def test_routing_goes_over_the_wire(qwen):
    """As JSON, and back; without it a completion has the keys that it had; what is no routing is refused."""
    _, requests, completions = sampled(qwen)
    body = json.loads(json.dumps(encode_completions(completions)))
    assert decode_completions(body, requests, "x") == completions
    plain = [Completion(c.request_id, c.ids, c.logprobs, c.versions, c.finish_reason) for c in completions]
    without = encode_completions(plain)
    assert decode_completions(without, requests, "x") == plain
    assert set(body["completions"][0]) - set(without["completions"][0]) == {"experts"}
    for wrong in ([[[1], [2]], [[1]]], [[[-1]]], [1], "12", [[["x"]]]):
        body["completions"][0]["experts"] = wrong
        with pytest.raises(EngineError, match="x engine, generate: the answer is not a list of completions"):
            decode_completions(body, requests, "x")


def test_an_engine_in_any_process_is_built_to_tell(qwen, model_dir):
    """By what it is built from; it says that it can, and one that wasn't says why it can't."""
    spec = EngineSpec("transformers", str(qwen), 32, experts=True)
    with closing(build_engine(spec)) as engine:
        assert engine.capabilities.experts
        assert "experts" not in engine.capabilities.why_not
        assert type(engine.generate([Request("0", (1, 2), 0)], SamplingParams(2))[0]) is Routed
    with closing(build_engine(replace(spec, experts=False))) as engine:
        assert not engine.capabilities.experts
        assert "rollout.replay_experts" in engine.capabilities.why_not["experts"]
        assert type(engine.generate([Request("0", (1, 2), 0)], SamplingParams(2))[0]) is Completion
    with pytest.raises(ConfigError, match="has no router"):
        build_engine(replace(spec, model_dir=str(model_dir)))


def test_an_engine_that_tells_no_routing_is_refused(short_run, qwen, monkeypatch):
    """By its name and its reason, before anything is sampled: a server of somebody else's, say."""
    monkeypatch.setattr(
        colocate, "engine_spec", lambda config, folder: EngineSpec("transformers", folder, 64)
    )
    config = short_run("colocate", **{"model.path": qwen, "rollout.replay_experts": True})
    document = run.train(config, lambda entry: None)
    assert (document["outcome"], document["steps"]) == ("failed", 0)
    assert "transformers engine: it tells no routing (experts): start it with" in str(document["error"])


def cut(change):
    """What changes each token's experts in each layer."""
    return lambda c: replace(c, experts=tuple(tuple(map(change, token)) for token in c.experts))


LIES = {
    "tells of expert 8; the model has 8": cut(lambda layer: (8, 0)),
    r"tells the experts of 8 tokens, and 9 were read": lambda c: replace(c, experts=c.experts[1:]),
    r"tells the experts of 10 tokens, and 9": lambda c: replace(c, experts=c.experts + c.experts[:1]),
    r"tells 2 experts in each of 1 layers": lambda c: replace(c, experts=tuple(t[:1] for t in c.experts)),
    r"tells 1 experts in each of 2 layers; the model chooses 2 in each of 2": cut(lambda layer: layer[:1]),
    r"went to one expert twice": cut(lambda layer: layer[:1] * 2),
    r"tells the experts of 0 tokens": lambda c: Completion(
        c.request_id, c.ids, c.logprobs, c.versions, "length"
    ),
}


@pytest.mark.parametrize("says", LIES)
def test_routing_that_could_not_be_replayed_is_refused(qwen, says):
    """Or only in part: of other tokens, layers or experts, or of none, whichever engine says that it tells."""
    request = Request("0", (1, 2, 3), 0)
    with closing(build_engine(EngineSpec("transformers", str(qwen), 32, experts=True))) as engine:
        found = engine.generate([request], SamplingParams(7))
    chooses = routing(load_model(qwen))
    assert chooses == (2, 2, 8)
    check_told("some", chooses, [request], found)
    with pytest.raises(EngineError, match=f"some engine, generate: request 0 .*{says}"):
        check_told("some", chooses, [request], [LIES[says](one) for one in found])


def test_an_engine_whose_routing_is_wrong_ends_the_run_by_name(short_run, qwen, monkeypatch):
    """Before anything is trained on it."""
    generate = RoutedEngine.generate

    def lies(self, requests, params):
        return [cut(lambda layer: (99, 0))(one) for one in generate(self, requests, params)]

    monkeypatch.setattr(RoutedEngine, "generate", lies)
    config = short_run("colocate", **{"model.path": qwen, "rollout.replay_experts": True, **MOE})
    document = run.train(config, lambda entry: None)
    assert (document["outcome"], document["steps"]) == ("failed", 0)
    assert "request 0.0.0 tells of expert 99; the model has 8" in document["error"]


@pytest.mark.long
@pytest.mark.parametrize(("mode", "dtype"), [("colocate", "float32"), ("async", "bfloat16")])
def test_resumed_it_is_the_same_run(short_run, qwen, mode, dtype):
    """With completions and their routing in flight, and a probe that told its own."""
    settings = {"rollout.replay_experts": True, "rollout.dtype": dtype, "model.dtype": dtype, **MOE}
    settings |= {"model.path": qwen, "train.steps": 5, "rollout.max_staleness": 2, "train.mini_batches": 2}

    def stops(entry):
        if entry["step"] == 3:
            raise KeyboardInterrupt

    whole = run.train(short_run(mode, **settings), lambda entry: None)
    assert whole["outcome"] == "ok", whole["error"]
    config = short_run(mode, **settings, **{"output.name": "parts"})
    assert run.train(config, stops)["outcome"] == "interrupted"
    document = run.train(config, lambda entry: None, resume=True)
    assert (document["outcome"], document["steps"]) == ("ok", 5)
    assert document["parameters"] == whole["parameters"]


@pytest.mark.long
def test_all_modes_replay_the_same_routing(short_run, qwen):
    """To the bit, with nothing stale, in bfloat16 too, where a server can't be; the mismatch with and without."""
    for dtype, modes in (("float32", ("colocate", "async", "server")), ("bfloat16", ("colocate", "async"))):
        found, other = [], {"train.steps": 3, "rollout.dtype": dtype, "rollout.max_staleness": 0, **MOE}
        for mode in modes:
            name = {"output.name": f"{mode}-{dtype}"}
            config = short_run(mode, **{"model.path": qwen, "rollout.replay_experts": True, **other, **name})
            document = run.train(config, lambda entry: None)
            assert document["outcome"] == "ok", document["error"]
            lines = [json.loads(line) for line in Path(document["metrics"]).read_text().splitlines()]
            kept = [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]
            found.append((document["parameters"], kept))
        assert found == [found[0]] * len(modes)
        assert all("experts/moved" in line for line in found[0][1])
    config = short_run("async", **{"model.path": qwen, "rollout.replay_experts": False, **other})
    lines = [
        json.loads(line)
        for line in Path(run.train(config, lambda _: None)["metrics"]).read_text().splitlines()
    ]
    assert lines[0]["logprob_difference/max"] > found[0][1][0]["logprob_difference/max"]
