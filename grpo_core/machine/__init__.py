"""What a run owes the machine: checkpoints, interrupts, processes, determinism."""
