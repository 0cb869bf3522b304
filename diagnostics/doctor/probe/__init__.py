"""Import and start installed packages in child processes, because they may crash or hang.

The modules in `programs` are never imported here: the examined environment's Python runs them.
"""
