"""Provide the inputs of the conformance suite: a model folder, an engine that serves it, and log-probs of transformers.

As a program it writes the model folder for a server: `python -m tests.grpo_core.conformance.cases FOLDER`. `make_case`
returns a `Case` with all three.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
import torch

from grpo_core.config import Config, ModelConfig, RolloutConfig
from grpo_core.rollout.engine import Engine
from grpo_core.rollout.engine_factory import build_engine
from grpo_core.tasks.model import load_model, make_tiny
from tests.grpo_core.conformance.fake_engine import FakeEngine

MAX_MODEL_LEN = 320  # room for prompts over two of vLLM's blocks on a CPU, of 128 tokens each
LIMIT_S = 240
# The tokenizer turns every letter into lowercase, so ids of capitals do not survive detokenization.
LETTERS = "abcdefghijklmABCDEFGHIJKLM"
SEPARATOR, END, PAD = range(len(LETTERS), len(LETTERS) + 3)
VOCABULARY = len(LETTERS) + 3
# Contents of generation_config.json, which an engine must ignore.
MISLEADING = {
    "do_sample": True, "temperature": 0.3, "top_k": 3, "top_p": 0.4, "repetition_penalty": 1.8,
    "max_new_tokens": 5, "eos_token_id": [END, 3],
}  # fmt: skip


def make_model(folder: Path, layers: int = 2) -> Path:
    """Write a random Llama with a misleading tokenizer and generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tiny(folder, ModelConfig(layers=layers, max_length=MAX_MODEL_LEN), LETTERS, seed=0)
    (folder / "generation_config.json").write_text(json.dumps(MISLEADING), encoding="utf-8")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


