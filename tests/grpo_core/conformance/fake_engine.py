"""Provide a fast fake engine for tests that are not about sampling; it passes the conformance suite.

The engine samples from a Llama without layers. Its next token depends only on the last token, so a table has all
probabilities. transformers runs the same model, so trainer and fake engine agree on log-probs, and a weight update
changes both.
"""

# ruff: noqa: N806 - shapes in names
import json
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from grpo_core.rollout.engine import Capabilities, EngineError, check_parameters, check_requests
from grpo_core.rollout.weights.digest import spot_digest
from grpo_core.types import Completion, FinishReason, Request, SamplingParams

_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class FakeEngine:
    """Engine in plain Python that samples one request after the other."""

    name = "fake"

    def __init__(self, model_dir: Path | str, *, max_model_len: int) -> None:
        """Read a checkpoint of a Llama without layers.

        Args:
            model_dir: Folder with `config.json` and `model.safetensors`.
            max_model_len: Longest prompt and completion together, in tokens.

        Raises:
            EngineError: The folder has no model, or another one.
        """
        self._held, self._epsilon = _read_checkpoint(Path(model_dir))
        self._max_model_len = max_model_len
        self._tables: dict[float, list[tuple[list[float], list[float]]]] = {}
        self._open, self._version = True, -1

    @property
    def capabilities(self) -> Capabilities:
        """Return all capabilities except sleep and truncation."""
        able = Capabilities(seeds=True, fingerprint=True, sleep=True)
        few = "the fake engine holds a few kilobytes, which are not worth giving back"
        return able.without(sleep=few, truncation="it samples from a table, at any temperature")

    @property
    def policy_version(self) -> int:
        """Return the version of the loaded weights; -1 before the first update."""
        return self._version

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample one completion per request, in the order of the requests."""
        self._check_open("generate")
        vocabulary, longest = len(self._held[_HEAD]), self._max_model_len
        check_requests(requests, params, engine=self.name, vocabulary=vocabulary, max_model_len=longest)
        if params.temperature not in self._tables:
            self._tables[params.temperature] = self._probabilities(params.temperature)
        return [self._sample(request, params) for request in requests]

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy the three parameters after checking names, shapes and types."""
        self._check_open("update_weights")
        received = dict(tensors)
        check_parameters(received, {name: value.shape for name, value in self._held.items()}, self.name)
        self._held = {name: received[name].detach().float().clone() for name in self._held}
        self._tables, self._version = {}, version

    def fingerprint(self) -> str | None:
        """Return the digest of the loaded parameters."""
        self._check_open("fingerprint")
        return spot_digest(self._held.items(), self._version)

    def close(self) -> None:
        """Refuse later sampling, updates and fingerprints."""
        self._open = False

    def _check_open(self, call: str) -> None:
        if not self._open:
            raise EngineError(f"fake engine, {call}: the engine is closed")

    def _probabilities(self, temperature: float) -> list[tuple[list[float], list[float]]]:
        """Return, for each last id, the cumulative probabilities and the log-probs of the next id.

        Suffixes of names: V vocabulary, H hidden size.
        """
        embedding_VH, norm_H, head_VH = (self._held[name] for name in (_EMBEDDING, _NORM, _HEAD))
        hidden_VH = torch.nn.functional.rms_norm(embedding_VH, norm_H.shape, norm_H, self._epsilon)
        logprobs_VV = torch.log_softmax((hidden_VH @ head_VH.T).double() / temperature, -1)
        cumulative_VV = logprobs_VV.exp().cumsum(-1)
        return list(zip(cumulative_VV.tolist(), logprobs_VV.tolist()))  # noqa: B905 - Python 3.10

    def _sample(self, request: Request, params: SamplingParams) -> Completion:
        """Sample one completion from the table, by inverse CDF with the request's own generator."""
        table, last = self._tables[params.temperature], request.prompt_ids[-1]
        generator = random.Random(request.seed % 2**63)
        ids: list[int] = []
        logprobs: list[float] = []
        reason: FinishReason | None = None
        while reason is None:
            cumulative, values = table[last]
            last = min(bisect_right(cumulative, generator.random()), len(values) - 1)
            ids.append(last)
            logprobs.append(values[last])
            full = len(ids) == params.max_tokens
            reason = "stop" if last in params.stop_ids else "length" if full else None
        return Completion(request.id, tuple(ids), tuple(logprobs), (self._version,) * len(ids), reason)


def _read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], float]:
    """Return the three parameters and the epsilon of the norm."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        stored = safetensors.torch.load_file(folder / "model.safetensors")
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise EngineError(f"fake engine, start: {folder} holds no checkpoint: {error}") from error
    if config.get("model_type") != "llama" or set(stored) != {_EMBEDDING, _NORM, _HEAD}:
        raise EngineError(f"fake engine, start: the model in {folder} is no Llama with num_hidden_layers = 0")
    return {name: value.float() for name, value in stored.items()}, float(config["rms_norm_eps"])
