"""Provide engines with one deliberate bug each; the conformance suite must fail on every one of them."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from grpo_core.rollout.engine import Capabilities, Engine, EngineError
from grpo_core.types import Completion, Request, SamplingParams
from tests.grpo_core.conformance.cases import Case


class Broken:
    """Base class that forwards every call to a correct engine; a subclass overrides the broken part.

    Attributes:
        kind: How to start the correct engine, see `cases.start`.
        caught_by: The tests of the suite that must fail.
    """

    kind = "fake"
    caught_by: tuple[str, ...] = ()

    def __init__(self, case: Case, inner: Engine) -> None:
        self._case, self._inner = case, inner

    def __getattr__(self, name: str) -> Any:
        """Forward every attribute that is not broken."""
        return getattr(self._inner, name)


class StaleWeights(Broken):
    """An engine that reports the new version, and samples from the first weights."""

    caught_by = ("test_weight_updates_are_complete",)
    policy_version = -1

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities.without(fingerprint="it would show the bug")

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
    """An engine that loads all parameters except one, which keeps its first value."""

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        received = dict(tensors)
        if self.policy_version == -1:
            self._head = received["lm_head.weight"].detach().clone()
        self._inner.update_weights({**received, "lm_head.weight": self._head}.items(), version)
        self.policy_version = version


class StalePrefixCache(Broken):
    """An engine that keeps the keys and values of the first 128 tokens of longer prompts after a weight update."""

    kind = "transformers"
    caught_by = ("test_weight_updates_are_complete",)
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


class AliasesTrainerTensors(Broken):
    """An engine that keeps the trainer's tensors instead of copies, so that the next training step changes them."""

    kind = "transformers"
    caught_by = ("test_engine_copies_the_weights",)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        received = dict(tensors)
        self._inner.update_weights(received.items(), version)
        for name, value in self._inner._model.named_parameters():
            value.data = received[name].data


