"""Reports as terminal text and JSON."""
