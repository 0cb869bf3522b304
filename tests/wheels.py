"""Make pure wheels in memory that real installers accept: sources, metadata and a RECORD with checksums."""

import base64
import hashlib
import io
import textwrap
import zipfile
from collections.abc import Iterable, Mapping


def wheel_name(package: str, version: str) -> str:
    """Return the file name of a pure wheel."""
    return f"{package.replace('-', '_')}-{version}-py3-none-any.whl"


def make_wheel(
    package: str,
    version: str,
    files: Mapping[str, str],
    requires: Iterable[str] = (),
    extras: Mapping[str, Iterable[str]] | None = None,
) -> bytes:
    """Return the bytes of a wheel with these source files, requirements, and requirements by extra."""
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}", "Requires-Python: >=3.10"]
    lines += [f"Requires-Dist: {item}" for item in requires]
    for extra, items in (extras or {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {item} ; extra == "{extra}"' for item in items]
    members = {
        **{path: textwrap.dedent(text) for path, text in files.items()},
        f"{info}/METADATA": "\n".join(lines) + "\n\nA description.\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text.encode())}")
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, text in members.items():
            archive.writestr(path, text)
    return stream.getvalue()
