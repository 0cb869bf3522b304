"""Old name of the text functions of `diagnostics.fixes`; to be removed."""

from __future__ import annotations

from diagnostics import fixes
from diagnostics.fixes import (
    command_of,
    commands_of,
    one_line,
    sentence_of,
)

quoted = fixes.quote_command
number = fixes.count_of
folded = fixes.fold_command
edit_of = fixes.edit_text
plain = fixes.edit_without_framework
offer_line = fixes.mitigation_line
failure_line = fixes.failed_mitigation_line
lines_of = fixes.fix_lines
text_of = fixes.fix_text
as_json = fixes.Fix.to_json
STANDINGS = fixes.RESULT_TEXT
KINDS = fixes.ACTION_KINDS
IN_OTHER_WORDS = "verified with another framework's options"
__all__ = [
    "IN_OTHER_WORDS", "KINDS", "STANDINGS", "as_json", "command_of", "commands_of", "edit_of", "failure_line", "folded",
    "lines_of", "number", "offer_line", "one_line", "plain", "quoted", "sentence_of", "text_of",
]  # fmt: skip
