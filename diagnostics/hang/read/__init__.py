"""Reads what others took: dumps of stack tools, recorders of collectives, our own bundles."""
