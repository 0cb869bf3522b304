"""Who may call: by the token, by the name the server was called by, and not from a page in somebody's browser.

A page that a user looks at may call servers on the user's own machine, and by DNS rebinding even read what they
answer: then the Host is the page's own name. So only names are answered that nobody else can point here, and nothing
that a browser marks as another page's call.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from typing import TYPE_CHECKING

from grpo_core.config import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIVENESS = ("/health", "/health/")
_ONCE = (
    "authorization", "content-length", "host", "origin", "sec-fetch-site", "transfer-encoding", "x-content-sha256",
    "x-policy-version",
)  # fmt: skip
_OWN_PAGES = ("none", "same-origin")  # typed by a person, or from an answer of ours


class Callers:
    """Whom a server answers.

    Attributes:
        token: What a call must have; None: anybody's calls are taken.
    """

    def __init__(self, token: str | None, host: str) -> None:
        """`host` is the address the server was told to listen at."""
        self.token, self._names = token, {*LOOPBACK, host.lower()}
        self._loopback = host in LOOPBACK

    def refused(self, path: str, headers: Mapping[str, Sequence[str]], local: str) -> tuple[int, str] | None:
        """Status and reason; None: it may go on.

        Args:
            path: What is called.
            headers: By name in small letters.
            local: The address of this machine that was called.
        """
        for name in _ONCE:
            if len(headers.get(name, ())) > 1:
                return 400, f"the header {name} is there more than once"
        value = {name: found[0] for name, found in headers.items()}
        authorized = self.token is not None and is_token(value.get("authorization", ""), self.token)
        # Beyond loopback a name may be that of a service; who has the token is no page.
        if not (authorized and not self._loopback) and not self._is_ours(value.get("host", ""), local):
            return 403, "the Host is not a name of this server"
        if "origin" in value and value["origin"].lower() != f"http://{value.get('host', '').lower()}":
            return 403, "calls of other web pages are not answered (Origin)"
        if value.get("sec-fetch-site", "none").lower() not in _OWN_PAGES:
            return 403, "calls of other web pages are not answered (Sec-Fetch-Site)"
        if self.token is None or authorized or path in LIVENESS:
            return None
        return 401, "the token is missing or wrong"

    def _is_ours(self, host: str, local: str) -> bool:
        name = _name(host)
        return name in self._names or (name != "" and _address(name) == _address(local) != "")


def is_token(given: str, token: str) -> bool:
    """By `Bearer`, or as the password of `http://anybody:TOKEN@host`: TRL's client has no other way."""
    kind, _, value = given.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif kind.lower() != "bearer":
        return False
    return hmac.compare_digest(value.encode(), token.encode())


def _name(host: str) -> str:
    """Without the port, and without an IPv6 address's brackets; empty where it is no host."""
    name, bracket, port = host.lower().partition("]")
    if name.startswith("["):
        return name[1:] if bracket and (not port or port.startswith(":")) else ""
    name, _, port = host.lower().partition(":")
    return name if not port or port.isdecimal() else ""


def _address(name: str) -> str:
    """In one spelling; empty where it is none."""
    try:
        found = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)
