"""Facts about an environment and its machine, collected with the standard library on Python 3.10 or newer."""
