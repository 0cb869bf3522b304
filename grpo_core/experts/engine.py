"""The embedded engine, with the routing of every token that it read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.config import ConfigError
from grpo_core.experts.routes import Routes, Routing, routing_of
from grpo_core.rollout.engine import EngineError
from grpo_core.turns.spoken import Routed
from grpo_core.turns.wrapped import WrappedEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grpo_core.types import Completion, Request, SamplingParams


def routed(engine: Any, max_batch: int) -> RoutedEngine:
    """The embedded engine, which then tells."""
    return RoutedEngine(engine, engine._model, max_batch)  # noqa: SLF001 - nobody else has it in another process


def routing(model: Any) -> Routing:
    """What a model's routers choose.

    Raises:
        ConfigError: The model has no experts, or its routers are not known.
    """
    found = routing_of(model)
    if found is None:
        raise ConfigError(
            f"rollout.replay_experts: {type(model).__name__} has no router known here; expected a mixture of "
            "experts of transformers, as Mixtral, Qwen3-MoE or OLMoE"
        )
    return found


def check_told(
    engine: str, routing: Routing, requests: Sequence[Request], completions: Sequence[Completion]
) -> None:
    """Refuses completions whose routing could not be replayed, or only in part: silence is no choice.

    Raises:
        EngineError: Names the first.
    """
    for request, completion in zip(requests, completions):  # noqa: B905 - too few are refused for that
        told = completion.experts if isinstance(completion, Routed) else ()
        if fault := routing.fault(told, len(request.prompt_ids) + len(completion.ids) - 1):
            raise EngineError(f"{engine} engine, generate: request {request.id} {fault}")


class RoutedEngine(WrappedEngine):
    """Samples requests of one length at a time, so that what routers were asked can be told apart."""

    def __init__(self, engine: Any, model: Any, max_batch: int) -> None:
        """Wraps an engine in this process.

        Args:
            engine: The embedded one.
            model: Any model of its architecture.
            max_batch: Its own.

        Raises:
            ConfigError: The model has no experts.
        """
        super().__init__(engine)
        self._layers, self._max_batch = routing(model).layers, max_batch
        whys = {name: why for name, why in engine.capabilities.why_not.items() if name != "experts"}
        self.capabilities = replace(engine.capabilities, experts=True, why_not=whys)

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests."""
        alike: dict[tuple[int, int, int], list[int]] = {}
        for place, request in enumerate(requests):
            length = len(request.prompt_ids) + len(request.prefix)
            alike.setdefault((length, len(request.prefix), request.budget), []).append(place)
        answers: dict[int, Completion] = {}
        for (length, *_), places in alike.items():
            for start in range(0, len(places), self._max_batch):
                part = places[start : start + self._max_batch]
                asked = [requests[place] for place in part]
                with Routes() as routes:
                    sampled = self._engine.generate(asked, params)
                found = self._experts(routes.seen, asked, length)
                for row, (place, one) in enumerate(zip(part, sampled, strict=True)):
                    answers[place] = _routed(one, found(row, len(one.ids)))
        return [answers[place] for place in range(len(requests))]

    def _experts(
        self, seen: list[torch.Tensor], asked: Sequence[Request], length: int
    ) -> Callable[[int, int], torch.Tensor]:
        """Those of a row with so many tokens: [tokens read, layers, experts]; different prompts were read once."""
        prompts = [request.prompt_ids + request.prefix for request in asked]
        places = {ids: place for place, ids in enumerate(dict.fromkeys(prompts))}
        read = [one.reshape(len(places), length, -1) for one in seen[: self._layers]]
        steps = [
            torch.stack(seen[start : start + self._layers], 1)
            for start in range(self._layers, len(seen), self._layers)
        ]

        def of(row: int, tokens: int) -> torch.Tensor:
            # Behind a completion's end its row went on, while its neighbours were running; its last token nobody read.
            if not read:  # aborted before the prompts were read
                return torch.zeros(0, self._layers, 1, dtype=torch.long)
            before = torch.stack([one[places[prompts[row]]] for one in read], 1)
            return torch.cat([before, *(step[row][None] for step in steps)])[: length + tokens - 1]

        return of


def _routed(completion: Completion, experts_PNK: torch.Tensor) -> Routed:
    """With the experts of its prompt and of its own tokens."""
    return Routed(
        **vars(completion), experts=tuple(tuple(map(tuple, token)) for token in experts_PNK.tolist())
    )
