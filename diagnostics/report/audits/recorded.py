"""The words of what is asked of a run's records: templates by name."""

from __future__ import annotations

# A fault, by its family.
FAULTS: dict[str, str] = {}
# A class of faults, as it is called where nothing is wrong with it or nothing was asked: the family, or its head.
CLASSES: dict[str, str] = {"recorded": "what the run left behind"}
# What was seen, and what would decide it, by the name of the fact.
FACTS: dict[str, str] = {"recorded_not_built": "{path}: reading what a run left behind is not built yet"}
