"""Create, save and read the access token of a rollout server, so that clients of the same user find it.

The token is in the environment (`GRPO_CORE_TOKEN`) or in a file (`rollout.token_file`), never on a command line or in
a setting, which other users can read. A server on loopback without a token creates one, and saves it in a file that
only its user can read. A trainer of the same user finds it there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grpo_core.config import LOOPBACK, ConfigError
from grpo_core.safe_io import read_bytes

TOKEN_VARIABLE = "GRPO_CORE_TOKEN"  # noqa: S105 - the variable's name
_MAX_LENGTH = 4096


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(32)


def server_token(token_file: str) -> str | None:
    """Return the token from the environment or an existing file, if any; remove it from the environment.

    Raises:
        ConfigError: The token can't be read or is not valid; the message names the source, never the text.
    """
    text = os.environ.pop(TOKEN_VARIABLE, "")
    if text:
        return _check_token(text, TOKEN_VARIABLE)
    return _read_token(Path(token_file)) if token_file and Path(token_file).exists() else None


def client_token(token_file: str, host: str, port: int) -> str | None:
    """Return the token for a running server: from the environment, the file, or a file that this user's server saved.

    Raises:
        ConfigError: The token can't be read or is not valid; the message names the source, never the text.
    """
    if text := os.environ.get(TOKEN_VARIABLE, ""):
        return _check_token(text, TOKEN_VARIABLE)
    if token_file:
        return _read_token(Path(token_file))
    if host in LOOPBACK:
        with contextlib.suppress(OSError, ConfigError):  # there is no file, or it is not ours
            path = token_path(port)
            status = path.lstat()
            if status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077:
                return _read_token(path)
    return None


@contextlib.contextmanager
def saved_token(token_file: str, port: int) -> Iterator[tuple[str, Path]]:
    """Save a new token in a file while the server runs; yield the token and the path.

    Raises:
        ConfigError: The file can't be written.
    """
    token = new_token()
    try:
        path = Path(token_file) if token_file else token_path(port)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp creates a file for this user only. The rename follows no link, and no reader sees half of the file.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".token-")
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
        os.replace(temporary, path)  # noqa: PTH105 - as the line above, of names
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"rollout.token_file = {token_file!r}: the server's token can't be kept there: {error}; set "
            f"{TOKEN_VARIABLE} in the environment of server and clients, or another file"
        ) from error
    try:
        yield token, path
    finally:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="ascii").strip() == token:  # not that of a server that started later
                path.unlink()


def token_path(port: int) -> Path:
    """Return the file in which a server saves its token; the name has the host, as machines may share a home folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "grpo-core" / f"token-{socket.gethostname()}-{port}"


def _read_token(path: Path) -> str:
    try:
        text = read_bytes(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"rollout.token_file = {str(path)!r}: {error}") from error
    return _check_token(text.decode("latin-1").strip(), str(path))


def _check_token(token: str, source: str) -> str:
    """Return the token; refuse a text that an HTTP header can't carry."""
    if not token or len(token) >= _MAX_LENGTH or not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{source}: a token is a line of 1 to {_MAX_LENGTH} printable ASCII characters")
    return token
