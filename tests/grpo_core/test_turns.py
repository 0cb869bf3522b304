"""Conversations: what the model did not say is in no sum, mean or normaliser, and ids stay as they were."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_core import run
from grpo_core.config import ConfigError, LossConfig
from grpo_core.learn.batch import make_batch
from grpo_core.learn.chosen import policy_for
from grpo_core.learn.forms.advantages import wide_judged
from grpo_core.learn.forms.tokens import TokenBatch, token_batch
from grpo_core.learn.forms.update import updater_for
from grpo_core.learn.kl import completion_kl
from grpo_core.machine.determinism import settle
from grpo_core.machine.world import World
from grpo_core.records.recording import SCHEMA, SCHEMA_2, Recorder, read_step
from grpo_core.records.replay import replay
from grpo_core.rollout.engine import Capabilities, EngineError
from grpo_core.settings import load
from grpo_core.turns.engine import TurnsEngine
from grpo_core.turns.environment import environment
from grpo_core.turns.spoken import Conversation, TokenSample
from grpo_core.types import Completion, Group, Prompt, Request, Sample, SamplingParams

# Turns of two tokens at most; behind each the environment puts ids 3 and 4, until eight stand there.
SCRIPT = "def reply(prompt, ids):\n    return (3, 4) if len(ids) < 8 else ()\n"
MARKS = ((True, True, False, False, True), (True, False, True), (True, True), (False, True, True, True))


def talk(place: int, marks: tuple[bool, ...], *, group: int = 0) -> Sample:
    """A conversation of random ids; what stands where nothing was sampled is nonsense on purpose."""
    generator = torch.Generator().manual_seed(place)
    ids = torch.randint(0, 12, (len(marks),), generator=generator).tolist()
    logprobs = (-2.5 + torch.rand(len(marks), generator=generator)).tolist()
    shown = tuple(value if mark else 7.0 for value, mark in zip(logprobs, marks, strict=True))
    answer = Conversation(f"{group}.{place}", tuple(ids), shown, (0,) * len(ids), "length", marks)
    return Sample(
        Prompt(str(group), "", (1, 2, 10 + group)), answer, "", place / 3, (-1.0) ** place * (1 + place)
    )


@pytest.fixture
def samples():
    """Four conversations with holes in different places."""
    return [talk(place, marks, group=place // 2) for place, marks in enumerate(MARKS)]


def updater(model_dir, *settings):
    """Of the tiny model."""
    settle(1)
    config = load(None, [f"--model.path={model_dir}", "--train.warmup_updates=0", *settings])
    policy = policy_for(str(model_dir), config, World())
    return policy, updater_for(policy, config, World(), tokens=True), config


def naive(policy, samples, weights, advantages):
    """The loss of a first update without a correction, -sum w A ratio, by plain autograd on whole logits."""
    policy.causal.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for sample, weight, gains in zip(samples, weights, advantages, strict=True):
        ids = torch.tensor([[*sample.prompt.ids, *sample.completion.ids]])
        start = len(sample.prompt.ids)
        everything = torch.log_softmax(policy.causal(ids).logits[0, start - 1 : -1], -1)
        logprobs = everything[torch.arange(len(ids[0]) - start), ids[0, start:]]
        ratio = (logprobs - logprobs.detach()).exp()
        total = total - (ratio * torch.tensor(gains) * torch.tensor(weight)).sum()
    total.backward()
    return float(total.detach()), {name: value.grad.clone() for name, value in policy.trained()}


def closed(aggregation: str) -> list[list[float]]:
    """The share of each token, by hand: tokens that nobody sampled count in no normaliser."""
    tokens, samples = sum(map(sum, MARKS)), len(MARKS)
    share = {
        "token": lambda _: 1 / tokens,
        "sequence": lambda marks: 1 / (sum(marks) * samples),
        "sequence_sum": lambda _: 1 / samples,
        "constant": lambda _: 1 / (samples * 6),
        "token_sum": lambda _: 1.0,
    }[aggregation]
    return [[share(marks) if mark else 0.0 for mark in marks] for marks in MARKS]


@pytest.mark.parametrize("aggregation", ["token", "sequence", "sequence_sum", "constant", "token_sum"])
@pytest.mark.parametrize("by_token", [False, True])
def test_value_and_gradient_are_the_closed_form(model_dir, samples, aggregation, by_token):
    """Of the model's tokens alone, in micro-batches of three; with one advantage a sample, and one a token."""
    gains = [[sample.advantage] * len(sample.completion.ids) for sample in samples]
    if by_token:
        gains = [[float(place + number) for place in range(len(row))] for number, row in enumerate(gains)]
        samples = [
            TokenSample(**vars(s), advantages=tuple(row)) for s, row in zip(samples, gains, strict=True)
        ]
    policy, made, _ = updater(
        model_dir, f"--loss.aggregation={aggregation}", "--loss.correction=none", "--train.micro_batch=3"
    )
    expected, gradients = naive(policy, samples, closed(aggregation), gains)
    loss = made.gradients(policy.make_batch(samples, policy.device))
    assert math.isclose(loss, expected, rel_tol=1e-5)
    for name, value in policy.trained():
        assert torch.allclose(value.grad, gradients[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("--loss.ratio=sequence", "--loss.aggregation=sequence", "--loss.correction_level=sequence"),
        ("--loss.surrogate=vespo",),
        ("--loss.reject=seq_mean_k2", "--loss.reject_high=3"),
        ("--loss.entropy_coefficient=0.1", "--loss.kl_coefficient=0.1"),
        ("--loss.entropy_quantile=0.5", "--train.mini_batches=2"),
        ("--loss.off_policy_limit=0.01",),
    ],
)
def test_what_nobody_sampled_says_nothing(model_dir, samples, settings):
    """Other log-probs and advantages there, be they NaN, change no bit of loss, gradient or metrics."""
    seen = []
    for nonsense in (0.0, math.nan):
        rows = []
        for sample in samples:
            answer = sample.completion
            shown = [v if m else nonsense for v, m in zip(answer.logprobs, answer.sampled, strict=True)]
            gains = tuple(1.5 if mark else nonsense for mark in answer.sampled)
            spoken = replace(answer, logprobs=tuple(shown))
            rows.append(TokenSample(**{**vars(sample), "completion": spoken}, advantages=gains))
        policy, made, _ = updater(model_dir, *settings)
        metrics = made.update(policy.make_batch(rows, policy.device))
        seen.append((metrics, {name: value.detach().clone() for name, value in policy.trained()}))
    (metrics, held), (others, moved) = seen
    assert metrics == others
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.equal(value, moved[name]) for name, value in held.items())


