"""Measurements in cells on which pages of docs rest."""
