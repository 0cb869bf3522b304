"""`doctor` computes an environment's sys.path from its files and reports missing, shadowed and moved modules.

It reads `.pth` files, editable installs and imports without running them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics import compat_table
from diagnostics.collect import python_environment, search_path
from diagnostics.collect.module_lookup import ModuleFinder
from diagnostics.doctor import run_checks
from tests.diagnostics.fake_environments import EnvironmentBuilder, load_catalog


def examine(maker, environ=None):
    """Return doctor's findings by code, and its report, in the current working directory."""
    known = python_environment.collect(maker.prefix, environ or {})
    report = run_checks.examine(known, load_catalog(), compat_table.load())
    return {finding.code: finding for finding in report.findings}, report


def add_with_files(maker, name, files, version="1.0", requires=()):
    """Add a distribution with these files and a RECORD of them; return the builder."""
    maker.add(name, version, requires=requires)
    module = name.replace("-", "_")
    for file, text in files.items():
        path = maker.site / module / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines = [f"{module}/{file},sha256=x,{len(text)}" for file, text in files.items()]
    (maker.site / f"{module}-{version}.dist-info" / "RECORD").write_text("\n".join(lines) + "\n")
    return maker


@pytest.fixture
def maker(tmp_path):
    """Return the builder of an environment with trl and accelerate."""
    files = {"__init__.py": "", "trainer/__init__.py": "", "trainer/grpo_trainer.py": "import accelerate\n"}
    maker = add_with_files(EnvironmentBuilder(tmp_path / "env"), "trl", files, "1.9.2", ["accelerate>=1"])
    return add_with_files(maker, "accelerate", {"__init__.py": "", "state.py": ""}, "1.2.0")


def test_intact_environment_has_no_finding_about_modules(maker, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    results, report = examine(maker)
    assert not {"ENV012", "ENV923", "ENV925", "ENV926"} & set(results)
    outcome_of = {check.check: check.outcome for check in report.checks}
    for check in ("package metadata", "search path", "entry points", "declared requirements"):
        assert outcome_of[check] == "ok", check


@pytest.mark.parametrize("system", [True, False])
def test_search_path_equals_sys_path_of_a_real_venv(tmp_path, system, monkeypatch):
    """The computed path equals sys.path of a venv, without the standard library's folders.

    The venv has PYTHONPATH, a `.pth` file with a missing folder, and the system's packages or none.
    """
    monkeypatch.delenv("PYTHONPATH", raising=False)
    options = ["--system-site-packages"] if system else []
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, tmp_path / "v"], check=True)
    prefix = (tmp_path / "v").resolve()
    (extra := tmp_path / "extra").mkdir()
    (names := tmp_path / "named").mkdir()
    (site,) = prefix.glob("lib/python3*/site-packages")
    (site / "more.pth").write_text(f"# a comment\n{extra}\n{tmp_path}/gone\nimport sys\n")
    mine = tmp_path / ".local" / "lib" / site.parent.name / "site-packages"
    mine.mkdir(parents=True)
    environ = {**os.environ, "PYTHONPATH": str(names), "HOME": str(tmp_path)}
    command = [prefix / "bin" / "python", "-c", "import sys, json; print(json.dumps(sys.path[1:]))"]
    folders = json.loads(subprocess.check_output(command, env=environ))
    outside = [path for path in folders if "-packages" in path or not path.startswith(sys.base_prefix)]
    expected = list(map(os.path.realpath, outside))
    known = search_path.collect(prefix, environ)
    assert [os.path.realpath(folder) for folder in known.folders] == expected
    assert [entry.source for entry in known.entries if entry.state] == [f"{site}/more.pth:3"]


def test_missing_module_imported_by_the_trainer_is_an_error(maker):
    """A missing module is reported with file and line of its import; conditional imports are ignored."""
    entry = maker.site / "trl" / "trainer" / "grpo_trainer.py"
    entry.write_text(
        "import accelerate\nimport lacking\ntry:\n    import wished\nexcept ImportError:\n    pass\n"
        "if accelerate:\n    import perhaps\nfrom ..helper import thing\n"
        "with contextlib.suppress(ImportError):\n    import optional\n"
    )
    (maker.site / "trl" / "helper.py").write_text("from . import other\nimport json, deeper.down\n")
    results, _ = examine(maker)
    assert results["ENV012"].severity.word == "error"
    assert [(item.text.split()[2].rstrip(","), item.place) for item in results["ENV012"].evidence] == [
        ("deeper", f"{maker.site}/trl/helper.py:2"),
        ("lacking", f"{entry}:2"),
    ]
    assert results["ENV012"].remedy.actions[1].requirements == ("deeper", "lacking")


def test_unparsable_trainer_is_not_checked(maker):
    (maker.site / "trl" / "trainer" / "grpo_trainer.py").write_text("import (\n")
    _, report = examine(maker)
    assert "imports of trl.trainer.grpo_trainer" in report.incomplete_summary
    assert any(check.incomplete for check in report.checks)


