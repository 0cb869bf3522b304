"""Moving a policy version from the trainer to an engine in another process, and the proof of its arrival."""
