"""What samples completions: the engine protocol, and the engines that the three modes need."""