def test_modules_shadowed_by_pythonpath_or_the_working_directory_are_reported(maker, monkeypatch, tmp_path):
    """A file that shadows a package is an error, another copy a warning; a folder without __init__ is ignored."""
    names, working = tmp_path / "named", tmp_path / "working"
    (names / "trl" / "trainer").mkdir(parents=True)
    (working / "trl").mkdir(parents=True)
    (names / "accelerate.py").touch()
    (names / "trl" / "__init__.py").touch()
    (working / "random.py").touch()
    # Built-in and frozen modules cannot be shadowed.
    (names / "time.py").touch()
    (working / "stat.py").touch()
    monkeypatch.chdir(working)
    report = examine(maker, {"PYTHONPATH": str(names)})[1]
    results = [finding for finding in report.findings if finding.code == "ENV925"]
    severities = {item.place: finding.severity.word for finding in results for item in finding.evidence}
    assert severities == {
        str(names / "accelerate.py"): "error",
        str(names / "trl"): "warning",
        str(working / "random.py"): "warning",
    }


def test_editable_install_whose_folder_moved_is_an_error(maker, tmp_path):
    """A moved editable install is an error, found by reading setuptools' finder module without running it."""
    info = maker.site / "accelerate-1.2.0.dist-info"
    source = tmp_path / "source" / "accelerate"
    (maker.site / "accelerate").rename(maker.site / "away")
    (info / "RECORD").write_text("__editable___accelerate_finder.py,,1\n__editable__.accelerate.pth,,1\n")
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    finder = "__editable___accelerate_finder"
    (maker.site / "__editable__.accelerate.pth").write_text(f"import {finder}; {finder}.install()")
    mapping = f"MAPPING: dict[str, str] = {{'accelerate': {str(source)!r}}}\n1/0\n"
    (maker.site / f"{finder}.py").write_text(f"from __future__ import annotations\n{mapping}")
    results, _ = examine(maker)
    assert results["ENV926"].severity.word == "error"
    assert any(str(source) in item.text for item in results["ENV926"].evidence)
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    assert "ENV926" not in examine(maker)[0]


def test_missing_folder_and_unreadable_pth_file_are_reported(maker):
    """A line that names a missing folder is a warning; with an unreadable file (a FIFO), the path is not checked."""
    (maker.site / "old.pth").write_text("/no/such/folder\n")
    os.mkfifo(maker.site / "pipe.pth")
    results, report = examine(maker)
    finding = results["ENV926"]
    assert (finding.severity.word, finding.evidence[0].place) == ("warning", f"{maker.site}/old.pth:1")
    assert "search path" in report.incomplete_summary


def test_module_lookup_order_is_pythons(tmp_path):
    """The order of the folders decides, except that a package comes before a namespace folder of its name."""
    for folder, names in {"a": ["one"], "b": ["one/__init__.py", "two.py"], "c": ["two/__init__.py"]}.items():
        for name in names:
            path = Path(tmp_path, folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch() if name.endswith(".py") else path.mkdir()
    entries = tuple(search_path.SearchEntry(str(tmp_path / name), "", "own") for name in "abc")
    modules = ModuleFinder(search_path.SearchPath(entries))
    expected = {"one": str(tmp_path / "b" / "one"), "two": str(tmp_path / "b" / "two.py"), "three": ""}
    assert {name: modules.find(name) for name in expected} == expected


HOSTILE = (
    "import os; os.system('touch ran')\nimport\tos; os.system('touch ran')\n/proc/self/environ\n\x1b[2J\x1b]0;x\x07/x\n"
    f"{'../' * 50_000}etc\n{'x' * 200_000}\nn\0l\n::error::said\n"
)


def test_hostile_pth_file_is_not_run_and_is_shortened(maker, monkeypatch, tmp_path, run_command):
    """A `.pth` file with import lines, control characters and 200 kB in a line is not run; it is escaped and cut."""
    (maker.site / "evil.pth").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    for form in ("terminal", "json", "markdown", "github"):
        _, out, err = run_command("doctor", "--prefix", maker.prefix, "--format", form)
        text = out + err
        assert len(text) < 60_000
        assert not {"\x1b]", "\x07", "\0"} & set(text)
        assert "\n::error::said" not in text
    assert not (tmp_path / "ran").exists()


def test_invalid_editable_mapping_is_unread(maker):
    """A mapping that is nested too deep, or no literal, is not read."""
    for number, text in enumerate(["(" * 100_000, "MAPPING = {'a': '/x'}", "MAPPING = {[]: 1}"]):
        finder = f"__editable___a{number}_finder"
        (maker.site / f"{finder}.py").write_text(text)
        (maker.site / f"a{number}.pth").write_text(f"import {finder}; {finder}.install()\n")
    results = python_environment.collect(maker.prefix, {}).search
    assert [entry.path for entry in results.editable] == ["/x"]
    assert [Path(place).name for place, _ in results.unread] == [
        "__editable___a0_finder.py", "__editable___a2_finder.py",
    ]  # fmt: skip
