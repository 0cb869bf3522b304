"""The checks of doctor's static tier, which read collected facts. Importing this package registers all of them."""

from diagnostics.doctor.checks import (  # noqa: F401
    binaries,
    compatibility,
    gpus,
    host,
    known_issues,
    missing_names,
    packages,
    ray,
    search_path,
    variables,
)
