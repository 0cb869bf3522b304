"""Probes that import and start installed packages, in child processes, because they may crash or hang.

`programs` is never imported: the examined environment's Python runs it.
"""
