"""Diagnosis of GRPO runs on vLLM: environment, configuration, logs. Imports nothing heavy."""


def version() -> str:
    """Returns the installed release; 0.0.0 where the sources are used without being installed."""
    from importlib import metadata

    try:
        return metadata.version("grpo-doctor")
    except metadata.PackageNotFoundError:
        return "0.0.0"
