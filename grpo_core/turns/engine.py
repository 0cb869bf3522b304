"""An engine that holds conversations: it samples a turn, the environment puts fixed ids behind it, it goes on.

Any engine that goes on behind a `Request.prefix` will do, since to it a turn is the rest of a completion. All turns of
a conversation have one policy version: weights are published between calls, and a call ends with its conversations.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError
from grpo_core.turns.spoken import Conversation
from grpo_core.turns.wrapped import WrappedEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.turns.environment import Reply
    from grpo_core.types import Completion, FinishReason, Request, SamplingParams


@dataclass
class Talk:
    """A conversation as far as it has come."""

    request: Request
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    ended: FinishReason | None = None

    def rest(self, turn_tokens: int) -> Request:
        """What is to be sampled next."""
        return replace(self.request, prefix=tuple(self.ids), budget=turn_tokens)

    def take(self, turn: Completion, reply: Reply, most: int, *, budgeted: bool) -> None:
        """A turn, and what the environment has to say to it; one that was aborted is no turn, unless it had a budget.

        Raises:
            EngineError: The environment failed, or said something other than token ids.
        """
        self._add(turn.ids, turn.logprobs, turn.versions, sampled=True)
        cut_off = turn.finish_reason == "abort" and not (budgeted and turn.ids)
        if turn.finish_reason == "length" or cut_off:
            self.ended = turn.finish_reason
            return
        where = f"rollout.environment: request {self.request.id}"
        try:
            # One that speaks without end is heard as far as there is room.
            said = tuple(islice(reply(self.request.prompt_ids, tuple(self.ids)), most))
        except (Exception, SystemExit) as error:
            raise EngineError(f"{where}: it raised {type(error).__name__}: {error}") from error
        if not all(type(token) is int for token in said):
            raise EngineError(f"{where}: it said {said!r:.80}; expected token ids, or none at the end")
        if not said:
            self.ended = "stop" if turn.finish_reason == "stop" else "length"
        elif (
            len(self.ids) + len(said) >= most
        ):  # no token of the model could follow: it is not begun, as in TRL
            self.ended = "length"
        else:
            self._add(said, (0.0,) * len(said), self.versions[-1:] * len(said), sampled=False)

    def _add(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], *, sampled: bool
    ) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.versions += versions
        self.sampled += [sampled] * len(ids)

    @property
    def whole(self) -> Conversation:
        """As a completion."""
        assert self.ended is not None
        streams = (tuple(self.ids), tuple(self.logprobs), tuple(self.versions))
        return Conversation(self.request.id, *streams, self.ended, tuple(self.sampled))


@dataclass
class Round:
    """The conversations of one call."""

    talks: list[Talk]
    params: SamplingParams

    @property
    def going(self) -> list[Talk]:
        """Those that are not over."""
        return [talk for talk in self.talks if talk.ended is None]


class TurnsEngine(WrappedEngine):
    """Any engine, with an environment. The probe of a weight sync is sampled by the engine alone."""

    def __init__(self, engine: Any, reply: Reply, turn_tokens: int) -> None:
        """Wraps an engine.

        Args:
            engine: Samples.
            reply: The environment.
            turn_tokens: Longest turn; 0: it ends at a stop id.

        Raises:
            EngineError: The engine can't go on behind given ids.
        """
        super().__init__(engine)
        if not self.capabilities.partial:
            why = self.capabilities.why_not.get("partial", "it doesn't say why")
            raise EngineError(f"{self.name} engine: it can't hold conversations (partial): {why}")
        self._reply, self._most = reply, turn_tokens
        self._calls: deque[Round] = deque()  # of start_generate, the oldest first
        self._asked: deque[Round] = deque()  # in the order in which the engine answers

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One conversation a request, in the order of the requests."""
        if [request.id for request in requests] == ["probe"]:
            return list(self._engine.generate(requests, params))
        talks = Round([Talk(request) for request in requests], params)
        while talks.going:
            self._take(talks, self._engine.generate(self._rest(talks), params))
        return [talk.whole for talk in talks.talks]

    def start_generate(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Starts the first turns; later ones wait for `finish_generate`, behind the first turns of later calls."""
        talks = Round([Talk(request) for request in requests], params)
        self._calls.append(talks)
        self._ask(talks)

    def finish_generate(self) -> list[Completion]:
        """Waits for the conversations of the oldest `start_generate`."""
        oldest = self._calls.popleft()
        while oldest.going:
            talks = self._asked.popleft()
            self._take(talks, self._engine.finish_generate())
            if talks.going:
                self._ask(talks)
        return [talk.whole for talk in oldest.talks]

    def _ask(self, talks: Round) -> None:
        self._engine.start_generate(self._rest(talks), talks.params)
        self._asked.append(talks)

    def _rest(self, talks: Round) -> list[Request]:
        return [talk.rest(self._most) for talk in talks.going]

    def _take(self, talks: Round, turns: Sequence[Completion]) -> None:
        for talk, turn in zip(talks.going, turns, strict=True):
            talk.take(turn, self._reply, talks.params.max_tokens, budgeted=self._most > 0)
