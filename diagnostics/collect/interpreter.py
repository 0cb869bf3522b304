"""Whether an environment's interpreter exists and finds the packages, by its files alone."""

from __future__ import annotations

import os
from pathlib import Path

from diagnostics.collect import search_path
from diagnostics.collect.search_path import SearchPath

# Present in every environment.
INSTALLERS = {"pip", "setuptools", "wheel"}


def release(prefix: Path) -> str:
    """Return the Python release by `pyvenv.cfg`, else the releases of the package folders: "3.11.7", "3.11, 3.12"."""
    settings, _ = search_path.venv_settings(prefix)
    if stated := settings.get("version") or settings.get("version_info"):
        return stated.removesuffix(".final.0")  # as virtualenv writes it
    names = {folder.parent.name for folder in search_path.own_folders(prefix, "")}
    return ", ".join(sorted(name.removeprefix("python") for name in names))


def finds_packages(prefix: Path, search: SearchPath) -> bool:
    """Return whether the interpreter's own folder has the packages, rather than a folder of another Python."""
    local = {str(entry.path) for entry in search.entries if entry.kind == "own"}
    remaining = {str(folder) for folder in prefix.glob("lib/python3.*/site-packages")}
    return bool(local) and (any(map(_has_packages, local)) or not any(map(_has_packages, remaining - local)))


def _has_packages(folder: str) -> bool:
    """Return whether a folder has more than installers."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - as text
    except OSError:
        return False
    metadata_folders = (name for name in names if name.endswith((".dist-info", ".egg-info")))
    return any(name.partition("-")[0] not in INSTALLERS for name in metadata_folders)


def problems(prefix: Path, search: SearchPath, *, finds_own: bool) -> tuple[tuple[str, str], ...]:
    """Return problems of the interpreter: missing, without its base Python, or another Python release."""
    results = []
    bin_ = prefix / "bin"
    interpreters = (bin_ / "python", bin_ / "python3", prefix / "Scripts")
    if (prefix / "pyvenv.cfg").is_file() and not any(map(os.path.lexists, interpreters)):
        results.append((str(bin_ / "python"), "there is no interpreter"))
    if search.home and not os.path.isdir(search.home):  # noqa: PTH112 - a name that no folder can have is no error
        results.append((str(prefix / "pyvenv.cfg"), f"home = {search.home}, which is not there"))
    folders = list(prefix.glob("lib/python3.*/site-packages"))
    remaining = sorted(
        {item.parent.name for item in [f for f in folders if _has_packages(str(f))] or folders}
    )
    if search.release and remaining and not finds_own:
        reason = f"it is Python {search.release}; the packages are those of {', '.join(remaining)}"
        results.append((str(bin_ / "python"), reason))
    return tuple(results)


def dangling_links(prefix: Path) -> tuple[tuple[str, str], ...]:
    """Return (link, target) of interpreters that are links to nothing."""
    links = [path for path in sorted(prefix.glob("bin/python*")) if path.is_symlink() and not path.exists()]
    return tuple((str(path), str(path.readlink())) for path in links)
