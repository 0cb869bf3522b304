"""What a run left behind: dumps, logs, checkpoints."""
