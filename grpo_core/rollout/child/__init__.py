"""An engine in a process of its own, spoken to over a pipe."""
