"""What is printed of a stranger's text acts on nothing, neither on a terminal nor on a CI runner."""

from __future__ import annotations

import re

# Controls but newline, tab and what a curve is painted by; marks of direction; separators of lines; tags unseen.
_ACTING = re.compile(
    r"\x1b(?!\[(?:36|0)m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\xad\u061c\u180e\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
# The last `#` of `##[error]`, wherever it stands, and the first colon of `::error` behind nothing but blanks.
_COMMAND_OF_CI = re.compile(r"##(?=\w{0,32}\[)|(?m:^)[^\S\n]*:(?=:)")


def visible(text: str) -> str:
    r"""The text with all that a terminal or a CI runner would obey spelled out as JSON does: a document stays one.

    >>> visible('{"error": "##[group]"}')
    '{"error": "#\\u0023[group]"}'
    """
    return _COMMAND_OF_CI.sub(_spelled, _ACTING.sub(_spelled, text))


def _spelled(match: re.Match[str]) -> str:
    letters = match[0][-1].encode("utf-16-be", "surrogatepass").hex()
    return match[0][:-1] + "".join(f"\\u{letters[at : at + 4]}" for at in range(0, len(letters), 4))
