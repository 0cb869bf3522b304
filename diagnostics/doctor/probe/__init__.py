"""Looking by trying: programs that run in child processes, since what they touch may crash or hang.

`programs` and `nvml` are never imported: a child runs them, those of `programs` by the examined environment's Python.
"""
