"""Register the test platform of `harness_platform` with vLLM's plugin search."""


def register():
    """Return where vLLM finds the platform."""
    return "harness_platform.Platform"
