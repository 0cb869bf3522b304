"""Asking what is due, here or on a cluster, and what came of it."""
