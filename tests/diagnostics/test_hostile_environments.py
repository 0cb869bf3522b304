"""Environments and host folders with pipes, devices, endless files and links: doctor answers and reads nothing else."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics import __main__ as program
from diagnostics import compat_table as compat
from diagnostics.collect import host as configs
from diagnostics.collect import packages as environment
from diagnostics.collect import ray as clusters
from tests.diagnostics.environments import Maker


def a_pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def of_the_kernel(path):
    path.symlink_to("/proc/self/environ")


def enormous(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


ROOT = Path(__file__).parents[2]
INSTEAD = [a_pipe, endless, of_the_kernel, enormous]


@pytest.fixture(params=INSTEAD)
def instead(request):
    """Put something into a file's place that is no file of a reasonable size."""

    def replace_with(path):
        path.unlink(missing_ok=True)
        request.param(path)

    return replace_with


@pytest.mark.parametrize("name", ["METADATA", "INSTALLER", "WHEEL", "RECORD"])
def test_a_package_whose_metadata_is_no_file_is_not_judged(tmp_path, instead, name):
    """doctor reports this package as unreadable, not as broken, and does not suggest removing it."""
    stream_made = Maker(tmp_path / "env").add("torch", "2.8.0", requires=["numpy>=1"]).add("trl", "1.9.2")
    instead(stream_made.site / "torch-2.8.0.dist-info" / name)
    result = environment.collect(stream_made.prefix, {})
    assert result.version("trl") == "1.9.2"
    place = str(stream_made.site / "torch-2.8.0.dist-info")
    if name == "METADATA":
        assert (result.broken, [item for item, _ in result.unread]) == ((), [place])
    else:
        assert result.packages["torch"].requires == ("numpy>=1",)
        assert result.packages["torch"].damaged == ()
        assert [item for item, _ in result.unread] == ([f"{place}/RECORD"] if name == "RECORD" else [])


def test_other_files_of_an_environment_that_are_none(tmp_path, instead):
    """pyvenv.cfg, vLLM's list of variables, a whole folder of packages."""
    stream_made = Maker(tmp_path / "env").add("trl", "1.9.2")
    (stream_made.site / "vllm").mkdir()
    instead(stream_made.site / "vllm" / "envs.py")
    instead(stream_made.prefix / "pyvenv.cfg")
    instead(stream_made.site.parent / "dist-packages")
    result = environment.collect(stream_made.prefix, {"VLLM_X": "1"})
    assert (result.python, result.version("trl"), result.vllm_variables) == ("3.11", "1.9.2", None)


def test_metadata_that_takes_time_with_the_square_of_its_length(tmp_path):
    """A name behind half a megabyte of blanks, and a config line of the same kind."""
    stream_made = Maker(tmp_path / "env").add("trl", "1.9.2")
    head = f"Name: trl{' ' * 500_000}x\nVersion: 1{' ' * 500_000}x\n"
    (stream_made.site / "trl-1.9.2.dist-info" / "METADATA").write_text(head)
    assert len(environment.collect(stream_made.prefix, {}).broken) == 1
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(f"A: 1\nB: b{' ' * 60_000}x\n")
    (results,) = (
        item
        for item in configs.collect_configs({"HF_HOME": str(tmp_path)})
        if item.path.startswith(str(tmp_path))
    )
    assert results.values == {"A": "1"}


@pytest.mark.parametrize("line", ["a\0/__init__.py,,5", f"a/_C.so,,{'9' * 5000}", "\udc80/_C.so,,5"])
def test_a_list_of_installed_files_with_names_that_are_none(tmp_path, line):
    """A NUL, a length of five thousand digits."""
    stream_made = Maker(tmp_path / "env").add("torch", "2.8.0")
    (stream_made.site / "a").mkdir()
    (stream_made.site / "a" / "_C.so").touch()
    (stream_made.site / "torch-2.8.0.dist-info" / "RECORD").write_text(line + "\n", errors="surrogateescape")
    assert environment.collect(stream_made.prefix, {}).version("torch") == "2.8.0"


@pytest.mark.parametrize("path", ["/etc/x.so", "../../../../../../etc/x.so"])
def test_a_list_of_installed_files_asks_nothing_of_the_rest_of_the_machine(tmp_path, path):
    """Existence and size are only read for the environment's own files."""
    stream_made = Maker(tmp_path / "env").add("torch", "2.8.0")
    (stream_made.site / "torch-2.8.0.dist-info" / "RECORD").write_text(f"{path},,5\n")
    assert environment.collect(stream_made.prefix, {}).packages["torch"].damaged == ()


