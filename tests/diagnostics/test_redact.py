"""Redaction replaces secrets in all formats and personal data in shareable ones, and keeps harmless text.

Texts are masked before they are cut. Long texts take limited time. The shapes of secrets and the generated cases are in
`secret_cases`.
"""

import ast
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diagnostics
from diagnostics.logs.tracebacks import short_path
from diagnostics.output.redact import (
    forget_secrets,
    mask,
    name_below,
    redact,
    redact_path,
    remember_line,
    remember_secret,
    truncate,
)
from diagnostics.output.report_output import FORMATS, ReportOptions, print_report
from diagnostics.output.text_filters import redact_for_sharing
from diagnostics.process import log_tail
from diagnostics.uv import error_line
from tests.diagnostics import secret_cases
from tests.diagnostics.test_sanitize import report_with, standard_streams

LETTERS = "aB3dE5gH7jK9mN1pQ4rS6tU8vW0xY2zC5eF7hJ" * 4
PARTS = {"hex": "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "horse": "correcthorse", "-": ""}
TABLES = secret_cases.TABLES


def fill(shape):
    """Return a shape of secret_cases.yaml with its placeholders replaced; `{}` stays."""
    for name, part in PARTS.items():
        shape = shape.replace(f"{{{name}}}", part)
    return re.sub(r"\{(\d+)\}", lambda match: LETTERS[: int(match[1])], shape)


SECRETS = {name: (fill(text), fill(secret)) for name, (text, secret) in TABLES["shapes"].items()}
PERSONS = TABLES["personal_data"]
SHAPES = SECRETS | PERSONS


def visible_parts(text, secret):
    """Return the parts of a secret that are visible in a text."""
    return [part for part in re.split(r"[\s/]", secret) if len(part) > 4 and part in text]


@pytest.mark.parametrize("form", FORMATS)
def test_formats_show_no_secret_and_shareable_ones_no_person(form):
    """No format shows a secret in any field of a report; formats other than the terminal's show no personal data."""
    leaking = []
    for name, (text, secret) in (SHAPES if form != "terminal" else SECRETS).items():
        with standard_streams() as (out, _):
            print_report(report_with(f"value {text.format(secret)} end"), ReportOptions(form, verbose=True))
        printed = re.sub(r"\n\s*", " ", out.getvalue()) if form == "terminal" else out.getvalue()
        leaking += [name] if visible_parts(printed, secret) else []
    assert leaking == []


@pytest.mark.parametrize("edge", TABLES["edges"], ids=ascii)
def test_escapes_and_foreign_letters_end_a_word(edge):
    """No shape shows its secret between two escapes, control characters or letters that are not ASCII."""
    texts = {name: f"x {edge}{text.format(secret)}{edge}y" for name, (text, secret) in SHAPES.items()}
    assert [name for name, text in texts.items() if visible_parts(redact(text), SHAPES[name][1])] == []
    # One line of a shared document, in which control characters are escaped.
    shared = redact_for_sharing(list(texts.values()))
    assert [
        name for name, text in zip(texts, shared, strict=True) if visible_parts(text, SHAPES[name][1])
    ] == []


def test_unquoted_values_continue_after_an_escape():
    """An escape, or a letter that is not ASCII, ends no password."""
    values = (f"Tulip9{edge}Kestrel" for edge in ("%41", "\xe9", "\u4e3b", "=3D", "\0"))
    assert [value for value in values if "Kestrel" in mask(f"DB_PASSWORD={value}")] == []


@pytest.mark.parametrize(
    "label", ["password%22%3A%22", "password\0=", "password\ufeff: ", "db_password\u200b="]
)
def test_label_and_value_may_have_invisible_or_quoted_characters_between_them(label):
    assert "Tulip" not in mask(f"{label}TulipKestrel x")


@pytest.mark.parametrize("value", ["$ecret9Kestrel", "<Tulip9Kestrel", "ab  c\\d\\e9f\\g1h"])
def test_value_like_a_reference_or_with_backslashes_is_remembered(value):
    """A value that begins with `$` or `<`, or that a message squeezes and escapes, is masked under another name."""
    remember_secret("password", value)
    try:
        assert mask(f"mode {' '.join(value.split())!r} <|endoftext|> $DB_PASSWORD2").count("<") == 2
    finally:
        forget_secrets()


def leaks(secret, text):
    """Return whether a text contains a secret, or twelve characters of a long one."""
    long = len(secret) >= 24 and any(secret[at : at + 12] in text for at in range(len(secret) - 11))
    return secret in text or long


def test_second_secret_of_a_remembered_line_does_not_leak():
    """What `remember_line` remembers of a line does not take away the names by which the rules find its secrets."""
    leaked = []
    for context, secret in SECRETS.values():
        text = context.format(secret)
        remember_line(f"password=Zq8kkP1xY {text}")
        leaked += [text] * leaks(secret, redact(text))
        forget_secrets()
    assert leaked == []


@pytest.mark.parametrize(("cases", "minimum"), [(secret_cases.secrets, 2500), (secret_cases.persons, 1000)])
def test_no_generated_case_leaks(cases, minimum):
    """No generated case of secret_cases.py leaks its secret or personal data."""
    all_cases = list(cases())
    assert len(all_cases) >= minimum
    assert [(name, text) for name, secret, text in all_cases if leaks(secret, redact(text))] == []


def test_unquoted_password_with_punctuation_is_not_shown():
    """Punctuation other than quotes does not end an unquoted password."""
    assert [text for _, secret, text in secret_cases.unquoted_passwords(100) if secret in redact(text)] == []


def test_hosts_after_dots_and_in_short_urls_are_redacted():
    texts = ("v+<secret>.{}", "connecting...{}", "*.{}", "waiting for ...{}")
    names = ("node1.bluefin.corp.internal", "10.2.3.4")
    assert [text for text in texts for name in names if name in redact(text.format(name))] == []
    assert redact("http://gpubox7 refused") == "http://<host> refused"


def test_value_of_a_dict_begins_a_line():
    listed = {"text": "-rw-r--r-- 1 alicekestrel bobkestrel 1234 Jan 31 10:00 RuntimeError: boom"}
    assert "kestrel" not in str(redact_for_sharing(listed))


def test_relative_path_below_the_folder_of_homes_is_redacted():
    assert redact("home/ada/run.sh and Users/ada/x.log") == "home/<user>/run.sh and Users/<user>/x.log"
    assert redact("the home/work balance") == "the home/work balance"


def test_cut_text_keeps_no_part_of_a_name(monkeypatch):
    """A name that the cut would divide is left out or redacted, because a part of it is not recognised."""
    assert redact(truncate("no answer from node.bluefin.corp.internal here", 30)) == "no answer from"
    assert "bluefin" not in truncate("x" * 120 + "/ada@node.bluefin.corp.internal", 145)
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="gpubox7prod"))
    assert "gpubox" not in truncate("x" * 101 + "/runs/Nov30_gpubox7prod/x", 121)


