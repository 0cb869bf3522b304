"""Programs that run in child processes: what they look at may crash or hang, and must not take the tool along."""
