"""The conformance suite that every engine must pass.

Plain test functions, each of one `engine_case` (see `cases.Case`) and of no other test. What an engine says it can't do
is skipped with its reason, and refused where it is asked for nevertheless.
"""

from __future__ import annotations

import math
import random
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from grpo_core.rollout.engine import Aborter, Capabilities, Engine, EngineError, Sleeper, check_answers
from grpo_core.rollout.weights.digest import fingerprint_like
from grpo_core.types import Completion, Request, SamplingParams
from tests.grpo_core.conformance.cases import END, PAD, SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.grpo_core.conformance.cases import Case, Reference

TOLERANCE = 1e-4  # of a log-prob, float32 on both sides
PLAIN = SamplingParams(max_tokens=12)
_RANDOM = random.Random(0)
LONG = tuple(_RANDOM.randrange(26) for _ in range(280))
# Short and long, alike at the start and different; two of the long ones share more than a block of 128 tokens.
PROMPTS = [
    (0, 1, 2, 10),
    (3, 10),
    (4, 5, 6, 7, 8, 10),
    LONG[:150],
    (9, 9, 9, 10),
    (*LONG[:140], 5, 6, 7),
    LONG,
]


def requests(count: int, prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[Request]:
    """So many requests, with the prompts in turn and a seed each."""
    return [Request(f"r{i}", prompts[i % len(prompts)], seed=1000 + 7 * i) for i in range(count)]


def sampled(case: Case, asked: Sequence[Request], params: SamplingParams = PLAIN) -> list[Completion]:
    """Return checked completions: in request order, of the loaded version, with a correct finish reason."""
    completions = check_answers(case.engine.generate(asked, params), asked, case.engine.name)
    for request, completion in zip(asked, completions, strict=True):
        assert set(completion.versions) == {case.version}
        assert all(0 <= token < case.vocab for token in completion.ids)
        assert len(completion.ids) <= params.max_tokens
        ends = [token in params.stop_ids for token in completion.ids]
        assert sum(ends[:-1]) == 0, "it goes on behind a stop id"
        assert completion.finish_reason == ("stop" if ends[-1] else "length"), completion
        assert ends[-1] or len(completion.ids) == params.max_tokens, request
    return completions


def difference(
    reference: Reference, asked: Sequence[Request], given: Sequence[Completion], temperature: float = 1.0
) -> float:
    """The largest of a log-prob, between the trainer and the engine."""
    pairs = [(entry.prompt_ids, two.ids) for entry, two in zip(asked, given, strict=True)]
    expected = reference.logprobs(pairs, temperature)
    return max(
        (
            abs(ours - theirs)
            for row, completion in zip(expected, given, strict=True)
            for ours, theirs in zip(row, completion.logprobs, strict=True)
        ),
        default=0.0,
    )


def check_works(case: Case, reference: Reference | None = None) -> None:
    """The engine samples, from the weights that it should hold."""
    batch = requests(len(PROMPTS))
    assert difference(reference or case.reference, batch, sampled(case, batch)) < TOLERANCE


def check_shares(case: Case, temperature: float, count: int) -> None:
    """Check that the first tokens of many completions have the trainer's frequencies."""
    batch = requests(count, [PROMPTS[0]])
    counts = torch.bincount(
        torch.tensor([entry.ids[0] for entry in sampled(case, batch, SamplingParams(1, temperature))]),
        minlength=case.vocab,
    )
    for token, expected in enumerate(case.reference.probabilities(PROMPTS[0], temperature)):
        # Five and a half standard deviations: an honest engine is beyond in one run of 400,000.
        allowed = 5.5 * math.sqrt(expected * (1 - expected) / count) + 1 / count
        share = float(counts[token]) / count
        assert abs(share - expected) <= allowed, f"id {token}: {share:.3f} of samples, p = {expected:.3f}"


def test_it_has_the_protocols_members(engine_case):
    """It has all members, a name, and those of an ability that it has."""
    engine = engine_case.engine
    assert isinstance(engine, Engine)
    assert isinstance(engine.capabilities, Capabilities)
    assert isinstance(engine.name, str)
    assert engine.name
    assert isinstance(engine, Sleeper) or not engine.capabilities.sleep
    assert isinstance(engine, Aborter) or not engine.capabilities.abort


def test_what_it_cannot_do_it_says_and_refuses(engine_case):
    """Each lack has its reason, and is refused before anything has happened."""
    engine = engine_case.ready()
    able = vars(engine.capabilities)
    lacks = {name for name, can in able.items() if can is False}
    assert lacks <= set(engine.capabilities.why_not), "a lack without a reason"
    batch = requests(2)
    calls = {
        "abort": getattr(engine, "abort", None),
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
    check_works(engine_case)


def test_token_ids_go_in_and_come_out_as_they_are(engine_case):
    """Capitals and special ids, which no tokenizer would give back, in prompts and in completions."""
    engine_case.ready()
    capitals = tuple(range(13, 26))
    prompts = [
        tuple(range(engine_case.vocab)),
        (END, PAD, SEPARATOR),
        capitals,
        (END,),
        (13, 0, 13, 0),
        (PAD,) * 9,
    ]
    batch, params = requests(30, prompts), SamplingParams(max_tokens=24)
    completions = sampled(engine_case, batch, params)
    assert difference(engine_case.reference, batch, completions) < TOLERANCE
    assert {*capitals, END, PAD, SEPARATOR} <= {token for entry in completions for token in entry.ids}


def test_completions_answer_their_own_requests_in_order(engine_case):
    """Three hundred at once, prompts of many lengths and of each many; the log-probs fit no other prompt."""
    engine_case.ready()
    order = random.Random(1)
    prompts = [tuple(order.randrange(26) for _ in range(order.randrange(1, 40))) for _ in range(60)]
    batch = requests(300, prompts)
    order.shuffle(batch)
    params = SamplingParams(max_tokens=4)
    completions = sampled(engine_case, batch, params)
    assert [entry.request_id for entry in completions] == [entry.id for entry in batch]
    assert difference(engine_case.reference, batch, completions) < TOLERANCE
    alternatives = [*batch[1:], batch[0]]
    assert difference(engine_case.reference, alternatives, completions) > 100 * TOLERANCE


def test_nothing_asked_is_nothing_given(engine_case):
    """An empty list is no error."""
    assert engine_case.ready().generate([], PLAIN) == []


def test_a_seed_alone_decides_what_is_sampled(engine_case):
    """Twice, alone, in another order, under another name: the same ids, and log-probs up to rounding."""
    engine_case.needs("seeds")
    engine_case.ready()
    batch = requests(21)
    together = sampled(engine_case, batch)
    renamed = sampled(engine_case, [replace(entry, id=f"other {entry.id}") for entry in batch])
    backwards = sampled(engine_case, batch[::-1])[::-1]
    alone = [sampled(engine_case, [entry])[0] for entry in batch[:8]]
    for again in (sampled(engine_case, batch), renamed, backwards, alone):
        for entry, two in zip(together, again, strict=False):
            assert entry.ids == two.ids
            assert entry.logprobs == pytest.approx(two.logprobs, abs=TOLERANCE)


def test_another_seed_gives_another_sample(engine_case):
    """In a group, which differs in nothing else. Equal seeds agree.

    A seed has 63 bits, but no two of these are alike in their last 32: torch's generator on a CPU looks at no others.
    """
    engine_case.needs("seeds")
    engine_case.ready()
    seeds = [0, 1, 2, 2**16, 2**31, 2**31 + 1, 2**32 + 3, 2**53 + 4, 2**63 - 1]
    group = [Request(f"r{seed}", PROMPTS[0], seed) for seed in seeds]
    completions = sampled(engine_case, [*group, replace(group[1], id="again")])
    assert completions[-1].ids == completions[1].ids
    assert len({entry.ids for entry in completions}) == len(seeds)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_log_probs_are_those_of_the_distribution_that_was_sampled(engine_case, temperature):
    """At the requested temperature, for short and long prompts, for every token."""
    engine_case.needs(*(["temperature"] if temperature != 1 else []))
    engine_case.ready()
    batch = requests(21)
    completions = sampled(engine_case, batch, replace(PLAIN, temperature=temperature))
    assert difference(engine_case.reference, batch, completions, temperature) < TOLERANCE


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_tokens_are_as_frequent_as_their_log_probs_say(engine_case, temperature):
    """The log-probs may be right while the sampling uses another distribution: count a thousand samples."""
    engine_case.needs(*(["temperature"] if temperature != 1 else []))
    engine_case.ready()
    check_shares(engine_case, temperature, count=1000)


def test_the_models_own_generation_settings_have_no_say(engine_case):
    """Its generation_config.json sets a penalty, a temperature, top_k, top_p, other stop ids and five tokens."""
    engine_case.ready()
    batch = requests(24, PROMPTS[:3])
    completions = sampled(engine_case, batch, SamplingParams(max_tokens=60))
    assert {(len(entry.ids), entry.finish_reason) for entry in completions} == {(60, "length")}
    assert {END, 3} <= {token for entry in completions for token in entry.ids[:-1]}
    assert difference(engine_case.reference, batch, completions) < TOLERANCE
    check_shares(engine_case, 1.0, count=300)


def test_a_completion_ends_with_the_first_stop_id_or_at_its_length(engine_case):
    """The stop id is kept as the last token; where there is none, the length is the reason."""
    engine_case.ready()
    batch, params = requests(60, PROMPTS[:3]), SamplingParams(max_tokens=16, stop_ids=(1, END, 20))
    stopped = sampled(engine_case, batch, params)
    assert {entry.finish_reason for entry in stopped} == {"stop", "length"}
    assert difference(engine_case.reference, batch, stopped) < TOLERANCE


def test_a_stop_id_cuts_the_completion_and_changes_nothing_before_it(engine_case):
    """Compared to the same seeds without stop ids. At the last place, too, a stop id is a stop."""
    engine_case.needs("seeds")
    engine_case.ready()
    batch, params = requests(40, PROMPTS[:3]), SamplingParams(max_tokens=16, stop_ids=(1, END, 20))
    complete = sampled(engine_case, batch, replace(params, stop_ids=()))
    for entry, cut in zip(complete, sampled(engine_case, batch, params), strict=True):
        end = next((place + 1 for place, token in enumerate(entry.ids) if token in params.stop_ids), None)
        assert cut.ids == entry.ids[:end]
    late = next(i for i, entry in enumerate(complete) if entry.ids.index(entry.ids[-1]) == len(entry.ids) - 1)
    (last,) = sampled(engine_case, [batch[late]], replace(params, stop_ids=(complete[late].ids[-1],)))
    assert (last.ids, last.finish_reason) == (complete[late].ids, "stop")


@contextmanager
def aborting(engine: Engine) -> Iterator[None]:
    """Call `abort` from another thread, again and again, until the block ends."""
    over, failures = threading.Event(), []

    def keep_aborting() -> None:
        try:
            while not over.wait(0.01):
                engine.abort()
        except Exception as error:  # noqa: BLE001 - raised below, in the test's own thread
            failures.append(error)

    thread = threading.Thread(target=keep_aborting)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert failures == []


def test_abort_from_another_thread_ends_the_call_with_what_there_is(engine_case):
    """The ids sampled before the abort are valid and incomplete, and the engine goes on as before."""
    engine_case.needs("abort")
    engine = engine_case.ready()
    batch, params = requests(256, PROMPTS[:3]), SamplingParams(max_tokens=300)
    with aborting(engine):
        completions = engine.generate(batch, params)
    check_answers(completions, batch, engine.name, aborted=True)
    assert "abort" in {entry.finish_reason for entry in completions}
    assert {entry.finish_reason for entry in completions} <= {"abort", "length"}
    assert all(len(entry.ids) < 300 for entry in completions if entry.finish_reason == "abort")
    assert difference(engine_case.reference, batch, completions) < TOLERANCE
    check_works(engine_case)


def test_abort_with_nothing_running_does_nothing(engine_case):
    """The next call is not cut short by it."""
    engine_case.needs("abort")
    engine = engine_case.ready()
    engine.abort()
    engine.abort()
    check_works(engine_case)


def test_asleep_it_refuses_and_awake_it_needs_its_weights(engine_case):
    """Sampling needs `wake` and an update; either call may come twice, and afterwards all is as before."""
    engine_case.needs("sleep", "update")
    engine = engine_case.ready()
    assert isinstance(engine, Sleeper)
    engine.sleep()
    engine.sleep()
    with pytest.raises(EngineError, match="asleep"):
        engine.generate(requests(1), PLAIN)
    with pytest.raises(EngineError, match="asleep"):
        engine.update_weights(engine_case.reference.tensors(), engine_case.version + 1)
    engine.wake()
    engine.wake()
    assert engine.policy_version == -1
    with pytest.raises(EngineError, match="weights"):
        engine.generate(requests(1), PLAIN)
    engine_case.ready()
    check_works(engine_case)


def test_each_weight_update_arrives_whole(engine_case):
    """Six of them, each far from the last; the same long prompts each time, whose keys the last one cached."""
    engine_case.needs("update")
    batch = requests(14)
    for seed in range(6):
        before = engine_case.reference.copy()
        engine_case.reference.move(100 + seed)
        engine = engine_case.ready()
        assert engine.policy_version == engine_case.version
        completions = sampled(engine_case, batch)
        assert difference(engine_case.reference, batch, completions) < TOLERANCE
        assert difference(before, batch, completions) > 100 * TOLERANCE
        if engine.capabilities.fingerprint:
            stored = engine.fingerprint()
            assert stored == fingerprint_like(stored, engine_case.reference.tensors(), engine_case.version)


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "kind", "torn"])
def test_a_wrong_update_is_refused_and_changes_nothing(engine_case, fault):
    """A parameter too few, too many, of another shape or kind, or a source that fails half-way: all stays."""
    engine_case.needs("update")
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
    source = torn() if fault == "torn" else tensors.items()
    expected, says = (
        ((EngineError, OSError), "the source failed") if fault == "torn" else (EngineError, "extra|lm_head")
    )
    with pytest.raises(expected, match=says):
        engine.update_weights(source, engine_case.version + 1)
    assert (engine.policy_version, engine.fingerprint()) == (engine_case.version, stored)
    check_works(engine_case)


