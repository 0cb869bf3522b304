"""Define the conformance suite, which every engine must pass.

Each test takes one `engine_case` (see `cases.Case`) and depends on no other test. A test of a capability that an
engine lacks is skipped with the engine's reason. A separate test checks that an engine refuses an update, a sleep or a
temperature that it lacks.
"""

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from grpo_core.rollout.engine import Capabilities, Engine, EngineError, check_answers
from grpo_core.rollout.weights.digest import digest_of_same_kind
from grpo_core.types import Completion, Request, SamplingParams
from tests.grpo_core.conformance.cases import END, PAD, SEPARATOR, Case, Reference

TOLERANCE = 1e-4  # of a log-prob, float32 on both sides
PLAIN = SamplingParams(max_tokens=12)
_RANDOM = random.Random(0)
LONG = tuple(_RANDOM.randrange(26) for _ in range(280))
# Short and long prompts, with and without a common prefix; two long ones share more than a block of 128 tokens.
PROMPTS = [(0, 1, 2, 10), (3, 10), (4, 5, 6, 7, 8, 10), LONG[:150]]
PROMPTS += [(9, 9, 9, 10), (*LONG[:140], 5, 6, 7), LONG]


def make_requests(count: int, prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[Request]:
    """Return `count` requests that cycle through the prompts, each with its own seed."""
    return [Request(f"r{i}", prompts[i % len(prompts)], seed=1000 + 7 * i) for i in range(count)]


def sample_checked(
    case: Case, requests: Sequence[Request], params: SamplingParams = PLAIN
) -> list[Completion]:
    """Sample; return completions checked for order, version, length and finish reason."""
    completions = check_answers(case.engine.generate(requests, params), requests, case.engine.name)
    for request, completion in zip(requests, completions, strict=True):
        assert set(completion.versions) == {case.version}
        assert all(0 <= token < case.vocab for token in completion.ids)
        assert len(completion.ids) <= params.max_tokens
        ends = [token in params.stop_ids for token in completion.ids]
        assert sum(ends[:-1]) == 0, "the completion goes on after a stop id"
        assert completion.finish_reason == ("stop" if ends[-1] else "length"), completion
        assert ends[-1] or len(completion.ids) == params.max_tokens, request
    return completions


def logprob_difference(
    reference: Reference,
    requests: Sequence[Request],
    completions: Sequence[Completion],
    temperature: float = 1.0,
) -> float:
    """Return the largest difference of a log-prob between trainer and engine."""
    pairs = [(request.prompt_ids, got.ids) for request, got in zip(requests, completions, strict=True)]
    expected = reference.logprobs(pairs, temperature)
    return max(
        (
            abs(ours - theirs)
            for row, completion in zip(expected, completions, strict=True)
            for ours, theirs in zip(row, completion.logprobs, strict=True)
        ),
        default=0.0,
    )


def check_samples_match_weights(case: Case, reference: Reference | None = None) -> None:
    """Check that the engine samples from the weights it should have."""
    batch = make_requests(len(PROMPTS))
    assert logprob_difference(reference or case.reference, batch, sample_checked(case, batch)) < TOLERANCE


def check_frequencies(case: Case, temperature: float, count: int) -> None:
    """Check that first tokens have the frequencies that the trainer computes."""
    batch = make_requests(count, [PROMPTS[0]])
    counts = torch.bincount(
        torch.tensor([entry.ids[0] for entry in sample_checked(case, batch, SamplingParams(1, temperature))]),
        minlength=case.vocab,
    )
    for token, expected in enumerate(case.reference.probabilities(PROMPTS[0], temperature)):
        # Five and a half standard deviations: a correct engine exceeds them in one run of 400,000.
        allowed = 5.5 * math.sqrt(expected * (1 - expected) / count) + 1 / count
        share = float(counts[token]) / count
        assert abs(share - expected) <= allowed, f"id {token}: {share:.3f} of samples, p = {expected:.3f}"


def test_engine_implements_the_protocol(engine_case):
    engine = engine_case.engine
    assert isinstance(engine, Engine)
    assert isinstance(engine.capabilities, Capabilities)
    assert isinstance(engine.name, str)
    assert engine.name
    assert not engine.capabilities.sleep or (callable(engine.sleep) and callable(engine.wake))


def test_missing_capabilities_are_reported_and_refused(engine_case):
    """Each missing capability has a reason. A missing update, sleep or temperature is refused and changes nothing."""
    engine = engine_case.ready()
    able = vars(engine.capabilities)
    lacks = {name for name, can in able.items() if can is False}
    assert lacks <= set(engine.capabilities.why_not), "a lack without a reason"
    batch = make_requests(2)
    calls = {
        "update": lambda: engine.update_weights(engine_case.reference.tensors(), 99),
        "sleep": getattr(engine, "sleep", None),
    }
    for name in lacks & set(calls):
        if calls[name] is not None:
            with pytest.raises(EngineError):
                calls[name]()
    if "temperature" in engine.capabilities.why_not:
        with pytest.raises(EngineError):
            engine.generate(batch, replace(PLAIN, temperature=0.6))
    if "fingerprint" in lacks:
        assert engine.fingerprint() is None
    assert engine.policy_version == engine_case.version
    check_samples_match_weights(engine_case)


def test_token_ids_are_not_retokenized(engine_case):
    """Capitals and special ids survive in prompts and completions; a tokenizer would lose them."""
    engine_case.ready()
    capitals = tuple(range(13, 26))
    prompts = [tuple(range(engine_case.vocab)), (END, PAD, SEPARATOR), capitals]
    prompts += [(END,), (13, 0, 13, 0), (PAD,) * 9]
    batch, params = make_requests(30, prompts), SamplingParams(max_tokens=24)
    completions = sample_checked(engine_case, batch, params)
    assert logprob_difference(engine_case.reference, batch, completions) < TOLERANCE
    assert {*capitals, END, PAD, SEPARATOR} <= {token for entry in completions for token in entry.ids}


def test_completions_match_their_requests_in_order(engine_case):
    """The log-probs of 300 completions fit their requests in order, and do not fit the order shifted by one."""
    engine_case.ready()
    order = random.Random(1)
    prompts = [tuple(order.randrange(26) for _ in range(order.randrange(1, 40))) for _ in range(60)]
    batch = make_requests(300, prompts)
    order.shuffle(batch)
    params = SamplingParams(max_tokens=4)
    completions = sample_checked(engine_case, batch, params)
    assert [entry.request_id for entry in completions] == [entry.id for entry in batch]
    assert logprob_difference(engine_case.reference, batch, completions) < TOLERANCE
    alternatives = [*batch[1:], batch[0]]
    assert logprob_difference(engine_case.reference, alternatives, completions) > 100 * TOLERANCE


def test_empty_request_list_returns_empty_list(engine_case):
    assert engine_case.ready().generate([], PLAIN) == []


def test_sample_depends_only_on_prompt_and_seed(engine_case):
    """A repeated, single, reordered or renamed request gives the same ids, and the same log-probs up to rounding."""
    engine_case.require("seeds")
    engine_case.ready()
    batch = make_requests(21)
    together = sample_checked(engine_case, batch)
    renamed = sample_checked(engine_case, [replace(entry, id=f"other {entry.id}") for entry in batch])
    backwards = sample_checked(engine_case, batch[::-1])[::-1]
    alone = [sample_checked(engine_case, [entry])[0] for entry in batch[:8]]
    for again in (sample_checked(engine_case, batch), renamed, backwards, alone):
        for first, second in zip(together, again, strict=False):
            assert first.ids == second.ids
            assert first.logprobs == pytest.approx(second.logprobs, abs=TOLERANCE)


def test_different_seeds_give_different_samples(engine_case):
    """Requests that differ only in their seeds have different samples; equal seeds give equal samples.

    A seed has 63 bits. The seeds here differ in their lowest 32 bits: torch's generator on a CPU uses no other bits.
    """
    engine_case.require("seeds")
    engine_case.ready()
    seeds = [0, 1, 2, 2**16, 2**31, 2**31 + 1, 2**32 + 3, 2**53 + 4, 2**63 - 1]
    group = [Request(f"r{seed}", PROMPTS[0], seed) for seed in seeds]
    completions = sample_checked(engine_case, [*group, replace(group[1], id="again")])
    assert completions[-1].ids == completions[1].ids
    assert len({entry.ids for entry in completions}) == len(seeds)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_match_the_trainer(engine_case, temperature):
    """At the requested temperature, for short and long prompts, the log-prob of every token matches."""
    engine_case.require(*(["temperature"] if temperature != 1 else []))
    engine_case.ready()
    batch = make_requests(21)
    completions = sample_checked(engine_case, batch, replace(PLAIN, temperature=temperature))
    assert logprob_difference(engine_case.reference, batch, completions, temperature) < TOLERANCE


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_token_frequencies_match_logprobs(engine_case, temperature):
    """The first tokens of a thousand samples have the frequencies that the trainer computes."""
    engine_case.require(*(["temperature"] if temperature != 1 else []))
    engine_case.ready()
    check_frequencies(engine_case, temperature, count=1000)


def test_generation_config_is_ignored(engine_case):
    """The penalty, temperature, top_k, top_p, stop ids and length of generation_config.json have no effect."""
    engine_case.ready()
    batch = make_requests(24, PROMPTS[:3])
    completions = sample_checked(engine_case, batch, SamplingParams(max_tokens=60))
    assert {(len(entry.ids), entry.finish_reason) for entry in completions} == {(60, "length")}
    assert {END, 3} <= {token for entry in completions for token in entry.ids[:-1]}
    assert logprob_difference(engine_case.reference, batch, completions) < TOLERANCE
    check_frequencies(engine_case, 1.0, count=300)


def test_completion_ends_at_first_stop_id_or_max_tokens(engine_case):
    """The stop id is kept as the last token; otherwise the finish reason is `length`."""
    engine_case.ready()
    batch, params = make_requests(60, PROMPTS[:3]), SamplingParams(max_tokens=16, stop_ids=(1, END, 20))
    stopped = sample_checked(engine_case, batch, params)
    assert {entry.finish_reason for entry in stopped} == {"stop", "length"}
    assert logprob_difference(engine_case.reference, batch, stopped) < TOLERANCE


def test_stop_id_only_truncates(engine_case):
    """Up to the stop id, the tokens equal those sampled without stop ids. A stop id at max_tokens counts as `stop`."""
    engine_case.require("seeds")
    engine_case.ready()
    batch, params = make_requests(40, PROMPTS[:3]), SamplingParams(max_tokens=16, stop_ids=(1, END, 20))
    complete = sample_checked(engine_case, batch, replace(params, stop_ids=()))
    for entry, cut in zip(complete, sample_checked(engine_case, batch, params), strict=True):
        end = next((place + 1 for place, token in enumerate(entry.ids) if token in params.stop_ids), None)
        assert cut.ids == entry.ids[:end]
    late = next(i for i, entry in enumerate(complete) if entry.ids.index(entry.ids[-1]) == len(entry.ids) - 1)
    (last,) = sample_checked(engine_case, [batch[late]], replace(params, stop_ids=(complete[late].ids[-1],)))
    assert (last.ids, last.finish_reason) == (complete[late].ids, "stop")


def test_sampling_after_sleep_requires_wake_and_update(engine_case):
    """Asleep, sampling and updates are refused; awake, sampling needs an update. Both calls may be repeated."""
    engine_case.require("sleep", "update")
    engine = engine_case.ready()
    engine.sleep()
    engine.sleep()
    with pytest.raises(EngineError, match="asleep"):
        engine.generate(make_requests(1), PLAIN)
    with pytest.raises(EngineError, match="asleep"):
        engine.update_weights(engine_case.reference.tensors(), engine_case.version + 1)
    engine.wake()
    engine.wake()
    assert engine.policy_version == -1
    with pytest.raises(EngineError, match="weights"):
        engine.generate(make_requests(1), PLAIN)
    engine_case.ready()
    check_samples_match_weights(engine_case)


def test_weight_updates_are_complete(engine_case):
    """After each of six large updates, the samples come from the new weights, although the prompts were cached."""
    engine_case.require("update")
    batch = make_requests(14)
    for seed in range(6):
        before = engine_case.reference.copy()
        engine_case.reference.perturb(100 + seed)
        engine = engine_case.ready()
        assert engine.policy_version == engine_case.version
        completions = sample_checked(engine_case, batch)
        assert logprob_difference(engine_case.reference, batch, completions) < TOLERANCE
        assert logprob_difference(before, batch, completions) > 100 * TOLERANCE
        if engine.capabilities.fingerprint:
            stored = engine.fingerprint()
            assert stored == digest_of_same_kind(stored, engine_case.reference.tensors(), engine_case.version)


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "kind", "torn"])
def test_invalid_update_changes_nothing(engine_case, fault):
    """A missing, extra, misshapen or mistyped parameter is refused, and so is a source that fails half-way."""
    engine_case.require("update")
    engine = engine_case.ready()
    stored = engine.fingerprint()
    tensors = {name: value.detach() * 2 for name, value in engine_case.reference.tensors()}

    def torn() -> Iterator[tuple[str, torch.Tensor]]:
        yield from list(tensors.items())[:2]
        raise OSError("the source failed")

    if fault == "missing":
        del tensors["lm_head.weight"]
    elif fault == "unknown":
        tensors["extra"] = torch.zeros(1)
    elif fault == "shape":
        tensors["lm_head.weight"] = torch.zeros(2, 2)
    elif fault == "kind":
        tensors["lm_head.weight"] = tensors["lm_head.weight"].int()
    source, expected, message = tensors.items(), EngineError, "extra|lm_head"
    if fault == "torn":
        source, expected, message = torn(), (EngineError, OSError), "the source failed"
    with pytest.raises(expected, match=message):
        engine.update_weights(source, engine_case.version + 1)
    assert (engine.policy_version, engine.fingerprint()) == (engine_case.version, stored)
    check_samples_match_weights(engine_case)


