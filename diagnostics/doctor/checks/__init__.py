"""The checks of doctor's static tier, which read files only. Importing this package registers them all."""

from diagnostics.doctor.checks import (  # noqa: F401
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