def test_the_engine_holds_copies(engine_case):
    """A training step in place does not reach it before it is published."""
    engine_case.needs("update")
    engine_case.ready()
    published = engine_case.reference.copy()
    engine_case.reference.move(7)
    check_works(engine_case, published)


def test_resetting_the_prefix_cache_changes_no_sample(engine_case):
    """With long prompts cached before."""
    engine = engine_case.ready()
    batch = requests(14)
    before = sampled(engine_case, batch)
    engine.reset_prefix_cache()
    after = sampled(engine_case, batch)
    assert difference(engine_case.reference, batch, after) < TOLERANCE
    if engine.capabilities.seeds:
        assert [entry.ids for entry in after] == [entry.ids for entry in before]


def test_the_longest_prompt_that_fits_is_served(engine_case):
    """To the last token of the engine's length."""
    engine_case.ready()
    batch = requests(2, [tuple(i % 26 for i in range(engine_case.max_model_len - 4))])
    completions = sampled(engine_case, batch, SamplingParams(max_tokens=4))
    assert [len(entry.ids) for entry in completions] == [4, 4]
    assert difference(engine_case.reference, batch, completions) < TOLERANCE


# Request, parameters, and a word of the error. A server may name the field before any engine sees the request.
IMPOSSIBLE = {
    "too long": (Request("odd", (0,) * 315, 0), PLAIN, "request odd"),
    "empty": (Request("odd", (), 0), PLAIN, "request odd|prompt_ids"),
    "outside of the vocabulary": (Request("odd", (0, 29), 0), PLAIN, "request odd"),
    "negative id": (Request("odd", (0, -1), 0), PLAIN, "request odd|prompt_ids"),
    "named twice": (Request("r0", (0, 1), 0), PLAIN, "r0"),
    "no tokens": (Request("odd", (0,), 0), SamplingParams(max_tokens=0), "request|max_tokens"),
    "temperature 0": (Request("odd", (0,), 0), SamplingParams(2, temperature=0.0), "temperature"),
    "temperature nan": (Request("odd", (0,), 0), SamplingParams(2, temperature=math.nan), "temperature"),
}


@pytest.mark.parametrize("fault", IMPOSSIBLE)
def test_an_impossible_request_is_refused_and_the_engine_goes_on(engine_case, fault):
    """With an error that names the engine, and what was wrong with which request."""
    engine = engine_case.ready()
    request, params, says = IMPOSSIBLE[fault]
    with pytest.raises(EngineError) as caught:
        engine.generate([*requests(2), request], params)
    assert engine.name.split()[0] in str(caught.value)
    assert re.search(says, str(caught.value)), caught.value
    check_works(engine_case)


def test_it_can_be_closed_twice_and_another_started(engine_case):
    """Closed, it refuses to sample and to be updated; a new one works."""
    engine = engine_case.ready()
    engine.close()
    engine.close()
    with pytest.raises(EngineError):
        engine.generate(requests(1), PLAIN)
    if engine.capabilities.update:
        with pytest.raises(EngineError):
            engine.update_weights(engine_case.reference.tensors(), 5)
    engine_case.close()
    engine_case.ready()
    check_works(engine_case)
