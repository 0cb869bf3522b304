"""Files that change a run without being named by it: accelerate's default, pip's, NCCL's."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.collect.secrets import mask

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE = re.compile(r"^\s*([A-Za-z_][\w-]*)\s*[:=]\s*(.*?)\s*(?:#.*)?$")
_SECRET = re.compile(r"token|secret|passw|_key", re.IGNORECASE)
_MOST = 64 * 1024
# The pattern takes time with the square of a line's length.
_LONGEST_LINE = 1000


@dataclass(frozen=True)
class ConfigFile:
    """A file that was found, with its plain `name: value` and `name = value` lines.

    Attributes:
        kind: `accelerate` or `nccl`.
        lines: Line numbers of the values.
    """

    kind: str
    path: str
    values: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    problem: str = ""


def collect(environ: Mapping[str, str]) -> tuple[ConfigFile, ...]:
    """Reads those that are there, where accelerate (utils/constants, commands/config) and NCCL look for them."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - works without a home folder
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(environ.get("HF_HOME") or cache / "huggingface")
    places = [
        *(("accelerate", hub / "accelerate" / f"default_config.{end}") for end in ("yaml", "yml", "json")),
        ("nccl", home / ".nccl.conf"),
        ("nccl", Path("/etc/nccl.conf")),
    ]
    return tuple(_read(kind, path) for kind, path in places if path.is_file())


def _read(kind: str, path: Path) -> ConfigFile:
    try:
        text = given.head(path, _MOST).decode("utf-8", "replace")
    except OSError as error:
        return ConfigFile(kind, str(path), problem=f"cannot be read: {error.strerror or error}")
    values, lines = {}, {}
    for number, line in enumerate(text.replace('"', "").replace(",\n", "\n").splitlines(), 1):
        found = _LINE.match(line) if len(line) <= _LONGEST_LINE else None
        if found and found[2] and not _SECRET.search(found[1]):
            values[found[1]] = mask(found[2].strip("'"))
            lines[found[1]] = number
    return ConfigFile(kind, str(path), values, lines)
