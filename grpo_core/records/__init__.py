"""Record training steps, and replay them."""
