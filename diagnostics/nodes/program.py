"""Some of our own sources as one program text, to be given to any `python3 -`.

A node needs no package, no file of ours and no network for it. It unpacks itself into a temporary folder (the GPUs'
driver is asked by a program of its own, which needs a file), prints one line, and removes the folder.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "grpo-doctor-node:"
CLOCK = "grpo-doctor-clock:"
MOST_BYTES = 100_000
_PACKAGE = Path(__file__).resolve().parents[1]
# Reads on any Python, so that an old one can say that it is too old.
_PROGRAM = """\
import json, sys, time
sys.stdout.write("%(clock)s %%r\\n" %% time.time())
sys.stdout.flush()
def say(document):
    sys.stdout.write("\\n%(mark)s " + json.dumps(document) + "\\n")
    sys.stdout.flush()
def run():
    import base64, io, os, shutil, signal, tempfile, zipfile
    def stop(*_):
        raise SystemExit(1)
    for name in ("SIGALRM", "SIGHUP", "SIGTERM"):
        try:
            signal.signal(getattr(signal, name), stop)
        except (AttributeError, ValueError):
            pass
    try:
        signal.alarm(%(limit)d)
    except (AttributeError, ValueError):
        pass
    sys.dont_write_bytecode = True
    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    try:
        zipfile.ZipFile(io.BytesIO(base64.b64decode("%(payload)s"))).extractall(folder)
        sys.path.insert(0, folder)
        from importlib import import_module
        say(import_module(%(look)r).look(json.loads(%(options)r), folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            signal.alarm(0)
        except AttributeError:
            pass
if sys.version_info < (3, 10):
    say({"error": "Python %%d.%%d there is too old: it needs 3.10" %% sys.version_info[:2]})
else:
    try:
        run()
    except Exception as error:
        say({"error": "%%s: %%s" %% (type(error).__name__, error)})
"""


@dataclass(frozen=True)
class Carried:
    """What travels.

    Attributes:
        look: The module whose `look(options, folder)` makes the document; `folder` is where it was unpacked.
        parts: Files of our package, as patterns below it; they need the standard library alone.
        options: What `look` is given.
    """

    look: str
    parts: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


def program(carried: Carried, limit_s: float = 60.0) -> str:
    """The program text.

    Args:
        carried: What is to run there.
        limit_s: Seconds after which it ends by itself.
    """
    return _PROGRAM % {
        "mark": MARK,
        "clock": CLOCK,
        "limit": max(1, round(limit_s)),
        "payload": base64.b64encode(zipped(carried.parts)).decode("ascii"),
        "look": carried.look,
        "options": json.dumps(carried.options),
    }


def zipped(parts: tuple[str, ...]) -> bytes:
    """The sources. Always the same bytes for the same sources."""
    files: dict[str, bytes] = {}
    for pattern in parts:
        for path in sorted(_PACKAGE.glob(pattern)):
            name = path.relative_to(_PACKAGE.parent)
            files |= {f"{folder.as_posix()}/__init__.py": b"" for folder in name.parents if folder.name}
            files[name.as_posix()] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name_there, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name_there), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
