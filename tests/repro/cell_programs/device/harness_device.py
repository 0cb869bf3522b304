"""Tells vLLM's plugin search of a platform for tests, which `harness_platform` describes."""


def register():
    """Returns where vLLM finds the platform."""
    return "harness_platform.Platform"
