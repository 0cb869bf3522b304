"""Old name of `diagnostics.collect.remote`; to be removed."""

from __future__ import annotations

from diagnostics.collect.remote import MARK, Member, NodeError, one_line
from diagnostics.collect.remote import Answer as NodeAnswer

AnswerError = NodeError
__all__ = ["MARK", "AnswerError", "Member", "NodeAnswer", "one_line"]
