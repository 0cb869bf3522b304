"""P5 with logits: the law that a run's engine sampled by, two values at once, where its weights are there.

The trainer's log-probs say whether they are: a sample is judged by a checkpoint that makes them, at the one temperature
that fits. What is left of the engine's is then fitted as that of a server is.
"""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from diagnostics.audit.errors import AuditError
from diagnostics.audit.live import fit, sampling
from diagnostics.audit.live.endpoints import Drawn
from diagnostics.audit.live.law import Law, Seen
from diagnostics.audit.live.reference import Reference, step_of
from diagnostics.audit.model import FAULT, ProbeAnswer
from diagnostics.audit.recorded.rows import Unread
from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diagnostics.audit.recorded.rows import Recording, Remains, Row

# Samples that are computed, tokens of each, and ids of the longest; so many tokens have to be of the weights.
_SAMPLES, _EACH, _LONGEST, _ENOUGH = 32, 32, 1024, 256
# A sample is of these weights when the trainer's log-probs are no farther off on average: what a law leaves as its
# trace is larger. Nearer than the second, trainer and checkpoint both compute in 32 bits, and so may the engine.
_NEAR, _EXACT = 0.024, 2e-4
# Steps that a run's own checkpoints are tried for.
_FOLDERS = 2


class Weights:
    """The weights that a run's samples may be of.

    Attributes:
        unread: Where what could not be loaded is told.
    """

    def __init__(self, remains: Remains, checkpoint: Path | None, unread: list[Unread]) -> None:
        """`checkpoint` is that of the samples; None: the run's own, each of the step that follows."""
        own = [each.folder for each in reversed(remains.checkpoints) if each.step >= 0 and each.loads]
        self._folders = own if checkpoint is None else [checkpoint]
        self._given = checkpoint is not None
        self.unread = unread

    def law(self, recording: Recording) -> list[ProbeAnswer]:
        """Faults with their values, which leave no more than arithmetic does; none: no weights here tell."""
        if any(find_spec(name) is None for name in ("torch", "transformers")):
            return []
        for folder, rows in self._tried(recording):
            try:
                told = _judged(Reference(folder), rows)
            except (AuditError, RuntimeError, IndexError) as error:
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self.unread.append(Unread(str(folder), cut(first, 200)))
                continue
            if told is not None:
                return told
        return []

    def _tried(self, recording: Recording) -> Iterator[tuple[Path, list[Row]]]:
        steps = recording.steps()
        pairs = [(folder, steps.get((step_of(folder) or 0) + 1, [])) for folder in self._folders]
        if self._given and not pairs[0][1]:
            pairs = [(self._folders[0], [*recording.rows])]
        yield from [pair for pair in pairs if pair[1]][:_FOLDERS]


def _judged(reference: Reference, rows: list[Row]) -> list[ProbeAnswer] | None:
    """None: too few of the samples are of these weights."""
    drawn = [pair for row in rows if (pair := _drawn(row)) and max(pair[0].ids) < reference.vocabulary]
    drawn = random.Random(0).sample(drawn, min(len(drawn), _SAMPLES))
    if sum(len(mine.ids) for mine, _ in drawn) < _ENOUGH:
        return None
    temperature, means = _own(reference, [mine for mine, _ in drawn])
    held = [engine for (_, engine), off in zip(drawn, means, strict=True) if off <= _NEAR]
    if sum(len(each.ids) for each in held) < _ENOUGH:
        return None
    half = "bfloat16" if reference.dtype == "float32" else reference.dtype
    for dtype in ("float32", half) if max(means) < _EXACT else (half,):
        told = sampling.judged(reference, held, dtype, Law(temperature))
        faults = [each for each in told if each.outcome == FAULT]
        if all(_explains(each) for each in faults):
            return faults
    return []


def _explains(answer: ProbeAnswer) -> bool:
    """A law that leaves something names nothing: these samples are of two weights, or of something else."""
    if answer.family == "sampling/law" or answer.residual is None or answer.alarm is None:
        return False
    return answer.residual <= answer.alarm


def _drawn(row: Row) -> tuple[Drawn, Drawn] | None:
    """The trainer's and the engine's numbers of a sample's first tokens; None: not both are there."""
    held = row.tokens
    if held is None or not 0 < held.prompt <= _LONGEST - _EACH:
        return None
    pairs: list[tuple[float, float]] = []
    for engine, trainer in zip(held.engine[held.prompt :], held.trainer[held.prompt :], strict=False):
        if engine is None or trainer is None or len(pairs) == _EACH:
            break
        pairs.append((engine, trainer))
    if not pairs:
        return None
    prompt, ids = held.ids[: held.prompt], held.ids[held.prompt : held.prompt + len(pairs)]
    engine_, trainer_ = zip(*pairs, strict=True)
    return Drawn(prompt, ids, trainer_), Drawn(prompt, ids, engine_)


def _own(reference: Reference, drawn: list[Drawn]) -> tuple[float, list[float]]:
    """The trainer's temperature, and how far its log-probs of each sample are from what these weights make at it."""
    told = reference.rows([[*each.prompt, *each.ids] for each in drawn], "float32")
    rows = [logits[len(each.prompt) - 1 : -1].double() for each, logits in zip(drawn, told, strict=True)]
    seen = Seen(drawn, rows)
    found, _ = fit.zoom(seen, Law(), "temperature")
    if abs(found - 1) < fit.RANGES["temperature"][3]:
        found = 1.0
    off: Any = seen.off(Law(found))
    return found, [float(off[seen.rows == place].mean()) for place in range(len(drawn))]
