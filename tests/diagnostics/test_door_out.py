"""The door out: whatever stands in what was read, nothing that is printed acts on a terminal or a CI runner."""

import contextlib
import io
import json
import re
import sys
import unicodedata
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics import __main__ as command
from diagnostics import door, explaining
from diagnostics.doctor.fixplan import build
from diagnostics.collect import compat
from diagnostics.output import output
from diagnostics.output.findings import CheckResult, Evidence, Finding, Report, Severity
from diagnostics.output.formats import markdown
from diagnostics.output.output import FORMATS
from diagnostics.output.remedies import Advice, Explain, Install, Remedy, Run, SetVariables, Unset
from tests.diagnostics.environments import issues
from tests.diagnostics.test_output import LOG, SCRIPT

# A clipboard write that dropping `ESC [m` would put together; C1; bidi; commands of GitHub, old and new, and Azure.
ACTS = (
    "\x1b\x1b[m]52;c;aGk=\x07", "\x9b2J", "\x9d52;c;x\x9c", "\u202e\u2066", "\x7f", "\r::error::r", "\n  ::error::n",
    "\n\u3000::set-output name=a::b", "##[add-mask]e", "##vso[task.setvariable variable=a]b", "\u2028::x", "\x85::y",
    "\udc80", "\U000e0041", "\x1b[8m", "\x0b::v", "\x00", ":", "::",
)  # fmt: skip
HOSTILE = st.lists(
    st.one_of(st.sampled_from(ACTS), st.text(st.characters(), max_size=8)), min_size=1, max_size=8
).map("".join)


def acting(text, *, commands=False):
    """What in a printed text would act, found by Unicode's own categories rather than by the door's list."""
    found = [
        f"U+{ord(one):04X}" for one in text
        if (one not in "\n\t\u200b" and unicodedata.category(one) in {"Cc", "Cs", "Zl", "Zp"})
        or unicodedata.bidirectional(one) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    ]  # fmt: skip
    for line in text.split("\n"):
        ours = commands and re.match(r"::(error|warning|notice) title=[^:]*::", line)
        found += [line] if line.lstrip().startswith("::") and not ours else []
    return found + re.findall(r"##\w*\[", text)


def report_with(text, tool="doctor"):
    """A report with a hostile text wherever one can come from outside."""
    remedy = Remedy(
        (
            Advice(text), Install((f"trl=={text}",), by=(f"{text}/bin/python", "-m", "pip", "install"), note=text),
            SetVariables(((text, text),)), Unset((text,)), Explain("CFG101"),
            Run(("rm", "-r", text), piped=(("tail", text),), into=text, note=text),
        )
    )  # fmt: skip
    found = Finding(
        "CFG101",
        "Groups",
        Severity.ERROR,
        "established",
        "static",
        text,
        (Evidence(text, f"{text}:3"),),
        remedy,
    )
    subject = {"prefix": text, "python": text, "packages": {"trl": text}, "files": []}
    if tool == "triage":
        subject = {
            "logs": [text], "lines": 3, "packages": {"trl": text}, "verdict": "unknown", "fingerprint": "",
            "anchors": [{"text": text, "place": f"{text}:1", "rank": text}],
        }  # fmt: skip
    else:
        subject = {name: value for name, value in subject.items() if tool == "lint" or name != "files"}
    if tool == "lint":
        subject["files"] = [{"file": text, "plans": []}]
    checks = (
        CheckResult("groups", "findings", text, (found,)), CheckResult(f"reaching {text}", "crashed", text),
        CheckResult("other", "skipped", text),
    )  # fmt: skip
    return Report(tool, subject, checks, (text,), how=text)


@contextlib.contextmanager
def terminal(tty=False):
    """Standard output and error behind their doors, as a command has them; yields what comes out."""
    streams = [io.StringIO(), io.StringIO()]
    streams[0].isatty = lambda: tty
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams
    try:
        with door.opened():
            yield streams
    finally:
        sys.stdout, sys.stderr = before


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("tool", ["doctor", "lint", "triage"])
@settings(max_examples=25, deadline=None)
@given(text=HOSTILE)
def test_nothing_in_a_report_acts(form, tool, text):
    """In every format of every command, whatever stands at any place of it; a document stays a document."""
    with terminal() as (out, err):
        output.write(report_with(text, tool), SimpleNamespace(format=form, fail_on="error", verbose=True))
    told = out.getvalue()
    assert acting(told, commands=form == "github") == []
    assert err.getvalue() == ""
    if form == "json":
        # Whoever takes a value out of the document and prints it is as safe.
        assert acting("|" + json.loads(told)["findings"][0]["evidence"][0]["place"]) == []
    if form == "sarif":
        assert json.loads(told)["version"] == "2.1.0"
    if form == "jsonl":
        assert all(json.loads(line) for line in told.splitlines())
    if form == "junit":
        assert ET.fromstring(told.partition("?>")[2]).get("name") == "grpo-doctor"
    if form == "github":
        # One finding, one check that crashed, and of a triage its verdict: no line more.
        assert len(told.splitlines()) == 2 + (tool == "triage")


