"""`docs/make_site.py` writes a page for each code and command, lists the trainer's settings, and its links work.

It escapes texts of the catalog, and refuses an output folder that it did not make.
"""

import re
import runpy
from unittest import mock

import pytest

from diagnostics import catalog, cli
from diagnostics.output.markdown import prose
from tests.documents import ROOT

SITE = runpy.run_path(str(ROOT / "docs" / "make_site.py"))


@pytest.fixture(scope="module")
def site_sources(tmp_path_factory, commands):
    """Write the sources that Sphinx reads, with the output of forked commands; return their folder."""
    folder = tmp_path_factory.mktemp("site") / "sources"

    def run_forked(command, *, env, **_options):
        done = commands.run(command[2:], env=env)
        assert done.returncode == 0
        return mock.Mock(stdout=done.stdout.decode())

    with mock.patch("subprocess.run", run_forked):
        SITE["write_sources"](folder)
    return folder


def test_every_code_has_a_page(site_sources):
    """Each code of an issue or a check has a page, and the table of codes links it."""
    codes = {*catalog.load(), *catalog.load_checks()}
    assert {path.stem for path in (site_sources / "docs" / "codes").glob("*.md")} == codes
    table = (site_sources / "docs" / "codes.md").read_text()
    assert codes <= set(re.findall(r"\]\(codes/([A-Z]{3}\d{3})\.md\)", table))


def test_every_command_has_a_reference(site_sources):
    """Each command has a reference page with its subcommands; the trainer's has more than 90 settings, each once."""
    pages = {path.stem: path.read_text() for path in (site_sources / "docs" / "reference").glob("*.md")}
    assert {*cli.COMMANDS, *cli.PROGRAMS} == {*pages}
    for name, (module, commands) in SITE["WITHIN"].items():
        assert [line for line in commands if f"python -m {module} {line} " not in pages[name]] == []
        assert len(commands) > 1
    settings = re.findall(r"^  --(\w+\.\w+) ", pages["train"], flags=re.MULTILINE)
    assert len(settings) == len(set(settings)) > 90


def test_links_have_targets(site_sources):
    for path in site_sources.rglob("*.md"):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
        targets = [match[2] or match[4] for match in SITE["LINK"].finditer(text)]
        broken = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
        assert broken == [], path.name


def test_code_page_lists_mitigations_that_do_not_help(site_sources):
    """The page of SCH001 lists a mitigation that helps, one that does not, and a trigger."""
    text = (site_sources / "docs" / "codes" / "SCH001.md").read_text()
    assert "`fresh_engine`" in text
    assert "`lock_around_step`" in text
    assert "lost_step" in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b <c> *d*", r"a\_b \<c\> \*d\*"),
        ("`a_b` and [x](y)", r"`a_b` and \[x\](y)"),
        ("one ` alone", r"one \` alone"),
    ],
)
def test_catalog_text_is_escaped_outside_code(text, escaped):
    assert prose(text) == escaped


def test_foreign_output_folder_is_not_deleted(tmp_path, monkeypatch, capsys):
    """A folder that the program did not make is refused and stays as it is."""
    (tmp_path / "mine").write_text("")
    monkeypatch.setattr("sys.argv", ["make_site.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        SITE["main"]()
    assert "is no folder of such pages" in capsys.readouterr().err
    assert (tmp_path / "mine").exists()
