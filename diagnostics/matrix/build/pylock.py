"""Reads a lock as uv writes it by the standard (`pylock.toml`), and writes it as lines with hashes.

The standard form names every file, so that what came out of a folder on this machine can be told from what
the index has. Lines are what pip and uv install, and what a reader can compare.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# How many packages without a hash a lock names in words.
_NAMED = 5


@dataclass(frozen=True)
class Locked:
    """One package of a lock, and the files of it that may be installed."""

    pin: str
    """As 'numpy==2.4.6'."""
    hashes: tuple[str, ...] = ()
    """'sha256:…' of each file that fits the platform, sorted; none of what lies in a folder of this machine."""
    archive: bool = False
    """Only a source archive fits: what installs it has to build it."""

    @property
    def text(self) -> str:
        r"""The package as pip and uv read it.

        >>> print(Locked("a==1", ("sha256:00",)).text)
        a==1 \
            --hash=sha256:00
        """
        return " \\\n    ".join((self.pin, *(f"--hash={item}" for item in self.hashes)))


def read(text: str) -> tuple[Locked, ...]:
    r"""Returns the packages of a lock in the standard form, sorted.

    A package that has wheels for the platform is taken from one of them; only where it has none the source
    archive's hash stands.

    Raises:
        ValueError: it is something else.

    >>> read('[[packages]]\nname = "a"\nversion = "1"\nwheels = [{url = "x", hashes = {sha256 = "0f"}}]')
    (Locked(pin='a==1', hashes=('sha256:0f',), archive=False),)
    """
    try:
        packages = tomllib.loads(text)["packages"]
        return tuple(sorted((_locked(item) for item in packages), key=lambda item: item.pin))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no lock in the standard form: {type(error).__name__}: {error}") from None


def _locked(package: Mapping[str, Any]) -> Locked:
    files = package.get("wheels") or [package[key] for key in ("sdist", "archive") if key in package]
    # Another machine takes such a package from an index, where its file may be another build.
    shared = [item for item in files if not item.get("url", "").startswith("file:") and "path" not in item]
    hashes = {f"{kind}:{value}" for item in shared for kind, value in item.get("hashes", {}).items()}
    pin = f"{package['name']}=={package['version']}"
    return Locked(pin, tuple(sorted(hashes)), archive=bool(files) and not package.get("wheels"))


def text(packages: Iterable[Locked]) -> str:
    """Returns the lock's lines, sorted by package."""
    return "".join(f"{item.text}\n" for item in sorted(packages, key=lambda item: item.pin))


def digest(packages: Iterable[Locked]) -> str:
    """Returns the digest of the lock with all its hashes, as 'sha256:…': it changes when a file of it does."""
    return f"sha256:{hashlib.sha256(text(packages).encode()).hexdigest()}"


def uncovered(packages: Iterable[Locked]) -> list[str]:
    """Returns the pins that no hash protects."""
    return [item.pin for item in packages if not item.hashes]


def coverage(packages: Iterable[Locked]) -> str:
    """Says how many packages carry hashes, and which don't."""
    found = list(packages)
    bare = uncovered(found)
    if not bare:
        return f"{len(found)} packages, each with the hashes of its files"
    named = ", ".join(bare[:_NAMED]) + (", …" if len(bare) > _NAMED else "")
    return f"{len(found)} packages; no hash for {named}, from a folder of wheels or an index without hashes"
