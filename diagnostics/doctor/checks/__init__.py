"""The checks of doctor's static tier, which read collected facts. Importing this package registers all of them."""

from diagnostics.doctor.checks import (  # noqa: F401
    binaries,
    compatibility,
    driver_and_gpus,
    environment_variables,
    import_problems,
    known_issues,
    machine_resources,
    metadata_and_requirements,
    missing_names,
    ray_clusters,
)
