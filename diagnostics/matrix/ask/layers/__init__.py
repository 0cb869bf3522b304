"""The layers, in the order in which a cell is asked. One file each; adding a layer is adding a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers import (
    conformance,
    contract,
    doctor,
    engine,
    imports,
    install,
    logprobs,
    peer,
    repros,
    resolve,
    scheduler,
    serve,
    today,
    train,
)

if TYPE_CHECKING:
    from diagnostics.matrix.ask.layers.base import Layer

ALL: tuple[Layer, ...] = (
    resolve.LAYER,
    today.LAYER,
    contract.LAYER,
    install.LAYER,
    imports.LAYER,
    scheduler.LAYER,
    engine.LAYER,
    logprobs.LAYER,
    *peer.LAYERS,
    *train.LAYERS,
    conformance.LAYER,
    *serve.LAYERS,
    *repros.LAYERS,
    doctor.LAYER,
)

BY_NAME = {layer.name: layer for layer in ALL}
