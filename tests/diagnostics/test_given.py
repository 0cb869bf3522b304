"""What others put where a file should be is found, refused or *not judged*, soon; a fault of ours is exit 2."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from diagnostics import __main__ as program
from diagnostics import given
from diagnostics.doctor.fleet import nodes
from diagnostics.collect import clusters, collection, compat, configs, environment, extensions
from diagnostics.hang.read import ReadError, files
from diagnostics.lint import project_requirements
from diagnostics.matrix import __main__ as matrix
from diagnostics.nodes import answer, cluster, hosts
from tests.diagnostics.environments import Maker
from tests.diagnostics.programs import fuzz_readers

ROOT = Path(__file__).parents[2]
FAILURE = b"".join(
    (
        b"step 1\nTraceback (most recent call last):\n",
        b'  File "/opt/env/lib/python3.12/site-packages/own/a.py", line 7, in f\n    f()\n',
        b"KeyError: 'x'\n",
    )
)


def a_pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def of_the_kernel(path):
    path.symlink_to("/proc/self/environ")


def enormous(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


INSTEAD = [a_pipe, endless, of_the_kernel, enormous]


@pytest.fixture(params=INSTEAD)
def instead(request):
    """Puts something into a file's place that is no file of a reasonable size."""

    def put(path):
        path.unlink(missing_ok=True)
        request.param(path)

    return put


# The reader itself.


def test_only_a_regular_file_of_its_kind_s_size_is_read(tmp_path, instead):
    """Neither waited for nor read into memory without end; said in one line."""
    instead(tmp_path / "file")
    with pytest.raises(given.RefusedError, match=r"^(not a|larger than)"):
        given.read(tmp_path / "file", given.METADATA)


def test_a_link_leads_out_of_no_folder(tmp_path):
    """Nor do dots, nor a link to a folder on the way; inside, links are what they are."""
    (tmp_path / "secret").write_text("s")
    inside = tmp_path / "in"
    (inside / "real").mkdir(parents=True)
    (inside / "real" / "a").write_text("a")
    (inside / "link").symlink_to(inside / "real")
    (inside / "out").symlink_to(tmp_path)
    (inside / "leak").symlink_to(tmp_path / "secret")
    assert given.text(inside / "link" / "a", 9, inside=inside) == "a"
    for name in ("leak", "out/secret", "../secret"):
        with pytest.raises(given.RefusedError, match="out of the folder"):
            given.read(inside / name, 9, inside=inside)


def test_a_name_that_is_none_is_refused(tmp_path):
    """A NUL in it."""
    with pytest.raises(OSError, match="no name"):
        given.read(tmp_path / "a\0b", 9)


def test_the_null_device_is_an_empty_file_where_the_user_names_it(capsys):
    """As it is everywhere else: an empty log, and no crash; below a folder it is what it is, no file."""
    assert given.read(Path("/dev/null"), 9, pipes=True) == b""
    with pytest.raises(given.RefusedError, match="not a regular file"):
        given.read(Path("/dev/null"), 9)
    with pytest.raises(given.RefusedError, match="not a regular file"):
        given.read(Path("/dev/zero"), 9, pipes=True)
    assert program.main(["triage", "/dev/null"]) == 3
    assert "0 lines: empty" in capsys.readouterr().out


# doctor


@pytest.mark.parametrize("name", ["METADATA", "INSTALLER", "WHEEL", "RECORD"])
def test_a_package_whose_metadata_is_no_file_is_not_judged(tmp_path, instead, name):
    """Doctor answers, and says it of the one; what could not be read is not called broken, and nobody removes it."""
    made = Maker(tmp_path / "env").add("torch", "2.8.0", requires=["numpy>=1"]).add("trl", "1.9.2")
    instead(made.site / "torch-2.8.0.dist-info" / name)
    found = environment.collect(made.prefix, {})
    assert found.version("trl") == "1.9.2"
    place = str(made.site / "torch-2.8.0.dist-info")
    if name == "METADATA":
        assert (found.broken, [each for each, _ in found.unread]) == ((), [place])
    else:
        assert found.packages["torch"].requires == ("numpy>=1",)
        assert found.packages["torch"].damaged == ()
        assert [each for each, _ in found.unread] == ([f"{place}/RECORD"] if name == "RECORD" else [])


