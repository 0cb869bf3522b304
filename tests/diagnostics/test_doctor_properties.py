"""No generated variable or version crashes a check of `doctor`, and no ELF file or metadata crashes its collectors.

Hypothesis generates them.
"""

import _ctypes
import contextlib
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.collect import elf, python_environment
from diagnostics.collect.python_environment import Environment, Package
from diagnostics.compat_table import Compat
from diagnostics.doctor import run_checks
from tests.diagnostics.fake_environments import load_catalog
from tests.diagnostics.test_doctor_machine import HEALTHY

NAMES = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "RAY_ADDRESS", "http_proxy",
    "RAY_memory_usage_threshold", "PYTORCH_CUDA_ALLOC_CONF", "VLLM_USE_V1", "VLLM_X", "WORLD_SIZE", "RANK",
    "PYTHONPATH", "HF_HUB_OFFLINE", "NCCL_P2P_DISABLE", "no_proxy", "LD_PRELOAD",
)  # fmt: skip
values = st.one_of(
    st.text(max_size=30), st.sampled_from(["", "0", "1", "-1", "1,2", "=", "^", ",", "GPU-", "1e999", "nan"])
)
versions = st.one_of(
    st.text(max_size=12), st.sampled_from(["0.8.5", "0.31.0+cpu", "2.6.0+cu124", "1!2", "dev"])
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), values), st.lists(versions, min_size=4, max_size=4))
def test_no_check_crashes_on_any_variables_and_versions(environ, releases):
    installed = {
        name: Package(name, text, f"/p/{name}", "uv", (f"torch=={text}", "ray>=2.0"), text, (text,))
        for name, text in zip(("vllm", "torch", "ray", "trl"), releases, strict=True)
    }
    known = Environment("/env", releases[0], installed, (), (), environ, None, None, (), ("VLLM_HOST_IP",))
    machine = replace(HEALTHY, gpus=replace(HEALTHY.gpus, cuda=releases[1], driver=releases[2]))
    report = run_checks.examine(known, load_catalog(), Compat(problem="no table"), machine)
    assert [check.reason for check in report.checks if check.outcome == "crashed"] == []


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1 << 20), st.integers(0, 255)), max_size=40),
    st.data(),
)
def test_damaged_elf_file_is_read_or_refused(changes, data):
    """An ELF file with changed bytes or a missing end is read or refused, without another exception."""
    binary = bytearray(Path(_ctypes.__file__).read_bytes())
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    for in_table, offset, value in changes:
        start, room = (table, len(binary) - table) if in_table else (0, 64)
        binary[start + offset % room] = value
    binary = binary[: data.draw(st.integers(0, len(binary)))] if data.draw(st.booleans()) else binary
    with tempfile.NamedTemporaryFile() as file:
        file.write(binary)
        file.flush()
        with contextlib.suppress(OSError, ValueError, struct.error, IndexError, OverflowError):
            elf.read_elf(Path(file.name))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400))
def test_random_metadata_is_broken_or_a_package(content):
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder, "lib", "python3.11", "site-packages", "noise-1.dist-info")
        info.mkdir(parents=True)
        (info / "METADATA").write_bytes(content)
        (info / "RECORD").write_bytes(content)
        known = python_environment.collect(Path(folder), {})
        assert len(known.broken) + len(known.packages) == 1
