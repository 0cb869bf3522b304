"""Other machines: which there are, a program of ours that travels to each, and what they answer."""
