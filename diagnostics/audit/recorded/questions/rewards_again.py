"""P12: the user's own reward function, called again on what was recorded: in the main thread and in a worker's.

Asked only where it was named, since it runs that code. It is called as TRL calls one: lists by keyword, a list of
numbers back; failing that, once a sample with the completion alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.audit.errors import AuditError
from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, Fact, ProbeAnswer
from diagnostics.audit.recorded.readers import plain
from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from diagnostics.audit.recorded.rows import Recording, Remains, Row

PROBE = "P12"
_MOST, _CLOSE = 512, 1e-4


def load(name: str) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names.

    Raises:
        AuditError: There is none.
    """
    where, _, called = name.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location("grpo_doctor_reward", Path(where).absolute())
            if spec is None or spec.loader is None or not Path(where).is_file():
                raise FileNotFoundError(where)  # noqa: TRY301 - told as the rest
            module = importlib.util.module_from_spec(spec)
            sys.modules["grpo_doctor_reward"] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        found = getattr(module, called)
    except Exception as error:
        raise AuditError(f"--reward {name}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise AuditError(f"--reward {name}: no function")
    made: Callable[..., Any] = found
    return made


def ask(remains: Remains, reward: Callable[..., Any] | None) -> Iterator[ProbeAnswer]:
    """One answer a recording with texts and rewards."""
    asked = False
    for recording in remains.recordings if reward else ():
        rows = [row for row in recording.rows if row.completion and (row.reward is not None or row.scores)]
        if rows and reward:
            asked = True
            yield _judged(recording, rows[:: max(1, len(rows) // _MOST)][:_MOST], reward)
    if not asked:
        yield ProbeAnswer("rewards_again", NOT_ASKED, PROBE, wanted=(Fact("want_reward_function"),))


def _judged(recording: Recording, rows: list[Row], reward: Callable[..., Any]) -> ProbeAnswer:
    here, wrong_here = _called(reward, rows)
    there, wrong_there = _in_thread(reward, rows)
    if wrong_here:
        facts = (Fact("raised", {"error": wrong_here}, recording.kind),)
        return ProbeAnswer("rewards_again/raises", FAULT, PROBE, "REW002", {"error": wrong_here}, facts=facts)
    if answer := _unsteady(reward, rows, here, there, wrong_there):
        return answer
    recorded = _recorded(rows, here)
    other = _unlike(here, recorded)
    values = {"apart": other, "count": len(rows), "kind": recording.kind}
    shown = tuple(_shown(rows, here, recorded))
    if other > max(1, len(rows) // 50):
        nothing = all(value == 0 for value in recorded if value is not None)
        kind, code = ("swallowed", "REW001") if nothing else ("unlike", "REW005")
        return ProbeAnswer(f"rewards_again/{kind}", FAULT, PROBE, code, values, count=len(rows), facts=shown)
    outcome, wanted = (NOT_DECIDED, (Fact("want_texts"),)) if other else (CLEAN, ())
    return ProbeAnswer(
        "rewards_again", outcome, PROBE, values=values, count=len(rows), facts=shown, wanted=wanted
    )


def _unsteady(
    reward: Callable[..., Any],
    rows: list[Row],
    here: list[float | None],
    there: list[float | None],
    wrong: str,
) -> ProbeAnswer | None:
    """Whether a worker's thread, or another call, gives other rewards."""
    apart = len(rows) if wrong else _unlike(here, there)
    again, _ = _called(reward, rows)
    varied = _unlike(here, again)
    if varied:
        values: dict[str, Any] = {"apart": varied, "count": len(rows)}
        return ProbeAnswer("rewards_again/chance", FAULT, PROBE, "REW005", values, count=len(rows))
    if apart:
        values = {"apart": apart, "count": len(rows), "error": wrong or "nothing"}
        return ProbeAnswer("rewards_again/thread", FAULT, PROBE, "REW001", values, count=len(rows))
    return None


def _called(reward: Callable[..., Any], rows: Sequence[Row]) -> tuple[list[float | None], str]:
    columns = {
        name: [row.columns.get(name) for row in rows]
        for name in rows[0].columns
        if name not in {"prompts", "completions"}
    }
    try:
        try:
            made = reward(
                prompts=[row.prompt for row in rows], completions=[row.completion for row in rows], **columns
            )
        except TypeError:
            made = [reward(row.completion) for row in rows]
        told = [plain.number(value if value is None else float(value)) for value in made]
    except Exception as error:  # noqa: BLE001 - it is the user's code, and what it raises is the answer
        return [], cut(f"{type(error).__name__}: {error}", 200)
    if len(told) != len(rows):
        return [], f"{len(told)} rewards for {len(rows)} completions"
    return told, ""


def _in_thread(reward: Callable[..., Any], rows: Sequence[Row]) -> tuple[list[float | None], str]:
    """The same from a worker's thread, as async trainers and verl's reward loop call it."""
    found: list[tuple[list[float | None], str]] = []
    worker = threading.Thread(target=lambda: found.append(_called(reward, rows)), daemon=True)
    worker.start()
    worker.join(60)
    return found[0] if found else ([], "no answer within 60 s")


def _recorded(rows: Sequence[Row], here: Sequence[float | None]) -> list[float | None]:
    """Of several recorded functions that which agrees best, since the name may be another."""
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    choices = [[row.scores.get(name) for row in rows] for name in names] or [[row.reward for row in rows]]
    return min(choices, key=lambda told: _unlike(here, told))


def _unlike(one: Sequence[float | None], other: Sequence[float | None]) -> int:
    def apart(a: float | None, b: float | None) -> bool:
        return (a is None) != (b is None) or (
            a is not None and b is not None and abs(a - b) > _CLOSE * max(1.0, abs(a))
        )

    return sum(apart(a, b) for a, b in zip(one, other, strict=True)) if len(one) == len(other) else len(one)


def _shown(
    rows: Sequence[Row], here: Sequence[float | None], recorded: Sequence[float | None]
) -> Iterator[Fact]:
    """The first rows that differ; no texts."""
    told = 0
    for row, now, then in zip(rows, here, recorded, strict=True):
        if _unlike([now], [then]) and told < 3:
            told += 1
            yield Fact("reward_unlike", {"now": str(now), "then": str(then)}, row.place)
