"""Old name of `diagnostics.collect.remote`; to be removed."""