def test_metrics_are_of_the_models_tokens(model_dir, samples):
    """Entropy and mismatch are means over them."""
    policy, made, _ = updater(model_dir)
    batch = policy.make_batch(samples, policy.device)
    with torch.no_grad():
        logprobs, entropies = policy.logprobs(batch, 1.0)
    mask = torch.tensor([[*marks, *[False] * (5 - len(marks))] for marks in MARKS])
    metrics = made.update(batch)
    apart = (logprobs - batch.behaviour_BT)[mask]
    assert math.isclose(metrics["entropy"], float(entropies[mask].mean()), rel_tol=1e-5)
    assert math.isclose(metrics["logprob_difference/mean"], float(apart.abs().mean()), rel_tol=1e-5)
    assert math.isclose(metrics["importance_ratio/mean"], float(apart.exp().mean()), rel_tol=1e-5)
    assert math.isclose(metrics["ratio/mean"], 1.0, rel_tol=1e-5)


def test_samples_of_one_turn_are_the_cores_batch(samples):
    """Nothing more is made, so that every bit is the core's."""
    plain = []
    for sample in samples:
        streams = (sample.completion.ids, (-1.0,) * len(sample.completion.ids), sample.completion.versions)
        plain.append(replace(sample, completion=Completion("0", *streams, "length")))
    assert type(token_batch(plain)) is type(make_batch(plain))
    batch = token_batch(samples)
    assert isinstance(batch, TokenBatch)
    assert batch.mask_BT.sum(1).tolist() == [sum(marks) for marks in MARKS]
    part = batch.rows(slice(1, 3))
    assert (part.mask_BT.tolist(), part.advantages_BT.shape) == (
        [[True, False, True], [True, True, False]],
        (2, 3),
    )


