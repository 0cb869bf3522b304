"""All repros, by code. Light: upstream packages are imported by the attempts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.issues.cmp001 import CMP001
from repro.issues.cmp002_cmp003 import CMP002, CMP003
from repro.issues.net001 import NET001
from repro.issues.num001_num002_num003_syn001 import NUM001, NUM002, NUM003, SYN001
from repro.issues.num004 import NUM004
from repro.issues.ray001 import RAY001
from repro.issues.rew001 import REW001
from repro.issues.sch001 import SCH001
from repro.issues.sch002 import SCH002
from repro.issues.syn002 import SYN002
from repro.issues.syn003 import SYN003
from repro.issues.tok001 import TOK001

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
