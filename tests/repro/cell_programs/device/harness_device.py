"""Register the platform of `harness_platform` as a vLLM plugin."""


def register():
    """Return the path of the platform class."""
    return "harness_platform.Platform"
