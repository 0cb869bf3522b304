"""The command `lint`: exit codes, one-line refusals of unreadable input, and command lines that are not run."""

import json
import os
import sys
from pathlib import Path

import pytest

from diagnostics import __main__ as command
from tests.processes import run_python

LAUNCH = "trl grpo --num_processes 4 --use_vllm true --num_generations 8 "
FAULTY = LAUNCH + "--per_device_train_batch_size 3\n"
UNDECIDABLE = LAUNCH + "--per_device_train_batch_size $N\n"
FINE = LAUNCH + "--per_device_train_batch_size 2\n"
HEAVY_PACKAGES = {"torch", "vllm", "ray", "transformers", "numpy", "trl"}


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Return a function that lints a script with this text and returns (exit code, stdout, stderr)."""

    def run(text, *options):
        path = tmp_path / "run.sh"
        path.write_text(text)
        arguments = ["lint", "--trl", "1.9.0", *options, str(path)]
        monkeypatch.setattr(sys, "argv", ["diagnostics", *arguments])
        code = command.main(arguments)
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (FAULTY, [], 1),
        (FINE, [], 0),
        (UNDECIDABLE, [], 3),
        (FAULTY, ["--fail-on", "blocker"], 0),
        (FAULTY, ["--ignore", "CFG101"], 0),
        (FAULTY, ["--select", "NUM"], 0),
        ("echo nothing\n", [], 3),
        ('X="$X$X"\nX=1\n' + 'X="$X$X"\n' * 40, [], 3),
    ],
)
def test_exit_code_is_1_for_a_finding_and_3_for_unchecked_input(run, text, options, code):
    """It is 3 if there is no run in the file or a deciding value could not be read."""
    assert run(text, *options)[0] == code


def test_special_files_are_refused_in_one_line(tmp_path, capsys, monkeypatch):
    """The inputs are a pipe without a writer, a link to itself, a device, and an impossible file name."""
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "loop.sh").symlink_to(tmp_path / "loop.sh")
    paths = [tmp_path / name for name in ("pipe.sh", "loop.sh", "x" * 300)] + [Path("/dev/zero")]
    for path in paths:
        monkeypatch.setattr(sys, "argv", ["diagnostics", "lint", str(path)])
        assert command.main(["lint", str(path)]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert str(path) in err


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.yaml", b""), ("blank.sh", b"\n\n"), ("binary.yaml", bytes(range(256)) * 40), ("broken.json", b"{"),
        ("utf16.sh", "swift rlhf --rlhf_type grpo".encode("utf-16")), ("tabs.yaml", b"a:\n\t- b\n"),
        ("huge.toml", b"a = " + b"9" * 9000), ("line.sh", b"swift rlhf " + b"x" * 3_000_000),
        ("null.py", b"GRPOConfig(\0)"),
        ("no suffix", b"#!/usr/bin/env python\nGRPOConfig("),
    ],
)  # fmt: skip
def test_unparsable_file_is_reported_in_one_line(tmp_path, capsys, monkeypatch, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    monkeypatch.setattr(sys, "argv", ["diagnostics", "lint", "--format", "github", str(path)])
    assert command.main(["lint", "--format", "json", str(path)]) == 3
    out, err = capsys.readouterr()
    reading = [check for check in json.loads(out)["checks"] if check["check"].startswith("reading ")]
    assert len(reading) == 1
    assert len(reading[0]["reason"].splitlines()) == 1
    assert err == ""


def test_command_line_is_linted_without_running_it_or_importing_packages(tmp_path, tmp_path_factory):
    program = (
        "import sys; sys.argv = ['d', 'lint', '--ms-swift', '4.0.0', '--', 'NPROC_PER_NODE=2', 'swift', 'rlhf', "
        "'--rlhf_type', 'grpo', '--use_vllm', 'true', '--vllm_mode', 'colocate', '--async_generate', 'true', "
        f"'--output_dir', '{tmp_path}/out']\n"
        "from diagnostics.__main__ import main; code = main()\n"
        f"print(code, sorted({HEAVY_PACKAGES!r} & set(sys.modules)), file=sys.stderr)"
    )
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    root = Path(__file__).parents[2]
    done = run_python("-c", program, cwd=root, env=environ)
    code, modules = done.stderr.split()
    assert (code, modules) == ("1", "[]")
    assert "CFG001" in done.stdout
    assert list(tmp_path.iterdir()) == []
