"""Sample completions: the engine protocol, and the engines of the three modes."""
