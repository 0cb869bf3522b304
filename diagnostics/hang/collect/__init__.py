"""Collect a snapshot of running processes. Read only, standard library only: it travels to other hosts."""
