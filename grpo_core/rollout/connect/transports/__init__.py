"""Weights by torch.distributed and by files."""
