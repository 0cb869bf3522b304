"""Checks and profiles that need a GPU, and fit into ten minutes."""
