"""Engines broken on purpose, each in one way that has been seen or feared: the suite must fail on every one of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from grpo_core.rollout.engine import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from grpo_core.rollout.engine import Capabilities, Engine
    from grpo_core.types import Completion, Request, SamplingParams
    from tests.grpo_core.conformance.cases import Case


class Broken:
    """A correct engine inside; subclasses override the broken part.

    Attributes:
        kind: The engine inside, as in `cases.start`.
        caught_by: The suite's tests that must fail, with their parameter.
    """

    kind = "fake"
    caught_by: tuple[str, ...] = ()

    def __init__(self, case: Case, inner: Engine) -> None:
        self._case, self._inner = case, inner

    def __getattr__(self, name: str) -> Any:
        """Forward every attribute that is not broken."""
        return getattr(self._inner, name)


class StaleWeights(Broken):
    """Says that it has the new version, and samples from the first."""

    caught_by = ("test_each_weight_update_arrives_whole",)
    policy_version = -1

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities.without(fingerprint="it would tell")

    def fingerprint(self) -> None:
        return None

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        if self.policy_version == -1:
            self._inner.update_weights(tensors, version)
        self.policy_version = version

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return [
            replace(entry, versions=(self.policy_version,) * len(entry.ids))
            for entry in self._inner.generate(requests, params)
        ]


class HalfUpdate(StaleWeights):
    """Loads all parameters but one, which keeps its first value."""

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        received = dict(tensors)
        if self.policy_version == -1:
            self._head = received["lm_head.weight"].detach().clone()
        self._inner.update_weights({**received, "lm_head.weight": self._head}.items(), version)
        self.policy_version = version


class OldKeys(Broken):
    """Goes on using the first 128 tokens' keys and values as the weights before computed them."""

    kind = "transformers"
    caught_by = ("test_each_weight_update_arrives_whole",)
    _old = None

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self._old = copy.deepcopy(self._inner._model)
        self._inner.update_weights(tensors, version)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        honest = self._inner._decoder

        def decoder(model: Any, prompts: list[tuple[int, ...]], room: int) -> Any:
            created = honest(model, prompts, room)
            if self._old is not None and len(prompts[0]) > 128:
                before = honest(self._old, prompts, room)
                for new, old in zip(created._layers, before._layers, strict=True):
                    new._prompt_keys[..., :128] = old._prompt_keys[..., :128]
                    new._prompt_values[:, :128] = old._prompt_values[:, :128]
            return created

        with mock.patch.object(self._inner, "_decoder", decoder):
            return self._inner.generate(requests, params)


class NoCopy(Broken):
    """Keeps the trainer's own tensors, which the next step changes."""

    kind = "transformers"
    caught_by = ("test_the_engine_holds_copies",)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        received = dict(tensors)
        self._inner.update_weights(received.items(), version)
        for name, value in self._inner._model.named_parameters():
            value.data = received[name].data


class LoadsBeforeItChecks(Broken):
    """Refuses a wrong update when what fits is loaded already."""

    caught_by = (
        "test_a_wrong_update_is_refused_and_changes_nothing missing",
        "test_a_wrong_update_is_refused_and_changes_nothing unknown",
        "test_a_wrong_update_is_refused_and_changes_nothing shape",
    )

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        received, stored = dict(tensors), dict(self._inner._held)
        try:
            self._inner.update_weights(received.items(), version)
        except EngineError:
            fits = {
                name: value
                for name, value in received.items()
                if name in stored and value.shape == stored[name].shape
            }
            self._inner.update_weights({**stored, **fits}.items(), self._inner.policy_version)
            raise


class RawLogProbs(Broken):
    """Gives log-probs before the temperature, as vLLM does by default."""

    caught_by = (
        "test_log_probs_are_those_of_the_distribution_that_was_sampled 0.6",
        "test_log_probs_are_those_of_the_distribution_that_was_sampled 1.7",
    )
    reported = staticmethod(lambda params: 1.0)
    sampled_at = staticmethod(lambda params: params)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        completions = self._inner.generate(requests, self.sampled_at(params))
        pairs = [(entry.prompt_ids, two.ids) for entry, two in zip(requests, completions, strict=True)]
        rows = self._case.reference.logprobs(pairs, self.reported(params))
        return [replace(entry, logprobs=tuple(row)) for entry, row in zip(completions, rows, strict=True)]


class OwnTemperature(RawLogProbs):
    """Samples at the temperature of the model's file, with log-probs of the requested temperature."""

    caught_by = (
        "test_tokens_are_as_frequent_as_their_log_probs_say 1.0",
        "test_the_models_own_generation_settings_have_no_say",
    )
    reported = staticmethod(lambda params: params.temperature)
    sampled_at = staticmethod(lambda params: replace(params, temperature=0.3 * params.temperature))


