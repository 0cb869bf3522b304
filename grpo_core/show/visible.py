"""What is printed of a stranger's text acts on nothing, neither on a terminal nor on a CI runner."""

from __future__ import annotations

import re

# Controls but newline, tab and colours; marks of direction; separators of lines; tags that nobody sees.
_ACTING = re.compile(
    r"\x1b(?!\[[0-9;]{0,16}m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
# The last `#` of `##[error]`, wherever it stands, and the first colon of `::error` behind nothing but blanks.
_COMMAND_OF_CI = re.compile(r"##(?=\w{0,32}\[)|(?m:^)[^\S\n]*:(?=:)")


def visible(text: str) -> str:
    """The text with all that a terminal or a CI runner would obey spelled out; colours stay."""
    return _COMMAND_OF_CI.sub(_spelled, _ACTING.sub(_spelled, text))


def _spelled(match: re.Match[str]) -> str:
    return f"{match[0][:-1]}\\u{{{ord(match[0][-1]):04x}}}"