def test_lengths_and_the_kl_in_the_reward_count_the_models_tokens(samples):
    """The mean that is weighed by lengths (OPO), the whitening of tokens (REINFORCE++), and the sum of a KL."""
    groups = [Group(samples[0].prompt, tuple(samples[:2])), Group(samples[2].prompt, tuple(samples[2:]))]
    config = load(None, ["--loss.advantage_baseline=length", "--loss.advantage_scale=none"])
    found = [s.advantage for group in wide_judged(groups, config) for s in group.samples]
    means = [(0 * 3 + 1 / 3 * 2) / 5, (2 / 3 * 2 + 1 * 3) / 5]
    assert found == pytest.approx([0 - means[0], 1 / 3 - means[0], 2 / 3 - means[1], 1 - means[1]])
    batch = token_batch(samples)
    whole = batch.behaviour_BT * 0 + 1.0
    assert completion_kl(whole, whole - 1, batch.mask_BT, LossConfig(kl_estimator="k1")).tolist() == [
        3,
        2,
        2,
        3,
    ]


def script(tmp_path: Path, text: str = SCRIPT) -> str:
    """An environment's name."""
    (tmp_path / "script.py").write_text(text)
    return f"{tmp_path / 'script.py'}:reply"


TURNS = {"sampling.max_tokens": 10, "rollout.turn_tokens": 2, "train.steps": 4, "train.warmup_updates": 0}


def trained(short_run, tmp_path, mode, **settings):
    """The document of a run with the script, its metrics and its completions."""
    settings = {**TURNS, "rollout.environment": script(tmp_path), **settings}
    document = run.train(short_run(mode, **settings), lambda entry: None)
    assert document["outcome"] == "ok", document["error"]
    lines = [[json.loads(line) for line in Path(document[name]).read_text().splitlines()]
             for name in ("metrics", "completions")]  # fmt: skip
    return document, *lines


@pytest.mark.slow
def test_a_scripted_conversation_is_the_same_bits_in_all_modes(short_run, tmp_path):
    """Ids, marks, log-probs and parameters; the environment's ids stand where it put them, untouched."""
    runs = {
        mode: trained(short_run, tmp_path, mode, **({"rollout.max_staleness": 0} if mode == "async" else {}))
        for mode in ("colocate", "async", "server")
    }
    document, metrics, completions = runs["colocate"]
    for other, numbers, lines in (runs["async"], runs["server"]):
        assert other["parameters"] == document["parameters"]
        assert lines == completions
        assert [entry["loss"] for entry in numbers] == [entry["loss"] for entry in metrics]
    turns = {len(line["ids"]): line for line in completions}
    assert max(turns) == 10
    for line in completions:
        said = [token for token, mark in zip(line["ids"], line["sampled"], strict=True) if not mark]
        assert said == [3, 4] * (len(said) // 2)
        assert {value for value, mark in zip(line["logprobs"], line["sampled"], strict=True) if not mark} <= {
            0.0
        }
    longest = turns[10]
    assert longest["sampled"] == [True, True, False, False] * 2 + [True, True]
    assert max(entry["logprob_difference/max"] for entry in metrics) < 1e-4


@pytest.mark.long
def test_async_conversations_are_of_one_version_each(short_run, tmp_path):
    """Two rollouts ahead of the trainer: turns of several calls wait for each other and keep their order."""
    settings = {"rollout.max_staleness": 2, "train.steps": 5}
    _, metrics, completions = trained(short_run, tmp_path, "async", **settings)
    assert [entry["staleness/max"] for entry in metrics] == [0, 1, 2, 1, 2]
    assert all(len(set(line["versions"])) == 1 for line in completions)


@pytest.mark.slow
def test_a_conversation_is_recorded_and_replayed(short_run, tmp_path):
    """To the last bit; with other settings, too; in v2, since a reader of v1 would train on the environment's words."""
    settings = {"output.record_every": 2, "checkpoint.keep": 9, "checkpoint.every": 1}
    document, _, _ = trained(short_run, tmp_path, "colocate", **settings)
    folder = Path(document["metrics"]).parent
    assert {json.loads(line)["schema"] for line in (folder / "rollouts.jsonl").read_text().splitlines()} == {
        SCHEMA_2
    }
    recorded = read_step(folder, 3)
    assert max(sum(not mark for mark in sample.completion.sampled) for sample in recorded.samples) == 4
    assert replay(folder, 3)["outcome"] == "equal"
    other = replay(folder, 3, None, ["--loss.aggregation=sequence", "--loss.advantage_baseline=length"])
    assert other["first_difference"] == "loss"


def test_a_conversation_of_one_turn_is_recorded_as_ever(tmp_path, samples):
    """In v1; and what v1 has beside is nobody's business."""
    single = [replace(sample, completion=replace(sample.completion, sampled=(True,) * len(MARKS[place])))
              for place, sample in enumerate(samples)]  # fmt: skip
    requests = [Request(s.completion.request_id, s.prompt.ids, 0) for s in samples]
    recorder = Recorder(tmp_path, load(None, []))
    recorder.write(1, 0, single, requests, {"loss": 0.0})
    recorder.write(2, 0, samples, requests, {"loss": 0.0})
    own = [TokenSample(**vars(s), advantages=(0.1,) * len(s.completion.ids)) for s in samples]
    recorder.write(3, 0, own, requests, {"loss": 0.0})
    assert [read_step(tmp_path, step).entry["schema"] for step in (1, 2, 3)] == [SCHEMA, SCHEMA_2, SCHEMA_2]
    assert {type(sample.completion) for sample in read_step(tmp_path, 1).samples} == {Completion}
    assert read_step(tmp_path, 2).samples == samples
    assert read_step(tmp_path, 3).samples == own


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def reply(prompt, ids):\n    return ['a']\n", "token ids"),
        ("def reply(prompt, ids):\n    return 1 / 0\n", "ZeroDivisionError"),
        ("def reply(prompt, ids):\n    raise SystemExit(0)\n", "it raised SystemExit: 0"),
        ("def reply(prompt, ids):\n    yield from ids\n    exit()\n", "it raised SystemExit"),
        ("def reply(prompt, ids):\n    return (10**6,)\n", "outside of 0"),
    ],
)
def test_an_environment_that_is_broken_ends_the_run_by_name(short_run, tmp_path, text, error):
    """As an engine's failure."""
    config = short_run("colocate", **{**TURNS, "rollout.environment": script(tmp_path, text)})
    document = run.train(config, lambda entry: None)
    assert document["outcome"] == "failed"
    assert error in document["error"]


