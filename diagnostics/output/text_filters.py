"""Mask secrets, escape control characters and redact identities in the texts of a report or document.

`mask_for_screen` masks and escapes; `redact_for_sharing` also redacts. `report_output` uses them before it renders a
report; some commands use them for other documents and messages. `change_texts` applies any function to the texts of
nested data.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

from diagnostics.collect.metadata_validation import is_package_version
from diagnostics.cpu_limit import cpu_limit
from diagnostics.fixes import NOT_SHOWN, Advice, ShellCommand, line_of
from diagnostics.output import redact, sanitize

T = TypeVar("T")
_MASKING_S = 60.0
Change = Callable[[str], str]
Skip = frozenset[tuple[str, str]]
"""Fields that stay as they are, as (name of the dataclass, name of the field)."""
# Texts that may have several lines; every other text is one line.
_MULTI_LINE = {("Finding", "detail"), ("Advice", "text")}
# Fields with fixed words: if one contains a secret or a host's name, it is a coincidence.
FIXED_WORDS: Skip = frozenset({
    ("Finding", "code"), ("Finding", "certainty"), ("Finding", "known_by"), ("CheckResult", "outcome"),
    ("Report", "tool"), ("RankedMitigation", "standing"),
})  # fmt: skip
# Formats with a field for a file redact the location themselves.
_LOCATIONS = frozenset({("Evidence", "place")})


def mask_for_screen(value: T) -> T:
    """Mask secrets and escape control characters in the texts of nested data, for the user's own screen."""
    masked = lru_cache(1024)(redact.mask)
    return change_texts(
        value,
        lambda text: sanitize.escape_line(masked(text)),
        lambda text: sanitize.escape(masked(text)),
        FIXED_WORDS,
    )


def redact_for_sharing(value: T, *, locations: bool = True) -> T:
    """Redact what identifies a person or a machine, then do what `mask_for_screen` does, for a text that is shared.

    Control characters are escaped last, because an escape can hide the start of a line or a word.

    Args:
        value: A report, a plan or a document.
        locations: Whether to redact locations of evidence too.
    """
    skip = FIXED_WORDS if locations else FIXED_WORDS | _LOCATIONS
    return mask_for_screen(change_texts(value, cache(redact.redact), skip=skip))


def change_texts(value: T, line: Change, prose: Change | None = None, skip: Skip = frozenset()) -> T:
    """Return nested data with changed texts and dict keys.

    A release under the key `version` or `python` stays, because it can look like an address.

    Args:
        value: Dataclasses, dicts, lists and tuples of texts; other values stay.
        line: Function for a text.
        prose: Function for a text of several lines; None to use `line`.
        skip: Fields that stay as they are.

    Raises:
        CpuLimitError: The functions took too much processor time.
    """
    with cpu_limit("masking the texts of the report", _MASKING_S):
        changed: T = _change(value, line, prose or line, skip)
    return changed


def _change(value: Any, line: Change, prose: Change, skip: Skip) -> Any:
    """Do what `change_texts` does; a command is quoted before its words change."""
    if isinstance(value, str):
        return line(value)
    if isinstance(value, dict):
        return {
            line(key) if isinstance(key, str) else key: _dict_value(key, item, line, prose, skip)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_change(item, line, prose, skip) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    name = type(value).__name__
    if isinstance(value, ShellCommand):
        if any(map(sanitize.has_control, value.words)):  # type: ignore[attr-defined]  # each subclass has words
            return Advice(NOT_SHOWN)  # escaped words would name something else
        quoted = line_of(value)  # type: ignore[arg-type]  # one of its subclasses
        value = replace(value, line=NOT_SHOWN if redact.MASK in redact.mask(quoted) else quoted)
    changed = {}
    for field in fields(value):
        if field.init and (name, field.name) not in skip:
            change = prose if (name, field.name) in _MULTI_LINE else line
            changed[field.name] = _change(getattr(value, field.name), change, prose, skip)
    return replace(value, **changed)


def _dict_value(key: Any, item: Any, line: Change, prose: Change, skip: Skip) -> Any:
    """Change a dict's value alone, and then with its key, because the value of a key `password` is always secret."""
    if not isinstance(key, str) or not isinstance(item, str):
        return _change(item, line, prose, skip)
    # Four numbers with dots are a release under these keys, and an IPv4 address under any other key.
    if key in {"version", "python"} and "+" not in item and is_package_version("a", item):
        return item
    prefix, alone = f"{key}=", line(item)
    changed = line(prefix + alone)
    return changed.removeprefix(prefix) if changed.startswith(prefix) else alone
