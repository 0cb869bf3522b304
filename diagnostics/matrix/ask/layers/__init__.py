"""The layers, one file each; each file has a tuple `LAYERS`, and is found by standing here (see `ask/registry.py`)."""
