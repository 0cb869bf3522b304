"""The catalog: known issues and check codes, one TOML file each.

This module loads the entries (`load`, `load_checks`); the other modules match, search, rank and export them. Parsing
all entries takes 0.5 s, so they are also packed into one JSON file, which is next to the entries and in the wheel. It
contains a hash of the entries and of the code that reads them. If one of these changed, all entries are read again, and
the file is written if its folder is writable. A bad entry is refused with file, line, key and what was expected. `find`
looks up one code.
"""

import contextlib
import hashlib
import tomllib
from collections.abc import Callable, Container
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from diagnostics import UserError
from diagnostics.catalog import model
from diagnostics.safe_io import write_atomically
from diagnostics.toml_source import TomlError, TomlSource, close_matches

FOLDER = Path(__file__).parent / "issues"
CHECKS = Path(__file__).parent / "checks"
PACKED = Path(__file__).parent / "packed.json"
# The code that a packed entry depends on.
_READERS = ("__init__.py", "schema.py", "model.py", "signatures.py")
_Entry = TypeVar("_Entry", model.Issue, model.CheckCode)


class CatalogError(UserError, ValueError):
    """Raised for an entry that cannot be used or a code that is unknown; the message is for the user."""


class _Packed(msgspec.Struct):
    """Contents of the packed file."""

    hash: str
    issues: dict[str, model.Issue]
    checks: dict[str, model.CheckCode]
    literals: dict[str, tuple[str, ...]]


def load() -> dict[str, model.Issue]:
    """Return all known issues by code.

    Raises:
        CatalogError: The first entry that cannot be used.
    """
    return dict(_shipped().issues)


def load_checks() -> dict[str, model.CheckCode]:
    """Return the entries of check codes: codes of findings that are not known issues."""
    return dict(_shipped().checks)


def issues_with_config(excluded: Container[str] = ()) -> list[model.Issue]:
    """Return the known issues with a [[config]] table (settings that cause the issue), without the excluded codes."""
    return [issue for issue in load().values() if issue.config and issue.code not in excluded]


def pattern_literals() -> dict[str, tuple[str, ...]]:
    """Return the literal texts of each pattern of the entries; patterns with too short texts are left out."""
    return _shipped().literals


def find(code: str) -> model.Issue:
    """Return the known issue with a code, in any letter case.

    Raises:
        CatalogError: The code is unknown; the message names similar ones.
    """
    issues = _shipped().issues
    if code.upper() in issues:
        return issues[code.upper()]
    families = ", ".join(dict.fromkeys(name.rstrip("0123456789") for name in issues))
    hint = close_matches(code.upper(), issues) or f" (families: {families}; `catalog` lists all)"
    raise CatalogError(f"unknown code {code!r}{hint}")


def load_file(path: Path) -> model.Issue:
    """Read and check the entry of one known issue; patterns and samples are checked by `signatures.check`."""
    from diagnostics.catalog.schema import parse_issue  # not needed where the packed file is up to date

    return _load(path, parse_issue)


def load_check_file(path: Path) -> model.CheckCode:
    """Read and check the entry of one check code."""
    from diagnostics.catalog.schema import parse_check  # as above

    return _load(path, parse_check)


def _load(path: Path, parse: Callable[[TomlSource, dict[str, Any]], _Entry]) -> _Entry:
    try:
        text = path.read_text(encoding="utf-8")
        return parse(TomlSource(path, text), tomllib.loads(text))
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{path}: cannot be read: {error}") from None
    except (AttributeError, TypeError) as error:  # a table where a list is expected, or the reverse
        raise CatalogError(f"{path}: a table, list or text of another shape than expected: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{path}: is not TOML: {error}") from None
    except TomlError as error:
        raise CatalogError(str(error)) from None


@cache
def _shipped() -> _Packed:
    """Return the shipped entries, from the packed file if it is up to date."""
    current = _hash()
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        packed = msgspec.json.decode(PACKED.read_bytes(), type=_Packed)
        if packed.hash == current:
            return packed
    return pack(current)


def pack(current_hash: str = "") -> _Packed:
    """Read all entries, write the packed file if its folder is writable, and return its contents."""
    from diagnostics.catalog.signatures import literals  # as above

    issues = {path.stem: load_file(path) for path in sorted(FOLDER.glob("*.toml"))}
    checks = {path.stem: load_check_file(path) for path in sorted(CHECKS.glob("*.toml"))}
    signatures = [issue.signature for issue in issues.values() if issue.signature]
    patterns = (pattern for item in signatures for pattern in (*item.any, *item.all, *item.none))
    usable = {pattern: texts for pattern in patterns if (texts := literals(pattern))}
    packed = _Packed(current_hash or _hash(), issues, checks, usable)
    with contextlib.suppress(OSError):
        write_atomically(PACKED, msgspec.json.encode(packed), mode=0o644)
    return packed


def _hash() -> str:
    """Return the hash of the catalog's files and of the code that reads them."""
    digest = hashlib.blake2b(digest_size=16)
    folder = Path(__file__).parent
    for path in (*(folder / name for name in _READERS), *sorted(folder.glob("*/*.toml"))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
