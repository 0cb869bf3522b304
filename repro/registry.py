"""All repros, by code. Light: upstream packages are imported by the attempts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.async_output_support import CMP001
from repro.async_stopped import SCH002
from repro.engine_logprobs import NUM001, NUM002, NUM003, SYN001
from repro.health_route import NET001
from repro.math_threads import REW001
from repro.missing_ray_actors import RAY001
from repro.pause_that_waits import SYN002
from repro.prefill_seq_groups import SCH001
from repro.token_ids import TOK001
from repro.trl_imports import CMP002, CMP003
from repro.trl_normaliser import NUM004
from repro.trl_reload import SYN003

if TYPE_CHECKING:
    from repro.base import Repro

_ALL = (
    SCH001,
    SCH002,
    RAY001,
    CMP001,
    NUM001,
    NUM002,
    NUM003,
    NUM004,
    SYN001,
    SYN002,
    SYN003,
    REW001,
    CMP002,
    CMP003,
    TOK001,
    NET001,
)
REPROS: dict[str, Repro] = {repro.code: repro for repro in _ALL}