@settings(max_examples=50, deadline=None)
@given(text=HOSTILE)
def test_colours_are_the_consoles_own(text):
    """On a terminal, too: what is painted are our words, and no escape comes from what was read."""
    out = io.StringIO()
    console = door.console(out, force_terminal=True, color_system="standard", width=80)
    from rich.text import Text

    console.print(Text(text, style="bold red"), soft_wrap=True)
    painted = re.sub(r"\x1b\[(?:1;31|0)m", "", out.getvalue())
    assert acting(painted) == []


@pytest.mark.parametrize("colours", [False, True])
def test_wrapped_lines_end_in_no_blanks(colours):
    """Whoever copies them gets none; what ends in a colour ends in none either."""
    out = io.StringIO()
    console = door.console(out, force_terminal=colours, width=20, highlight=False)
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text("a word and another and one more", style="bold red"))
    console.print(Padding(Text("short"), (0, 0, 0, 4)))
    plain = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert plain.splitlines() == ["a word and another", "and one more", "    short"]


@settings(max_examples=300, deadline=None)
@given(st.lists(HOSTILE, max_size=5))
def test_it_is_one_step_to_the_fixed_point(pieces):
    """What came through comes through unchanged, however it was cut into writes."""
    once = io.StringIO()
    shown = door.Door(once)
    shown.writelines(pieces)
    assert acting(once.getvalue()) == []
    twice = io.StringIO()
    door.Door(twice).write(once.getvalue())
    assert twice.getvalue() == once.getvalue()
    whole = "".join(pieces)
    assert door.visible(door.visible(whole)) == door.visible(whole)


NASTY = "x\x1b\x1b[m]52;c;aGk=\x07\u202e\n  ::error::n\n##[add-mask]e"


@pytest.mark.parametrize("form", FORMATS)
def test_a_log_by_any_name(tmp_path, monkeypatch, capsys, form):
    """The name of a log, and what stands in it."""
    monkeypatch.chdir(tmp_path)
    log = tmp_path / f"{NASTY}.log"
    log.write_text(LOG.replace("already in use", f"already in use {NASTY}") + f"KeyError: {NASTY}\n")
    command.main(["triage", "--format", form, str(log)])
    out, err = capsys.readouterr()
    assert acting(out, commands=form == "github") == acting(err) == []
    assert "CFG109" in out


@pytest.mark.parametrize("form", FORMATS)
def test_a_script_by_any_name(tmp_path, capsys, form):
    """The name of what is linted, and its values."""
    script = tmp_path / f"{NASTY}.sh"
    script.write_text(SCRIPT.rstrip("\n") + f" --output_dir '{NASTY}' --model_name_or_path '\x9b2J{NASTY}'\n")
    command.main(["lint", "--format", form, str(script)])
    out, err = capsys.readouterr()
    assert acting(out, commands=form == "github") == acting(err) == []


