"""List all TCP and unix sockets of this host by inode, with their other ends and times of last traffic.

They come from the kernel over netlink, as for `ss`, which needs no permission; from /proc/net where netlink is not
available, and for processes in another network namespace.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from diagnostics.hang.snapshot import Socket

STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT", 7: "CLOSE",
    8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING",
}  # fmt: skip
_SOCK_DIAG_BY_FAMILY, _DUMP, _DONE, _ERROR = 20, 0x301, 3, 2
_TCP_INFO, _UNIX_NAME, _UNIX_PEER, _UNIX_QUEUES = 2, 0, 2, 4
# Offsets in tcp_info of times in milliseconds.
_LAST_SENT, _LAST_RECEIVED = 44, 52


def all_sockets(pids: Iterable[int]) -> dict[int, Socket]:
    """Return the sockets by inode, those of the processes' own network namespaces included."""
    sockets: dict[int, Socket] = {}
    with contextlib.suppress(OSError, AttributeError, struct.error):
        sockets |= {item.inode: item for item in _unix_sockets()}
    current = network_namespace("self")
    visited: set[str] = set()
    with contextlib.suppress(OSError, AttributeError, struct.error):
        for family in (socket.AF_INET, socket.AF_INET6):
            sockets |= {item.inode: item for item in _tcp_sockets(family)}
        visited.add(current)
    for pid in pids:
        space = network_namespace(str(pid))
        if space and space not in visited:
            visited.add(space)
            for name in ("tcp", "tcp6"):
                sockets |= {item.inode: item for item in _from_proc_net(Path(f"/proc/{pid}/net/{name}"))}
    return _with_peers(sockets)


def _with_peers(sockets: dict[int, Socket]) -> dict[int, Socket]:
    """Give each TCP socket the inode of its other end, if that is on this host."""
    ends = {(s.local, s.remote): s.inode for s in sockets.values() if s.kind == "tcp" and s.state != "LISTEN"}
    return {
        inode: replace(item, peer=ends[item.remote, item.local])
        if item.kind == "tcp" and (item.remote, item.local) in ends
        else item
        for inode, item in sockets.items()
    }


def network_namespace(pid: str) -> str:
    """Return an identifier of a process's network namespace; empty if it may not be read."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _messages(request: bytes) -> Iterator[bytes]:
    """Yield the kernel's replies to one request for all sockets of a kind."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as link:
        link.settimeout(2.0)
        link.sendto(
            struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request, (0, 0)
        )
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
        local, remote = data[8 : 8 + size], data[24 : 24 + size]
        unread, unsent, _, inode = struct.unpack_from("=IIII", data, 56)
        information = _attributes(data[72:]).get(_TCP_INFO, b"")
        sent = received = None
        if len(information) >= 60 and state == "ESTABLISHED":
            sent, received = (
                struct.unpack_from("=I", information, place)[0] / 1000
                for place in (_LAST_SENT, _LAST_RECEIVED)
            )
        if inode:
            yield Socket(
                inode,
                "tcp",
                _address(local, ports[0]),
                _address(remote, ports[1]),
                state,
                unread,
                unsent,
                0,
                sent,
                received,
            )


def _unix_sockets() -> Iterator[Socket]:
    for data in _messages(struct.pack("=BBxxIII8x", socket.AF_UNIX, 0, 0xFFFFFFFF, 0, 1 | 4 | 0x10)):
        (inode,) = struct.unpack_from("=I", data, 4)
        attributes = _attributes(data[16:])
        peer = struct.unpack("=I", attributes[_UNIX_PEER])[0] if _UNIX_PEER in attributes else 0
        queues = struct.unpack("=II", attributes[_UNIX_QUEUES]) if _UNIX_QUEUES in attributes else (0, 0)
        state = STATES.get(data[2], str(data[2]))
        name = attributes.get(_UNIX_NAME, b"").replace(b"\0", b"@").decode("utf-8", errors="replace")
        listens = state == "LISTEN"
        unread, unsent = (0, 0) if listens else queues
        yield Socket(inode, "unix", name.rstrip("@"), "", state, unread, unsent, peer)


def _address(address: bytes, port: int) -> str:
    """Format as "127.0.0.1:80"; an IPv4-mapped IPv6 address becomes IPv4, so that both ends match."""
    ip = ipaddress.ip_address(address)
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = mapped or ip
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def _from_proc_net(path: Path) -> Iterator[Socket]:
    """Yield the sockets in /proc/net/tcp or tcp6."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()[1:]
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        parts = line.split()
        unsent, _, unread = parts[4].partition(":")
        inode = int(parts[9])
        if inode:
            yield Socket(
                inode,
                "tcp",
                _hex_address(parts[1]),
                _hex_address(parts[2]),
                STATES.get(int(parts[3], 16), parts[3]),
                int(unread, 16),
                int(unsent, 16),
            )


def _hex_address(text: str) -> str:
    address, _, port = text.partition(":")
    words = [address[i : i + 8] for i in range(0, len(address), 8)]
    return _address(b"".join(struct.pack("=I", int(word, 16)) for word in words), int(port, 16))
