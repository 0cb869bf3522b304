"""Call the user's reward function again on recorded samples, and compare the rewards: P12 of docs/audit.md.

Only `--reward` allows this, because `load_reward_function` and `check_reward_function` run the user's code. The
function is called as in TRL, with keyword arguments that are lists of at most 512 samples, and returns a number or None
for each. Faults are: the function raises, a second call or one in a worker thread returns other numbers, or more than
2 % of the recorded rewards differ. Fewer differences, or a single one, are undecided.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from diagnostics.audit.recorded.run_data import Recording, RunArtifacts, Sample, number
from diagnostics.audit.results import AuditError, Note, Result, clean, fault, note, skipped, undecided
from diagnostics.output.redact import truncate

_MAX_SAMPLES, _TOLERANCE = 512, 1e-4
RewardFunction = Callable[..., Any]
Rewards = list[float | None]


class _MissingColumnError(Exception):
    """Raised when a reward function requires a column that the recording does not have."""


def load_reward_function(name: str) -> RewardFunction:
    """Import the module or file of `module:function` or `file.py:function`, and return the function.

    Raises:
        AuditError: The function cannot be loaded.
    """
    module_name, _, function_name = name.rpartition(":")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location("grpo_doctor_reward", Path(module_name).absolute())
            if spec is None or spec.loader is None:
                raise ImportError(module_name)  # noqa: TRY301 - reported like every other failure
            sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
        function: RewardFunction = getattr(module, function_name)
    except Exception as error:
        raise AuditError(f"--reward {name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise AuditError(f"--reward {name}: not a function")
    return function


def check_reward_function(run: RunArtifacts, function: RewardFunction | None) -> list[Result]:
    """Call the reward function on the samples of each recording with texts and rewards, and compare the results.

    Skipped without a reward function, without such samples, or if a column that it requires is not recorded.
    """
    if function is None:
        return [skipped("rewards_again", "want_reward_function")]
    results = []
    for recording in run.recordings:
        rows = [row for row in recording.rows if row.completion and row.total_reward is not None]
        selected_rows = rows[:: max(1, len(rows) // _MAX_SAMPLES)][:_MAX_SAMPLES]
        results += [_check_recording(recording, selected_rows, function)] if selected_rows else []
    return results or [skipped("rewards_again", "want_reward_function:samples", decisive=True)]


def _check_recording(recording: Recording, rows: list[Sample], function: RewardFunction) -> Result:
    """Return a recording's result: skipped without a required column, else a fault, undecided or clean."""
    try:
        rewards, error = _call(function, rows)
    except _MissingColumnError as missing:
        values = {"column": str(missing), "kind": recording.kind}
        return skipped("rewards_again", "want_column", decisive=True, **values)
    if error:
        return fault("rewards_again/raises", {"error": error})
    return _find_instability(function, rows, rewards) or _compare(recording, rows, rewards)


def _find_instability(function: RewardFunction, rows: list[Sample], rewards: Rewards) -> Result | None:
    """Return a fault if another call, or one in a worker thread, gives other rewards; None otherwise."""
    count = len(rows)
    if different := _count_differences(rewards, _call(function, rows)[0]):
        return fault("rewards_again/chance", {"apart": different, "count": count}, count=count)
    with ThreadPoolExecutor(1) as worker:  # as async trainers and verl's reward loop call it
        threaded_rewards, error = worker.submit(_call, function, rows).result()
    if different := count if error else _count_differences(rewards, threaded_rewards):
        values = {"apart": different, "count": count, "error": error or "nothing"}
        return fault("rewards_again/thread", values, count=count)
    return None


def _compare(recording: Recording, rows: list[Sample], rewards: Rewards) -> Result:
    """Compare with the recorded column of scores that agrees best, because its name may differ from the function's.

    A few differences (one, or at most 2 %) are undecided.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    choices = [[row.scores.get(name) for row in rows] for name in names] or [[row.reward for row in rows]]
    recorded = min(choices, key=lambda scores: _count_differences(rewards, scores))
    different, count = _count_differences(rewards, recorded), len(rows)
    values = {"apart": different, "count": count, "kind": recording.kind}
    if not different:
        return clean("rewards_again", values=values, count=count)
    fields: dict[str, Any] = {"count": count, "evidence": _first_differences(rows, rewards, recorded)}
    if different <= max(1, count // 50):
        return undecided("rewards_again", note("want_texts:reward"), values=values, **fields)
    return fault(f"rewards_again/{'unlike' if any(recorded) else 'swallowed'}", values, **fields)


def _call(function: RewardFunction, rows: Sequence[Sample]) -> tuple[Rewards, str]:
    """Call the function; return (rewards, "") or ([], the error).

    Raises:
        _MissingColumnError: The function requires a column that is not recorded.
    """
    keywords = _arguments(function, rows)
    try:
        rewards = [number(value if value is None else float(value)) for value in function(**keywords)]
    except Exception as error:  # noqa: BLE001 - it is the user's code, and what it raises is the result
        return [], truncate(f"{type(error).__name__}: {error}", 200)
    if len(rewards) != len(rows):
        return [], f"{len(rewards)} rewards for {len(rows)} completions"
    return rewards, ""


def _arguments(function: RewardFunction, rows: Sequence[Sample]) -> dict[str, Any]:
    """Return the keyword arguments that the function takes.

    Raises:
        _MissingColumnError: It requires another one.
    """
    keywords: dict[str, Any] = {name: [row.columns.get(name) for row in rows] for name in rows[0].columns}
    keywords |= {"prompts": [row.prompt for row in rows], "completions": [row.completion for row in rows]}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return keywords
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in variadic
        if required and name not in keywords:
            raise _MissingColumnError(name)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return keywords
    return {name: column for name, column in keywords.items() if name in parameters}


def _differ(a: float | None, b: float | None) -> bool:
    """Return whether two rewards differ by more than 0.01 % (below 1, by 0.0001), or only one of them is None."""
    return a is not b if a is None or b is None else abs(a - b) > _TOLERANCE * max(1.0, abs(a))


def _count_differences(before: Rewards, after: Rewards) -> int:
    """Return the number of rewards that differ; all of `before` if the lengths differ."""
    return len(before) if len(before) != len(after) else sum(map(_differ, before, after))


def _first_differences(rows: Sequence[Sample], rewards: Rewards, recorded: Rewards) -> tuple[Note, ...]:
    """Return notes on the first three samples whose rewards differ, without their texts."""
    samples = zip(rows, map(str, rewards), map(str, recorded), map(_differ, rewards, recorded), strict=True)
    different = [note("reward_unlike", row.place, now=a, then=b) for row, a, b, differ in samples if differ]
    return tuple(different[:3])
