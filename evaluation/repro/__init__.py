"""Measurements in cells; pages in docs/ report their results."""
