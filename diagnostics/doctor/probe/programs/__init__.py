"""Programs for the Python of an examined environment: standard library and what is installed there. Never imported."""
