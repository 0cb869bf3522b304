"""Hostile names, values and secrets through whole commands: nothing acts, nothing leaks, bad input is one line."""

import contextlib
import gzip
import json
import os
import pickle
import sys

import pytest

from diagnostics import __main__ as program
from diagnostics import cli, process
from diagnostics.output.report_output import FORMATS
from diagnostics.process import own_python
from tests.diagnostics.test_output import LOG, SCRIPT
from tests.diagnostics.test_redact import SHAPES, visible_parts
from tests.diagnostics.test_sanitize import active

NASTY = "a\x1b]52;c;aGk=\x07b\n::error::c \u202ed ##[add-mask]e $(touch x) `id` 'q' \"r\" ;s&t|u"
TOKEN = "hf_" + "aB3dE5gH7j" * 3


def run(*arguments):
    with contextlib.suppress(SystemExit):
        return program.main([str(word) for word in arguments])
    return 2


@pytest.fixture(autouse=True)
def _compiled_once(monkeypatch, rules):
    """Use the signatures that all tests share: compiling them takes seconds."""
    monkeypatch.setattr("diagnostics.triage.command.Rules", lambda _issues: rules)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("command", "suffix", "text"),
    [
        ("triage", "log", LOG.replace("already in use", f"already in use {NASTY}") + f"KeyError: {NASTY}\n"),
        (
            "lint",
            "sh",
            f"{SCRIPT.rstrip()} --output_dir '{NASTY.replace(chr(39), '')}' --model_name_or_path '\x9b2J'\n",
        ),
    ],
    ids=["log", "script"],
)
def test_a_file_with_a_hostile_name_and_content(tmp_path, capsys, form, command, suffix, text):
    """Every format of triage and lint."""
    path = tmp_path / f"{NASTY.replace('/', '')}.{suffix}"
    path.write_text(text)
    run(command, "--format", form, path)
    out, err = capsys.readouterr()
    assert out
    assert active(out, commands=form == "github") == active(err) == []


@pytest.mark.parametrize("form", FORMATS)
def test_an_environment_with_hostile_names(environment, monkeypatch, capsys, form):
    """Metadata, folders, requirements, variables and the prefix of doctor."""
    monkeypatch.setenv("RAY_ADDRESS", f"http://{NASTY}")
    environment.add("vllm", "0.7.3", requires=[f"torch==={NASTY.split(maxsplit=1)[0]}", NASTY])
    environment.add("odd", "", folder=f"odd-{NASTY.replace('/', '')}.dist-info")
    prefix = environment.prefix.rename(environment.prefix.with_name(f"env {NASTY.replace('/', '')}"))
    run("doctor", "--format", form, "--prefix", prefix)
    out, err = capsys.readouterr()
    assert active(out, commands=form == "github") == active(err) == []
    assert "SCH001" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", NASTY], ["triage", NASTY], ["triage", "--baseline", NASTY, "{log}"], ["lint", NASTY],
        ["doctor", "--prefix", NASTY], ["doctor", "--python", NASTY], ["doctor", "--hosts", NASTY],
        ["doctor", "--format", NASTY], [NASTY], ["lint", "--vllm", NASTY, "{log}"], ["hang", "--from", NASTY],
        ["hang", "--match", f"({NASTY}"], ["triage", "--fail-on", NASTY, "{log}"], ["versions", NASTY],
    ],
    ids=lambda words: " ".join(word for word in words if word != NASTY) or "command",
)  # fmt: skip
def test_bad_arguments_are_refused_without_a_traceback(tmp_path, monkeypatch, capsys, arguments):
    """Control characters in repeated arguments are escaped."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.log").write_text(LOG)
    code = run(*[word.replace("{log}", "run.log") for word in arguments])
    out, err = capsys.readouterr()
    assert active(out) == active(err) == []
    assert "Traceback" not in err
    assert code in {2, 3} or arguments[0] == "explain"


def test_a_window_of_five_thousand_digits_is_none(tmp_path, monkeypatch, capsys):
    """Rich reads the width of a terminal from the environment."""
    monkeypatch.setenv("COLUMNS", "9" * 5000)
    monkeypatch.setenv("LINES", "9" * 5000)
    (tmp_path / "run.sh").write_text("trl grpo\n")
    assert run("lint", tmp_path / "run.sh") in (0, 1, 3), capsys.readouterr().err


def test_python_m_imports_nothing_from_the_working_folder(tmp_path):
    """The package's own file runs before the folder is taken off the import path."""
    for name in ("typing", "json", "email", "zipfile", "textwrap", "csv"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()")
    process.run([sys.executable, "-m", "diagnostics", "--version"], timeout_s=60, cwd=tmp_path)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    "words", [["triage", "{}"], ["lint", "--format", "{}"], ["hang", "--from", "{}"], ["{}"]]
)
def test_an_error_message_shows_no_secret(capsys, words):
    """A path or an option value that contains one is printed masked."""
    run(*[word.format(f"a {TOKEN} b") for word in words])
    err = capsys.readouterr().err
    assert "<secret>" in err
    assert TOKEN not in err


