"""Pages of a hang and of an audit: whatever stands in their documents is text there, and never a part of the page."""

import json
import random
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.diagnostics.test_door_out import terminal

from diagnostics.__main__ import main
from diagnostics.audit import document as audit_document
from diagnostics.hang.judge import causes
from diagnostics.hang.judge.decide import Patience, judge
from diagnostics.hang.read import files
from diagnostics.hang.show import document
from diagnostics.hang.show import page as of_hang
from diagnostics.output.audits import page as of_audit
from tests import hostile_pages
from tests.diagnostics.audit.test_audit_document import ALONE, HOT, LATER, RIGHT, audit

HANGS = sorted((Path(__file__).parents[2] / "examples" / "hangs").glob("*.json"))
SAMPLES = (
    "</script><script>alert(1)</script>",
    "</title></style></pre></svg><img src=x onerror=alert(1)>",
    "' onload='alert(1)' x=\"y\" onclick=\"alert(1)",
    "javascript:alert(1)",
    "<!--",
    "]]><![CDATA[<svg/onload=alert(1)>",
    "&lt;script&gt;&#x3c;b&#62;",
    "\u202egnp.\u2066exe\x1b]0;x\x07\n::error::x",
)
# What the tool itself says, of a list of words.
OURS = {"schema", "outcome", "cause", "certainty", "probe", "cycle", "kind"}


class Page(HTMLParser):
    """The elements of a page with the names of their attributes, and where they lead."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Collects."""
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.links += [value for name, value in attrs if name in {"href", "src", "action", "xlink:href"}]


def with_words(value, words, key=""):
    """The document with every word of others' replaced, the same by the same: what refers to another goes on to."""
    if isinstance(value, str):
        return value if key in OURS or not value else f"{words}{value}"
    if isinstance(value, dict):
        return {name: with_words(entry, words, name) for name, entry in value.items()}
    return [with_words(entry, words, key) for entry in value] if isinstance(value, list) else value


def harmless(words):
    """As long, of letters alone."""
    return "".join(letter if letter == " " else "x" for letter in words)


def hang_of(path):
    judged = causes.named(judge(files.read([str(path)]), Patience(60.0, 600.0)))
    return document.document(judged, causes.helps(judged.verdict.code))


def shown(text):
    """As it comes out of the door."""
    with terminal() as (out, _):
        print(text, end="")
    return out.getvalue()


@pytest.mark.parametrize("words", SAMPLES)
@pytest.mark.parametrize("path", HANGS, ids=lambda path: path.stem)
def test_a_hang_s_page_is_the_same_whatever_its_words(path, words):
    """Names of processes, commands, frames, evidence: the elements are those of a page with letters in their place."""
    found = hang_of(path)
    page = Page(shown(of_hang.text(with_words(found, words))))
    plain = Page(of_hang.text(with_words(found, harmless(words))))
    assert page.elements == plain.elements
    assert len(page.elements) > 30
    assert page.links == []


@pytest.mark.parametrize("words", SAMPLES)
def test_an_audit_s_page_is_the_same_whatever_its_words(words):
    """What a server said of itself, and what was found of it."""
    audited = audit_document.document(audit(RIGHT, HOT, LATER, ALONE))
    page = Page(shown(of_audit.text(with_words(audited, words))))
    plain = Page(of_audit.text(with_words(audited, harmless(words))))
    assert page.elements == plain.elements
    assert page.links == []


def test_no_text_at_random_gets_out_of_a_page():
    """No element or attribute that a page of letters lacks, and no link; each time other words in all places."""
    numbers = random.Random(0)
    audited = audit_document.document(audit(RIGHT, HOT, LATER, ALONE))
    hangs = [hang_of(path) for path in HANGS]
    for place in range(40):
        words = hostile_pages.words(numbers)
        for page, found in ((of_hang, hangs[place % len(hangs)]), (of_audit, audited)):
            made, links = hostile_pages.elements(shown(page.text(with_words(found, words))))
            plain, _ = hostile_pages.elements(page.text(with_words(found, hostile_pages.harmless(words))))
            assert made <= plain, (words, made - plain)
            assert links == set()


@pytest.mark.parametrize("words", SAMPLES)
def test_what_a_bundle_of_others_says_stays_text(tmp_path, words):
    """From the file on: frames and commands of a bundle that somebody else wrote, to the page that is printed."""
    bundle = json.loads(HANGS[0].read_text(encoding="utf-8"))
    for process in bundle["processes"]:
        process["title"] = words
        for thread in process["threads"]:
            thread["name"] = words
            for frame in thread["frames"]:
                frame["function"] = words
    (tmp_path / "bundle.json").write_text(json.dumps(bundle), encoding="utf-8")
    text = shown(of_hang.text(hang_of(tmp_path / "bundle.json")))
    page = Page(text)
    assert not {tag for tag, _ in page.elements} & {"script", "img", "iframe", "object"}
    assert not [name for _, names in page.elements for name in names if name.startswith("on")]
    assert page.links == []
    assert not {"\u202e", "\u2066", "\x1b", "\x07"} & set(text)


def test_a_refusal_of_hang_is_one_line(capsys):
    """The name of a list of hosts may hold a line break, and what follows be a runner's command."""
    assert main(["hang", "--hosts", "no-such\n::error::x\x1b[2J"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
