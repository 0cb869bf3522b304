"""The collector as one program text, to be given to any `python3 -`: the facts' own sources, and nothing else.

A node needs no package, no file of ours and no network for it. It unpacks itself into a temporary folder (the GPUs'
driver is asked by a program of its own, which needs a file), prints one line, and removes the folder.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path

MARK = "grpo-doctor-node:"
CLOCK = "grpo-doctor-clock:"
MOST_BYTES = 100_000
_PACKAGE = Path(__file__).resolve().parents[2]
_PARTS = ("facts/*.py", "frameworks.py", "given.py", "doctor/fleet/remote.py")
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
        from diagnostics.doctor.fleet.remote import look
        say(look(json.loads(%(options)r), folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            signal.alarm(0)
        except AttributeError:
            pass
if sys.version_info < (3, 10):
    say({"error": "Python %%d.%%d there is too old: the collector needs 3.10" %% sys.version_info[:2]})
else:
    try:
        run()
    except Exception as error:
        say({"error": "%%s: %%s" %% (type(error).__name__, error)})
"""


def program(prefix: str = "", limit_s: float = 60.0) -> str:
    """The program text.

    Args:
        prefix: The environment to be examined on the node; empty for the one of the Python that runs it.
        limit_s: Seconds after which it ends by itself.
    """
    return _PROGRAM % {
        "mark": MARK,
        "clock": CLOCK,
        "limit": max(1, round(limit_s)),
        "payload": base64.b64encode(_zipped()).decode("ascii"),
        "options": json.dumps({"prefix": prefix}),
    }


def _zipped() -> bytes:
    """The sources. Always the same bytes for the same sources."""
    files = {f"diagnostics/{part}__init__.py": b"" for part in ("", "doctor/", "doctor/fleet/")}
    for pattern in _PARTS:
        for path in sorted(_PACKAGE.glob(pattern)):
            files[f"diagnostics/{path.relative_to(_PACKAGE).as_posix()}"] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