def test_other_files_of_an_environment_that_are_none(tmp_path, instead):
    """pyvenv.cfg, vLLM's list of variables, a whole folder of packages."""
    made = Maker(tmp_path / "env").add("trl", "1.9.2")
    (made.site / "vllm").mkdir()
    instead(made.site / "vllm" / "envs.py")
    instead(made.prefix / "pyvenv.cfg")
    instead(made.site.parent / "dist-packages")
    found = environment.collect(made.prefix, {"VLLM_X": "1"})
    assert (found.python, found.version("trl"), found.vllm_variables) == ("3.11", "1.9.2", None)


def test_metadata_that_takes_time_with_the_square_of_its_length(tmp_path):
    """A name behind half a megabyte of blanks, and a config line of the same kind."""
    made = Maker(tmp_path / "env").add("trl", "1.9.2")
    head = f"Name: trl{' ' * 500_000}x\nVersion: 1{' ' * 500_000}x\n"
    (made.site / "trl-1.9.2.dist-info" / "METADATA").write_text(head)
    assert len(environment.collect(made.prefix, {}).broken) == 1
    (tmp_path / ".nccl.conf").write_text(f"A=1\nB=b{' ' * 60_000}x\n")
    (found,) = (
        each for each in configs.collect({"HOME": str(tmp_path)}) if each.path.startswith(str(tmp_path))
    )
    assert found.values == {"A": "1"}


@pytest.mark.parametrize("line", ["a\0/__init__.py,,5", f"a/_C.so,,{'9' * 5000}", "\udc80/_C.so,,5"])
def test_a_list_of_installed_files_with_names_that_are_none(tmp_path, line):
    """A NUL, a length of five thousand digits."""
    made = Maker(tmp_path / "env").add("torch", "2.8.0")
    (made.site / "a").mkdir()
    (made.site / "a" / "_C.so").touch()
    (made.site / "torch-2.8.0.dist-info" / "RECORD").write_text(line + "\n", errors="surrogateescape")
    assert environment.collect(made.prefix, {}).version("torch") == "2.8.0"


@pytest.mark.parametrize("path", ["/etc/x.so", "../../../../../../etc/x.so"])
def test_a_list_of_installed_files_asks_nothing_of_the_rest_of_the_machine(tmp_path, path):
    """Whether a file is there, and how long it is, is said of the environment's own files alone."""
    made = Maker(tmp_path / "env").add("torch", "2.8.0")
    (made.site / "torch-2.8.0.dist-info" / "RECORD").write_text(f"{path},,5\n")
    assert environment.collect(made.prefix, {}).packages["torch"].damaged == ()


def _greedy(kind):
    """An ELF file of 1.6 MB that asks for tens of thousands of names of which each is a megabyte."""
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
    """In a process that has a gigabyte: what is asked for is bounded, not what is at hand."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "_C.so").write_bytes(_greedy(kind))
    text = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from pathlib import Path; from diagnostics.collect import extensions;"
        f"(found,) = extensions.collect([Path({str(tmp_path)!r})], Path('/nowhere'), {{}}); print(found.problem)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout[:20]) == (0, "no readable ELF file"), done.stderr


def test_an_extension_that_is_no_file(tmp_path, instead):
    """It can't be read, and that is said of it."""
    (tmp_path / "vllm").mkdir()
    instead(tmp_path / "vllm" / "_C.so")
    (found,) = extensions.collect([tmp_path], tmp_path, {})
    assert found.problem


@pytest.mark.parametrize("name", ["ray_current_cluster", "session_latest/usage_stats.json"])
def test_ray_s_folder_belongs_to_everybody(tmp_path, instead, name):
    """What is no file in it is not waited for; neither a link out of it nor deep nesting does harm."""
    folder = tmp_path / "ray"
    (folder / "session_1").mkdir(parents=True)
    (folder / "session_latest").symlink_to("session_1")
    instead(folder / name)
    (found,) = clusters.collect({"RAY_TMPDIR": str(tmp_path)})
    assert (found.current, found.release) == ("", "")


