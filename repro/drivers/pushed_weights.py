"""A policy that moved on, and vLLM's whole engine, which is sent all of its weights, some, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repro.base import InapplicableError
from repro.drivers import whole_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from repro.base import Work


def push(llm: Any, held: Any, wanted: Callable[[str], bool] = lambda _: True) -> None:
    """Loads a model's tensors, or those of some names, into a running engine, and drops the keys it has cached.

    Raises:
        InapplicableError: this release takes no weights this way.
    """
    import vllm

    tensors = iter([(name, value.detach()) for name, value in held.named_parameters() if wanted(name)])
    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
    except (AttributeError, TypeError) as error:
        raise InapplicableError(f"vLLM {vllm.__version__} takes no weights this way: {error}") from error
    llm.reset_prefix_cache()


def held_against(llm: Any, held: Any, **asked: Any) -> Work:
    """Samples, and counts the reported log-probs that are the model's own at temperature 1."""
    parameters = [whole_engine.params(seed, **asked) for seed in range(len(whole_engine.PROMPTS))]
    return whole_engine.compared(
        [
            pair
            for one in whole_engine.sample(llm, whole_engine.PROMPTS, parameters)
            for pair in zip(one.logprobs, whole_engine.trainers(held, one), strict=True)
        ]
    )


def stepped(held: Any) -> None:
    """Takes one step of SGD on the model, which moves every tensor of it."""
    import torch

    ids = torch.tensor([whole_engine.LONG])
    loss = held(ids, labels=ids).loss
    loss.backward()
    with torch.no_grad():
        for value in held.parameters():
            value.sub_(0.5 * value.grad)
            value.grad = None