def test_what_is_no_environment_is_refused(tmp_path):
    """Before anything is sampled."""
    broken = {"x = 1\n": "no function 'reply'", "raise SystemExit(3)": "SystemExit"}
    with pytest.raises(ConfigError, match="no such file"):
        environment("nowhere.py:reply")
    for text, why in broken.items():
        with pytest.raises(ConfigError, match=why):
            environment(script(tmp_path, text))
    for words in (
        ["--rollout.turn_tokens=2"],
        ["--rollout.environment=a.py:b", "--rollout.partial_tokens=2"],
    ):
        with pytest.raises(ConfigError, match=r"turn|conversation"):
            load(None, words)


class OneToken:
    """An engine that says 7, or 2 to stop, by a plan."""

    name, policy_version = "one token", 0

    def __init__(self, plan: str, *, partial: bool = True) -> None:
        self.plan, self.seen = plan, []
        able = Capabilities(seeds=True, fingerprint=False, sleep=False)
        self.capabilities = able if partial else able.without(partial="it forgets")

    def generate(self, requests, params):
        """One token each."""
        self.seen.append([request.prefix for request in requests])
        stops = self.plan[len(self.seen) - 1] == "s"
        found = []
        for request in requests:
            full = len(request.prefix) + 1 == params.max_tokens
            reason = "stop" if stops else "length" if full else "abort"
            found.append(Completion(request.id, (2 if stops else 7,), (-0.5,), (0,), reason))
        return found


