"""P12: call the user's reward function again on recorded samples, in the main thread and in a worker thread.

Only with `--reward`, because it runs that code. It is called as TRL calls one: lists by keyword, a list of numbers
back; failing that, once for each sample with the completion alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from diagnostics.audit.model import CLEAN, NOT_DECIDED, AuditError, Note, Result, fault, note, skipped
from diagnostics.audit.recorded.common import number
from diagnostics.audit.recorded.run_data import Recording, RunArtifacts, Sample
from diagnostics.output.redact import mask_and_cut

PROBE = "P12"
_MAX_SAMPLES, _CLOSE, _TIMEOUT_S = 512, 1e-4, 60.0
Rewards = list[float | None]


class _MissingColumnError(Exception):
    """Raised when a reward function requires a column that the recording does not have."""


def load_reward(name: str) -> Callable[..., Any]:
    """Load the function that `module:function` or `file.py:function` names.

    Raises:
        AuditError: It cannot be loaded.
    """
    module_name, _, function_name = name.rpartition(":")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location("grpo_doctor_reward", Path(module_name).absolute())
            if spec is None or spec.loader is None or not Path(module_name).is_file():
                raise FileNotFoundError(module_name)  # noqa: TRY301 - reported like every other failure
            module = importlib.util.module_from_spec(spec)
            sys.modules["grpo_doctor_reward"] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
        function: Callable[..., Any] = getattr(module, function_name)
    except Exception as error:
        raise AuditError(f"--reward {name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise AuditError(f"--reward {name}: not a function")
    return function


def check_reward_function(run: RunArtifacts, reward: Callable[..., Any] | None) -> Iterator[Result]:
    """Check each recording with texts and rewards."""
    checked = False
    for recording in run.recordings if reward else ():
        rows = [row for row in recording.rows if row.completion and row.total_reward is not None]
        if rows and reward:
            checked = True
            yield _check_recording(
                recording, rows[:: max(1, len(rows) // _MAX_SAMPLES)][:_MAX_SAMPLES], reward
            )
    if not checked:
        need = (
            "recorded completions with rewards"
            if reward
            else "--reward MODULE:FUNCTION, the run's reward function"
        )
        yield skipped("rewards_again", PROBE, "want_reward_function", need, decisive=reward is not None)


def _check_recording(recording: Recording, rows: list[Sample], reward: Callable[..., Any]) -> Result:
    try:
        rewards, error = _call(reward, rows)
    except _MissingColumnError as missing:
        need = "a column {column!r} in {kind}: the reward function requires it"
        return skipped(
            "rewards_again",
            PROBE,
            "want_column",
            need,
            decisive=True,
            column=str(missing),
            kind=recording.kind,
        )
    if error:
        return fault(
            "rewards_again/raises",
            PROBE,
            "the reward function raises: {error}",
            "REW002",
            values={"error": error},
        )
    return _unstable(reward, rows, rewards) or _compare(recording, rows, rewards)


def _unstable(reward: Callable[..., Any], rows: list[Sample], rewards: Rewards) -> Result | None:
    """Report other rewards from a second call or from a worker thread."""
    again, _ = _call(reward, rows)
    values: dict[str, Any] = {"apart": _count_differences(rewards, again), "count": len(rows)}
    if values["apart"]:
        message = "the reward function returns other rewards for the same texts: {apart} of {count}"
        return fault("rewards_again/chance", PROBE, message, "REW005", values=values, count=len(rows))
    threaded = _call_in_thread(reward, rows)
    if threaded is None:
        need = (
            "a reward function that answers {count} samples in {seconds:g} s; the time limit ended the call"
            " in a thread"
        )
        return skipped(
            "rewards_again", PROBE, "time_limit", need, decisive=True, count=len(rows), seconds=_TIMEOUT_S
        )
    there, error = threaded
    values |= {
        "apart": len(rows) if error else _count_differences(rewards, there),
        "error": error or "nothing",
    }
    if values["apart"]:
        message = "in a worker thread the reward function returns other rewards: {apart} of {count} ({error} raised)"
        return fault("rewards_again/thread", PROBE, message, "REW001", values=values, count=len(rows))
    return None


def _compare(recording: Recording, rows: list[Sample], rewards: Rewards) -> Result:
    recorded = _recorded(rows, rewards)
    different = _count_differences(rewards, recorded)
    values = {"apart": different, "count": len(rows), "kind": recording.kind}
    shown = _first_differences(rows, rewards, recorded)
    if different > max(1, len(rows) // 50):
        if not any(recorded):
            message = (
                "all recorded rewards are 0, and the function returns others ({apart} of {count}): an"
                " error is swallowed"
            )
            return fault(
                "rewards_again/swallowed",
                PROBE,
                message,
                "REW001",
                values=values,
                count=len(rows),
                evidence=shown,
            )
        message = "the recorded rewards are not those of the function: {apart} of {count} differ"
        return fault(
            "rewards_again/unlike", PROBE, message, "REW005", values=values, count=len(rows), evidence=shown
        )
    if different:
        need = note("want_texts", "the texts as the reward function saw them")
        return Result(
            "rewards_again",
            NOT_DECIDED,
            PROBE,
            values=values,
            count=len(rows),
            evidence=shown,
            needed=(need,),
        )
    return Result("rewards_again", CLEAN, PROBE, values=values, count=len(rows))


def _call(reward: Callable[..., Any], rows: Sequence[Sample]) -> tuple[Rewards, str]:
    """Call the function; return its rewards, or the error.

    Raises:
        _MissingColumnError: It requires a column that is not recorded.
    """
    keywords = _arguments(reward, rows)
    try:
        returned = [reward(row.completion) for row in rows] if keywords is None else reward(**keywords)
        rewards = [number(value if value is None else float(value)) for value in returned]
    except Exception as error:  # noqa: BLE001 - it is the user's code, and what it raises is the result
        return [], mask_and_cut(f"{type(error).__name__}: {error}", 200)
    if len(rewards) != len(rows):
        return [], f"{len(rewards)} rewards for {len(rows)} completions"
    return rewards, ""


def _arguments(reward: Callable[..., Any], rows: Sequence[Sample]) -> dict[str, Any] | None:
    """Return the keyword arguments that the function takes; None if it takes one completion at a time."""
    keywords: dict[str, Any] = {name: [row.columns.get(name) for row in rows] for name in rows[0].columns}
    keywords |= {"prompts": [row.prompt for row in rows], "completions": [row.completion for row in rows]}
    try:
        parameters = inspect.signature(reward).parameters
    except (TypeError, ValueError):
        return keywords
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        accepted = keywords
    else:
        accepted = {name: value for name, value in keywords.items() if name in parameters}
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in variadic
    ]
    missing = [name for name in required if name not in keywords]
    if missing and len(required) == 1:
        return None
    if missing:
        raise _MissingColumnError(missing[0])
    return accepted


def _call_in_thread(reward: Callable[..., Any], rows: Sequence[Sample]) -> tuple[Rewards, str] | None:
    """Call it in a worker thread, as async trainers and verl's reward loop do; None after the time limit."""
    results: list[tuple[Rewards, str]] = []
    worker = threading.Thread(target=lambda: results.append(_call(reward, rows)), daemon=True)
    worker.start()
    worker.join(_TIMEOUT_S)
    return results[0] if results else None


def _recorded(rows: Sequence[Sample], rewards: Rewards) -> Rewards:
    """Return the recorded scores that agree best, because the function's name may differ."""
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    choices = [[row.scores.get(name) for row in rows] for name in names] or [[row.reward for row in rows]]
    return min(choices, key=lambda scores: _count_differences(rewards, scores))


def _differ(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is not b
    return abs(a - b) > _CLOSE * max(1.0, abs(a))


def _count_differences(before: Rewards, after: Rewards) -> int:
    if len(before) != len(after):
        return len(before)
    return sum(_differ(a, b) for a, b in zip(before, after, strict=True))


def _first_differences(rows: Sequence[Sample], rewards: Rewards, recorded: Rewards) -> tuple[Note, ...]:
    """Return the first three samples that differ, without their texts."""
    triples = [
        (row, now, then) for row, now, then in zip(rows, rewards, recorded, strict=True) if _differ(now, then)
    ]
    return tuple(
        note("reward_unlike", "now {now}, recorded {then}", row.place, now=str(now), then=str(then))
        for row, now, then in triples[:3]
    )
