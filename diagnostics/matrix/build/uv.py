"""Finds uv and gives it the settings that the machine gives to pip.

Standard library only, since the noxfile imports it before anything is installed. People and companies
configure pip (index, certificates, a folder of wheels); uv reads none of that, so the settings are handed on
under uv's names.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# pip's setting, uv's, and how several values are separated: (pip's variable, uv's variable, joined by).
_SETTINGS = (
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", " "),
    ("PIP_EXTRA_INDEX_URL", "UV_INDEX", " "),
    ("PIP_FIND_LINKS", "UV_FIND_LINKS", ","),
    ("PIP_NO_INDEX", "UV_NO_INDEX", " "),
    ("PIP_TRUSTED_HOST", "UV_INSECURE_HOST", " "),
    ("PIP_DEFAULT_TIMEOUT", "UV_HTTP_TIMEOUT", " "),
    ("PIP_CERT", "SSL_CERT_FILE", " "),
)
_TORCH_WHEEL = re.compile(r"torch-(?P<version>[0-9.]+)\+cpu-(?P<tag>cp\d+)-")


class UvMissingError(RuntimeError):
    """Raised when no uv executable can be found on this machine."""


def find_uv() -> Path:
    """Returns the uv executable: beside this Python, from the `uv` package, or on PATH.

    Raises:
        UvMissingError: when there is none.
    """
    beside = Path(sys.executable).parent / ("uv.exe" if os.name == "nt" else "uv")
    if beside.is_file():
        return beside
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        pass
    found = shutil.which("uv")
    if found is None:
        raise UvMissingError("no uv executable: install it with `python -m pip install uv`")
    return Path(found)


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to add for uv, so that it obeys what the machine tells pip.

    What is already set under uv's own name is left alone.

    >>> uv_environment({"PIP_FIND_LINKS": "/a /b", "PIP_CERT": "ca.pem", "SSL_CERT_FILE": "mine.pem"})
    {'UV_FIND_LINKS': '/a,/b'}
    """
    added = {}
    for pip, uv, separator in _SETTINGS:
        value = environ.get(pip, "").strip()
        if value and not environ.get(uv):
            added[uv] = separator.join(value.split())
    if "UV_INDEX" in added and not environ.get("UV_INDEX_STRATEGY"):
        # pip looks at all indexes and takes the best version; uv would stop at the first that has the name.
        added["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return added


def find_links(environ: Mapping[str, str]) -> list[Path]:
    """Returns the local folders of wheels that the machine offers."""
    value = environ.get("UV_FIND_LINKS") or environ.get("PIP_FIND_LINKS") or ""
    folders = (Path(part.removeprefix("file://")) for part in re.split(r"[,\s]+", value) if part)
    return [folder for folder in folders if folder.is_dir()]


def torch_arguments(
    environ: Mapping[str, str], *, python: tuple[int, int] = sys.version_info[:2], version: str | None = None
) -> list[str]:
    """Returns what to add to a `uv pip` command so that torch comes in its build for CPUs.

    A folder of wheels that holds such a build for this Python (and version) is enough; otherwise uv is told
    to use PyTorch's own index for CPUs. Without either the build for CUDA comes, gigabytes for nothing.
    """
    offered = _offered(environ, python)
    return [] if offered and version in {None, *offered} else ["--torch-backend", "cpu"]


def _offered(environ: Mapping[str, str], python: tuple[int, int]) -> list[str]:
    names = (wheel.name for folder in find_links(environ) for wheel in folder.glob("torch-*.whl"))
    found = (_TORCH_WHEEL.match(name) for name in names)
    return [wheel["version"] for wheel in found if wheel and wheel["tag"] == f"cp{python[0]}{python[1]}"]
