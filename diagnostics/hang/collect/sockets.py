"""List the TCP and unix sockets of this network namespace by inode, with peer, unread and unsent bytes.

`all_sockets` returns them. The peer is the socket at the other end, if that is on this host; for a unix socket that is
not accepted yet, it is the listener. Established TCP sockets also have the bytes that they sent and received, and the
seconds since the last ones. The kernel lists sockets over netlink, as for `ss`, without special permission.
`unlisted_processes` finds the processes whose sockets are not listed.
"""

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from diagnostics.hang.snapshot import Socket

STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT", 7: "CLOSE",
    8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING",
}  # fmt: skip
MAX_SOCKETS = 50_000
"""Limit for each family of addresses."""
_SOCK_DIAG_BY_FAMILY, _DUMP, _DONE, _ERROR = 20, 0x301, 3, 2
_TCP_INFO, _UNIX_NAME, _UNIX_PEER, _UNIX_CLIENTS, _UNIX_QUEUES = 2, 0, 2, 3, 4
# Offsets in tcp_info of times in milliseconds, and of bytes; the number of sent bytes is there from Linux 4.19 on.
_LAST_SENT, _LAST_RECEIVED, _BYTES_RECEIVED, _BYTES_SENT = 44, 52, 128, 200


def all_sockets() -> dict[int, Socket]:
    """Return the TCP and unix sockets of this network namespace by inode, as far as the kernel lists them."""
    sockets: list[Socket] = []
    backlog: dict[int, int] = {}
    for part in (_unix_sockets(backlog), _tcp_sockets(socket.AF_INET), _tcp_sockets(socket.AF_INET6)):
        with contextlib.suppress(OSError, AttributeError, struct.error):
            sockets += islice(part, MAX_SOCKETS)
    sockets = [replace(s, peer=backlog.get(s.inode, s.peer)) for s in sockets]
    # Give each TCP socket the inode of its other end, if that is on this host.
    ends = {(s.local, s.remote): s.inode for s in sockets if s.kind == "tcp" and s.state != "LISTEN"}
    linked = (replace(s, peer=ends.get((s.remote, s.local), 0)) if s.kind == "tcp" else s for s in sockets)
    return {s.inode: s for s in linked}


def unlisted_processes(pids: Iterable[int]) -> list[int]:
    """Return the processes in another network namespace, or all if the kernel lists no sockets here.

    A process whose namespace may not be read is left out.
    """
    try:
        next(_tcp_sockets(socket.AF_INET), None)
        own_namespace = _network_namespace("self")
    except OSError:
        own_namespace = ""
    return [pid for pid in sorted(pids) if _network_namespace(str(pid)) not in ("", own_namespace)]


def _network_namespace(pid: str) -> str:
    """Return an identifier of a process's network namespace; empty if it may not be read."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _messages(request: bytes) -> Iterator[bytes]:
    """Yield the kernel's messages, one for each socket that the request selects."""
    header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as link:
        link.settimeout(2.0)
        link.sendto(header + request, (0, 0))
        while True:
            data = link.recv(1 << 18)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=IH", data)
                if kind == _DONE:
                    return
                if kind == _ERROR or length < 16:
                    raise OSError("the kernel refuses to list sockets")
                yield data[16:length]
                data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        attributes[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return attributes


def _tcp_sockets(family: int) -> Iterator[Socket]:
    request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0xFFFFFFFF)
    for data in _messages(request):
        state = STATES.get(data[1], str(data[1]))
        ports = struct.unpack_from("!HH", data, 4)
        size = 4 if data[0] == socket.AF_INET else 16
        local, remote = _address(data[8 : 8 + size], ports[0]), _address(data[24 : 24 + size], ports[1])
        unread, unsent, _, inode = struct.unpack_from("=IIII", data, 56)
        information = _attributes(data[72:]).get(_TCP_INFO, b"")
        traffic: dict[str, Any] = {}
        if state == "ESTABLISHED" and len(information) >= _LAST_RECEIVED + 4:
            traffic["sent_s"] = struct.unpack_from("=I", information, _LAST_SENT)[0] / 1000
            traffic["received_s"] = struct.unpack_from("=I", information, _LAST_RECEIVED)[0] / 1000
        if state == "ESTABLISHED" and len(information) >= _BYTES_SENT + 8:
            (traffic["bytes_sent"],) = struct.unpack_from("=Q", information, _BYTES_SENT)
            (traffic["bytes_received"],) = struct.unpack_from("=Q", information, _BYTES_RECEIVED)
        if inode:
            yield Socket(inode, "tcp", local, remote, state, unread, unsent, **traffic)


def _unix_sockets(backlog: dict[int, int]) -> Iterator[Socket]:
    """Yield the unix sockets; add each client that is not accepted to `backlog`, with the inode of its listener."""
    for data in _messages(struct.pack("=BBxxIII8x", socket.AF_UNIX, 0, 0xFFFFFFFF, 0, 1 | 4 | 8 | 0x10)):
        (inode,) = struct.unpack_from("=I", data, 4)
        attributes = _attributes(data[16:])
        clients = struct.iter_unpack("=I", attributes.get(_UNIX_CLIENTS, b""))
        backlog.update((client, inode) for (client,) in clients)
        (peer,) = struct.unpack("=I", attributes.get(_UNIX_PEER, bytes(4)))
        unread, unsent = struct.unpack("=II", attributes.get(_UNIX_QUEUES, bytes(8)))
        state = STATES.get(data[2], str(data[2]))
        if state == "LISTEN":
            unread = unsent = 0
        name = attributes.get(_UNIX_NAME, b"").replace(b"\0", b"@").decode("utf-8", errors="replace")
        yield Socket(inode, "unix", name.rstrip("@"), "", state, unread, unsent, peer)


def _address(address: bytes, port: int) -> str:
    """Format an address as "127.0.0.1:80"; an IPv4-mapped IPv6 address becomes IPv4, so that both ends are equal."""
    ip = ipaddress.ip_address(address)
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