def _greedy(kind):
    """Make an ELF file of 1.6 MB with tens of thousands of names of one megabyte each."""
    table, names = 4096, 4096 + 640_000
    section = struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, table, 640_000, 0, 0xFFFF, 0, 0)
    head = bytearray(b"\x7fELF\x02\x01" + bytes(58))
    struct.pack_into("<Q", head, 0x28, 64)
    struct.pack_into("<HH", head, 0x3A, 64, 1)
    if kind == 6:
        body = struct.pack("<QQ", 1, names - table) * 40_000
    else:  # one library with 65,535 versions, of which each is the next of itself
        body = struct.pack("<HHIII", 1, 0xFFFF, 0, 16, 0) + struct.pack("<IHHII", 0, 0, 0, names - table, 0)
    return (bytes(head) + section).ljust(table, b"\0") + body.ljust(640_000, b"\0") + b"a" * 960_000


@pytest.mark.parametrize("kind", [6, 0x6FFFFFFE])
def test_an_extension_that_asks_for_gigabytes_is_unreadable(tmp_path, kind):
    """In a process limited to a gigabyte: the request is bounded, not the available memory."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "_C.so").write_bytes(_greedy(kind))
    text = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from pathlib import Path; from diagnostics.collect import elf as extensions;"
        f"(found,) = extensions.collect([Path({str(tmp_path)!r})], Path('/nowhere'), {{}}); print(found.problem)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout[:20]) == (0, "no readable ELF file"), done.stderr


@pytest.mark.parametrize("name", ["ray_current_cluster", "session_latest/usage_stats.json"])
def test_ray_s_folder_belongs_to_everybody(tmp_path, instead, name):
    """In Ray's world-writable folder, special files, links to outside and deep nesting do no harm."""
    folder = tmp_path / "ray"
    (folder / "session_1").mkdir(parents=True)
    (folder / "session_latest").symlink_to("session_1")
    instead(folder / name)
    (result,) = clusters.collect({"RAY_TMPDIR": str(tmp_path)})
    assert (result.current, result.release) == ("", "")


def test_no_secret_is_read_through_ray_s_folder(tmp_path):
    """Another user linked to a file that doctor's user may read."""
    (tmp_path / "secret").write_text("password")
    folder = tmp_path / "ray"
    (folder / "session_latest").mkdir(parents=True)
    (folder / "ray_current_cluster").symlink_to(tmp_path / "secret")
    (folder / "session_latest" / "usage_stats.json").write_text("[" * 60_000)
    (result,) = clusters.collect({"RAY_TMPDIR": str(tmp_path)})
    assert (result.current, result.release) == ("", "")


@pytest.mark.parametrize(
    "change",
    [
        {"cells": [{"id": "a"}]},
        {"cells": {}},
        {"breadth": {"trl": {"1.0": {"declares": 3}}}},
        {"breadth": {"trl": {"1.0": {"declares": "", "contract": {"pass": 1}}}}},
        {"breadth": []},
    ],
)
def test_a_table_of_another_shape_is_not_used(tmp_path, change):
    """Its checks are skipped, with the reason."""
    path = tmp_path / "compat.json"
    path.write_text(json.dumps(json.loads(compat.PATH.read_text()) | change))
    result = compat.load(path)
    assert (bool(result.problem), result.cells, result.breadth) == (True, (), {})


def test_the_shipped_table_is_of_its_shape():
    """Or everybody's doctor would do without."""
    assert compat.load().problem == ""


# fleet


@pytest.mark.parametrize("home", ["/" + "x" * 5000, "/usr/\0bin", "/usr/\udc80"])
def test_an_environments_home_may_be_called_what_nothing_is(home, tmp_path):
    """A line of pyvenv.cfg can be too long for a name, or contain a NUL."""
    prefix = Maker(tmp_path / "env").add("trl", "1.9.2").prefix
    text = f"home = {home}\nversion = 3.11.2\n"
    (prefix / "pyvenv.cfg").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert program.main(["doctor", "--prefix", str(prefix), "--format", "json"]) != 2
