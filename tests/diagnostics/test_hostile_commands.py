"""Commands escape hostile names, contents and arguments, redact secrets, and refuse hostile files in one line.

`grpo-doctor` and `python -P -m diagnostics` import nothing from the working folder.
"""

import html
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from diagnostics import catalog, cli, process
from diagnostics.fixes import (
    Install,
    Run,
    Uninstall,
    Unset,
    command_of,
    python_command,
    quote_command,
    uv_pip,
)  # fmt: skip
from diagnostics.output import sanitize, text_filters
from diagnostics.output.redact import mask, redact
from diagnostics.output.report_output import FORMATS
from diagnostics.output.terminal import print_text
from diagnostics.uv import find_uv
from tests.diagnostics.conftest import Terminal
from tests.diagnostics.test_redact import SHAPES, visible_parts
from tests.diagnostics.test_report_options import LOG, SCRIPT
from tests.diagnostics.test_sanitize import active_parts

HOSTILE = "a\x1b]52;c;aGk=\x07b\n::error::c \u202ed ##[add-mask]e $(touch x) `id` 'q' \"r\" ;s&t|u"
UNQUOTED = HOSTILE.replace("'", "")
TOKEN = "hf_" + "aB3dE5gH7j" * 3


@pytest.fixture(autouse=True)
def _precompiled_rules(monkeypatch, rules):
    """Use the signatures that all tests share, because compiling them takes seconds."""
    monkeypatch.setattr("diagnostics.triage.command.Rules", lambda _issues: rules)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("command", "suffix", "text"),
    [
        (
            "triage",
            "log",
            LOG.replace("already in use", f"already in use {HOSTILE}") + f"KeyError: {HOSTILE}\n",
        ),
        ("lint", "sh", f"{SCRIPT.rstrip()} --output_dir '{UNQUOTED}' --model_name_or_path '\x9b2J'\n"),
    ],
    ids=["log", "script"],
)
def test_triage_and_lint_escape_hostile_names_and_contents(
    tmp_path, run_command, form, command, suffix, text
):
    path = tmp_path / f"{HOSTILE.replace('/', '')}.{suffix}"
    path.write_text(text)
    _, out, err = run_command(command, "--format", form, path)
    assert out
    assert active_parts(out, commands=form == "github") == active_parts(err) == []


@pytest.mark.parametrize("form", FORMATS)
def test_doctor_escapes_hostile_names(environment, monkeypatch, run_command, form):
    """Hostile metadata, folders, requirements, variables and prefixes are escaped in every format."""
    monkeypatch.setenv("RAY_ADDRESS", f"http://{HOSTILE}")
    environment.add("vllm", "0.7.3", requires=[f"torch==={HOSTILE.split(maxsplit=1)[0]}", HOSTILE])
    environment.add("a", "", folder=f"a-{HOSTILE.replace('/', '')}.dist-info")
    prefix = environment.prefix.rename(environment.prefix.with_name(f"env {HOSTILE.replace('/', '')}"))
    _, out, err = run_command("doctor", "--format", form, "--prefix", prefix)
    assert active_parts(out, commands=form == "github") == active_parts(err) == []
    assert "SCH001" in out


