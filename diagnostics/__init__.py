"""Diagnose GRPO training on vLLM: environments, configurations, logs, hung jobs and silent faults.

This file has what the commands share: `UserError`, the base class of errors for the user, the installed `version`, and
`called_as`, the beginning of the commands that we print.
"""

import sys


class UserError(Exception):
    """Raised for input that cannot be used; the message is for the user, and the command exits with 2."""


def called_as() -> str:
    """Return how the user started us: `grpo-doctor`, `python -m diagnostics` or `python -P -m diagnostics`.

    Every command of ours that is printed, in any format, begins so: without `-P`, Python would import from the working
    folder of a user who started us with it.
    """
    safe = "-P " if sys.flags.safe_path else ""
    return (
        "grpo-doctor" if sys.argv[0].rpartition("/")[2] == "grpo-doctor" else f"python {safe}-m diagnostics"
    )


def version() -> str:
    """Return the installed release; 0.0.0 if the sources are used without being installed."""
    # Imported here, because `python -m` imports this file before __main__ removes the working folder from the path.
    from importlib import metadata

    try:
        return metadata.version("grpo-doctor")
    except metadata.PackageNotFoundError:
        return "0.0.0"