class OwnLimit(Broken):
    """Ends at the five tokens of the model's own file."""

    caught_by = ("test_the_models_own_generation_settings_have_no_say",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return self._inner.generate(requests, replace(params, max_tokens=min(5, params.max_tokens)))


class Swapped(Broken):
    """Gives the first request's completion to the second, and the other way round."""

    caught_by = ("test_completions_answer_their_own_requests_in_order",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        entry, two, *rest = [*self._inner.generate(requests, params), None, None][: max(2, len(requests))]
        if two is None:
            return [] if entry is None else [entry]
        return [replace(two, request_id=entry.request_id), replace(entry, request_id=two.request_id), *rest]


class OutOfOrder(Broken):
    """Gives completions in the order in which they ended: the short ones first."""

    caught_by = ("test_completions_answer_their_own_requests_in_order",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return sorted(self._inner.generate(requests, params), key=lambda one: (len(one.ids), one.ids))


class LosesOne(Broken):
    """Answers 256 requests at most."""

    caught_by = ("test_completions_answer_their_own_requests_in_order",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return self._inner.generate(requests[:256], params)


class Reseeded(Broken):
    """Asks the engine inside with other seeds."""

    def seed(self, place: int, requests: list[Request]) -> int:
        raise NotImplementedError

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        batch = [replace(entry, seed=self.seed(place, requests)) for place, entry in enumerate(requests)]
        return self._inner.generate(batch, params)


class NeighboursSeeds(Reseeded):
    """Engine whose samples depend on the number of requests."""

    caught_by = ("test_a_seed_alone_decides_what_is_sampled",)

    def seed(self, place: int, requests: list[Request]) -> int:
        return requests[place].seed + len(requests)


class SeedOfThePlace(Reseeded):
    """Engine whose samples depend on a request's position in the batch."""

    caught_by = ("test_a_seed_alone_decides_what_is_sampled",)

    def seed(self, place: int, requests: list[Request]) -> int:
        return requests[0].seed + place


class OneSeed(Reseeded):
    """All draw the same."""

    caught_by = ("test_another_seed_gives_another_sample",)

    def seed(self, place: int, requests: list[Request]) -> int:
        return 0


class ShortSeeds(Reseeded):
    """Too few of a seed's bits count."""

    caught_by = ("test_another_seed_gives_another_sample",)

    def seed(self, place: int, requests: list[Request]) -> int:
        return requests[place].seed % 2**31


class DropsStopId(Broken):
    """Cuts the stop id off, as engines do that give text."""

    caught_by = (
        "test_a_completion_ends_with_the_first_stop_id_or_at_its_length",
        "test_a_stop_id_cuts_the_completion_and_changes_nothing_before_it",
    )

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return [
            replace(entry, ids=entry.ids[:-1], logprobs=entry.logprobs[:-1], versions=entry.versions[:-1])
            if entry.finish_reason == "stop" and len(entry.ids) > 1
            else entry
            for entry in self._inner.generate(requests, params)
        ]


class WrongReason(Broken):
    """Never reports the finish reason."""

    caught_by = ("test_a_completion_ends_with_the_first_stop_id_or_at_its_length",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return [replace(entry, finish_reason="length") for entry in self._inner.generate(requests, params)]


class ThroughText(Broken):
    """Turns prompts into text and back, which loses capitals here."""

    caught_by = ("test_token_ids_go_in_and_come_out_as_they_are",)

    def ids(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(token - 13 if 13 <= token < 26 else token for token in prompt)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return self._inner.generate(
            [replace(entry, prompt_ids=self.ids(entry.prompt_ids)) for entry in requests], params
        )


class CutsPrompts(ThroughText):
    """Cuts a prompt that is too long, without a word."""

    caught_by = ("test_an_impossible_request_is_refused_and_the_engine_goes_on too long",)

    def ids(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return prompt[-280:]


class ClampsIds(ThroughText):
    """Takes the vocabulary's last id for every one behind it."""

    caught_by = ("test_an_impossible_request_is_refused_and_the_engine_goes_on outside of the vocabulary",)

    def ids(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(min(token, 28) for token in prompt)


class DeafToAbort(Broken):
    """Takes the call and samples on."""

    caught_by = ("test_abort_from_another_thread_ends_the_call_with_what_there_is",)

    def abort(self) -> None:
        """Nothing."""


class AbortSticks(Broken):
    """An abort that nothing was running for ends the next call."""

    caught_by = ("test_abort_with_nothing_running_does_nothing",)
    _late = False

    def abort(self) -> None:
        self._late = True

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        late, self._late = self._late, False
        completions = self._inner.generate(requests, params)
        if not late:
            return completions
        return [
            replace(
                one,
                ids=one.ids[:1],
                logprobs=one.logprobs[:1],
                versions=one.versions[:1],
                finish_reason="abort",
            )
            for one in completions
        ]


class NoReason(Broken):
    """Lacks a capability and gives no reason."""

    caught_by = ("test_what_it_cannot_do_it_says_and_refuses",)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._inner.capabilities, abort=False)

    def abort(self) -> None:
        raise EngineError("broken engine, abort: it can't")


class FalseModesty(Broken):
    """Says that it can't be updated, and takes an update."""

    caught_by = ("test_what_it_cannot_do_it_says_and_refuses",)

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities.without(update="so it says")


class SleepsOn(Broken):
    """Samples from what it finds in its memory after waking."""

    kind = "transformers"
    caught_by = ("test_asleep_it_refuses_and_awake_it_needs_its_weights",)

    def wake(self) -> None:
        self._inner.wake()
        self._inner._empty = False


class StaysOpen(Broken):
    """Samples on when it is closed."""

    caught_by = ("test_it_can_be_closed_twice_and_another_started",)

    def close(self) -> None:
        """Nothing."""


BROKEN = [
    found
    for found in list(globals().values())
    if isinstance(found, type) and issubclass(found, Broken) and found.caught_by
]
