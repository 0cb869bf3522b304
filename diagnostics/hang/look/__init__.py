"""Looks at the processes of this host: the one part of `hang` that touches them, and it only reads."""
