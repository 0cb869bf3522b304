"""Return the pip command for a module whose import failed: its distribution, or the extra of grpo-doctor that has it.

Standard library only, so that it works if a dependency is missing.
"""

# Modules that an extra of grpo-doctor installs, by extra.
_EXTRAS = {
    "hang": ("py_spy",), "matrix": ("uv",), "ray": ("ray",),
    "train": ("fastapi", "safetensors", "torch", "transformers", "uvicorn"),
}  # fmt: skip
# Modules whose distribution has another name.
_DISTRIBUTIONS = {"re2": "google-re2", "yaml": "pyyaml"}
_OUR_PACKAGES = ("", "diagnostics", "grpo_core", "repro")


def install_hint(error: ModuleNotFoundError) -> str:
    """Return a line with the command that installs a missing module; empty if the module is one of ours.

    >>> install_hint(ModuleNotFoundError(name="re2"))
    'google-re2 is not installed here: pip install google-re2'
    """
    module = (error.name or "").partition(".")[0]
    if module in _OUR_PACKAGES:
        return ""
    distribution = _DISTRIBUTIONS.get(module, module)
    extra = next((name for name, modules in _EXTRAS.items() if module in modules), "")
    requirement = f"'grpo-doctor[{extra}]'" if extra else distribution
    return f"{distribution} is not installed here: pip install {requirement}"
