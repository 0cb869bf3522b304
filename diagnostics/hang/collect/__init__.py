"""Take a snapshot of running processes on Linux, read-only: from /proc, netlink, and py-spy if it is installed.

The package imports only the standard library and modules that are sent with it, because it also runs on other hosts.
"""
