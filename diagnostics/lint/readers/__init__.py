"""Readers: one module per source format, from text to settings with their lines. Nothing is run or imported."""
