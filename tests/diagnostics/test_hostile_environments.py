"""`doctor` on environments with pipes, devices, huge files, links and malformed metadata neither blocks nor crashes.

Contents of files that are no metadata are not printed.
"""

import os
import sys
from pathlib import Path

import pytest

from diagnostics import __main__ as program
from diagnostics import safe_io
from diagnostics.collect import (
    elf,
    machine,
    module_lookup,
    python_environment,
    ray_traces,
    search_path,
)  # fmt: skip
from diagnostics.doctor import requirements
from tests.diagnostics.fake_environments import EnvironmentBuilder
from tests.limits import allocation_limit

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["pipe", "/dev/zero", "/proc/self/environ", "1 TiB"])
def replace_file(request):
    """Return a function that replaces a file by a pipe, a link to a device or to /proc, or a file of 1 TiB."""

    def replace_with(path):
        path.unlink(missing_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "1 TiB":
            path.touch()
            os.truncate(path, 1 << 40)
        else:
            path.symlink_to(request.param)

    return replace_with


@pytest.fixture
def maker(tmp_path):
    """Return the builder of an environment with TRL."""
    return EnvironmentBuilder(tmp_path / "env").add("trl", "1.9.2")


@pytest.mark.parametrize("name", ["METADATA", "INSTALLER", "WHEEL", "RECORD"])
def test_package_with_unreadable_metadata_is_unread_not_broken(maker, replace_file, name):
    """A package without a readable METADATA counts as unread, not as broken, so that its removal is not suggested.

    An unreadable RECORD is listed as unread; without INSTALLER or WHEEL nothing is unread.
    """
    maker.add("torch", "2.8.0", requires=["numpy>=1"])
    replace_file(maker.site / "torch-2.8.0.dist-info" / name)
    result = python_environment.collect(maker.prefix, {})
    assert result.version("trl") == "1.9.2"
    place = str(maker.site / "torch-2.8.0.dist-info")
    if name == "METADATA":
        assert (result.broken, [item for item, _ in result.unread]) == ((), [place])
    else:
        assert result.packages["torch"].requires == ("numpy>=1",)
        assert result.packages["torch"].damaged == ()
        assert [item for item, _ in result.unread] == ([f"{place}/RECORD"] if name == "RECORD" else [])


def test_other_unreadable_files_of_an_environment_are_skipped(maker, replace_file):
    """An unreadable pyvenv.cfg, list of vLLM variables, or folder of packages is skipped."""
    (maker.site / "vllm").mkdir()
    replace_file(maker.site / "vllm" / "envs.py")
    replace_file(maker.prefix / "pyvenv.cfg")
    replace_file(maker.site.parent / "dist-packages")
    result = python_environment.collect(maker.prefix, {"VLLM_X": "1"})
    assert (result.python, result.version("trl"), result.vllm_variables) == ("3.11", "1.9.2", None)


def test_lines_with_long_runs_of_blanks_are_invalid(maker, tmp_path):
    """A package with such metadata is broken, and a config is read without such lines; quadratic work would not end."""
    head = f"Name: trl{' ' * 500_000}x\nVersion: 1{' ' * 500_000}x\n"
    (maker.site / "trl-1.9.2.dist-info" / "METADATA").write_text(head)
    assert len(python_environment.collect(maker.prefix, {}).broken) == 1
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(
        f"A: 1\nB: b{' ' * 60_000}x\napi_keys:\n  b: Tulip9K\n"
    )
    (results,) = machine.collect_configs({"HF_HOME": str(tmp_path)})
    assert results.values.pop("b", "<secret>") == "<secret>"
    assert results.values == {"A": "1"}


@pytest.mark.parametrize(
    ("line", "damaged"),
    [
        ("a\0/__init__.py,,5", 0), (f"a/_C.so,,{'9' * 5000}", 0), ("\udc80/_C.so,,5", 1), ("/etc/x.so,,5", 0),
        ("../../../../../../etc/x.so,,5", 0),
    ],
)  # fmt: skip
def test_invalid_lines_in_record_are_ignored_or_count_as_missing(tmp_path, line, damaged):
    """Paths with a NUL or outside the environment, and huge sizes, are ignored; a path that is no UTF-8 is missing."""
    maker = EnvironmentBuilder(tmp_path / "env").add("torch", "2.8.0")
    (maker.site / "a").mkdir()
    (maker.site / "a" / "_C.so").touch()
    (maker.site / "torch-2.8.0.dist-info" / "RECORD").write_text(line + "\n", errors="surrogateescape")
    assert len(python_environment.collect(maker.prefix, {}).packages["torch"].damaged) == damaged


@pytest.mark.parametrize("name", ["ray_current_cluster", "session_latest/usage_stats.json"])
def test_special_files_in_rays_world_writable_folder_are_ignored(tmp_path, replace_file, name):
    folder = tmp_path / "ray"
    (folder / "session_1").mkdir(parents=True)
    (folder / "session_latest").symlink_to("session_1")
    replace_file(folder / name)
    (result,) = ray_traces.collect({"RAY_TMPDIR": str(tmp_path)})
    assert (result.current, result.release) == ("", "")


def test_links_out_of_rays_folder_are_not_followed(tmp_path):
    """Links out of Ray's folder, which another user may create, are not followed."""
    (tmp_path / "secret").write_text("password")
    folder = tmp_path / "ray"
    (folder / "session_latest").mkdir(parents=True)
    (folder / "ray_current_cluster").symlink_to(tmp_path / "secret")
    (folder / "session_latest" / "usage_stats.json").write_text("[" * 60_000)
    (result,) = ray_traces.collect({"RAY_TMPDIR": str(tmp_path)})
    assert (result.current, result.release) == ("", "")


@pytest.mark.parametrize("home", ["/" + "x" * 5000, "/usr/\0bin", "/usr/\udc80"])
def test_invalid_home_in_pyvenv_cfg_is_no_crash(home, tmp_path):
    """A home in pyvenv.cfg that is too long, or has a NUL or a lone surrogate, does not crash doctor."""
    prefix = EnvironmentBuilder(tmp_path / "env").add("trl", "1.9.2").prefix
    text = f"home = {home}\nversion = 3.11.2\n"
    (prefix / "pyvenv.cfg").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert program.main(["doctor", "--prefix", str(prefix), "--format", "json"]) != 2


def test_zip_on_the_search_path_is_not_checked(maker):
    (maker.site / "eggs.pth").write_text("./eggs.zip\n")
    (maker.site / "eggs.zip").touch()
    ((place, _reason),) = python_environment.collect(maker.prefix, {}).unread
    assert place == str(maker.site / "eggs.zip")


def test_linked_files_of_another_name_are_not_printed(tmp_path, capsys):
    """Files that are links to a file of another name, and `.pth` lines that are no path, are not printed."""
    (tmp_path / "netrc").write_text("bluebird\nTag: bluebird\nhome = bluebird\n")
    maker = EnvironmentBuilder(tmp_path / "env").add("torch", "2.8.0").add("trl", "1.9.2")
    info = maker.site / "torch-2.8.0.dist-info"
    for file in (info / "INSTALLER", info / "WHEEL", maker.site / "x.pth", maker.prefix / "pyvenv.cfg"):
        file.unlink(missing_ok=True)
        file.symlink_to(tmp_path / "netrc")
    (maker.site / "trl-1.9.2.dist-info" / "INSTALLER").write_text("password bluebird\n")
    wheel = maker.site / "trl-1.9.2.dist-info" / "WHEEL"
    wheel.write_text("Tag: bluebird\nTag: cp312-cp312-manylinux_2_28_x86_64\n")
    (maker.site / "y.pth").write_text("machine bluebird\n\nbluebird/\0\n")
    result = python_environment.collect(maker.prefix, {})
    assert "bluebird" not in repr(result)
    assert result.packages["trl"].tags == ("cp312-cp312-manylinux_2_28_x86_64",)
    assert str(maker.site / "x.pth") in dict(result.unread)
    assert program.main(["doctor", "--prefix", str(maker.prefix)]) != 2
    assert "bluebird" not in "".join(capsys.readouterr())


def test_links_that_keep_the_name_are_read(tmp_path):
    """Links as uv's and Nix's installers make them are followed: of the same name, for `.pth` of the same suffix."""
    maker = EnvironmentBuilder(tmp_path / "env").add("trl", "1.9.2", installer="Poetry 1.8.3")
    store = tmp_path / "store"
    (maker.site / "trl-1.9.2.dist-info").rename(store)
    (maker.site / "trl-1.9.2.dist-info").mkdir()
    for file in store.iterdir():
        (maker.site / "trl-1.9.2.dist-info" / file.name).symlink_to(file)
    (store / "a.pth").write_text(f"{store}\n")
    (maker.site / "b.pth").symlink_to(store / "a.pth")
    result = python_environment.collect(maker.prefix, {})
    assert (result.packages["trl"].installer, result.version("trl")) == ("Poetry", "1.9.2")
    assert store in result.search.folders


def test_finder_named_on_many_lines_is_parsed_once(maker, monkeypatch):
    (maker.site / "__editable___x_finder.py").write_text("MAPPING = {'a': '/a', 'b': '/b'}\n")
    for name in ("x.pth", "y.pth"):
        (maker.site / name).write_text("import __editable___x_finder\n" * 900)
    parsed = []
    parse = safe_io.parse_python
    monkeypatch.setattr(safe_io, "parse_python", lambda text: parsed.append(text) or parse(text))
    assert len(python_environment.collect(maker.prefix, {}).search.editable) == 2
    assert len(parsed) == 1


def write_trainer(maker, source):
    """Write TRL's modules into an environment, with this source of the trainer."""
    (maker.site / "trl" / "trainer").mkdir(parents=True)
    for folder in ("trl", "trl/trainer"):
        (maker.site / folder / "__init__.py").touch()
    (maker.site / "trl" / "trainer" / "grpo_trainer.py").write_text(source)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x=" + "-" * 100_000 + "1\n", "nested too deep"),
        (f"import trl.{'y' * 5000}\nimport trl.{'z' * 300}\n", ""),
    ],
)
def test_modules_that_no_parser_or_file_system_accepts_are_no_crash(maker, source, problem):
    """An expression nested too deep is reported as not followed; long names are no files."""
    write_trainer(maker, source)
    result = python_environment.collect(maker.prefix, {})
    (entry,) = (entry for entry in result.entry_points if entry.module == "trl.trainer.grpo_trainer")
    assert entry.problem.endswith(problem)
    assert bool(entry.problem) == bool(problem)


