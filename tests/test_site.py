"""The documents' site: what is laid out for Sphinx. `nox -s docs` builds it."""

from __future__ import annotations

import re
import runpy
import shlex

import pytest

from diagnostics import catalog, cli
from diagnostics.output.markdown import prose
from tests.documents import ROOT

SITE = runpy.run_path(str(ROOT / "docs" / "make_site.py"))
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """The folder that Sphinx would read."""
    folder = tmp_path_factory.mktemp("site") / "sources"
    SITE["write_sources"](folder)
    return folder


def test_every_code_has_a_page(laid_out):
    """Known issues and those of checks, each linked from the table of codes."""
    codes = {*catalog.load(), *catalog.load_checks()}
    assert {path.stem for path in (laid_out / "docs" / "codes").glob("*.md")} == codes
    table = (laid_out / "docs" / "codes.md").read_text()
    assert codes <= set(re.findall(r"\]\(codes/([A-Z]{3}\d{3})\.md\)", table))


def test_every_command_has_its_reference(laid_out):
    """Every command, program and trainer setting has a reference page, as the parsers define them."""
    pages = {path.stem: path.read_text() for path in (laid_out / "docs" / "reference").glob("*.md")}
    assert {*cli.COMMANDS, *cli.PROGRAMS} == {*pages}
    for name, (module, commands) in SITE["WITHIN"].items():
        assert [line for line in commands if f"python -m {module} {line} " not in pages[name]] == []
        assert len(commands) > 2
    settings = re.findall(r"^  --(\w+\.\w+) ", pages["train"], flags=re.MULTILINE)
    assert len(settings) == len(set(settings)) > 90


def test_every_link_leads_somewhere(laid_out):
    """To a page, or to a file that was laid beside it."""
    dead = [
        (path.name, match[2] or match[4])
        for path in laid_out.rglob("*.md")
        for match in SITE["LINK"].finditer(
            re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
        )
        if "://" not in (match[2] or match[4]) and not (path.parent / (match[2] or match[4])).exists()
    ]
    assert dead == []


def test_a_page_lists_mitigations_that_do_not_help(laid_out):
    """With the trigger that they were run against."""
    text = (laid_out / "docs" / "codes" / "SCH001.md").read_text()
    assert "`fresh_engine`" in text
    assert "`lock_around_step`" in text
    assert "lost_step" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b <c> *d*", r"a\_b \<c\> \*d\*"),
        ("`a_b` and [x](y)", r"`a_b` and \[x\](y)"),
        ("one ` alone", r"one \` alone"),
    ],
)
def test_a_text_of_the_catalogue_is_no_markup(text, shown):
    """But for code between backticks."""
    assert prose(text) == shown


@pytest.mark.parametrize("path", HOW_TO, ids=[path.stem for path in HOW_TO])
def test_a_how_to_names_commands_that_are_taken(path):
    """Each command of ours in it parses, and each page that it leads to is there."""
    commands = re.findall(r"^python -m diagnostics (.+?)(?: {2,}#.*)?$", path.read_text(), flags=re.MULTILINE)
    for command in commands:
        name, *rest = shlex.split(command)
        assert name in {*cli.COMMANDS, *cli.PROGRAMS, *cli.ALIASES}
        _ = rest


def test_a_folder_of_somebody_is_not_taken_away(tmp_path, monkeypatch, capsys):
    """Only one that was made by this program before."""
    (tmp_path / "mine").write_text("")
    monkeypatch.setattr("sys.argv", ["make_site.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        SITE["main"]()
    assert "is no folder of such pages" in capsys.readouterr().err
    assert (tmp_path / "mine").exists()
