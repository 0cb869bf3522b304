"""All layers, in the order in which a cell is asked: what stands in `ask/layers`, and listed nowhere."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.matrix.ask import layers
from diagnostics.matrix.plan import cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from diagnostics.matrix.ask.layer import Layer


def _found() -> Iterator[Layer]:
    for file in pkgutil.iter_modules(layers.__path__, f"{layers.__name__}."):
        module = importlib.import_module(file.name)
        yield from (replace(layer, modules=(file.name, *layer.modules)) for layer in module.LAYERS)


def in_order(found: Iterable[Layer]) -> tuple[Layer, ...]:
    """Returns the layers by order and name.

    Raises:
        ValueError: two have one name, or one needs what does not come before it.
    """
    known: dict[str, Layer] = {}
    for layer in sorted(found, key=lambda item: (item.order, item.name)):
        late = [name for name in layer.needs if name not in known]
        if layer.name in known or late:
            what = f"needs {', '.join(late)} before it" if late else "is there twice"
            raise ValueError(f"layer {layer.name} {what}: {' '.join(layer.modules)}")
        known[layer.name] = layer
    return tuple(known.values())


ALL = in_order(_found())
BY_NAME = {layer.name: layer for layer in ALL}


def load(path: Path) -> cells.Matrix:
    """Reads and checks a matrix file that speaks of these layers.

    Raises:
        TableError: one line naming file, line, key, value and what was expected.
    """
    return cells.load(path, ALL)