@pytest.mark.parametrize(
    ("plan", "most", "ids", "ended"),
    [
        (
            "sss",
            20,
            (2, 3, 4, 2, 3, 4, 2),
            "stop",
        ),  # the environment has no more to say to a turn that stopped
        ("ttt", 20, (7, 3, 4, 7, 3, 4, 7), "length"),  # nor to one that was cut off
        ("st", 4, (2, 3, 4, 7), "length"),  # max_tokens are over
        (
            "s",
            3,
            (2,),
            "length",
        ),  # no token of the model would fit behind the environment's, so these aren't put
    ],
)
def test_how_a_conversation_ends(plan, most, ids, ended):
    """The last token is always the model's."""
    engine = OneToken(plan)
    over = lambda _, said: () if len(said) >= 7 else (3, 4)  # noqa: E731
    (talked,) = TurnsEngine(engine, over, 1).generate(
        [Request("a", (1,), 0)], SamplingParams(most, stop_ids=(2,))
    )
    assert (talked.ids, talked.finish_reason) == (ids, ended)
    assert talked.sampled == tuple(token in (2, 7) for token in ids)
    assert engine.seen[-1] == [ids[: len(ids) - 1]]


def test_an_environment_that_speaks_without_end_is_heard_as_far_as_there_is_room():
    """The conversation ends there, as behind anything that leaves the model no token."""
    engine = TurnsEngine(OneToken("s"), lambda prompt, ids: itertools.count(), 0)
    (found,) = engine.generate([Request("0", (1,), 0)], SamplingParams(6, stop_ids=(2,)))
    assert (found.ids, found.finish_reason) == ((2,), "length")


def test_a_turn_that_was_aborted_is_no_turn():
    """Nobody asked for its end: the environment is not called, and the conversation is as unusable as a completion."""
    (talked,) = TurnsEngine(OneToken("t"), lambda *_: 1 / 0, 0).generate(
        [Request("a", (1,), 0)], SamplingParams(8)
    )
    assert (talked.ids, talked.finish_reason) == ((7,), "abort")


def test_an_engine_that_goes_on_behind_nothing_is_refused():
    """With its own reason; and a sync's probe is no conversation."""
    with pytest.raises(EngineError, match="it forgets"):
        TurnsEngine(OneToken("", partial=False), lambda *_: (), 0)
    (probe,) = TurnsEngine(OneToken("t"), lambda *_: (3,), 0).generate(
        [Request("probe", (1,), 0)], SamplingParams(8)
    )
    assert type(probe) is Completion


def test_a_record_of_another_program_may_have_advantages_of_tokens(tmp_path, model_dir, samples):
    """With settings of the core alone: they are used; others are made of the rewards where that is asked for."""
    config = load(None, [f"--model.path={model_dir}", "--loss.correction=none", "--train.warmup_updates=0"])
    own = [TokenSample(**vars(s), advantages=(0.25,) * len(s.completion.ids)) for s in samples]
    requests = [Request(s.completion.request_id, s.prompt.ids, 0) for s in samples]
    policy = policy_for(str(model_dir), config, World())
    made = updater_for(policy, config, World(), tokens=True)
    loss = made.gradients(policy.make_batch(own, "cpu"))
    Recorder(tmp_path, config).write(1, 0, own, requests, {"loss": loss})
    assert math.isclose(loss, -0.25, rel_tol=1e-5)
    assert replay(tmp_path, 1, model_dir)["loss"] == loss
    changed = replay(tmp_path, 1, model_dir, ["--loss.advantage_scale=none"])
    assert not math.isclose(changed["loss"], loss)
    (file,) = (tmp_path / "rollouts").glob("*.safetensors")
    numbers = load_file(file)
    assert numbers["token_advantages"].shape == numbers["sampled"].shape == (sum(map(len, MARKS)),)
    save_file(numbers, file)


@pytest.mark.long
def test_conversations_in_flight_go_on_behind_a_restart(short_run, tmp_path):
    """Asked for again, under the version they had: bit for bit the run that was never interrupted."""
    settings = {
        **TURNS,
        "rollout.environment": script(tmp_path),
        "rollout.max_staleness": 2,
        "train.steps": 5,
    }

    def stops(entry: dict) -> None:
        if entry["step"] == 3:
            raise KeyboardInterrupt

    whole = run.train(short_run("async", **settings), lambda entry: None)
    assert whole["outcome"] == "ok", whole["error"]
    config = short_run("async", **settings, **{"output.name": "parts"})
    assert run.train(config, stops)["outcome"] == "interrupted"
    document = run.train(config, lambda entry: None, resume=True)
    assert (document["outcome"], document["steps"]) == ("ok", 5)
    assert document["parameters"] == whole["parameters"]
    assert Path(document["completions"]).read_text() == Path(whole["completions"]).read_text()
