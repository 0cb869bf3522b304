"""Find uv, give it pip's settings, choose its arguments for PyTorch's CPU build, and shorten its error messages.

Users configure pip by variables (index, certificates, folders of wheels). uv does not read them, so they are copied to
uv's variables that are not set. With PIP_EXTRA_INDEX_URL, uv then compares all indexes, as pip does. `find_uv` returns
the executable, `process_environment` the variables for it, `torch_arguments` the arguments, and `error_line` a message.
`find_links` returns the folders of wheels. Standard library only, because the noxfile imports this module before
anything is installed.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from diagnostics import UserError
from diagnostics.output.redact import truncate

# (pip's variable, uv's variable, separator that uv expects between several values).
_SETTINGS = (
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", " "),
    ("PIP_EXTRA_INDEX_URL", "UV_INDEX", " "),
    ("PIP_FIND_LINKS", "UV_FIND_LINKS", ","),
    ("PIP_NO_INDEX", "UV_NO_INDEX", " "),
    ("PIP_TRUSTED_HOST", "UV_INSECURE_HOST", " "),
    ("PIP_DEFAULT_TIMEOUT", "UV_HTTP_TIMEOUT", " "),
    ("PIP_CERT", "SSL_CERT_FILE", " "),
)
_TORCH_WHEEL = re.compile(r"torch-(?P<version>[0-9.]+)\+cpu-(?P<tag>cp\d+)-")


class UvMissingError(UserError):
    """Raised when no uv executable can be found on this machine."""


def find_uv() -> Path:
    """Return the uv executable: next to this Python, where the `uv` package installs it, or else on PATH.

    Raises:
        UvMissingError: There is none.
    """
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    executable = shutil.which("uv", path=os.pathsep.join(folders))
    if executable is None:
        raise UvMissingError("no uv executable: install it with `pip install uv`")
    return Path(executable)


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add so that uv follows pip's settings; variables of uv that are set are not changed.

    >>> uv_environment({"PIP_FIND_LINKS": "/a /b", "PIP_CERT": "ca.pem", "SSL_CERT_FILE": "mine.pem"})
    {'UV_FIND_LINKS': '/a,/b'}
    """
    added = {}
    for pip, uv, separator in _SETTINGS:
        value = environ.get(pip, "").strip()
        if value and not environ.get(uv):
            added[uv] = separator.join(value.split())
    if "UV_INDEX" in added and not environ.get("UV_INDEX_STRATEGY"):
        # pip takes the best version of all indexes; uv would stop at the first index that has the name.
        added["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return added


def process_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a uv that follows pip's settings and prints neither progress nor colours.

    VIRTUAL_ENV is left out, so that uv does not choose that environment.
    """
    result = {**environ, **uv_environment(environ), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    result.pop("VIRTUAL_ENV", None)
    return result


def error_line(text: str) -> str:
    r"""Return uv's error message on one line, without box-drawing characters and markers.

    >>> error_line("error: No solution found\n  cause: Because a{sys_platform == 'linux'}==1 is gone")
    'No solution found: Because a==1 is gone'
    """
    joined = re.sub(r"\s*[\u00d7╰─▶│├]+\s*", " ", " ".join(text.split())).strip()
    joined = joined.removeprefix("error: ").replace(" cause: ", ": ")
    return truncate(re.sub(r"\{[^{}]*\}", "", joined), 2000)


def find_links(environ: Mapping[str, str]) -> list[Path]:
    """Return the local folders of wheels that uv's or pip's variables name, as far as they exist."""
    value = environ.get("UV_FIND_LINKS") or environ.get("PIP_FIND_LINKS") or ""
    folders = (Path(part.removeprefix("file://")) for part in re.split(r"[,\s]+", value) if part)
    return [folder for folder in folders if folder.is_dir()]


def torch_arguments(
    environ: Mapping[str, str], *, python: tuple[int, int] = sys.version_info[:2], version: str | None = None
) -> list[str]:
    """Return the arguments that make `uv pip` install PyTorch's CPU build.

    The arguments are empty if a local folder of wheels has a CPU build for this Python (and version); otherwise uv uses
    PyTorch's index of CPU builds. By default uv installs the CUDA build, which takes gigabytes.
    """
    wheels = (wheel.name for folder in find_links(environ) for wheel in folder.glob("torch-*.whl"))
    matches = (_TORCH_WHEEL.match(name) for name in wheels)
    local = [match["version"] for match in matches if match and match["tag"] == f"cp{python[0]}{python[1]}"]
    return [] if local and version in {None, *local} else ["--torch-backend", "cpu"]
