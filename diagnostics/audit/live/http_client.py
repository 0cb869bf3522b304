"""HTTP client of the audited server: one-line errors, and a deadline and a size limit for each call as a whole.

Answers are JSON or text, at most 64 MiB, not compressed. The URL's password, else VLLM_API_KEY, is sent as the bearer
token. Proxies of the environment are not used.
"""

import asyncio
import contextlib
import os
import re
import warnings
from typing import Any

import httpx

from diagnostics import safe_io
from diagnostics.audit.results import AuditError, NotAvailableError
from diagnostics.output.redact import MASK, remember_token, truncate

_MAX_BYTES = 1 << 26
_MAX_REASON, _MAX_PORT = 1 << 16, 65535
_KEY = "VLLM_API_KEY"
# What stands before the last `@` of an address is a user and a password, also if `/`, `?` or `#` in it ends the host.
_BEFORE_HOST = re.compile(r".*(?:@|%40)", re.DOTALL)


class RefusedError(AuditError):
    """Raised for a status that is no success; for 503 it is NotAvailableError."""


class Client:
    """HTTP calls to one server.

    Attributes:
        address: URL without credentials.
        requests: Number of requests so far.
        tokens: Tokens that these calls cost the engine; the callers add them.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        """Parse the URL; its password, else VLLM_API_KEY, is sent as the bearer token.

        Raises:
            AuditError: The URL is not an HTTP address.
        """
        shown = repr(_BEFORE_HOST.sub(f"{MASK}@", url))
        try:
            parts = httpx.URL(url if "://" in url else f"http://{url}")
            address = str(parts.copy_with(userinfo=b""))
        except (httpx.InvalidURL, ValueError) as error:
            reason = "" if MASK in shown else f": {error}"
            raise AuditError(f"--server {shown}: not an address{reason}") from None
        is_address = parts.scheme in ("http", "https") and parts.host and (parts.port or 0) <= _MAX_PORT
        if not is_address or _BEFORE_HOST.search(address):
            raise AuditError(f"--server {shown}: expected an address as http://127.0.0.1:8000")
        address = str(parts.copy_with(userinfo=b"", query=None, fragment=None))
        self.address = address.rstrip("/").removesuffix("/v1")
        self.requests = self.tokens = 0
        self._timeout_s = timeout_s
        token = parts.password or os.environ.get(_KEY, "")
        remember_token(token)
        if not token.isascii():
            raise AuditError(f"--server {shown}: its key must be ASCII (the address's password, else {_KEY})")
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._options: dict[str, Any] = {"timeout": timeout_s, "trust_env": False, "headers": headers}
        self._options["verify"] = parts.scheme == "https"  # loading certificates takes 30 ms
        warnings.filterwarnings("ignore", module="http.cookiejar")  # it warns of malformed cookies

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the response to a GET request, or to a JSON body: parsed JSON, otherwise text.

        Raises:
            RefusedError: The server answers with a status that is no success, such as a redirect.
            NotAvailableError: The status is 503, or there is no complete response before the deadline.
            AuditError: The call failed otherwise.
        """
        self.requests += 1
        call = f"{self.address}{path}"
        try:
            status, content = asyncio.run(self._fetch(call, body))
        except (TimeoutError, httpx.TimeoutException) as error:
            limit = f"{self._timeout_s:g} s (--timeout)"
            reason = f"no complete answer in {limit}: it may be paused, asleep or busy"
            raise NotAvailableError(f"{call}: {reason}") from error
        except httpx.ConnectError as error:
            raise AuditError(f"{self.address}: no server listens there ({error})") from error
        except httpx.HTTPError as error:
            raise AuditError(f"{call}: {str(error) or type(error).__name__}") from error
        return _parse(status, content, call)

    def try_call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the response of `call`; None instead of RefusedError."""
        with contextlib.suppress(RefusedError):
            return self.call(path, body)

    async def _fetch(self, call: str, body: dict[str, Any] | None) -> tuple[int, bytearray]:
        """Return status and content of the response; raise TimeoutError at the deadline.

        httpx's own timeouts apply to each read: a server that sends a byte a second, or endless 100 Continue answers,
        would never time out.
        """
        limit, client = asyncio.timeout(self._timeout_s), httpx.AsyncClient(**self._options)
        method = "GET" if body is None else "POST"
        async with limit, client as http, http.stream(method, call, json=body) as response:
            return response.status_code, await _read(response, call)


async def _read(response: httpx.Response, call: str) -> bytearray:
    content = bytearray()
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        # A kilobyte can unpack to gigabytes before any of it can be counted.
        raise AuditError(f"{call}: its answer is compressed, which was not asked for")
    async for part in response.aiter_raw():
        content += part
        if len(content) > _MAX_BYTES:
            raise AuditError(f"{call}: its answer is longer than {_MAX_BYTES >> 20} MiB")
    return content


def _parse(status: int, content: bytearray, call: str) -> Any:
    """Return the content of a success status; raise RefusedError for others, but NotAvailableError for 503."""
    value: Any = content.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        value = safe_io.parse_json(value) if value else {}
    if 200 <= status < 300:
        return value
    if status in (401, 403):
        raise RefusedError(f"{call}: a key is required ({status}): set {_KEY}")
    for key in ("error", "message", "detail"):
        value = value.get(key, value) if isinstance(value, dict) else value
    # Masking takes seconds for each megabyte, and the server chooses the size.
    long = f"an answer of {len(content)} bytes"
    reason = long if len(content) > _MAX_REASON else truncate(" ".join(str(value).split()), 300)
    if status == 503:
        raise NotAvailableError(f"{call}: it is busy (503): {reason}")
    raise RefusedError(f"{call}: refused ({status}): {reason}")
