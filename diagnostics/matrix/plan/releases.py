"""What the index says of the releases of TRL and vLLM: when each was uploaded, and which vLLM TRL declares.

Kept in a committed file beside the locks, so that the same cells are generated on every machine, without a network.
`python -m diagnostics.matrix releases` reads the index again.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from diagnostics import given
from diagnostics.tables import TableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA = "grpo-doctor.releases.v1"
FILE = "releases.json"


@dataclass(frozen=True)
class Release:
    """One final release that is not yanked and has a wheel for x86_64 Linux."""

    version: str
    uploaded: datetime.date
    """Day of its first wheel, UTC."""
    python: str
    """Its Requires-Python; '' for any."""
    vllm: str | None = None
    """Of TRL: what its vllm extra allows, '' for any; None where it was not read."""

    @property
    def line(self) -> tuple[int, int]:
        """Its minor release, as (0, 25)."""
        found = Version(self.version)
        return found.major, found.minor


@dataclass(frozen=True)
class Releases:
    """All of them, oldest version first."""

    read: datetime.date
    """The day on which the index was asked (UTC)."""
    trl: tuple[Release, ...]
    vllm: tuple[Release, ...]

    def find(self, distribution: str, version: str) -> Release | None:
        """Returns a release, None if there is none of that version."""
        known: tuple[Release, ...] = getattr(self, distribution)
        return next((item for item in known if Version(item.version) == Version(version)), None)


def load(path: Path) -> Releases | None:
    """Reads the file; None if there is none.

    Raises:
        TableError: one line, when it is something else.
    """
    try:
        document = json.loads(given.read(path, given.LIST))
        if document["schema"] != SCHEMA:
            raise TableError(f"{path}: schema is {document['schema']!r}: expected {SCHEMA!r}")
        return Releases(
            datetime.date.fromisoformat(document["read"]),
            _releases(document["trl"]),
            _releases(document["vllm"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{path}: cannot be read ({type(error).__name__}: {error}): "
            "`python -m diagnostics.matrix releases` writes it again"
        ) from None


def _releases(items: Iterable[Mapping[str, Any]]) -> tuple[Release, ...]:
    return tuple(
        Release(
            item["version"], datetime.date.fromisoformat(item["uploaded"]), item["python"], item.get("vllm")
        )
        for item in items
    )


def render(found: Releases) -> str:
    """Returns the file's text: one line a release."""

    def line(item: Release) -> str:
        values = {key: value for key, value in asdict(item).items() if value is not None}
        return json.dumps(values | {"uploaded": item.uploaded.isoformat()})

    def listed(items: Iterable[Release]) -> str:
        return ",\n  ".join(line(item) for item in items)

    head = f'"schema": "{SCHEMA}",\n "read": "{found.read.isoformat()}"'
    return f'{{{head},\n "trl": [\n  {listed(found.trl)}\n ],\n "vllm": [\n  {listed(found.vllm)}\n ]}}\n'


def fits(specifier: str, version: str) -> bool:
    """Tells whether a version lies within a specifier; '' allows all.

    >>> fits(">=0.7.0", "0.8.5.post1"), fits("==0.7.2", "0.7.3")
    (True, False)
    """
    try:
        return SpecifierSet(specifier).contains(version)
    except InvalidSpecifier:
        return False


def python_fits(release: Release, python: str) -> bool:
    """Tells whether a release can be installed with this Python, given as '3.11'."""
    # The newest patch release of that Python: what is asked for is that some of it will do.
    return fits(release.python, f"{python}.99")