@pytest.mark.parametrize("form", FORMATS)
def test_an_environment_by_any_name(environment, monkeypatch, capsys, form):
    """METADATA, folders, declared requirements, variables, the prefix."""
    monkeypatch.setenv("RAY_ADDRESS", f"http://{NASTY}")
    monkeypatch.setenv(f"VLLM_{NASTY.replace('=', '')}", "1")
    environment.add("trl", f"1.0\x1b]52;c;aGk=\x07{NASTY}", folder="trl-1.0.dist-info")
    environment.add("vllm", "0.7.3", requires=[f"torch==={NASTY.split(maxsplit=1)[0]}", f"{NASTY}"])
    environment.add("odd", "", folder=f"odd-{NASTY}.dist-info")
    moved = environment.prefix.with_name(f"env {NASTY.replace('/', '')}")
    environment.prefix.rename(moved)
    command.main(["doctor", "--format", form, "--prefix", str(moved)])
    out, err = capsys.readouterr()
    assert acting(out, commands=form == "github") == acting(err) == []
    assert "SCH001" in out
    for plan in build.FORMATS:
        command.main(["doctor", "--fix-plan", "--format", plan, "--prefix", str(moved)])
        out, err = capsys.readouterr()
        assert acting(out) == acting(err) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", NASTY], ["triage", NASTY], ["triage", "--baseline", NASTY, "{log}"], ["lint", NASTY],
        ["doctor", "--prefix", NASTY], ["doctor", "--python", NASTY], ["doctor", "--hosts", NASTY],
        ["doctor", "--format", NASTY], [NASTY], ["triage", "--group", "{log}", NASTY],
        ["lint", "--vllm", NASTY, "{log}"], ["hang", "--from", NASTY], ["hang", "--match", f"({NASTY}"],
        ["triage", "--fail-on", NASTY, "{log}"], ["doctor", "--ray", NASTY], ["doctor", "--hosts", "{hosts}"],
    ],
    ids=lambda words: " ".join(word for word in words if word != NASTY) or "command",
)  # fmt: skip
def test_what_is_said_on_standard_error_acts_neither(tmp_path, monkeypatch, capsys, arguments):
    """Each way to refuse what was given repeats it, made visible; argparse's too."""
    monkeypatch.chdir(tmp_path)
    log, hosts = tmp_path / "run.log", tmp_path / "hosts"
    log.write_text(LOG)
    hosts.write_text(NASTY)
    with contextlib.suppress(SystemExit):
        command.main([word.format(log=log, hosts=hosts) if "{" in word else word for word in arguments])
    out, err = capsys.readouterr()
    assert acting(out) == acting(err) == []
    # A log that was passed over is no refusal, and neither are words that some entry is near.
    assert err or "--group" in arguments or "near it by words" in out


@pytest.mark.parametrize(
    "words", [["triage", "{}"], ["lint", "--format", "{}"], ["hang", "--from", "{}"], ["{}"]]
)
def test_a_refusal_repeats_no_secret(capsys, words):
    """A path or a word that holds one is named without it."""
    secret = "hf_" + "aB3dE5gH7j" * 3
    with contextlib.suppress(SystemExit):
        command.main([word.format(f"a {secret} b") for word in words])
    told = capsys.readouterr().err
    assert "<secret>" in told
    assert secret not in told


def test_an_error_that_nobody_caught_is_told_through_the_door(monkeypatch, capsys):
    """Python prints it when the command is gone."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def broken(_options):
        raise RuntimeError(NASTY)

    monkeypatch.setattr(explaining, "run", broken)
    with contextlib.suppress(RuntimeError, SystemExit):
        command.main(["explain", "SCH001"])
    hook = sys.excepthook
    if hook is not sys.__excepthook__:
        error = RuntimeError(NASTY)
        hook(type(error), error, None)
    told = capsys.readouterr().err
    assert "52;c;" in told
    assert acting(told) == []


@pytest.mark.parametrize("fixed", ["text", "json"])
def test_groups_of_logs_by_any_name(tmp_path, capsys, fixed):
    """`triage --group` prints by itself."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}{NASTY.replace('/', '')}.log").write_text(f"{LOG}KeyError: {NASTY}\n")
    command.main(["triage", "--group", *(["--format", "json"] if fixed == "json" else []), str(folder)])
    out, err = capsys.readouterr()
    assert acting(out) == acting(err) == []


def test_markdown_has_no_entity_and_no_heading_from_elsewhere():
    """`&#64;` is an @ before mentions are looked for."""
    shown = markdown.render(report_with("&#64;octocat &lt;img&gt; <b>x</b> GH-12"))
    prose = re.sub(r"```[\s\S]*?```", "", shown)
    assert not re.search(r"(?<!\\)&", prose)
    assert not re.search(r"(?<!\\)<", prose)
    assert "GH-12" not in prose
    headings = re.sub(r"```[\s\S]*?```", "", markdown.render(report_with("# no heading")))
    assert "\n# no heading" not in headings


def test_a_plan_is_made_of_the_same_words(environment):
    """A hostile folder in a plan's commands is one word on one line."""
    from diagnostics.doctor import examine
    from diagnostics.collect import environment as facts

    environment.add("vllm", "0.7.3").add("odd", "", folder="odd\n::error::x;id.dist-info")
    seen = facts.collect(environment.prefix, {})
    report = examine.examine(seen, issues(), compat.load())
    for form in build.FORMATS:
        with terminal() as (out, _):
            build.run(report, seen, compat.load(), form, Severity.ERROR)
        assert acting(out.getvalue()) == []
