"""The layers, in the order in which a cell is asked. One file each; adding a layer is adding a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.layers import (
    conformance,
    contract,
    engine,
    imports,
    install,
    resolve,
    scheduler,
    serve,
    today,
    train,
)

if TYPE_CHECKING:
    from diagnostics.matrix.layers.base import Layer

ALL: tuple[Layer, ...] = (
    resolve.LAYER,
    today.LAYER,
    contract.LAYER,
    install.LAYER,
    imports.LAYER,
    scheduler.LAYER,
    engine.LAYER,
    *train.LAYERS,
    conformance.LAYER,
    *serve.LAYERS,
)

BY_NAME = {layer.name: layer for layer in ALL}
