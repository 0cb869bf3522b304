"""The list of hosts: one a line, as an MPI or DeepSpeed hostfile has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.tables import close_matches

if TYPE_CHECKING:
    from pathlib import Path

MOST_HOSTS = 4096
_MOST_BYTES = 1_000_000
# A name that began with a dash would be taken for an option.
_HOST = re.compile(
    r"(?:(?P<user>[\w.][\w.-]*)@)?(?P<name>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
# `max_slots` and `max-slots` are MPI's; how many could run there changes nothing here.
_KEYS = ("slots", "max_slots", "max-slots", "prefix", "python")


class HostsError(ValueError):
    """Raised when a list of hosts can't be used; the message is one line that names file and line."""


@dataclass(frozen=True)
class Host:
    """A host of the list.

    Attributes:
        slots: Processes to be started there; 0 where the list does not say.
        prefix: The environment to be examined there, empty for the one given for all.
        python: The interpreter that the collector is run by there.
    """

    name: str
    user: str = ""
    port: int = 0
    slots: int = 0
    prefix: str = ""
    python: str = ""

    @property
    def target(self) -> str:
        """As ssh takes it."""
        return f"{self.user}@{self.name}" if self.user else self.name


def read(path: Path) -> list[Host]:
    """Reads a list of hosts.

    Raises:
        HostsError: The file can't be read, names no host, or a line is none.
    """
    try:
        with given.opened(path, pipes=True) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise HostsError(f"--hosts {path}: cannot be read: {error.strerror or error}") from None
    if len(data) > _MOST_BYTES or b"\0" in data:
        raise HostsError(f"--hosts {path}: expected a list of hosts, one a line")
    found: list[Host] = []
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host = _host(words, f"--hosts {path}:{number}")
        if any((host.target, host.port) == (other.target, other.port) for other in found):
            raise HostsError(f"--hosts {path}:{number}: {words[0]} stands there twice")
        found.append(host)
    if not found:
        raise HostsError(f"--hosts {path}: no host in it: expected one a line, as user@host:22 slots=8")
    if len(found) > MOST_HOSTS:
        raise HostsError(f"--hosts {path}: {len(found)} hosts; at most {MOST_HOSTS} are asked")
    return found


def name(host: Host, among: list[Host]) -> str:
    """What a host is called: with its port where several of the list share the name."""
    return f"{host.name}:{host.port}" if sum(other.name == host.name for other in among) > 1 else host.name


def _host(words: list[str], place: str) -> Host:
    match = _HOST.fullmatch(words[0])
    if match is None or int(match["port"] or 0) > 65535:
        raise HostsError(f"{place}: {words[0][:80]!r}: expected a host, as user@host:22 slots=8")
    values: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or not value or key not in _KEYS:
            known = ", ".join(_KEYS)
            raise HostsError(
                f"{place}: {word[:80]!r}: expected one of {known} as key=value{close_matches(key, _KEYS)}"
            )
        values[key] = value
    for key in ("prefix", "python"):
        if values.get(key, "").startswith("-"):  # it would be an option of whatever leads to the host
            raise HostsError(f"{place}: {key}={values[key][:40]}: expected a path")
    slots = values.get("slots", "0")
    if not slots.isdecimal() or len(slots) > 6:
        raise HostsError(f"{place}: slots={slots[:20]}: expected a whole number")
    return Host(
        name=match["name"].strip("[]"),
        user=match["user"] or "",
        port=int(match["port"] or 0),
        slots=int(slots),
        prefix=values.get("prefix", ""),
        python=values.get("python", ""),
    )
