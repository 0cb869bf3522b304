"""List all layers, in the order in which they run for a cell; each module of this package defines some of them."""

from diagnostics.matrix.layers import conformance, contract, doctor, environment, programs, repros, resolve
from diagnostics.matrix.layers.layer import Layer

LAYERS: tuple[Layer, ...] = (
    *resolve.LAYERS,
    *contract.LAYERS,
    *environment.LAYERS,
    *programs.OTHER_TRAINER_LAYERS,
    repros.SCHEDULER,
    *programs.ENGINE_LAYERS,
    *conformance.LAYERS,
    *programs.SERVER_LAYERS,
    *repros.LAYERS,
    *doctor.LAYERS,
)
BY_NAME = {layer.name: layer for layer in LAYERS}
