"""Check an environment and its machine: static checks, probes in child processes, fleets, and a fix plan."""