def test_import_of_thousands_of_parts_is_refused_with_little_memory(maker):
    """An import of 20,000 parts is refused with at most 40 MB of memory."""
    size = 20_000
    write_trainer(maker, f"import trl{'.a' * size}\n")
    search = search_path.collect(maker.prefix, {})
    with allocation_limit(size * size / 10):
        (entry, *_) = module_lookup.follow_entry_points(search, ["trl"])
    assert entry.problem.endswith("a name with more than 64 parts")


def test_imports_are_looked_up_without_scanning_the_folder(tmp_path):
    """Looking up a module that a folder of 500 files lacks takes fewer than 50 calls."""
    maker = EnvironmentBuilder(tmp_path / "env")
    for number in range(500):
        (maker.site / f"f{number}.txt").touch()
    (maker.site / "found.cpython-311.so").touch()
    finder = module_lookup.ModuleFinder(search_path.collect(maker.prefix, {}))
    assert finder.find("found") == str(maker.site / "found.cpython-311.so")
    assert finder.find("f1") == ""
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        finder.find("absent")
    finally:
        sys.setprofile(None)
    assert len(calls) < 50


def test_folder_under_many_spellings_is_listed_once(tmp_path, monkeypatch):
    """A RECORD that spells one folder in 1000 ways lists it once."""
    maker = EnvironmentBuilder(tmp_path / "env").add("torch", "2.8.0")
    (maker.site / "torch" / "lib").mkdir(parents=True)
    (maker.site / "torch" / "lib" / "a.py").touch()
    lines = [f"torch/{'./' * number}lib/a.py,,0\n" for number in range(1000)]
    (maker.site / "torch-2.8.0.dist-info" / "RECORD").write_text("".join(lines))
    listed = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(str(folder)) or scan(folder))
    assert python_environment.collect(maker.prefix, {}).packages["torch"].damaged == ()
    library_folder = str(maker.site / "torch" / "lib")
    assert [folder for folder in listed if folder.endswith("torch/lib")] == [library_folder]


def test_compiled_module_that_is_a_link_to_another_name_is_not_read(tmp_path):
    """A link of the same name is read; here the file is empty."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "_C.so").touch()
    for name in ("_C.so", "other.so"):
        (tmp_path / "vllm" / name).symlink_to(tmp_path / "_C.so")
    problems = [result.problem for result in elf.collect([tmp_path], Path("/nowhere"), {})]
    assert problems == [
        "no readable ELF file: not a 64-bit little-endian ELF file",
        "a link to a file of another name",
    ]


@pytest.mark.parametrize("marker", ["os_name ~= 'a'", "python_version >= 'a.b'", "'x' in extras"])
def test_requirement_with_undefined_comparison_is_unreadable(tmp_path, marker):
    """A requirement whose marker cannot be evaluated is skipped like an invalid one; the others are checked."""
    requires = [f"lacking>=1; {marker}", "absent>=2"]
    maker = EnvironmentBuilder(tmp_path / "env").add("trl", "1.9.2", requires=requires)
    known = python_environment.collect(maker.prefix, {})
    unmet = requirements.unmet_requirements(known, known.packages["trl"])
    assert [requirement.name for requirement in unmet] == ["absent"]