class LoadsBeforeChecking(Broken):
    """An engine that refuses a wrong update only after it has loaded the parameters that fit."""

    caught_by = (
        "test_invalid_update_changes_nothing missing",
        "test_invalid_update_changes_nothing unknown",
        "test_invalid_update_changes_nothing shape",
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
    """An engine that returns log-probs without the temperature, as vLLM does by default."""

    caught_by = ("test_logprobs_match_the_trainer 0.6", "test_logprobs_match_the_trainer 1.7")
    reported = staticmethod(lambda params: 1.0)
    sampled_at = staticmethod(lambda params: params)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        completions = self._inner.generate(requests, self.sampled_at(params))
        pairs = [(request.prompt_ids, got.ids) for request, got in zip(requests, completions, strict=True)]
        rows = self._case.reference.logprobs(pairs, self.reported(params))
        return [replace(entry, logprobs=tuple(row)) for entry, row in zip(completions, rows, strict=True)]


class SamplesAtModelTemperature(RawLogProbs):
    """An engine that multiplies the temperature by generation_config.json's 0.3, but reports log-probs without it."""

    caught_by = ("test_token_frequencies_match_logprobs 1.0", "test_generation_config_is_ignored")
    reported = staticmethod(lambda params: params.temperature)
    sampled_at = staticmethod(lambda params: replace(params, temperature=0.3 * params.temperature))


class UsesModelLengthLimit(Broken):
    """An engine that stops after the five tokens of generation_config.json."""

    caught_by = ("test_generation_config_is_ignored",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return self._inner.generate(requests, replace(params, max_tokens=min(5, params.max_tokens)))


class SwapsCompletions(Broken):
    """An engine that exchanges the completions of the first two requests."""

    caught_by = ("test_completions_match_their_requests_in_order",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        completions = self._inner.generate(requests, params)
        if len(completions) < 2:
            return completions
        first, second, *rest = completions
        swapped = replace(second, request_id=first.request_id), replace(first, request_id=second.request_id)
        return [*swapped, *rest]


class CompletionOrder(Broken):
    """An engine that returns completions in the order in which they finished."""

    caught_by = ("test_completions_match_their_requests_in_order",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return sorted(self._inner.generate(requests, params), key=lambda entry: (len(entry.ids), entry.ids))


class DropsRequests(Broken):
    """An engine that answers at most 256 requests."""

    caught_by = ("test_completions_match_their_requests_in_order",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return self._inner.generate(requests[:256], params)


class Reseeded(Broken):
    """Base class of engines that change the seed of each request; a subclass has `seed(place, requests)`."""

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        batch = [replace(entry, seed=self.seed(place, requests)) for place, entry in enumerate(requests)]
        return self._inner.generate(batch, params)


class SeedDependsOnBatchSize(Reseeded):
    """An engine whose samples depend on the number of requests in the batch."""

    caught_by = ("test_sample_depends_only_on_prompt_and_seed",)
    seed = staticmethod(lambda place, requests: requests[place].seed + len(requests))


class SeedDependsOnPosition(Reseeded):
    """An engine whose samples depend on a request's position in the batch."""

    caught_by = ("test_sample_depends_only_on_prompt_and_seed",)
    seed = staticmethod(lambda place, requests: requests[0].seed + place)


class SameSeedForAll(Reseeded):
    """An engine that samples all requests with the same seed."""

    caught_by = ("test_different_seeds_give_different_samples",)
    seed = staticmethod(lambda place, requests: 0)


class TruncatesSeeds(Reseeded):
    """An engine that uses the lowest 31 bits of a seed."""

    caught_by = ("test_different_seeds_give_different_samples",)
    seed = staticmethod(lambda place, requests: requests[place].seed % 2**31)


class DropsStopId(Broken):
    """An engine that removes the stop id from completions of several ids, as engines that return text do."""

    caught_by = ("test_completion_ends_at_first_stop_id_or_max_tokens", "test_stop_id_only_truncates")

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return [
            replace(entry, ids=entry.ids[:-1], logprobs=entry.logprobs[:-1], versions=entry.versions[:-1])
            if entry.finish_reason == "stop" and len(entry.ids) > 1
            else entry
            for entry in self._inner.generate(requests, params)
        ]


class WrongFinishReason(Broken):
    """An engine that always reports the finish reason `length`."""

    caught_by = ("test_completion_ends_at_first_stop_id_or_max_tokens",)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        return [replace(entry, finish_reason="length") for entry in self._inner.generate(requests, params)]


class RoundTripsText(Broken):
    """An engine that detokenizes and retokenizes prompts, which loses capitals here."""

    caught_by = ("test_token_ids_are_not_retokenized",)

    def ids(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(token - 13 if 13 <= token < 26 else token for token in prompt)

    def generate(self, requests: list[Request], params: SamplingParams) -> list[Completion]:
        batch = [replace(entry, prompt_ids=self.ids(entry.prompt_ids)) for entry in requests]
        return self._inner.generate(batch, params)


class TruncatesPrompts(RoundTripsText):
    """An engine that truncates a prompt that is too long, without an error."""

    caught_by = ("test_invalid_request_is_refused_and_engine_continues too long",)

    def ids(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return prompt[-280:]


class ClampsIds(RoundTripsText):
    """An engine that replaces ids beyond the vocabulary by its last id."""

    caught_by = ("test_invalid_request_is_refused_and_engine_continues outside of the vocabulary",)

    def ids(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(min(token, 28) for token in prompt)


class NoReasonForMissingCapability(Broken):
    """An engine that lacks a capability without giving a reason."""

    caught_by = ("test_missing_capabilities_are_reported_and_refused",)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._inner.capabilities, why_not={})


class DeniesItsCapability(Broken):
    """An engine that reports that it can't be updated, and accepts an update."""

    caught_by = ("test_missing_capabilities_are_reported_and_refused",)

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities.without(update="so it says")


class SamplesAfterWakingWithoutUpdate(Broken):
    """An engine that samples from stale memory after waking."""

    kind = "transformers"
    caught_by = ("test_sampling_after_sleep_requires_wake_and_update",)

    def wake(self) -> None:
        self._inner.wake()
        self._inner._unusable = ""


class SamplesAfterClose(Broken):
    """An engine that continues sampling after `close`."""

    caught_by = ("test_close_is_idempotent_and_allows_a_new_engine",)

    def close(self) -> None:
        """Do nothing."""


BROKEN = [
    candidate
    for candidate in list(globals().values())
    if isinstance(candidate, type) and issubclass(candidate, Broken) and candidate.caught_by
]
