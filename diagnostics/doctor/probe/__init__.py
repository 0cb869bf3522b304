"""Probes that import and start what is installed, in child processes, because it may crash or hang.

`programs` is never imported: the examined environment's Python runs it.
"""
