"""What has been found of a run that goes on: a finding comes when two looks agree, goes after three, and may return."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, RUNNING, Audit, Fact, ProbeAnswer
from diagnostics.audit.running.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from diagnostics.audit.recorded.rows import Logged, Row

FOUND, AGAIN, GONE = "found", "again", "gone"
# Looks that must agree before something is said, and before it is taken back.
SURE, GONE_AFTER = 2, 3
# Every so many steps the questions that take longer; how long a look at samples may take, and one with these, before
# it was measured.
DEAR, _GUESS_S = 16, (0.02, 0.2)
# What the first steps alone can show stays true.
_STAYS = {"metrics/reference"}


@dataclass(frozen=True)
class Change:
    """Something that was not so a step before.

    Attributes:
        what: FOUND, AGAIN or GONE.
        step: Of the trainer.
        answer: With its evidence; of GONE the last that was a finding.
    """

    what: str
    step: int
    answer: ProbeAnswer


@dataclass
class _Kept:
    """What is known of one family."""

    answer: ProbeAnswer
    seen: int = 0
    missing: int = 0
    stands: bool = False
    times: int = 0
    since: int = 0
    until: int = 0


class Watcher:
    """Takes lines of metrics and samples as they come; tells what changed.

    Attributes:
        spent_s: What its own questions have taken.
        left_out: Looks at samples that were left out, since they would have taken more than their share.
    """

    def __init__(self, share: float = 0.01, clock: Callable[[], float] = time.perf_counter) -> None:
        """Takes at most `share` of the time from now on, as far as samples go; 1 or more: whatever it takes."""
        self._share, self._clock = share, clock
        self._began = clock()
        self.window = Window()
        self._kept: dict[str, _Kept] = {}
        self._last: dict[str, ProbeAnswer] = {}
        self._fresh = False
        self._next_dear = DEAR // 2
        self.steps = self.tokens = self.requests = self.left_out = 0
        self.spent_s, self._sample_s, self._dear_s = 0.0, *_GUESS_S
        self._kind = ""

    def metrics(self, source: str, row: Logged) -> None:
        """A line of metrics, by the file or program that it is of."""
        self.window.metrics(source, row)
        self._fresh = True

    def looked(self, step: int, samples: Callable[[], Sequence[Row]] | None = None) -> list[Change]:
        """Asks what can be asked of what came since, and tells what changed.

        Args:
            step: Of the trainer.
            samples: Gives all samples of the step, if there is time to look at them; None: there are none.
        """
        began = self._clock()
        if not self.steps:
            self._began = began
        self.steps += 1
        # By what the last one took: the next one is to fit, too.
        left = self._share * (began - self._began) - self.spent_s
        answers = [*self._of_metrics(), *(self._of_samples(samples, left) if samples else ())]
        changes = self.judged(step, answers)
        took = self._clock() - began
        self.spent_s += took
        if self._kind == "dear":
            self._dear_s = took
        elif self._kind == "samples":
            self._sample_s = took
        return changes

    def _of_metrics(self) -> Iterator[ProbeAnswer]:
        if self._fresh:
            yield from self.window.of_metrics()
        self._fresh = False

    def _of_samples(self, samples: Callable[[], Sequence[Row]], left: float) -> Iterator[ProbeAnswer]:
        any_time = self._share >= 1
        self._kind = ""
        if not any_time and left < self._sample_s:
            self.left_out += 1
            return
        rows = samples()
        if not rows:
            return
        dear = self.steps >= self._next_dear and (any_time or left >= self._dear_s)
        if dear:
            self._next_dear = self.steps + DEAR
        self._kind = "dear" if dear else "samples"
        self.window.samples("samples", rows)
        yield from self.window.of_samples(dear=dear)

    def judged(self, step: int, answers: Iterable[ProbeAnswer], sure: int = SURE) -> list[Change]:
        """Takes answers, and tells what changed; `sure`: how many looks must agree before something is said."""
        told = [each for each in answers if each.outcome != NOT_ASKED]
        asked = {_head(each) for each in told}
        now: dict[str, ProbeAnswer] = {}
        for each in told:
            if _is_finding(each):
                now.setdefault(each.family, each)
        for each in told:
            self._last[_head(each)] = each
        changes = [change for family in now if (change := self._seen(step, now[family], sure))]
        for family, kept in self._kept.items():
            if family not in now and _head(kept.answer) in asked and family not in _STAYS:
                changes += self._missed(step, kept)
        return changes

    def _seen(self, step: int, answer: ProbeAnswer, sure: int) -> Change | None:
        kept = self._kept.setdefault(answer.family, _Kept(answer))
        kept.answer, kept.missing = answer, 0
        kept.seen += 1
        kept.until = step
        if kept.stands or kept.seen < sure:
            return None
        kept.stands, kept.times = True, kept.times + 1
        kept.since = kept.since or step
        return Change(FOUND if kept.times == 1 else AGAIN, step, answer)

    def _missed(self, step: int, kept: _Kept) -> Iterator[Change]:
        kept.missing += 1
        if not kept.stands:
            kept.seen = 0
        elif kept.missing >= GONE_AFTER:
            kept.stands, kept.seen = False, 0
            yield Change(GONE, step, kept.answer)

    def scalars(self) -> dict[str, float]:
        """For curves: how many findings stand, each one that was ever told, and what looking takes."""
        told = {family: kept for family, kept in self._kept.items() if kept.times}
        standing = [kept.answer.outcome for kept in told.values() if kept.stands]
        return {
            "audit/faults": float(standing.count(FAULT)),
            "audit/open": float(standing.count(NOT_DECIDED)),
            "audit/seconds": self.spent_s,
            **{f"audit/{family}": float(kept.stands) for family, kept in told.items()},
        }

    def audit(self, subject: dict[str, str]) -> Audit:
        """All that was found, gone or not, and of every other class what was last told of it."""
        found = [kept for kept in self._kept.values() if kept.times]
        answers = [_dated(kept) for kept in found]
        heads = {_head(each) for each in answers}
        answers += [each for head, each in self._last.items() if head not in heads and each.outcome == CLEAN]
        return Audit(
            RUNNING,
            subject | {"steps": str(self.steps)},
            tuple(answers),
            self.tokens,
            self.requests,
            self.spent_s,
        )


def _head(answer: ProbeAnswer) -> str:
    return answer.family.partition("/")[0]


def _is_finding(answer: ProbeAnswer) -> bool:
    """A fault, or a symptom that names what it is of; that more is needed to tell is none."""
    named = "/" in answer.family or answer.family == "curves"
    return answer.outcome == FAULT or (answer.outcome == NOT_DECIDED and named)


def _dated(kept: _Kept) -> ProbeAnswer:
    values = {"since": kept.since, "until": kept.until, "times": kept.times}
    name = "stands_since" if kept.stands else "stood_until"
    return replace(kept.answer, facts=(*kept.answer.facts, Fact(name, values)))