def test_no_secret_is_read_through_ray_s_folder(tmp_path):
    """A link that somebody else put there, to what the one who calls doctor may read."""
    (tmp_path / "secret").write_text("password")
    folder = tmp_path / "ray"
    (folder / "session_latest").mkdir(parents=True)
    (folder / "ray_current_cluster").symlink_to(tmp_path / "secret")
    (folder / "session_latest" / "usage_stats.json").write_text("[" * 60_000)
    (found,) = clusters.collect({"RAY_TMPDIR": str(tmp_path)})
    assert (found.current, found.release) == ("", "")


def test_accelerate_s_config_that_is_no_file(tmp_path, instead):
    """The kernel's files are no configs; of a large one the beginning is enough."""
    place = tmp_path / "accelerate"
    place.mkdir()
    instead(place / "default_config.yaml")
    found = configs.collect({"HOME": str(tmp_path), "HF_HOME": str(tmp_path)})
    assert [each.values for each in found if str(tmp_path) in each.path] in ([], [{}])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cells": [{"id": "a"}]}, "cells[0].vllm: is missing"),
        ({"cells": {}}, "cells: expected a list"),
        ({"breadth": {"trl": {"1.0": {"declares": 3}}}}, "declares: expected str"),
        (
            {"breadth": {"trl": {"1.0": {"declares": "", "contract": {"pass": 1}}}}},
            "contract.pass: expected str",
        ),
        ({"breadth": []}, "breadth: expected a table"),
    ],
)
def test_a_table_of_another_shape_is_not_used(tmp_path, change, said):
    """Nothing of it; the checks that rest on it are skipped, and say why."""
    path = tmp_path / "compat.json"
    path.write_text(json.dumps(json.loads(compat.PATH.read_text()) | change))
    found = compat.load(path)
    assert (said in found.problem, found.cells, found.breadth) == (True, (), {})


def test_the_shipped_table_is_of_its_shape():
    """Or everybody's doctor would do without."""
    assert compat.load().problem == ""


# fleet


def test_a_list_of_hosts_is_not_waited_for(tmp_path):
    """A pipe that nobody writes to is an empty list."""
    os.mkfifo(tmp_path / "hosts")
    with pytest.raises(hosts.HostsError, match="no host in it"):
        hosts.read(tmp_path / "hosts")


@pytest.mark.parametrize("value", ["Infinity", "NaN", "[" * 100_000, "1" * 5000])
def test_a_node_s_numbers_are_numbers(value):
    """A node that answers otherwise is a node that can't be examined."""
    document = json.dumps(
        {"facts": collection.collect(None).to_json() | {"machine": "HERE"}, "nccl": [], "models": []}
    )
    said = answer.NodeAnswer(text=f"{answer.MARK} {document.replace(json.dumps('HERE'), value)}")
    assert nodes.read(said)["problem"].startswith("its answer is broken")
    assert answer.clock_of(f"{answer.CLOCK} inf") is None


@pytest.mark.parametrize(
    "line", ["{", "[" * 100_000, "[]", '{"id": 1, "text": "x"}', '{"nodes": [{"id": "a"}]}']
)
def test_what_ray_s_nodes_say_between_the_lines_is_left_out(line):
    """Only what our own program says is taken for it."""
    assert cluster._document(line) is None


# triage


@pytest.fixture
def run(capsys):
    """The command, in this process: its exit code, and its report or what it said on standard error."""

    def made(path):
        code = program.main(["triage", str(path), "--format", "json"])
        told = capsys.readouterr()
        return code, json.loads(told.out) if told.out else told.err

    return made


