"""An interrupted run of RAY001, whose workers are Ray actors, leaves neither a process nor a file."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cells import ROOT, cell_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_no_ray_process(number):
    """After SIGINT or SIGTERM no Ray process of the command runs, and its temporary folder is empty."""
    command = [cell_python("verl-0.4.1"), "-m", "repro", "run", "RAY001", "--trigger", "no_address"]
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": folder}
        with subprocess.Popen(
            [*command, "--mitigation", "none", "--timeout", "300"],
            env=environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            for line in process.stderr:
                if "Started a local Ray instance" in line:
                    break
            assert processes_using(folder)
            process.send_signal(number)
            process.stderr.read()  # ends when the last process that inherited stderr has ended
        assert not processes_using(folder)
        assert not list(Path(folder).iterdir())


def processes_using(folder):
    """Return the command lines of other processes that contain this folder."""
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            if folder.encode() in command and path.parent.name != str(os.getpid()):
                result.append(command.replace(b"\0", b" ").decode())
    return result
