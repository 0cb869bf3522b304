"""Take a snapshot of running processes on Linux, read-only: from /proc, netlink, and py-spy if it is installed.

The package imports the standard library only, because it is sent to other hosts.
"""
