"""Measurements and acceptance figures; not collected by pytest."""