def test_an_unexpected_error_is_one_masked_line(monkeypatch, capsys):
    """Exit code 2, never 1; GRPO_DOCTOR_DEBUG shows the traceback."""

    def broken(_name):
        raise RuntimeError(f"{NASTY} {TOKEN}")

    monkeypatch.setattr(cli, "load_command", broken)
    assert run("explain", "SCH001") == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), active(err), TOKEN in err) == (1, [], False)
    monkeypatch.setenv(cli.DEBUG, "1")
    run("explain", "SCH001")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "terminal"])
@pytest.mark.parametrize("tool", ["doctor", "lint", "triage"])
def test_no_shared_format_leaks(environment, tmp_path, monkeypatch, capsys, tool, form):
    """From a log, a script, variables and folders to what each command writes."""
    for number, (text, secret) in enumerate(SHAPES.values()):
        monkeypatch.setenv(f"RAY_{number}_JSON_ENV_VAR", f'{{"env": "{text.format(secret)}"}}')
        monkeypatch.setenv(f"VLLM_{number}", text.format(secret))
    texts = [text.format(secret) for text, secret in SHAPES.values()]
    environment.add("vllm", "0.7.3").add("odd", "", folder=f"odd-{TOKEN}.dist-info")
    if tool == "doctor":
        run("doctor", "--prefix", environment.prefix, "--format", form)
    elif tool == "lint":
        script = tmp_path / "run.sh"
        values = " ".join(f"--run_name '{line}'" for line in texts if "'" not in line)
        script.write_text(f"{SCRIPT.rstrip()} {values}\n")
        run("lint", "--format", form, script)
    else:
        log = tmp_path / "run.log"
        log.write_text(
            LOG + "".join(f"{LOG.replace('already in use', line)}KeyError: {line}\n" for line in texts)
        )
        run("triage", "--format", form, log)
    out, err = capsys.readouterr()
    assert out
    assert [secret for _, secret in SHAPES.values() if visible_parts(out + err, secret)] == []


@pytest.mark.parametrize("line", ["torch; " + "(" * 3000, "torch" + "[" * 3000, "torch>=" + "9" * 5000])
def test_a_requirement_that_breaks_its_parser(environment, capsys, line):
    """No check crashes."""
    environment.add("vllm", "0.11.0", requires=(line,)).add("torch", "2.8.0")
    run("doctor", "--format", "json", "--prefix", environment.prefix)
    document = json.loads(capsys.readouterr().out)
    assert [item for item in document["checks"] if item["outcome"] == "crashed"] == []


def endless(path):
    path.symlink_to("/dev/zero")


def sparse(path):
    with path.open("wb") as file:
        file.truncate(100 << 30)


def bomb(path):
    """Half a gibibyte of zeros in half a megabyte."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(512):
            file.write(bytes(1 << 20))


def many_values(path):
    """Thirteen megabytes of JSON that need gigabytes."""
    path.write_bytes(gzip.compress(b"[" + b"[]," * 4_500_000 + b"[]]", 1))


@pytest.mark.parametrize("put", [os.mkfifo, endless, sparse, bomb, many_values], ids=lambda put: put.__name__)
def test_a_dump_is_a_bounded_regular_file(put, tmp_path):
    """With 3 GiB of memory: what has no end is refused in one line."""
    path = tmp_path / "dump.json.gz"
    put(path)
    limited = [
        "/bin/bash",
        "-c",
        'ulimit -v 3145728; exec "$@"',
        "sh",
        *own_python("diagnostics", "hang", "--from"),
    ]
    done = process.run([*limited, str(path)], timeout_s=120)
    assert (done.code, done.output, done.errors.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("entries", [3, None, 1.5, [{"frames": 3}], [{"collective_seq_id": [1]}]])
def test_a_flight_recorder_pickle_of_another_shape_is_refused(entries, tmp_path, capsys):
    """Nothing is unpickled but plain data."""
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.4", "entries": entries, "pg_config": {}}))
    assert run("hang", "--from", path) == 2
    assert "internal error" not in capsys.readouterr().err