def test_secret_is_masked_before_the_text_is_cut():
    """At any length, no part of a secret is visible; the beginning of one alone would not be recognised."""
    for text, secret in SECRETS.values():
        full = text.format(secret)
        for length in range(1, len(full)):
            assert visible_parts(truncate(full, length), secret) == []


def test_uv_errors_and_log_tails_are_masked_before_they_are_cut(tmp_path):
    """A secret at the place of the cut is not left in half."""
    text = f"{'x' * 1980} key=hf_{'a1B2' * 10} {'y' * 3000}"
    (tmp_path / "run.log").write_text(text[1600:])
    assert "hf_" not in error_line(text)
    assert "hf_" not in log_tail(tmp_path / "run.log")


def test_no_message_cuts_a_text_without_masking_it():
    """In f-strings of the package, a text is shortened by `truncate`; slices with a number under 20 cut lists."""
    cuts = [
        f"{path}:{part.lineno}"
        for path in Path(diagnostics.__file__).parent.rglob("*.py")
        for text in ast.walk(ast.parse(path.read_text()))
        if isinstance(text, ast.JoinedStr)
        for part in ast.walk(text)
        if isinstance(part, ast.Slice) and part.lower is None and isinstance(part.upper, ast.Constant)
        if part.upper.value >= 20
    ]
    assert cuts == []


def test_user_names_in_paths_are_replaced():
    folders = ("home", "Users", "scratch", "fsx", "nfs/home", "lustre/home", "u", "data", "workspace")
    for folder in folders:
        path = f"/{folder}/qzoltan/run/train.py"
        assert redact_path(path) == f"/{folder}/<user>/run/train.py"
        assert all(
            redact(name_below(Path(path), parent)).find("qzol") < 0 for parent in list(Path(path).parents)[2:]
        )
    assert name_below(Path("/home/qzoltan/run/a.py"), Path("/home/qzoltan")) == "run/a.py"


TEXTS = st.lists(
    st.one_of(
        st.sampled_from([text.format(secret) for text, secret in SHAPES.values()]),
        st.sampled_from([*"<>=\"'%\n", ": ", "@", "//", "::", "/home/", "/data/", "--token ", "host="]),
        st.text(max_size=6),
    ),
    max_size=8,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_redaction_is_idempotent(text):
    """Redacting a redacted text changes nothing, so that a report can be read as a baseline."""
    assert mask(mask(text)) == mask(text)
    assert redact(redact(text)) == redact(text)


LONG = {name: start + fill(part) * times + end for name, (start, part, times, end) in TABLES["long"].items()}


def cpu_seconds(text):
    """Return the CPU time of redacting a text."""
    began = time.process_time()
    redact(text)
    return time.process_time() - began


def test_redaction_of_long_texts_takes_at_most_1_2_s():
    """No text of LONG (up to 21,000 characters) takes over 1.2 s of CPU time; a quadratic pattern takes 2.4 s."""
    assert [name for name, text in LONG.items() if cpu_seconds(text) > 1.2] == []


def test_harmless_texts_are_unchanged():
    assert [text for text in TABLES["harmless"] if redact(text) != text] == []


def test_path_in_the_own_home_folder_of_any_shape_is_shortened_without_the_user(monkeypatch):
    """Both functions cut paths, so that the rest does not show that it was in the home folder."""
    monkeypatch.setenv("HOME", "/storage/group7/x/jsmith3")
    path = Path.home() / "train.py"
    shown = [short_path(str(path)), redact(name_below(path, path.parent.parent))]
    assert [text for text in shown if "jsmith3" in text] == []
