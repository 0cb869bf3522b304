"""Register the test platform of `harness_platform` with vLLM's plugin search."""


def register():
    """Return the path of the platform class."""
    return "harness_platform.Platform"
