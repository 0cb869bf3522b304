"""`lint` exits with 0, 1, 2 or 3, reports unreadable input in one line, and does not run the linted command."""

import os
from pathlib import Path

import pytest

from tests.processes import run_python

LAUNCH = "trl grpo --num_processes 4 --use_vllm true --num_generations 8 "
FAULTY = LAUNCH + "--per_device_train_batch_size 3\n"
UNDECIDABLE = LAUNCH + "--per_device_train_batch_size $N\n"
HEAVY_PACKAGES = {"torch", "vllm", "ray", "transformers", "numpy", "trl"}


@pytest.mark.parametrize(
    ("text", "options", "expected_code"),
    [
        (UNDECIDABLE, [], 3),
        (FAULTY, ["--fail-on", "blocker"], 0),
        (FAULTY, ["--select", "NUM"], 0),
        ('X="$X$X"\nX=1\n' + 'X="$X$X"\n' * 40, [], 3),
    ],
)
def test_exit_code_follows_options_and_unknown_values(run_command, tmp_path, text, options, expected_code):
    """Options can exclude the finding. The code is 3 if a value that decides a rule is unknown or a script is refused.

    The golden commands have the codes 0, 1 and 3 without such options.
    """
    (tmp_path / "run.sh").write_text(text)
    assert run_command("lint", "--trl", "1.9.0", *options, tmp_path / "run.sh").code == expected_code


def test_special_files_are_refused_in_one_line(tmp_path, run_command):
    """A pipe, a link to itself, a device, and an impossible file name are refused in one line."""
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "loop.sh").symlink_to(tmp_path / "loop.sh")
    paths = [tmp_path / name for name in ("pipe.sh", "loop.sh", "x" * 300)] + [Path("/dev/zero")]
    for path in paths:
        code, out, err = run_command("lint", path)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
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
def test_file_without_a_readable_run_is_reported_in_one_line(tmp_path, run_command, name, data):
    (tmp_path / name).write_bytes(data)
    result = run_command("lint", "--format", "json", tmp_path / name)
    assert (result.code, result.err) == (3, "")
    (reading,) = [check for check in result.document["checks"] if check["check"].startswith("reading ")]
    assert len(reading["reason"].splitlines()) == 1


def test_command_line_is_linted_without_running_it_or_importing_its_packages(tmp_path):
    program = (
        "import sys; sys.argv = ['d', 'lint', '--ms-swift', '4.0.0', '--', 'NPROC_PER_NODE=2', 'swift', 'rlhf', "
        "'--rlhf_type', 'grpo', '--use_vllm', 'true', '--vllm_mode', 'colocate', '--async_generate', 'true', "
        f"'--output_dir', '{tmp_path}/out']\n"
        "from diagnostics.cli import main; code = main()\n"
        f"print(code, sorted({HEAVY_PACKAGES!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = run_python("-c", program, cwd=Path(__file__).parents[2])
    code, modules = done.stderr.split()
    assert (code, modules) == ("1", "[]")
    assert "CFG001" in done.stdout
    assert list(tmp_path.iterdir()) == []
