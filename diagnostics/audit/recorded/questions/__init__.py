"""One file a class of faults: each asks what was read, and answers; none reads a file of its own but checkpoints."""
