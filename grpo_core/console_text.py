"""Prepare text for the console: escape control characters and CI commands; explain how to install a missing module.

`escape` and `describe_missing_module` do so.
"""

from __future__ import annotations

import re

# Modules that the extra `train` installs.
_TRAIN = frozenset({"fastapi", "safetensors", "torch", "transformers", "uvicorn"})
_CPU = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
# Control characters except newline and tab; direction marks; line separators; invisible tags.
_ACTING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
# CI commands: `##[error]` anywhere, `::error` at the start of a line.
_COMMAND_OF_CI = re.compile(r"##(?=\w{0,32}\[)|(?m:^)[^\S\n]*:(?=:)")


def describe_missing_module(error: Exception) -> str:
    """Return advice to install a missing module; empty for any other error and for our own modules."""
    cause: BaseException | None = error
    # transformers raises an error without a module's name; the error that caused it has the name.
    while isinstance(cause, ModuleNotFoundError) and not cause.name:
        cause = cause.__cause__
    module = (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
    if module in {"", "grpo_core"}:
        return ""
    requirement = "'grpo-doctor[train]'" if module in _TRAIN else module
    # The default build is large.
    more = f" (with CUDA: gigabytes; the CPU's comes by {_CPU} first)" if module == "torch" else ""
    return f"{module} is not installed here: pip install {requirement}{more}"


def escape(text: str) -> str:
    r"""Escape CI workflow commands and control characters as JSON does, so that a JSON document stays valid.

    Newline and tab are not escaped.

    >>> escape('{"error": "##[group]"}')
    '{"error": "#\\u0023[group]"}'
    """
    return _COMMAND_OF_CI.sub(_as_json_escape, _ACTING.sub(_as_json_escape, text))


def _as_json_escape(match: re.Match[str]) -> str:
    letters = match[0][-1].encode("utf-16-be", "surrogatepass").hex()
    return match[0][:-1] + "".join(f"\\u{letters[at : at + 4]}" for at in range(0, len(letters), 4))
