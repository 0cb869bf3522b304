"""Implement the engine that samples with a transformers model and a KV cache in this process.

With the same weights and parameters, a sample depends on prompt and seed alone, up to rounding, for three reasons:
- Each request has its own random generator.
- No token attends to padding. A model that can't share prompts samples the prompts of one length at a time.
- A token is chosen by inverse CDF in float64.
In another batch the log-probs may differ in the last digit, because the rounding of a matrix product depends on its
shape. The same requests in the same order give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from grpo_core.learn.logprobs import cache_kwargs, can_share, output_cache
from grpo_core.rollout.engine import Capabilities, EngineError, check_parameters, check_requests
from grpo_core.rollout.llama_decoder import LlamaDecoder
from grpo_core.rollout.sampling_distribution import SamplingDistribution
from grpo_core.rollout.weights.digest import spot_digest
from grpo_core.tasks.model import known_ids, load_model
from grpo_core.types import Completion, FinishReason, Request, SamplingParams

_ASLEEP = "the engine is asleep; wake it first"
_EMPTY = "it lost its weights asleep; update them first"


class TransformersEngine:
    """Engine with its own copy of the model, so that it needs weight updates like any other engine.

    Attributes:
        policy_version: The version of the loaded weights; -1 before the first update.
    """

    name = "transformers"
    capabilities = Capabilities(seeds=True, fingerprint=True, sleep=True, truncation=True)

    def __init__(
        self,
        model_dir: Path | str,
        *,
        max_model_len: int,
        device: str = "cpu",
        max_batch: int = 256,
        dtype: str = "float32",
    ) -> None:
        """Load the model; the policy version is -1 until the first update."""
        self._model = load_model(model_dir, device).to(getattr(torch, dtype))
        self._known_ids = known_ids(model_dir, int(self._model.config.get_text_config().vocab_size))
        self._decoder: Any = LlamaDecoder if can_share(self._model) else EqualLengthDecoder
        self._unusable = ""  # the reason for which calls are refused
        self._device, self._max_model_len, self._max_batch = device, max_model_len, max_batch
        self.policy_version = -1

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample one completion per request, in the order of the requests."""
        self._check("generate")
        vocabulary, longest = self._model.config.get_text_config().vocab_size, self._max_model_len
        check_requests(requests, params, engine=self.name, vocabulary=vocabulary, max_model_len=longest)
        batches: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            length = 0 if self._decoder is LlamaDecoder else len(request.prompt_ids)
            batches.setdefault(length, []).append(index)
        completions: dict[int, Completion] = {}
        for indices in batches.values():
            for start in range(0, len(indices), self._max_batch):
                batch = indices[start : start + self._max_batch]
                sampled = self._sample([requests[index] for index in batch], params)
                completions.update(zip(batch, sampled, strict=True))
        return [completions[index] for index in range(len(requests))]

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy all parameters by name; names, shapes and types are checked before anything is changed."""
        self._check("update_weights", _EMPTY)
        state, parameters = dict(tensors), dict(self._model.named_parameters())
        check_parameters(state, {name: value.shape for name, value in parameters.items()}, self.name)
        with torch.no_grad():
            for name, value in parameters.items():
                value.copy_(state[name])
        self.policy_version, self._unusable = version, ""

    def fingerprint(self) -> str | None:
        """Return the digest of the parameters."""
        self._check("fingerprint")
        return spot_digest(self._model.named_parameters(), self.policy_version)

    def sleep(self) -> None:
        """Free the memory of the weights; they must be sent again after `wake`."""
        self._check("sleep", _ASLEEP, _EMPTY)
        if self._unusable != _ASLEEP:
            self._shapes = {name: value.shape for name, value in self._model.named_parameters()}
            for value in self._model.parameters():  # buffers stay: they are computed, not sent
                value.data = value.data.new_empty(0)
        self._unusable, self.policy_version = _ASLEEP, -1

    def wake(self) -> None:
        """Allocate the memory again, filled with NaN."""
        self._check("wake", _ASLEEP, _EMPTY)
        if self._unusable == _ASLEEP:
            for name, value in self._model.named_parameters():
                value.data = value.data.new_full(self._shapes[name], float("nan"))
            self._unusable = _EMPTY

    def close(self) -> None:
        """Free the model."""
        self._model, self._unusable = None, "the engine is closed"

    def _check(self, call: str, *allowed: str) -> None:
        """Refuse a call that is not possible now; `allowed` are reasons that don't hinder this one."""
        if self._unusable and self._unusable not in allowed:
            raise EngineError(f"transformers engine, {call}: {self._unusable}")

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample completions for requests of one batch. B requests, V vocabulary."""
        prompts, limit = [request.prompt_ids for request in requests], params.max_tokens
        decoder = self._decoder(self._model, prompts, limit)
        distribution = SamplingDistribution(params, prompts)
        uniform_BT = _uniform_numbers(requests, limit).to(self._device)
        running = set(range(len(requests)))
        ids, logprobs = list[torch.Tensor](), list[torch.Tensor]()
        for step in range(limit):
            if step:
                decoder.append(ids[-1])
                distribution.append(ids[-1])
            logits_BV = distribution.logits(decoder.logits_BV[:, : self._known_ids])
            id_B, logprob_B = sample_tokens(logits_BV, uniform_BT[:, step])
            ids.append(id_B)
            logprobs.append(logprob_B)
            running -= {row for row, token in enumerate(id_B.tolist()) if token in params.stop_ids}
            if not running:
                break
        ids_BT, logprobs_BT = torch.stack(ids, 1).tolist(), torch.stack(logprobs, 1).tolist()
        return [
            self._completion(request, row, values, params)
            for request, row, values in zip(requests, ids_BT, logprobs_BT, strict=True)
        ]

    def _completion(
        self, request: Request, ids: list[int], logprobs: list[float], params: SamplingParams
    ) -> Completion:
        """Build a completion that ends at the first stop id; the ids after it exist because the batch went on."""
        end = next((index + 1 for index, token in enumerate(ids) if token in params.stop_ids), None)
        complete = tuple(ids[:end])
        reason: FinishReason = "length" if end is None else "stop"
        versions = (self.policy_version,) * len(complete)
        return Completion(request.id, complete, tuple(logprobs[:end]), versions, reason)


def sample_tokens(logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token at each uniform number in [0, 1) of the softmax's CDF, and its log-prob."""
    logprobs_BV = torch.log_softmax(logits_BV, -1)
    # The sums are in float64; the number is scaled by the last sum, so that it can't be beyond the last token.
    cumulative = logprobs_BV.exp().cumsum(-1, dtype=torch.float64)
    # `right` selects the first token whose sum exceeds the number, so never a token of probability zero.
    target = uniform_B.double()[:, None] * cumulative[:, -1:]
    id_B = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logprobs_BV.shape[-1] - 1)
    return id_B, logprobs_BV.gather(-1, id_B[:, None])[:, 0]


