"""Clusters that are started beforehand, by `ray start --head` as people type it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PROGRAM = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; sys.exit(main())"
_READY = "will now block forever"


@contextlib.contextmanager
def head(folder: str | None = None) -> Iterator[str]:
    """Keeps a cluster running, and gives its address.

    Args:
        folder: for `--temp-dir`; None for Ray's default, which TMPDIR decides.

    Raises:
        RuntimeError: it did not start.
    """
    options = [
        "--head",
        "--port=0",
        "--num-cpus=1",
        "--include-dashboard=false",
        "--disable-usage-stats",
        "--block",
    ]
    options += [f"--object-store-memory={100 * 2**20}"]
    options += [f"--temp-dir={folder}"] if folder else []
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["PYTHONUNBUFFERED"] = "1"  # the line is waited for
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "start", *options],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if _READY in line:
                break
        else:
            raise RuntimeError(f"`ray start` ended: {''.join(said)[-2000:]}")
        try:
            # Written before that line, and where a bare ray.init() looks if the folder is the default one.
            yield (Path(folder or f"{tempfile.gettempdir()}/ray") / "ray_current_cluster").read_text().strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
