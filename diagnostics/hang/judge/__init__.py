"""Judges: from edges to the end of the chains of waiting, and from there to a verdict in words."""
