"""How old the tokens of a rollout are, in policy versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.types import RunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.types import Completion


class StalenessError(RunError):
    """Raised when a token is older than the run allows, or from a version the trainer never published."""


def staleness(completions: Sequence[Completion], version: int, limit: int) -> list[int]:
    """The trainer's version minus the token's, for every token.

    Raises:
        StalenessError: One is outside of 0 to `limit`; names the request.
    """
    ages = []
    for completion in completions:
        for sampled_by in completion.versions:
            age = version - sampled_by
            if not 0 <= age <= limit:
                raise StalenessError(
                    f"request {completion.request_id}: a token was sampled by version {sampled_by} and is to train "
                    f"version {version}; allowed are ages 0 to {limit} (rollout.max_staleness, async mode only)"
                )
            ages.append(age)
    return ages
