"""Recording and replay of steps."""
