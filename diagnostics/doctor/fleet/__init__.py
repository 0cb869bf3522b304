"""`doctor --hosts` and `doctor --ray`: every node of a fleet examined with the same facts, and compared."""
