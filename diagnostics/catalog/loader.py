"""Reads catalogue entries; refuses a bad one by file, line, key and what was expected.

Standard library only, so that a repro inside a cell may ask for an entry. What patterns match is checked by
`diagnostics.catalog.signatures`, which needs RE2. What reads TOML is loaded where a file of it has to be read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import UserError
from diagnostics.catalog import kept, model
from diagnostics.uncollected import uncollected

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from diagnostics.tables import Table

FOLDER = Path(__file__).parent / "issues"
CHECKS = Path(__file__).parent / "checks"
# The code that an entry as it is kept was made by, beside the entries' files.
_MAKERS = tuple(
    Path(__file__).parents[1] / name
    for name in (
        "catalog/entries.py", "catalog/model.py", "frameworks.py", "fixes.py",
        "tables.py",
    )
)  # fmt: skip


class CatalogueError(UserError, ValueError):
    """Raised when an entry can't be used or a code isn't known; the message is one line for the user."""


def load(folder: Path = FOLDER) -> dict[str, model.Issue]:
    """Reads all entries of a folder, by code.

    Raises:
        CatalogueError: The first entry that can't be used, with file, line, key and what was expected.
    """
    if folder == FOLDER:
        shipped = kept.kept("entries", _sources(), _packed)["issues"]
        with uncollected():
            return {code: kept.unpacked(data) for code, data in shipped.items()}
    return _load(folder)


def _load(folder: Path) -> dict[str, model.Issue]:
    issues = {issue.code: issue for issue in map(load_file, sorted(folder.glob("*.toml")))}
    if not issues:
        raise CatalogueError(f"{folder}: expected at least one entry, a file CODE.toml")
    return issues


def _packed() -> dict[str, dict[str, bytes]]:
    """The shipped entries, checked, each by itself: most answers need few."""
    entries: dict[str, Mapping[str, object]] = {"issues": _load(FOLDER), "checks": load_checks()}
    return {
        kind: {code: kept.packed(entry) for code, entry in found.items()} for kind, found in entries.items()
    }


def _sources() -> list[Path]:
    """All that the shipped entries depend on: their files, and the code that makes them."""
    return [*_MAKERS, *sorted(FOLDER.glob("*.toml")), *sorted(CHECKS.glob("*.toml"))]


def _one(kind: str, path: Path) -> Any:
    """A shipped entry as it is kept; None where it is not, or is another file's."""
    shipped = _kept() if path.parent in {FOLDER, CHECKS} else {}
    data = shipped.get(kind, {}).get(path.stem)
    return None if data is None else kept.unpacked(data)


@cache
def _kept() -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = kept.found("entries", _sources()) or {}
    return found


def with_config(but: Container[str] = ()) -> list[model.Issue]:
    """The shipped entries that say by which settings they come about, but for some codes."""

    def made() -> list[model.Issue]:
        return [issue for issue in load().values() if issue.config]

    found: list[model.Issue] = kept.kept("config", _sources(), made)
    return [issue for issue in found if issue.code not in but]


def find(code: str, folder: Path = FOLDER) -> model.Issue:
    """Reads the entry of a code, whatever its case.

    Raises:
        CatalogueError: There is no such entry; the message says which are close.
    """
    path = folder / f"{code.upper()}.toml"
    if model.CODE.fullmatch(code.upper()) and path.is_file():
        issue: model.Issue = _one("issues", path) or load_file(path)
        return issue
    from diagnostics.tables import close_matches

    known = sorted(path.stem for path in folder.glob("*.toml"))
    families = ", ".join(dict.fromkeys(each.rstrip("0123456789") for each in known))
    hint = close_matches(code.upper(), known) or f" (families: {families}; `catalogue` lists all)"
    raise CatalogueError(f"unknown code {code!r}{hint}")


def find_check(code: str, folder: Path = CHECKS) -> model.CheckCode:
    """Reads the entry of a check's own code.

    Raises:
        CatalogueError: There is no such entry, or it can't be used.
    """
    path = folder / f"{code}.toml"
    entry: model.CheckCode = _one("checks", path) or _load_check(path)
    return entry


def _load_check(path: Path) -> model.CheckCode:
    from diagnostics.catalog.entries import check_of
    from diagnostics.tables import TableError

    try:
        return check_of(path, _read(path))
    except TableError as error:
        raise CatalogueError(str(error)) from None


def load_checks(folder: Path = CHECKS) -> dict[str, model.CheckCode]:
    """All codes of the checks' own, which are no known issues."""
    return {path.stem: _load_check(path) for path in sorted(folder.glob("*.toml"))}


def is_check(code: str, folder: Path = CHECKS) -> bool:
    """Tells whether a code is of a check's own."""
    return bool(model.CODE.fullmatch(code)) and (folder / f"{code}.toml").is_file()


def load_file(path: Path) -> model.Issue:
    """Reads and checks one entry."""
    from diagnostics.catalog.entries import issue_of
    from diagnostics.tables import TableError

    try:
        return issue_of(path, _read(path))
    except TableError as error:
        raise CatalogueError(str(error)) from None


def _read(path: Path) -> Table:
    import tomllib

    from diagnostics.tables import Table, TableSource

    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"{path}: is not TOML: {error}") from None
    return Table(TableSource(path, text), (), document)