class Reference:
    """The trainer's model: weights that tests can change, and log-probs by transformers without a KV cache."""

    def __init__(self, model_dir: Path) -> None:
        self._model = load_model(model_dir)
        self._first = [value.detach().clone() for _, value in self.tensors()]

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the parameters by name."""
        return list(self._model.named_parameters())

    def copy(self) -> Reference:
        """Return an independent copy of the current state."""
        return copy.deepcopy(self)

    def restore(self) -> None:
        """Restore the weights of the folder."""
        with torch.no_grad():
            for (_, value), first in zip(self.tensors(), self._first, strict=True):
                value.copy_(first)

    def perturb(self, seed: int) -> None:
        """Change every parameter in place, like a large training step."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _, value in self.tensors():
                value.add_(torch.randn(value.shape, generator=generator) * 0.04)

    def probabilities(self, prompt: tuple[int, ...], temperature: float) -> list[float]:
        """Return the probability of each id after a prompt."""
        return self._logprobs([prompt], temperature)[0, -1].exp().tolist()

    def logprobs(
        self, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[list[float]]:
        """Return the log-probs of the completion ids of each (prompt ids, completion ids) pair."""
        rows: dict[int, list[float]] = {}
        by_length: dict[int, list[int]] = {}
        for place, (prompt, ids) in enumerate(pairs):
            by_length.setdefault(len(prompt) + len(ids), []).append(place)
        for places in by_length.values():
            complete = [pairs[place][0] + pairs[place][1] for place in places]
            for table, place in zip(self._logprobs(complete, temperature), places, strict=True):
                prompt, ids = pairs[place]
                at = torch.arange(len(prompt) - 1, len(prompt) + len(ids) - 1)
                rows[place] = table[at, torch.tensor(ids, dtype=torch.long)].tolist()
        return [rows[place] for place in range(len(pairs))]

    @torch.no_grad()
    def _logprobs(self, rows: list[tuple[int, ...]], temperature: float) -> torch.Tensor:
        logits = self._model(torch.tensor(rows), use_cache=False).logits
        return torch.log_softmax(logits.double() / temperature, -1)


@dataclass
class Case:
    """One engine under test, started when first needed and again after `close`.

    Attributes:
        kind: Kind of the engine, see `start`.
        model_dir: Model folder on which the engine is started.
        reference: Weights that the engine should have.
        version: Policy version that was published last.
        wrap: Function that wraps each started engine.
    """

    kind: str
    model_dir: Path
    reference: Reference
    max_model_len: int = MAX_MODEL_LEN
    vocab: int = VOCABULARY
    version: int = -1
    wrap: Callable[[Case, Engine], Engine] | None = None
    _engine: Engine | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def engine(self) -> Engine:
        """Return the engine, started if necessary, with whatever weights it has."""
        if self._engine is None:
            engine = start(self.kind, self.model_dir, self._stack)
            self._engine = engine if self.wrap is None else self.wrap(self, engine)
        return self._engine

    def ready(self) -> Engine:
        """Return the engine with the reference's weights; one that cannot update keeps those of the model folder."""
        if self.engine.capabilities.update:
            self.version = max(self.version, self.engine.policy_version) + 1
            self.engine.update_weights(self.reference.tensors(), self.version)
        else:
            self.version = self.engine.policy_version
        return self.engine

    def require(self, *names: str) -> None:
        """Skip the test if the engine's capabilities lack one of these."""
        capabilities = self.engine.capabilities
        for name in names:
            if not getattr(capabilities, name, name not in capabilities.why_not):
                pytest.skip(f"{name}: {capabilities.why_not.get(name, 'the engine does not say why')}")

    def close(self) -> None:
        """Close the engine and stop what was started for it."""
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.close()
        finally:
            self._stack.close()


def make_case(kind: str, folder: Path, model_dir: Path | None = None) -> Case:
    """Return a case on the given model folder, or on one written to `folder`."""
    if model_dir is None:
        model_dir = make_model(folder / kind.partition(":")[0], layers=0 if "fake" in kind else 2)
    return Case(kind, model_dir, Reference(model_dir))


def start(kind: str, model_dir: Path, stack: ExitStack) -> Engine:
    """Start an engine of a kind, or connect to a running server.

    Args:
        kind: `transformers`, `fake` or `vllm` runs in this process, `process` or `process:vllm` in a separate process,
            and `server` or `server:vllm` behind a rollout server that is started for it. `remote:URL`,
            `vllm-serve:URL` and `trl-vllm-serve:URL` use a running server that was started on the same folder.
        model_dir: A folder of `make_model`.
        stack: Exit stack that ends everything started besides the engine.
    """
    where, _, rest = kind.partition(":")
    if where == "process":
        from grpo_core.rollout.remote_engines import ProcessEngine

        return ProcessEngine(engine_config(rest), model_dir)
    if where == "server":
        from grpo_core.rollout.server.process import ServerProcess

        server = stack.enter_context(closing(ServerProcess(engine_config(rest), model_dir)))
        return connect("remote", server.host, server.port, stack, token=server.token)
    if "://" in rest:
        url = urlsplit(rest)
        return connect(where, url.hostname or "", url.port or 80, stack)
    if where == "fake":  # only for tests
        return FakeEngine(model_dir, max_model_len=MAX_MODEL_LEN)
    return build_engine(engine_config(where), model_dir)


def engine_config(engine: str) -> Config:
    """Return the settings of an engine of this name, by default the transformers engine, on the CPU."""
    options = RolloutConfig(engine=engine or "transformers", device="cpu", timeout_s=LIMIT_S)
    return Config(model=ModelConfig(max_length=MAX_MODEL_LEN), rollout=options)


def connect(where: str, host: str, port: int, stack: ExitStack, *, token: str | None = None) -> Engine:
    """Return the client of a running server; without a token it is read from GRPO_CORE_TOKEN."""
    options = {"timeout_s": LIMIT_S, "token": token or os.environ.get("GRPO_CORE_TOKEN") or None}
    if where == "remote":
        from grpo_core.rollout.remote_engines import RemoteEngine

        return RemoteEngine(host, port, **options)
    folder = Path(stack.enter_context(TemporaryDirectory()))
    if where in ("vllm-serve", "trl-vllm-serve"):
        from grpo_core.rollout.vllm_server_engine import VllmServerEngine

        return VllmServerEngine(host, port, folder=folder, **options)
    raise ValueError(f"no server is called {where!r}")


if __name__ == "__main__":
    print(make_model(Path(sys.argv[1])))
