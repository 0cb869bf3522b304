"""Check an environment and its machine: static checks, probes in child processes, comparison of nodes, fix plan."""
