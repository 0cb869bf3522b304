"""Do the known crashes of the scheduler happen in this release, and which mitigations help?"""

from __future__ import annotations

from diagnostics.matrix.ask import attempts, in_cell

LAYERS = (
    in_cell.layer(
        "scheduler",
        60,
        "engine",
        "Do the known crashes of vLLM's scheduler happen on its own code, and which mitigations help?",
        lambda settings, _cell: attempts.program(settings.codes),
        attempts.SCHEMA,
        attempts.read,
        codes=lambda settings: settings.codes,
    ),
)
