"""Take a snapshot of running processes, read-only; with the standard library only, as it is sent to other hosts."""
