"""Import what the tests of the whole suite import, in the process that pytest-xdist's workers are forked from.

As in pytest, a warning is an error. In a session without PyTorch, less is imported.
"""

import contextlib
import importlib
import warnings

import anyio

# pytest refuses its plugins' packages that were imported before, and transformers imports this one.
anyio.__doc__ = "PYTEST_DONT_REWRITE"
MODELS = ("peft", "transformers.models.llama.modeling_llama")
with warnings.catch_warnings(), contextlib.suppress(ModuleNotFoundError):
    warnings.simplefilter("error")
    for module in ("tests.preload_commands", *MODELS, "grpo_core.run", "grpo_core.rollout.server.app"):
        importlib.import_module(module)
