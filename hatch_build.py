"""Build hook: pack the catalog's entries into one file, so that an installed wheel does not parse 300 TOML files."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PackCatalog(BuildHookInterface):  # type: ignore[type-arg]
    """Writes diagnostics/catalog/packed.json; without msgspec the wheel lacks it and parses on each start."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Pack and add the file."""
        del version
        sys.path.insert(0, self.root)
        with contextlib.suppress(ImportError):
            from diagnostics.catalog import pack  # noqa: PLC0415 - only where its libraries are

            pack()
            build_data["artifacts"].append("/diagnostics/catalog/packed.json")
