"""Routing of a mixture of experts, recorded where it was sampled and replayed where it is trained (R3)."""
