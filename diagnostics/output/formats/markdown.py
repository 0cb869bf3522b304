"""Old name of `diagnostics.output.markdown`; to be removed."""

from __future__ import annotations

from diagnostics.output.markdown import code_block as _block
from diagnostics.output.markdown import escape as text_of
from diagnostics.output.markdown import render

__all__ = ["_block", "render", "text_of"]