def test_engine_copies_the_weights(engine_case):
    """A training step that changes the weights in place does not reach the engine before an update."""
    engine_case.require("update")
    engine_case.ready()
    published = engine_case.reference.copy()
    engine_case.reference.perturb(7)
    check_samples_match_weights(engine_case, published)


def test_longest_possible_prompt_is_served(engine_case):
    """Prompt and completion fill the engine's length exactly."""
    engine_case.ready()
    batch = make_requests(2, [tuple(i % 26 for i in range(engine_case.max_model_len - 4))])
    completions = sample_checked(engine_case, batch, SamplingParams(max_tokens=4))
    assert [len(entry.ids) for entry in completions] == [4, 4]
    assert logprob_difference(engine_case.reference, batch, completions) < TOLERANCE


# Request, parameters, and a word of the error. A server may name the field before any engine sees the request.
INVALID = {
    "too long": (Request("bad", (0,) * 315, 0), PLAIN, "request bad"),
    "empty": (Request("bad", (), 0), PLAIN, "request bad|prompt_ids"),
    "outside of the vocabulary": (Request("bad", (0, 29), 0), PLAIN, "request bad"),
    "negative id": (Request("bad", (0, -1), 0), PLAIN, "request bad|prompt_ids"),
    "named twice": (Request("r0", (0, 1), 0), PLAIN, "r0"),
    "no tokens": (Request("bad", (0,), 0), SamplingParams(max_tokens=0), "request|max_tokens"),
    "temperature 0": (Request("bad", (0,), 0), SamplingParams(2, temperature=0.0), "temperature"),
    "temperature nan": (Request("bad", (0,), 0), SamplingParams(2, temperature=math.nan), "temperature"),
}


@pytest.mark.parametrize("fault", INVALID)
def test_invalid_request_is_refused_and_engine_continues(engine_case, fault):
    """The error names the engine, and the request or the invalid field; the engine then samples valid requests."""
    engine = engine_case.ready()
    request, params, message = INVALID[fault]
    with pytest.raises(EngineError) as caught:
        engine.generate([*make_requests(2), request], params)
    assert engine.name.split()[0] in str(caught.value)
    assert re.search(message, str(caught.value)), caught.value
    check_samples_match_weights(engine_case)


def test_close_is_idempotent_and_allows_a_new_engine(engine_case):
    """A closed engine refuses to sample and to be updated; a new one works."""
    engine = engine_case.ready()
    engine.close()
    engine.close()
    with pytest.raises(EngineError):
        engine.generate(make_requests(1), PLAIN)
    if engine.capabilities.update:
        with pytest.raises(EngineError):
            engine.update_weights(engine_case.reference.tensors(), 5)
    engine_case.close()
    engine_case.ready()
    check_samples_match_weights(engine_case)