def _uniform_numbers(requests: Sequence[Request], count: int) -> torch.Tensor:
    """Return uniform numbers [B, count], each row from the request's own generator, on the CPU for any device."""
    generator = torch.Generator()
    rows = []
    for request in requests:
        generator.manual_seed(request.seed % 2**63)
        rows.append(torch.rand(count, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


class EqualLengthDecoder:
    """Decoder for any model with a cache; all prompts must have equal length."""

    def __init__(self, model: Any, prompts: list[tuple[int, ...]], _: int = 0) -> None:
        """Compute the prompts; the cache grows as needed."""
        indices = {ids: index for index, ids in enumerate(dict.fromkeys(prompts))}
        rows_B = torch.tensor([indices[ids] for ids in prompts], device=model.device)
        out = model(torch.tensor(list(indices), device=model.device), use_cache=True)
        self._model, self._cache = model, output_cache(out)
        if isinstance(self._cache, tuple):  # older models of transformers 4.48
            self._cache = model._reorder_cache(self._cache, rows_B)  # noqa: SLF001
        else:
            self._cache.reorder_cache(rows_B)
        self.logits_BV = out.logits[:, -1][rows_B]

    def append(self, id_B: torch.Tensor) -> None:
        """Append one token to each row."""
        out = self._model(id_B[:, None], use_cache=True, **cache_kwargs(self._model, self._cache))
        self.logits_BV = out.logits[:, -1]