def a_tar(data):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        info = tarfile.TarInfo("a.log")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def a_zip(*files, method=zipfile.ZIP_DEFLATED):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for name, data in files:
            # Of a day of its own: its bytes are in the names of tests, which are the same for each worker.
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return raw.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x7fELF" + bytes(range(32)) * 9, "a program"),
        (bytes(5000), "nothing but NUL"),
        (bytes(range(256)) * 40, "binary"),
        (b"\xff" * 300, "binary"),
        (b"\x28\xb5\x2f\xfd" + FAILURE, "zstd -dc"),
        (b"\x04\x22\x4d\x18" + FAILURE, "LZ4"),
        (a_tar(FAILURE), "tar archive"),
        (gzip.compress(a_tar(FAILURE), mtime=0), "binary"),
        (gzip.compress(a_zip(("a", FAILURE)), mtime=0), "binary"),
        (a_zip(("a.log", FAILURE), method=zipfile.ZIP_LZMA), "method 14"),
        (a_zip(("a.log", a_zip(("b", FAILURE)))), "zip in a"),
        (lzma.compress(FAILURE)[:-20], "cut off"),
        (b"BZh9 is no archive", "cannot be read"),
        (a_zip(("a", FAILURE)).replace(b"a", b"", 1), "cannot be read"),
    ],
)
def test_what_is_no_text_is_not_clean(run, tmp_path, data, said):
    """It was not read: the reason is said, and the exit code is 3."""
    (tmp_path / "a.log").write_bytes(data)
    code, document = run(tmp_path / "a.log")
    problems = [check["reason"] for check in document["checks"] if check["outcome"] == "crashed"]
    assert (code, len(problems)) == (3, 1)
    assert said in problems[0]
    assert "no failure" not in document["notes"][0] or "cut off" in said


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(FAILURE[:30]) + gzip.compress(FAILURE[30:]) + bytes(500),
        bz2.compress(FAILURE),
        lzma.compress(FAILURE),
        a_zip(("0_setup.txt", b"fine\n"), ("run/1_train.txt", FAILURE)),
        a_zip(("a.log.gz", gzip.compress(FAILURE))),
        bytes(3 << 20) + FAILURE,
    ],
    ids=["gzip in parts", "bzip2", "xz", "zip", "gzip in a zip", "a hole before it"],
)
def test_a_failure_is_found_in_what_is_packed(run, tmp_path, data):
    """Or after a hole, which a log has that was cut while it was written to."""
    (tmp_path / "a.log").write_bytes(data)
    code, document = run(tmp_path / "a.log")
    assert (code, document["subject"]["verdict"]) == (3, "unknown")
    assert document["subject"]["anchors"][0]["text"].startswith("KeyError: 'x'")


def _shared(size, count):
    """A zip of which many entries are the same bytes."""
    raw = bytearray(a_zip(("0", b"a" * size)))
    end = raw.rindex(b"PK\x05\x06")
    start = struct.unpack_from("<I", raw, end + 16)[0]
    entry = bytes(raw[start:end])
    entries = b"".join(
        entry[:28] + struct.pack("<H", 6) + entry[30:46] + b"%06d" % number for number in range(count)
    )
    tail = bytearray(raw[end:])
    struct.pack_into("<HHI", tail, 8, count & 0xFFFF, count & 0xFFFF, len(entries))
    return bytes(raw[:start]) + entries + bytes(tail)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda: gzip.compress(b"a\n" * (4 << 20)), "times its size"),
        (lambda: bz2.compress(b"a\n" * (4 << 20)), "times its size"),
        (lambda: gzip.compress(b"") * 20_000, "parts with next to nothing"),
        (lambda: a_zip(("a", b"a" * (3 << 20))), "times its size"),
        (lambda: _shared(1 << 20, 5000), "times its size"),
        (lambda: _shared(10, 20_000), "files"),
    ],
    ids=["gzip", "bzip2", "empty parts", "zip", "one for many", "many"],
)
def test_a_bomb_is_refused(run, tmp_path, monkeypatch, data, said):
    """By what comes of it, by its parts, by its files: said, and exit 3 or wrong usage, never clean."""
    monkeypatch.setattr("diagnostics.triage.reading.packed.BOMB_BYTES", 1 << 20)
    (tmp_path / "a.log").write_bytes(data())
    code, told = run(tmp_path / "a.log")
    text = told if isinstance(told, str) else json.dumps(told["checks"])
    assert code in {2, 3}
    assert said in text


