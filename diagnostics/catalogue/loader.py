"""Reads catalogue entries; refuses a bad one by file, line, key and what was expected.

Standard library only, so that a repro inside a cell may ask for an entry. What patterns match is checked by
`diagnostics.catalogue.signatures`, which needs RE2.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.catalogue.entries import CODE, check_of, issue_of
from diagnostics.catalogue.kept import kept
from diagnostics.tables import Table, TableError, TableSource, close_matches

if TYPE_CHECKING:
    from collections.abc import Container

    from diagnostics.catalogue import model

FOLDER = Path(__file__).parent / "issues"
CHECKS = Path(__file__).parent / "checks"


class CatalogueError(ValueError):
    """Raised when an entry can't be used or a code isn't known; the message is one line for the user."""


def load(folder: Path = FOLDER) -> dict[str, model.Issue]:
    """Reads all entries of a folder, by code.

    Raises:
        CatalogueError: The first entry that can't be used, with file, line, key and what was expected.
    """
    issues: dict[str, model.Issue] = {}
    paths = sorted(folder.glob("*.toml"))
    read = _documents(paths) if folder == FOLDER else {}
    for path in paths:
        issue = _of_document(path, read[path.stem]) if path.stem in read else load_file(path)
        issues[issue.code] = issue
    if not issues:
        raise CatalogueError(f"{folder}: expected at least one entry, a file CODE.toml")
    return issues


def holding(key: str, but: Container[str] = ()) -> list[model.Issue]:
    """The shipped entries that have a key, and no others made of what is read.

    Args:
        key: Such as `config`.
        but: Codes to leave out.
    """
    paths = sorted(FOLDER.glob("*.toml"))
    read = _documents(paths)
    if not read:
        return [issue for issue in load().values() if getattr(issue, key) and issue.code not in but]
    return [
        _of_document(path, read[path.stem])
        for path in paths
        if read[path.stem].get(key) and path.stem not in but
    ]


def find(code: str, folder: Path = FOLDER) -> model.Issue:
    """Reads the entry of a code, whatever its case.

    Raises:
        CatalogueError: There is no such entry; the message says which are close.
    """
    path = folder / f"{code.upper()}.toml"
    if CODE.fullmatch(code.upper()) and path.is_file():
        return load_file(path)
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
    try:
        return check_of(path, _read(path))
    except TableError as error:
        raise CatalogueError(str(error)) from None


def load_checks(folder: Path = CHECKS) -> dict[str, model.CheckCode]:
    """All codes of the checks' own, which are no known issues."""
    return {path.stem: find_check(path.stem, folder) for path in sorted(folder.glob("*.toml"))}


def is_check(code: str, folder: Path = CHECKS) -> bool:
    """Tells whether a code is of a check's own."""
    return bool(CODE.fullmatch(code)) and (folder / f"{code}.toml").is_file()


def load_file(path: Path) -> model.Issue:
    """Reads and checks one entry."""
    try:
        return issue_of(path, _read(path))
    except TableError as error:
        raise CatalogueError(str(error)) from None


def _documents(paths: list[Path]) -> dict[str, Any]:
    """What the shipped files hold, by name; nothing where one of them can't be read, which is said of it then."""

    def parsed() -> dict[str, Any]:
        return {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in paths}

    try:
        found: dict[str, Any] = kept("issues", paths, parsed)
    except (OSError, ValueError):
        return {}
    return found


def _of_document(path: Path, document: dict[str, Any]) -> model.Issue:
    """An entry out of what its file holds; one that is refused is read again, to say where."""
    try:
        return issue_of(path, Table(TableSource(path, ""), (), document))
    except TableError:
        return load_file(path)


def _read(path: Path) -> Table:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"{path}: is not TOML: {error}") from None
    return Table(TableSource(path, text), (), document)
