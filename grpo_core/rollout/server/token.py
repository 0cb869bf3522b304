"""The server's token: who makes it, where it is kept, and how a client on the same machine finds it.

It is in the environment (`GRPO_CORE_TOKEN`) or in a file (`rollout.token_file`), never on a command line or in a
setting, which others can read. A server on loopback that is given neither makes one, and keeps it in a file that
only its user can read, where a trainer of the same user looks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.config import LOOPBACK, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN_VARIABLE = "GRPO_CORE_TOKEN"  # noqa: S105 - the variable's name
_LARGEST = 4096  # bytes of a file with a token


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(32)


def given_token(token_file: str, *, take: bool = False) -> str | None:
    """The token that this process was given, None if it was given none.

    Args:
        token_file: The setting `rollout.token_file`.
        take: Remove it from the environment, so that what this process starts does not have it.

    Raises:
        ConfigError: It can't be read, or is none; says where, never what.
    """
    found = os.environ.pop(TOKEN_VARIABLE, "") if take else os.environ.get(TOKEN_VARIABLE, "")
    if found:
        return _checked(found, TOKEN_VARIABLE)
    if token_file and (take is False or Path(token_file).exists()):
        return _read(Path(token_file))
    return None


def client_token(token_file: str, host: str, port: int) -> str | None:
    """For a server that runs already: the given one, or that which a server of this user keeps for its port."""
    given = given_token(token_file)
    if given is not None or host not in LOOPBACK:
        return given
    with contextlib.suppress(OSError, ConfigError):  # none is kept, or it is not ours
        place = kept_at(port)
        found = place.lstat()
        if found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077:
            return _read(place)
    return None


@contextlib.contextmanager
def kept_token(token_file: str, port: int) -> Iterator[tuple[str, Path]]:
    """A new token in a file of its own, while the server lives.

    Raises:
        ConfigError: The file can't be written.
    """
    token = new_token()
    try:
        place = Path(token_file) if token_file else kept_at(port)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made aside, readable to its user alone, and renamed: nobody's link is followed, no reader sees half of it.
        handle, made = tempfile.mkstemp(dir=place.parent, prefix=".token-")
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(token + "\n")
        os.replace(made, place)  # noqa: PTH105 - as the line above, of names
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"rollout.token_file = {token_file!r}: the server's token can't be kept there: {error}; set "
            f"{TOKEN_VARIABLE} in the environment of server and clients, or another file"
        ) from error
    try:
        yield token, place
    finally:
        with contextlib.suppress(OSError):
            if place.read_text(encoding="ascii").strip() == token:  # not that of a server that came later
                place.unlink()


def kept_at(port: int) -> Path:
    """Where the token of a server at a port of this machine is kept; the home may be that of several machines."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "grpo-core" / f"token-{socket.gethostname()}-{port}"


def _read(path: Path) -> str:
    try:
        # Not one that would wait for a writer, and no more of it than a token has.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ConfigError(f"rollout.token_file = {str(path)!r}: no regular file")
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"rollout.token_file = {str(path)!r}: {error.strerror}") from error
    return _checked(text.decode("latin-1").strip(), str(path))


def _checked(token: str, where: str) -> str:
    """Of what an HTTP header can carry."""
    if not token or len(token) >= _LARGEST or not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{where}: a token is a line of 1 to {_LARGEST} printable ASCII characters")
    return token
