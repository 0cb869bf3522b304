"""The key-value cache argument and output field, under the name the installed transformers release uses.

transformers 5.24 renames `past_key_values` to `cache` (removal announced for 5.40) and warns for the old name; earlier
releases know only `past_key_values`. The model's own signature decides, because models are renamed one by one.
"""

from __future__ import annotations

import inspect
from typing import Any


def cache_kwargs(model: Any, cache: Any) -> dict[str, Any]:
    """Return the keyword argument that passes `cache` to `model.forward`."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
    return {name: cache}


def output_cache(output: Any) -> Any:
    """Return the key-value cache of a model output."""
    fields = output.keys()
    return output["cache"] if "cache" in fields else output["past_key_values"]
