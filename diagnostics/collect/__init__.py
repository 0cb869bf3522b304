"""Collect facts about an environment and its machine, on this machine and on other hosts.

`remote` and `ray_nodes` query other hosts. The other modules run there, too, so they need only Python 3.10 and its
standard library.
"""
