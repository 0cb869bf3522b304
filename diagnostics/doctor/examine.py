"""Old name of `diagnostics.doctor.run_checks`; to be removed."""

from __future__ import annotations

from diagnostics.doctor.run_checks import examine, load_catalog

load_catalogue = load_catalog
__all__ = ["examine", "load_catalogue"]
