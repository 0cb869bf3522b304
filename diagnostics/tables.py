"""Old name of `diagnostics.toml_source`, for `diagnostics.nodes`; to be removed."""

from diagnostics.toml_source import close_matches

__all__ = ["close_matches"]
