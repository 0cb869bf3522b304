"""Old name of `diagnostics.collect.remote`; to be removed."""

from __future__ import annotations

from diagnostics.collect.remote import Host, RemoteError, read_hosts

HostsError = RemoteError
read = read_hosts
__all__ = ["Host", "HostsError", "name", "read"]


def name(host: Host, among: list[Host]) -> str:
    """Return a host's name, with its port if several share the name."""
    return f"{host.name}:{host.port}" if sum(other.name == host.name for other in among) > 1 else host.name
