"""What a report is written on wraps, cuts and colours as Rich does."""

import contextlib
import io
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.padding import Padding
from rich.text import Text

from diagnostics import door
from diagnostics.output.paper import Paper
from tests.diagnostics.test_door_out import HOSTILE, acting

STYLES = ("", "bold", "dim", "red", "bold red", "bold yellow", "green", "cyan", "default")
# Words, blanks, letters of two cells, what is longer than a line.
TEXTS = st.text(st.sampled_from("ab  \t\n…\u4e2d—x.\U0001f600é"), max_size=60) | st.text(
    st.characters(max_codepoint=0x2FF, exclude_characters="\xa0"), max_size=40
)
# Rich cuts off what became longer than a line by being spelled out.
TEXTS = TEXTS.filter(lambda text: door.visible(text) == text)
PIECES = st.lists(st.tuples(TEXTS, st.sampled_from(STYLES)), min_size=1, max_size=3)


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Nothing in the environment speaks of colours or widths."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def cells(told):
    """Each line's letters with their colours; of blanks that nobody sees the colour is no matter.

    Nor whether half of a wide letter that was cut off is left as a blank.
    """
    lines = []
    for line in told.split("\n"):
        made, style = [], ""
        for code, letter in re.findall(r"\x1b\[([\d;]*)m|(.)", line, re.DOTALL):
            while letter == "…" and made and made[-1][0] == " ":
                made.pop()
            if letter:
                made.append((letter, "" if letter == " " else style))
            else:
                style = "" if code == "0" else code
        while made and made[-1][0] == " ":
            made.pop()
        lines.append(made)
    return lines


def by_rich(pieces, style, width, indent, *, painted, whole, crop):
    """What Rich makes of it, through its door."""
    out = io.StringIO()
    console = door.console(
        out,
        width=width,
        force_terminal=painted,
        color_system="standard" if painted else None,
        highlight=False,
    )
    text = Text(style=style)
    for piece, own in pieces:
        text.append(piece, style=own)
    if whole:
        console.print(text, soft_wrap=True)
    elif crop:
        console.print(text, overflow="ellipsis", no_wrap=True)
    else:
        # Its measure of a text takes tabs for letters.
        padded = Padding(text, (0, 0, 0, indent), expand="\t" in text.plain)
        console.print(padded if indent else text)
    return out.getvalue()


def by_us(pieces, style, width, indent, *, painted, whole, crop):
    """What we make of it."""
    out = io.StringIO()
    paper = Paper(out, width=width)
    if painted:
        from diagnostics.output import paper as module

        paper._codes = {**module._ATTRIBUTES, **module._COLOURS}
    paper.print(pieces, style, indent=indent, whole=whole, crop=crop)
    return out.getvalue()


@settings(max_examples=400, deadline=None)
@given(
    PIECES, st.sampled_from(STYLES), st.integers(20, 40), st.sampled_from([0, 2, 8]), st.booleans(),
    st.sampled_from(["", "whole", "crop"]),
)  # fmt: skip
def test_it_writes_what_rich_writes(pieces, style, width, indent, painted, way):
    """Of any text, in any colours: the same letters in the same lines in the same colours."""
    how = {"painted": painted, "whole": way == "whole", "crop": way == "crop"}
    indent = indent if not way else 0
    assert cells(by_us(pieces, style, width, indent, **how)) == cells(
        by_rich(pieces, style, width, indent, **how)
    )


@pytest.mark.parametrize("first", ["a" * 18, "a" * 19, "a" * 20, "a" * 17 + "\u4f60", "a" * 18 + "\u4f60"])
@pytest.mark.parametrize("then", ["b" * 10, "\u4f60" + "b" * 9])
def test_what_is_cut_off_has_the_colour_of_what_is_gone(first, then):
    """The dots stand for the first letter that is not there, which may be of another piece."""
    pieces, how = [(first, "red"), (then, "green")], {"painted": True, "whole": False, "crop": True}
    assert cells(by_us(pieces, "", 20, 0, **how)) == cells(by_rich(pieces, "", 20, 0, **how))


@settings(max_examples=100, deadline=None)
@given(text=HOSTILE)
def test_its_colours_are_its_own(text):
    """What is painted are our words: no escape comes from what was read."""
    out = io.StringIO()
    paper = Paper(out, width=80)
    paper._codes = {"bold": "1", "red": "31"}
    paper.print(text, "bold red", whole=True)
    assert acting(re.sub(r"\x1b\[(?:1;31|0)m", "", out.getvalue())) == []


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "\x1b[1;31mred\x1b[0m\n"),
        ({"NO_COLOR": "1"}, "\x1b[1mred\x1b[0m\n"),
        ({"TERM": "dumb"}, "red\n"),
        ({"FORCE_COLOR": ""}, "red\n"),
        ({"TTY_COMPATIBLE": "0"}, "red\n"),
    ],
)
def test_a_terminal_is_painted_as_it_asks(monkeypatch, environment, told):
    """By the variables that tools agree on, which Rich reads, too."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        Paper(stream).print("red", "bold red")
        door.console(stream, highlight=False).print(Text("red", style="bold red"))
    read = b""
    with contextlib.suppress(OSError):  # a terminal that nobody holds any more
        while more := os.read(ours, 999):
            read += more
    os.close(ours)
    assert read.decode().replace("\r\n", "\n") == told * 2


@pytest.mark.parametrize(
    ("environment", "width", "looked_at"),
    [
        ({}, 80, False),
        ({"COLUMNS": "44"}, 44, False),
        ({"COLUMNS": "wide"}, 80, False),
        ({"FORCE_COLOR": "1", "COLUMNS": "44"}, 44, True),
        ({"TTY_COMPATIBLE": "1", "TERM": "dumb"}, 80, True),
    ],
)
def test_its_width_is_the_terminals(monkeypatch, environment, width, looked_at):
    """Or what COLUMNS says, or 80; the same as Rich's."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "get_terminal_size", raises)
    paper = Paper(io.StringIO())
    console = door.console(io.StringIO())
    assert (paper.width, paper.is_terminal) == (console.width, console.is_terminal) == (width, looked_at)


def raises(*_):
    raise OSError


@pytest.mark.parametrize(
    ("started", "told"),
    [
        ("/opt/env/bin/grpo-doctor", "then: grpo-doctor triage LOG"),
        ("/src/diagnostics/__main__.py", "then: python -m diagnostics triage LOG"),
    ],
)
def test_a_command_that_is_told_is_the_one_that_was_typed(monkeypatch, started, told):
    """`python -m diagnostics` is nothing where the program was installed for itself."""
    monkeypatch.setattr("sys.argv", [started, "triage"])
    out = io.StringIO()
    paper = Paper(out, width=80)
    paper.print([("then: ", "bold"), ("python -m diagnostics triage LOG", "")])
    paper.print("python -m diagnostics.matrix show")

    assert out.getvalue() == f"{told}\npython -m diagnostics.matrix show\n"


def test_a_stream_that_takes_ascii_alone_gets_marks_that_are_told_apart():
    """Two marks that both came out as a question mark would say nothing."""
    raw = io.BytesIO()
    paper = Paper(io.TextIOWrapper(raw, encoding="ascii"), width=8)
    paper.print("✔ held, ✘ failed", whole=True)
    paper.print("a line too long é", crop=True)

    assert raw.getvalue().decode() == "+ held, x failed\na line ~\n"