def test_links_out_of_a_folder_of_logs_are_not_followed(run, tmp_path):
    """They are named as unread, and what was read does not count as all."""
    (tmp_path / "secret").write_bytes(FAILURE)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.log").write_text("Training completed.\n")
    assert run(folder)[0] == 0
    (folder / "b.log").symlink_to(tmp_path / "secret")
    code, document = run(folder)
    assert (code, document["subject"]["logs"]) == (3, ["a.log"])
    assert "b.log (a link out of the folder" in document["notes"][-1]


def test_a_packed_log_in_a_folder_is_not_passed_over(run, tmp_path):
    """One that can't be unpacked is a log that was not read."""
    (tmp_path / "a.log").write_text("fine\n")
    (tmp_path / "b.log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    code, document = run(tmp_path)
    assert (code, "zstd" in json.dumps(document["checks"])) == (3, True)
    (tmp_path / "b.log.zst").rename(tmp_path / "b.log.2")
    assert run(tmp_path)[0] == 3


def test_a_pipe_is_still_read(tmp_path):
    """A shell's `<(…)`."""
    reading, writing = os.pipe()
    os.write(writing, FAILURE)
    os.close(writing)
    done = subprocess.run(
        [sys.executable, "-m", "diagnostics", "triage", f"/dev/fd/{reading}"],
        pass_fds=[reading], capture_output=True, cwd=ROOT, check=False,
    )  # fmt: skip
    os.close(reading)
    assert (done.returncode, b"KeyError" in done.stdout) == (3, True)


# lint


def test_a_config_is_a_file(tmp_path, capsys):
    """A link to what the kernel makes up is none: the process's variables are no settings."""
    (tmp_path / "a.yaml").symlink_to("/proc/self/environ")
    assert program.main(["lint", str(tmp_path / "a.yaml")]) == 3
    assert "the kernel makes up" in " ".join(capsys.readouterr().out.split())


def test_a_config_names_no_file_of_another_kind_by_a_link(tmp_path):
    """`deepspeed: x.json`, where x.json is a link to what is no JSON by name."""
    from diagnostics.lint import reading
    from diagnostics.lint.values import Place, Settings, Value

    (tmp_path / "secret").write_text('{"token": "s"}')
    (tmp_path / "x.json").symlink_to(tmp_path / "secret")
    named = Value("x.json", Place(str(tmp_path / "a.yaml"), 1))
    assert reading._read_named(Settings("trl", named.place), named) == []


def test_a_baseline_is_read_to_a_size(tmp_path, capsys):
    """An endless one is no report."""
    (tmp_path / "a.toml").write_text("[rollout]\n")
    assert program.main(["lint", str(tmp_path / "a.toml"), "--baseline", "/dev/zero"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# A fault of ours.


def _broken(*_arguments, **_options):
    raise RuntimeError("unforeseen\nin two lines")


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("which", ["diagnostics", "matrix", "repro", "facts"])
def test_what_nobody_foresaw_is_exit_2_in_one_line(which, shown, monkeypatch, capfd):
    """Never 1, which says that something was found; the traceback comes on demand."""
    import repro.__main__
    from diagnostics.collect import __main__ as facts

    if shown and which != "facts":
        monkeypatch.setenv("GRPO_DOCTOR_DEBUG", "1")
    monkeypatch.setattr("diagnostics.catalog.load", _broken)
    monkeypatch.setattr("diagnostics.matrix.commands.check", _broken)
    monkeypatch.setattr("repro.__main__._list", _broken)
    monkeypatch.setattr(facts, "collect", _broken)
    monkeypatch.setattr(sys, "argv", ["facts"])
    if which == "repro":
        kept = os.dup(1)
        monkeypatch.setattr("repro.__main__._keep_stdout", lambda: os.dup(kept))
    code = {
        "diagnostics": lambda: program.main(["catalogue"]),
        "matrix": lambda: matrix.main(["check"]),
        "repro": lambda: repro.__main__.main(["list"]),
        "facts": facts.main,
    }[which]()
    told = capfd.readouterr().err
    assert (code, "RuntimeError: unforeseen in two lines" in " ".join(told.split())) == (2, True)
    assert ("Traceback" in told) == (shown and which != "facts")
    if not shown and which != "facts":
        assert told.count("\n") == 1


@pytest.mark.parametrize("reader", fuzz_readers.READERS, ids=lambda reader: reader.__name__)
def test_damaged_and_hostile_files_are_answered_or_refused(reader):
    """A few of the cases of `python -m tests.diagnostics.programs.fuzz_readers`, which is run with many."""
    count = 8 if reader in {fuzz_readers.fleet, fuzz_readers.triage} else 30
    _outcomes, _slowest, wrong = fuzz_readers.run(reader, count, 0)
    assert not wrong, "\n".join(text for _case, text in wrong)


def test_a_zip_whose_file_has_no_name(run, tmp_path):
    """Found by the program above: zipfile itself trips over it."""
    data = a_zip(("x", FAILURE))
    end = data.rindex(b"PK\x01\x02")
    (tmp_path / "a.log").write_bytes(
        data[: end + 28] + b"\0\0" + data[end + 30 : end + 46] + data[end + 47 :]
    )
    code, _told = run(tmp_path / "a.log")
    assert code in {2, 3}


def a_device(path):
    path.symlink_to("/dev/zero")


def a_hole(path):
    with path.open("wb") as file:
        file.truncate(100 << 30)


def a_bomb(path):
    """A gibibyte of nothing, in a megabyte: a dump that is packed, as `--save` of others writes it."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))


@pytest.mark.parametrize("put", [a_pipe, a_device, a_hole, a_bomb])
def test_a_dump_for_hang_is_a_file_of_a_size(put, tmp_path):
    """A pipe was waited for, a device read until memory ended, and what was packed unpacked without an end."""
    path = tmp_path / "dump"
    put(path)
    done = run_bounded("hang", "--from", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("diagnostics: hang: ")
    assert "fault of its own" not in done.stderr


@pytest.mark.parametrize("home", ["/" + "x" * 5000, "/usr/\0bin", "/usr/\udc80"])
def test_an_environments_home_may_be_called_what_nothing_is(environment, home):
    """A line of pyvenv.cfg is a stranger's: too long for a name, it was a fault of ours."""
    text = f"home = {home}\nversion = 3.11.2\n"
    (environment.prefix / "pyvenv.cfg").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert program.main(["doctor", "--prefix", str(environment.prefix), "--format", "json"]) != 2


@pytest.mark.parametrize("entries", [3, None, 1.5, [{"frames": 3}], [{"collective_seq_id": [1]}]])
def test_a_recorders_pickle_that_holds_something_else_is_refused(entries, tmp_path, capsys):
    """It was a fault of ours, in the middle of a reader."""
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.4", "entries": entries, "pg_config": {}}))
    assert program.main(["hang", "--from", str(path)]) == 2
    assert "fault of its own" not in capsys.readouterr().err


@pytest.mark.parametrize("put", [a_pipe, a_device, a_hole])
@pytest.mark.parametrize(
    "module", [("diagnostics.matrix", "check", "--file"), ("grpo_core", "train")], ids=lambda words: words[0]
)
def test_a_matrix_file_and_settings_are_files_of_a_size(put, module, tmp_path):
    """Both were read whole, whatever they were."""
    path = tmp_path / "given.toml"
    put(path)
    done = run_bounded(*module[1:], str(path), module=module[0])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "fault of its own" not in done.stderr


def test_links_in_a_circle_are_no_dump(tmp_path):
    """`check` named the error of Python and showed where in our code it was."""
    (tmp_path / "a.jsonl").symlink_to("a.jsonl")
    done = run_bounded("check", str(tmp_path / "a.jsonl"), module="grpo_core")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def run_bounded(*words, module="diagnostics"):
    """The program, with 3 GiB of memory: what has no end ends by an error, not by the machine's."""
    words = ["-c", 'ulimit -v 3145728; exec "$@"', "sh", sys.executable, "-m", module, *words]
    return subprocess.run(
        ["/bin/bash", *words], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )


@pytest.mark.parametrize("before", [b"", b"INFO start\n"])
def test_what_was_never_written_of_a_log_takes_no_time(tmp_path, before):
    """A hole of 100 GB, before a failure or alone: read to its end it would take minutes."""
    failure = b'Traceback (most recent call last):\n  File "/opt/run.py", line 3, in <module>\n    serve()\n'
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        file.write(before)
        file.truncate(100 << 30)
    assert program.main(["triage", str(path)]) == 3
    with path.open("r+b") as file:
        file.seek(100 << 30)
        file.write(failure + b"OSError: [Errno 98] Address already in use\n")
    assert program.main(["triage", str(path)]) == 1


# Own documents, what a program of ours printed, a text within a text of a bounded length.
_PARSES_ITSELF = {
    "given.py", "collect/gpus.py", "nodes/cluster.py", "nodes/program.py", "audit/recorded/readers/trackers.py",
    "audit/running/probing.py", "lint/command_lines.py", "lint/readers/structured.py", "lint/option_index.py", "processes.py",
    "hang/read/files.py", "triage/reading/envelopes.py",
}  # fmt: skip


def test_documents_of_others_are_parsed_behind_one_door():
    """Whoever calls `json` itself reads what is ours or short; the matrix reads what it or a cell wrote."""
    folder = Path(given.__file__).parent
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"\bjson\.loads?\(|JSONDecoder\(", path.read_text(encoding="utf-8"))
    }
    assert {path for path in found if not path.startswith("matrix/")} <= _PARSES_ITSELF
    assert "matrix/records/taken_in.py" not in found
    assert "matrix/records/gpu_runs.py" not in found


@pytest.mark.parametrize(("part", "times"), [("[],", 1_500_000), ('{"a":1},', 400_000)])
def test_a_document_of_too_many_values_is_refused_before_it_is_parsed(part, times, monkeypatch):
    """Three bytes of it make a list of seventy; what it would take is known by its signs."""
    document = f"[{part * times}0]"
    monkeypatch.setattr(given, "MOST_TAKEN", given.MIB * 100)
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    for each in (document, document.encode()):
        with pytest.raises(given.TooMuchError):
            given.parsed(each)


def test_documents_as_large_as_there_are_of_honest_ones_are_parsed():
    """A hundred thousand steps of thirty figures each, as a trainer's state has them."""
    signs = 100_000 * (240 + 30 * (64 + 64))
    assert signs < given.MOST_TAKEN
    assert given.parsed("[" * 500 + "]" * 500)


@pytest.mark.parametrize("sign", ["[", '{"a":'])
def test_a_document_that_is_nested_too_deep_is_none(sign):
    """As one error that all who read expect."""
    with pytest.raises(ValueError, match="nested too deep"):
        given.parsed(sign * 200_000)


def test_a_key_of_many_parts_takes_no_time(tmp_path, monkeypatch):
    """50,000 of them took a minute in a lock beside what is linted."""
    text = "a" + ".a" * 50_000 + "=1\n"
    with pytest.raises(given.TooMuchError):
        given.parsed_toml(text)
    (tmp_path / "uv.lock").write_text(f"[[package]]\nname = 'vllm'\n{text}")
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("it was parsed"))
    assert not project_requirements.read_project(tmp_path).pins


def test_lists_in_a_dump_for_hang_are_counted(tmp_path):
    """256 kB, packed, that took gigabytes."""
    path = tmp_path / "dump.json.gz"
    path.write_bytes(gzip.compress(b"[" + b"[]," * 4_500_000 + b"[]]", 1))
    with pytest.raises(ReadError, match="more values than any document has"):
        files.read([str(path)])
