"""Control characters and CI commands in printed text are escaped in each output format.

Markup in values is escaped in Markdown and SARIF. Escaping is idempotent, and a closed pipe drops the output.
"""

import contextlib
import io
import json
import re
import sys
import unicodedata
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.findings import CheckResult, Evidence, Finding, NotChecked, Report, Severity
from diagnostics.fixes import Advice, Explain, Fix, Install, Run, SetVariables, Unset
from diagnostics.output import sanitize
from diagnostics.output.redact import mask
from diagnostics.output.report_output import FORMATS, ReportOptions, print_report

# Active parts: a clipboard write that appears if `ESC [m` is removed, C1 controls, bidi marks, commands of CI systems.
ACTIVE_PARTS = (
    "\x1b\x1b[m]52;c;aGk=\x07", "\x9b2J", "\x9d52;c;x\x9c", "\u202e\u2066", "\x7f", "\r::error::r", "\n  ::error::n",
    "\n\u3000::set-output name=a::b", "##[add-mask]e", "##vso[task.setvariable variable=a]b", "\u2028::x", "\x85::y",
    "\udc80", "\U000e0041", "\x1b[8m", "\x0b::v", "\x00", ":", "::",
)  # fmt: skip
HOSTILE = st.lists(
    st.one_of(st.sampled_from(ACTIVE_PARTS), st.text(st.characters(), max_size=8)), min_size=1, max_size=8
).map("".join)


def active_parts(text, *, commands=False):
    """List the active parts of a printed text, by Unicode's categories instead of the list in `sanitize`.

    With `commands`, GitHub annotations with a title, as the format `github` writes them, are not active parts.
    """
    result = [
        f"U+{ord(entry):04X}"
        for entry in text
        if (entry not in "\n\t\u200b" and unicodedata.category(entry) in {"Cc", "Cs", "Zl", "Zp"})
        or unicodedata.bidirectional(entry) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    ]
    for line in text.split("\n"):
        is_annotation = commands and re.match(r"::(error|warning|notice) title=[^:]*::", line)
        result += [line] if line.lstrip().startswith("::") and not is_annotation else []
    return result + re.findall(r"##\w*\[", text)


def report_with(text, tool="doctor"):
    """Return a report with the text in every field that can come from outside."""
    fix = Fix(
        (
            Advice(text),
            Install((f"trl=={text}",), by=(f"{text}/bin/python", "-m", "pip", "install"), note=text),
            SetVariables(((text, text),)),
            Unset((text,)),
            Explain("CFG101"),
            Run(("rm", "-r", text), piped=(("tail", text),), into=text, note=text),
        )
    )
    evidence = (Evidence(text, f"{text}:3"),)
    finding = Finding("CFG101", "Groups", Severity.ERROR, "established", "static", text, evidence, fix)
    subject = {"prefix": text, "python": text, "packages": {"trl": text}}
    if tool == "lint":
        subject |= {"files": [{"file": text, "plans": []}]}
    checks = (
        CheckResult("groups", "findings", text, (finding,)),
        CheckResult(f"reaching {text}", "crashed", text),
        CheckResult("other", "not_judged", not_judged=(NotChecked(text, text, text, text),)),
    )
    return Report(tool, subject, checks, (text,), method_note=text, unresolved=text)


@contextlib.contextmanager
def standard_streams():
    """Sanitize stdout and stderr as commands do; yield the two underlying streams."""
    streams, before = [io.StringIO(), io.StringIO()], (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = streams
    try:
        with sanitize.sanitize_stdio(mask):
            yield streams
    finally:
        sys.stdout, sys.stderr = before


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("tool", ["doctor", "lint"])
@settings(max_examples=25, deadline=None)
@given(text=HOSTILE)
def test_formats_print_no_active_characters_and_stay_parsable(form, tool, text):
    """With a hostile text in every field of a report, no format prints active characters, and each can be parsed."""
    with standard_streams() as (out, err):
        print_report(report_with(text, tool), ReportOptions(form, verbose=True))
    printed = out.getvalue()
    assert active_parts(printed, commands=form == "github") == []
    assert err.getvalue() == ""
    if form in {"json", "sarif"}:
        json.loads(printed)
    elif form == "jsonl":
        assert [json.loads(line) for line in printed.splitlines()]
    elif form == "junit":
        ET.fromstring(printed)


@settings(max_examples=100, deadline=None)
@given(st.lists(HOSTILE, max_size=4))
def test_escaping_is_idempotent(pieces):
    """Escaping an escaped text changes nothing, however the text is split into writes."""
    once, twice = io.StringIO(), io.StringIO()
    stream = sanitize.SanitizedStream(once)
    for piece in pieces:
        stream.write(piece)
    sanitize.SanitizedStream(twice).write(once.getvalue())
    assert active_parts(once.getvalue()) == []
    assert twice.getvalue() == once.getvalue()


@settings(max_examples=50, deadline=None)
@given(HOSTILE)
def test_only_the_consoles_own_colours_reach_a_terminal(text):
    out = io.StringIO()
    sanitize.console(out, force_terminal=True, color_system="standard", width=80).print(
        text, style="bold red"
    )
    assert active_parts(re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())) == []


def test_markdown_values_are_escaped():
    """Entities, mentions, tags and links in values are escaped in Markdown."""
    with standard_streams() as (out, _):
        print_report(
            report_with("&#64;octocat <img> GH-12 gh-5 #3 http://x.org _www.github.com"),
            ReportOptions("markdown"),
        )
    prose = re.sub(r"```[\s\S]*?```", "", out.getvalue())
    assert not re.search(r"(?<!\\)<img|[@#]\w|(?i:GH)-\d|(?<!\\)&#64|://|www\.", prose)


def test_sarif_messages_have_no_links():
    """A viewer of SARIF shows `[text](address)` in a message as a link; values cannot make one."""
    with standard_streams() as (out, _):
        print_report(report_with("[x](http://x.org)"), ReportOptions("sarif"))
    run = json.loads(out.getvalue())["runs"][0]
    messages = [item["message"]["text"] for item in run["results"]]
    messages += [item["message"]["text"] for item in run["invocations"][0]["toolExecutionNotifications"]]
    assert [r"[x\](http" in text for text in messages].count(True) >= 3
    assert not [text for text in messages if re.search(r"(?<!\\)\]\(", text)]


def test_closed_pipe_drops_the_output(tmp_path):
    with (tmp_path / "out").open("w") as file:
        file.write = lambda _text: (_ for _ in ()).throw(BrokenPipeError)
        sanitize.SanitizedStream(file).write("x")
    assert sanitize.SanitizedStream.reader_gone
