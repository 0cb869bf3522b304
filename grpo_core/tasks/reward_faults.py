"""What to say of a reward function that fails: which sample it fails on, and how."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from grpo_core.types import Completion, Prompt

    Rows = Sequence[tuple[Prompt, Completion, str]]


def call_function(function: Callable[..., Any], columns: Mapping[str, list[Any]]) -> list[Any] | None:
    """Call a reward function with copies of the columns; an async one is waited for."""
    returned = function(**{key: list(values) for key, values in columns.items()})
    if inspect.isawaitable(returned):
        returned = _awaited(returned)
    return None if returned is None else list(returned)


def _awaited(returned: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await returned

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as pool:  # in a notebook, whose loop runs in this thread
        return pool.submit(asyncio.run, wait()).result()


def named(rows: Rows, place: int) -> str:
    """A sample, for people."""
    prompt, completion, text = rows[place]
    return (
        f"sample {place} (request {completion.request_id}), the completion {_shown(text)} to the prompt "
        f"{_shown(prompt.text)}"
    )


def raised(
    name: str,
    function: Callable[..., Any],
    columns: Mapping[str, list[Any]],
    rows: Rows,
    error: BaseException,
) -> str:
    """Of a function that raised: what, and on which sample."""
    place = _culprit(function, columns, len(rows))
    where = f"a batch of {len(rows)}, but on none of them alone" if place is None else named(rows, place)
    return f"reward function {name} raised {type(error).__name__}: {error}, on {where}"


def no_reward(name: str, returned: Sequence[Any] | None, rows: Rows, fine: Callable[[Any], bool]) -> str:
    """Of what a function returned: the wrong count, or the first value that is not `fine`."""
    count = None if returned is None else len(returned)
    if returned is None or count != len(rows):
        return (
            f"reward function {name} returned {count} rewards for {len(rows)} completions; "
            "it must return one each, in their order"
        )
    place = [fine(value) for value in returned].index(False)
    wrong = f"returned {returned[place]!r} for {named(rows, place)}; a reward is a finite number below 1e100, or None"
    return f"reward function {name} {wrong}"


def _culprit(function: Callable[..., Any], columns: Mapping[str, list[Any]], count: int) -> int | None:
    """A sample on which alone the function raises, found by halving: few calls, should they be expensive."""
    places: Sequence[int] = range(count)
    while len(places) > 1:
        half = len(places) // 2
        places = places[:half] if _raises(function, columns, places[:half]) else places[half:]
    return places[0] if _raises(function, columns, places) else None


def _raises(function: Callable[..., Any], columns: Mapping[str, list[Any]], places: Sequence[int]) -> bool:
    """Whether a call with some of the samples alone fails, too."""
    try:
        call_function(function, {key: [values[place] for place in places] for key, values in columns.items()})
    except ConfigError:
        raise
    except (Exception, SystemExit):  # noqa: BLE001 - whatever it is, it is what is looked for
        return True
    return False


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
