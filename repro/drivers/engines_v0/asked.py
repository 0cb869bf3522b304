"""What callers ask of an engine, and what is counted of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repro.base import Work

Processor = Callable[[Any, Any], Any]
LIMIT = 64  # `max_model_len` of every engine here


class Drained(Protocol):
    """An engine after its work, which may have kept something back."""

    def leaked(self) -> int:
        """Returns the KV cache blocks that are still taken."""

    def parked(self) -> int:
        """Returns the sequences that are still held as stopped."""


@dataclass(frozen=True)
class Asked:
    """One request: a prompt of one token over and over, which no other request has.

    Args:
        name: for people.
        token: of the prompt.
        length: of the prompt, in tokens.
        max_tokens: which are due, since the end of sequence is ignored.
        min_tokens: before which nothing stops it.
    """

    name: str
    token: int
    length: int
    max_tokens: int
    min_tokens: int = 0

    @property
    def prompt(self) -> list[int]:
        """Token ids."""
        return [self.token] * self.length

    @property
    def due(self) -> int | None:
        """Tokens due; of one that can't have them all, any answer that comes back is one."""
        return self.max_tokens if self.length + self.max_tokens <= LIMIT else None

    def params(self, processor: Processor | None = None) -> Any:
        """Returns vLLM's sampling parameters: greedy, and with a logits processor if one is given."""
        import vllm

        return vllm.SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            logits_processors=[processor] if processor else None,
        )


TRAINING = tuple(Asked(f"train-{index}", 10 + index, 8 + 3 * index, 6) for index in range(4))
EVALUATION = tuple(Asked(f"eval-{index}", 20 + index, 8 + 5 * index, 4) for index in range(2))


def work(
    callers: Iterable[tuple[Sequence[Asked], Sequence[Any]]], engines: Iterable[Drained] = (), note: str = ""
) -> Work:
    """Counts, for each caller's requests, the finished answers that came back to that caller.

    Args:
        callers: (what it asked, vLLM's outputs that it got); an answer is known by its prompt.
        engines: whose KV cache blocks are counted.
        note: what else is worth saying.
    """
    due: dict[str, int | None] = {}
    received, stray = [], 0
    for asked, outputs in callers:
        names = {tuple(item.prompt): item.name for item in asked}
        due |= {item.name: item.due for item in asked}
        for output in outputs:
            name = names.get(tuple(output.prompt_token_ids))
            if name is None:
                stray += 1
            elif output.finished:
                received.append((name, len(output.outputs[0].token_ids)))
    engines = list(engines)
    leaked, parked = sum(engine.leaked() for engine in engines), sum(engine.parked() for engine in engines)
    return Work(due, received, stray, leaked, parked, note)


def told(asked: Sequence[Asked], outputs: Sequence[Any]) -> str:
    """Says in a few words what a caller got, for a note beside somebody else's failure."""
    done = work([(asked, outputs)])
    strays = f" and {done.stray} that it had not asked for" if done.stray else ""
    return f"{done.finished} of its {len(asked)} completions{strays}"
