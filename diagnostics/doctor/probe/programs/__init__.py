"""Programs that run in an examined environment's Python and use its packages; never imported by us."""
