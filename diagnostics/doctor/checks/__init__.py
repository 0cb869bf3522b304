"""The checks of `doctor`'s static tier."""

from __future__ import annotations

from diagnostics.doctor.checks import (
    base,
    binaries,
    compatibility,
    gpus,
    host,
    known_issues,
    names,
    packages,
    ray,
    search_path,
    variables,
)

BY_NAME = {name: [check for check in base.REGISTERED if check.name == name] for name in base.CHECKS}
"""The functions of each check."""

__all__ = [
    "BY_NAME", "base", "binaries", "compatibility", "gpus", "host", "known_issues", "names", "packages", "ray",
    "search_path", "variables",
]  # fmt: skip