@pytest.mark.parametrize(
    "name",
    [
        "x '\"@a.bc $(touch pwned)", "authorization: x='; touch pwned #", "password=\"a' b $(touch pwned)",
        "a '\"@b.de' && touch pwned '", "a@b.de $(touch x)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("change", [mask, redact])
def test_redaction_takes_no_quotation_mark_of_a_command(name, change):
    """A printed command has the same number of words after redaction, and none that a shell would run."""
    words = ("mv", f"/env/{name}", "/new place/x")
    quoted, moved = change(quote_command(words)), change(command_of(Run(words, then=Run(words))))
    assert moved == f"{quoted} && {quoted}" or moved.startswith("# not shown")
    assert quoted.startswith("# not shown") or shlex.join(shlex.split(quoted)) == quoted


@pytest.mark.parametrize(
    "action",
    [
        Install(("ray==2.44.1/../../tmp/x",)), Install(("torch===2.6.0/../../tmp/x",)), Install(("-rx",)),
        Install(("trl", "git+file:///tmp/x#")), Install(("./trl",)), Install(("trl @ file:///tmp/x",)),
        Install(("numpy==1+x.zip",)), Install(("evil.tar.gz[a]",)), Install(("x.whl",)),
        Install(("trl>=1;x",)), Uninstall(("git+file:///tmp/x",)), Uninstall(("--index-url=http://x/",)),
        Unset(("-f",)),
    ],
)  # fmt: skip
def test_word_that_is_no_package_or_variable_gives_no_command(action):
    """Pip reads such words as folders, whose setup.py it runs, as addresses or as options."""
    assert (command_of(action), action.words) == ("", ())


@pytest.mark.parametrize("name", ["x\\'a'; touch pwned; #", "x\\", "x\\\\a b"])
def test_word_with_an_escape_of_fish_is_not_printed(name):
    """Within single quotation marks, fish reads a backslash before a quotation mark or a backslash as an escape.

    csh would expand `!`, but is no shell that the commands are for.
    """
    assert quote_command(("mv", name)).startswith("# not shown")
    assert quote_command(("mv", "a\\b", "c!=1", "=ls", "%self")) == "mv 'a\\b' 'c!=1' '=ls' '%self'"


@pytest.mark.parametrize(
    ("release", "option"),
    [("3.11.7", "-P"), ("3.12", "-P"), ("3.9.1", "-I"), ("", "-I"), ("3.10, 3.12", "-I")],
)
def test_printed_command_of_a_python_imports_nothing_from_the_working_folder(tmp_path, release, option):
    """Edits in the catalog start a Python so, too; a trainer's own programs may be in the working folder."""
    for name in ("pip", "venv", "json"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()")
    for words in (("-m", "pip", "--version"), ("-m", "venv", "--help"), ("-c", "import json")):
        command = python_command(sys.executable, release, *words)
        assert command == (sys.executable, option, *words)
        process.run(command, timeout_s=60, cwd=tmp_path)
    assert not (tmp_path / "imported").exists()
    pages = [str(structs.asdict(issue)) for issue in catalog.load().values()]
    assert [page for page in pages if re.search(r"python3? -(c|m (pip|venv))\b", page)] == []


def test_printed_uv_command_reads_no_configuration_of_the_working_folder(tmp_path):
    """uv would take the package index from it."""
    (tmp_path / "uv.toml").write_text("index = 3")
    command = [str(find_uv()), *uv_pip("freeze", "--python", sys.executable)[1:]]
    assert process.run(command, timeout_s=60, cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    "text",
    [
        f"Run: {quote_command(('grpo-doctor', 'doctor', '--prefix', '/repository' * 9))}",
        f"did you mean --prefix {'/repository' * 9}?", f"in {'/repository' * 9}/x", "/e/bin/python3 -P -m pip " * 4,
        "Next: python -P -m diagnostics hang --pid 20986 --pid 20987 --seconds 65", "TRL: pip install " + "a " * 40,
        "uv pip install --no-config vllm==0.11.0 trl==0.26.2 transformers==4.57.6",
        "to see it, try trl vllm-serve --model MODEL ... --enable_prefix_caching false",
        "TRL: CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch; then start the other one",
        "as root on the host: sysctl -w kernel.yama.ptrace_scope=0", "unknownprogram with words -x of a command",
        "actor.rollout.lora_rank=32 actor.rollout.target_modules=all-linear",
    ],
)  # fmt: skip
def test_command_in_a_sentence_is_not_wrapped(monkeypatch, text):
    """A terminal of 40 columns copies it as one line; no word, such as a path, is cut."""
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    print_text(sanitize.console(stream), text, indent=2)
    lines = [line.strip() for line in stream.getvalue().split("\n")]
    assert text.removeprefix("in ").strip() in lines


def test_requirement_that_pip_reads_as_a_folder_gives_no_command(environment, run_command):
    """A version that PEP 440 does not allow leaves the requirement out; the other ones are checked."""
    requires = ("torch===2.6.0/../../../tmp/x", "numpy==1.26.4")
    environment.add("trl", "0.17.0", requires=requires).add("torch", "2.7.0").add("numpy", "2.0.0")
    out = run_command("doctor", "--prefix", environment.prefix, "--verbose").out
    assert "install numpy==1.26.4" in out
    assert "2.6.0" not in out


@pytest.mark.parametrize("change", [mask, redact])
@pytest.mark.parametrize("word", ["/home/bob/x", "~/home/bob/x", "ada@example.org", "/home/bob/x y"])
def test_placeholder_in_a_command_is_quoted(word, change):
    """Outside of quotation marks a shell would read `<user>` as a redirection and write the file after it."""
    assert shlex.split(change(quote_command(("hang", word)))) == ["hang", change(word)]
    assert "<" not in re.sub("'[^']*'", "", change(quote_command(("hang", word))))


@pytest.mark.parametrize("form", FORMATS)
def test_commands_of_ours_begin_as_the_user_started_us(environment, monkeypatch, run_command, form):
    """`python -m diagnostics` would run a folder of this name in the working folder."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/grpo-doctor"])
    environment.add("vllm", "0.11.0").add("trl", "0.17.0").add("transformers", "5.0.0")
    out = run_command("doctor", "--format", form, "--prefix", environment.prefix).out
    assert "-m diagnostics" not in out
    assert "grpo-doctor explain" in out or form not in {"terminal", "sarif"}
    plan = run_command("doctor", "--format", "json", "--fix-plan", "--prefix", environment.prefix).out
    assert "-m diagnostics" not in plan
    assert "grpo-doctor doctor --prefix" in plan


@pytest.mark.parametrize("filtered", [text_filters.mask_for_screen, text_filters.redact_for_sharing])
@pytest.mark.parametrize(
    "word",
    [
        "HOME", "HOME/env/bin/python", "HOME/a b/it's", "HOME/~", "~", "~/env/bin/python", "~/HOME", "X=HOME/a:HOME/b",
        "--prefix=HOME/env", "file://HOME/x y", "HOME.txt", "/mntHOME/x", "HOME/$HOME", "HOME/=x", "HOME//x",
    ],
)  # fmt: skip
def test_shell_reads_the_home_folder_and_a_literal_tilde_of_a_printed_command(
    tmp_path, monkeypatch, word, filtered
):
    """In each format a command names the same file as the words: the home folder is no folder called `~`."""
    home = tmp_path / "ada"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    words = (word.replace("HOME", str(home)) if "$" not in word else f"{home}/$HOME", "x")
    command = command_of(filtered(Run(("printf", "%s,", *words), into=f"{home}/out", note="note")))
    assert command.endswith(" > ~/out  # note")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert (home / "out").read_text() == "".join(f"{item}," for item in words)
    assert str(home) not in command


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("options", [[], ["--fix-plan"]])
def test_each_format_names_an_environment_in_the_home_folder(
    environment, monkeypatch, run_command, form, options
):
    monkeypatch.setenv("HOME", str(environment.prefix.parent))
    environment.add("vllm", "0.11.0").add("trl", "0.17.0").add("transformers", "5.0.0").add("pip", "24.0")
    run = run_command("doctor", *options, "--format", form, "--prefix", environment.prefix, "--verbose")
    assert "'~" not in html.unescape(run.out)
    assert "~/env/bin/python -P -m pip" in run.out or not run.out or form in {"sarif", "junit", "github"}


def test_files_of_one_name_are_moved_to_different_names(environment, monkeypatch, run_command):
    """Otherwise the second one would replace the first, or be moved into it, also where the first is a link."""
    home, other = environment.prefix.parent / "home", environment.prefix / "other"
    monkeypatch.setenv("HOME", str(home))
    other.mkdir()
    (environment.site / "x.pth").write_text(str(other))
    (other / "bad.dist-info").symlink_to(environment.prefix.parent)
    for place in (
        environment.site / "bad.dist-info",
        environment.site / "Worse.egg-info",
        other / "worse.egg-info",
    ):
        place.mkdir()
        (place / ("METADATA" if place.stem == "bad" else "PKG-INFO")).write_text("Name: ../x\n")
    document = run_command("doctor", "--prefix", environment.prefix, "--format", "json").document
    [finding] = [item for item in document["findings"] if item["code"] == "ENV901"]
    moves = [shlex.split(line) for line in finding["remedy"]["commands"] if line.startswith("mv ")]
    targets = {words[-1].casefold() for words in moves}
    assert len(targets) == len(moves) == 4


@pytest.mark.parametrize("name", ["\t", "\n", "\udcff", "\x1b[2J", "##vso[x]", "\u202e"])
def test_command_with_a_character_that_is_escaped_is_not_printed(name):
    """Its words would name another file; printed words with an escape name none."""
    action = Run(("mv", f"/env/{name}-1.0.dist-info", "/x"))
    assert command_of(action).startswith("# not shown")
    assert command_of(text_filters.mask_for_screen(action)) == ""


@pytest.mark.parametrize("form", FORMATS)
def test_redaction_of_a_hostile_folder_leaves_no_command(environment, run_command, form):
    (environment.site / "x '\"@a.bc $(touch pwned).dist-info").mkdir()
    _, out, _ = run_command("doctor", "--format", form, "--prefix", environment.prefix)
    assert "ENV901" in out
    assert "<mail> $(touch" not in html.unescape(out)


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", HOSTILE], ["triage", HOSTILE], ["triage", "--baseline", HOSTILE, "{log}"], ["lint", HOSTILE],
        ["doctor", "--prefix", HOSTILE], ["doctor", "--python", HOSTILE], ["doctor", "--hosts", HOSTILE],
        ["doctor", "--format", HOSTILE], [HOSTILE], ["lint", "--vllm", HOSTILE, "{log}"], ["hang", "--from", HOSTILE],
        ["hang", "--match", f"({HOSTILE}"], ["triage", "--fail-on", HOSTILE, "{log}"], ["versions", HOSTILE],
    ],
    ids=lambda words: " ".join(word for word in words if word != HOSTILE) or "command",
)  # fmt: skip
def test_hostile_arguments_are_escaped_and_give_no_traceback(tmp_path, monkeypatch, run_command, arguments):
    """Commands other than `explain` also exit with 2 or 3."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.log").write_text(LOG)
    code, out, err = run_command(*[word.replace("{log}", "run.log") for word in arguments])
    assert active_parts(out) == active_parts(err) == []
    assert "Traceback" not in err
    assert code in {2, 3} or arguments[0] == "explain"


def test_terminal_size_of_five_thousand_digits_is_ignored(tmp_path, monkeypatch, run_command):
    """COLUMNS and LINES with thousands of digits, which Rich would read, do not end the command."""
    monkeypatch.setenv("COLUMNS", "9" * 5000)
    monkeypatch.setenv("LINES", "9" * 5000)
    (tmp_path / "run.sh").write_text("trl grpo\n")
    result = run_command("lint", tmp_path / "run.sh")
    assert result.code in (0, 1, 3), result.err


@pytest.mark.parametrize(
    ("start", "called"),
    [
        ([sys.executable, "-m", "diagnostics"], "python -m diagnostics"),
        ([sys.executable, "-P", "-m", "diagnostics"], "python -P -m diagnostics"),
        ([Path(sys.executable).with_name("grpo-doctor")], "grpo-doctor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_imported_from_the_working_folder(tmp_path, start, called):
    """Left out are modules that runpy imports before our code if Python starts with `-m` and without `-P`.

    Printed commands begin as the user started us.
    """
    names = "typing json email zipfile textwrap csv subprocess random logging signal copy click rich ray"
    if called != "python -m diagnostics":
        names += " contextlib warnings runpy importlib pkgutil functools collections types keyword operator reprlib"
    for name in names.split():
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()")
    done = process.run([*start, "explain", "SCH001"], timeout_s=60, cwd=tmp_path)
    assert done.code == 0, done.errors
    assert not (tmp_path / "imported").exists()
    assert f" {called} " in process.run([*start, "--help"], timeout_s=60, cwd=tmp_path).output


@pytest.mark.parametrize(
    "words", [["triage", "{}"], ["lint", "--format", "{}"], ["hang", "--from", "{}"], ["{}"]]
)
def test_error_messages_mask_secrets(run_command, words):
    """An error message masks a secret that is part of a path or an option value."""
    err = run_command(*[word.format(f"a {TOKEN} b") for word in words]).err
    assert "<secret>" in err
    assert TOKEN not in err


def test_unexpected_error_is_one_sanitized_line(monkeypatch, run_command):
    """An unexpected error exits with 2 and one sanitized line; GRPO_DOCTOR_DEBUG adds the traceback."""

    def broken(_name):
        raise RuntimeError(f"{HOSTILE} {TOKEN}")

    monkeypatch.setattr(cli, "load_command", broken)
    code, _, err = run_command("explain", "SCH001")
    assert (code, err.count("\n"), active_parts(err), TOKEN in err) == (2, 1, [], False)
    monkeypatch.setenv(cli.DEBUG, "1")
    assert "Traceback" in run_command("explain", "SCH001").err


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "terminal"])
@pytest.mark.parametrize("tool", ["doctor", "lint", "triage"])
def test_shareable_formats_leak_no_secret_or_person(
    environment, tmp_path, monkeypatch, run_command, tool, form
):
    """No shareable format shows a secret or personal data of a log, a script, variables or folder names."""
    texts = [text.format(secret) for text, secret in SHAPES.values()]
    for number, text in enumerate(texts):
        monkeypatch.setenv(f"RAY_{number}_JSON_ENV_VAR", f'{{"env": "{text}"}}')
        monkeypatch.setenv(f"VLLM_{number}", text)
    environment.add("vllm", "0.7.3").add("a", "", folder=f"a-{TOKEN}.dist-info")
    values = " ".join(f"--run_name '{line}'" for line in texts if "'" not in line)
    (tmp_path / "run.sh").write_text(f"{SCRIPT.rstrip()} {values}\n")
    failures = [f"{LOG.replace('already in use', line)}KeyError: {line}\n" for line in texts]
    (tmp_path / "run.log").write_text(LOG + "".join(failures))
    inputs = {
        "doctor": ["--prefix", environment.prefix],
        "lint": [tmp_path / "run.sh"],
        "triage": [tmp_path / "run.log"],
    }
    _, out, err = run_command(tool, "--format", form, *inputs[tool])
    assert out
    assert [secret for _, secret in SHAPES.values() if visible_parts(out + err, secret)] == []


@pytest.mark.parametrize("line", ["torch; " + "(" * 3000, "torch" + "[" * 3000, "torch>=" + "9" * 5000])
def test_hostile_requirements_crash_no_check(environment, run_command, line):
    environment.add("vllm", "0.11.0", requires=(line,)).add("torch", "2.8.0")
    document = run_command("doctor", "--format", "json", "--prefix", environment.prefix).document
    assert [item for item in document["checks"] if item["outcome"] == "crashed"] == []


def link_to_dev_zero(path):
    """Make a link to a device that never ends."""
    path.symlink_to("/dev/zero")


def make_sparse_file(path):
    """Make a sparse file of 100 GiB."""
    with path.open("wb") as file:
        file.truncate(100 << 30)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "expected a snapshot"), (link_to_dev_zero, "not a regular file"),
        (make_sparse_file, "larger than 256 MiB"),
    ],
)  # fmt: skip
def test_unbounded_dump_files_are_refused(make, reason, tmp_path):
    """With 3 GiB of memory, `hang --from` refuses an endless, too large or silent file in one line."""
    path = tmp_path / "dump.json"
    make(path)
    limited = ["/bin/bash", "-c", 'ulimit -v 3145728; exec "$@"', "sh"]
    command = [sys.executable, "-m", "diagnostics", "hang", "--from"]
    done = process.run([*limited, *command, str(path)], timeout_s=120)
    assert (done.code, done.output, done.errors.count("\n")) == (2, "", 1)
    assert reason in done.errors


@pytest.mark.parametrize("entries", [3, None, 1.5, [{"frames": 3}], [{"collective_seq_id": [1]}]])
def test_flight_recorder_pickle_of_another_shape_is_refused(entries, tmp_path, run_command):
    """A pickle of plain data with another structure is refused without an internal error."""
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.4", "entries": entries, "pg_config": {}}))
    code, _, err = run_command("hang", "--from", path)
    assert (code, "internal error" in err) == (2, False)
