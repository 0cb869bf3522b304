"""Old name of `diagnostics.fixes`; to be removed."""

from __future__ import annotations

from diagnostics.fixes import (
    DOES_NOT_HELP as FAILS,
)
from diagnostics.fixes import (
    NOT_TESTED as UNTRIED,
)
from diagnostics.fixes import (
    VERIFIED as SHOWN,
)
from diagnostics.fixes import (
    Action,
    Advice,
    Edit,
    Explain,
    Install,
    Run,
    SetOption,
    SetVariables,
    Uninstall,
    Unset,
    Words,
)
from diagnostics.fixes import Fix as Remedy
from diagnostics.fixes import RankedMitigation as Offer
from diagnostics.fixes import map_texts as each_text

STANDINGS = (SHOWN, UNTRIED, FAILS)
__all__ = [
    "FAILS", "SHOWN", "STANDINGS", "UNTRIED", "Action", "Advice", "Edit", "Explain", "Install", "Offer", "Remedy",
    "Run", "SetOption", "SetVariables", "Uninstall", "Unset", "Words", "each_text",
]  # fmt: skip
