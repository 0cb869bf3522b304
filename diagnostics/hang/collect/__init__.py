"""Take a snapshot of running processes. Read-only; standard library only, because it is sent to other hosts."""
