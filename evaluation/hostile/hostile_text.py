"""Draw random hostile texts for the inputs of a command, and find parts that must not appear in its output."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from evaluation.hostile import hostile_pages
from tests.diagnostics.test_redact import PERSONS, SECRETS
from tests.diagnostics.test_sanitize import ACTIVE_PARTS, active_parts

# HTML elements that run code or load something.
_ACTIVE = {
    "script", "img", "iframe", "object", "embed", "base", "form", "input", "button", "video", "audio", "source",
    "template", "plaintext", "animate", "math",
}  # fmt: skip
# HTML that `hang` prints around its stacks.
_OWN_HTML = ("<details><summary>Stacks, innermost frame first</summary>\n", "</details>\n")
_MENTION = re.compile(r"(?<![\w`@])@[A-Za-z\d]")


@dataclass
class HostileTexts:
    """Draw a hostile text for each input of one run of a command, each with a unique mark.

    Attributes:
        numbers: Random numbers by which the texts are drawn.
        lone_surrogates: Whether the texts may have lone surrogates; documents with one are refused as a whole.
        marks: The mark in the text of each input.
        secrets: Texts that no format may contain.
        persons: Personal data of each draw, used or not; only the terminal format may contain it.
    """

    numbers: random.Random
    lone_surrogates: bool = False
    marks: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    persons: list[str] = field(default_factory=list)

    def __call__(self, name: str, *, without: str = "", most: int = 4000) -> str:
        """Return the hostile text of an input.

        Args:
            name: Name of the input.
            without: Characters that are not allowed in the input, such as a slash in a file name.
            most: Maximum size in bytes; longer texts are drawn again.
        """
        mark = self.marks.setdefault(name, f"qz{len(self.marks)}x")
        without += "" if self.lone_surrogates else "\udc80"
        while True:
            parts, secret, person = self._draw_parts(without)
            parts.insert(self.numbers.randrange(len(parts) + 1), mark)
            text = "".join(letter for letter in "".join(parts) if letter not in without)
            if len(text.encode("utf-8", "surrogatepass")) <= most:
                self.secrets.append(secret)
                self.persons.append(person)
                return text

    def text_line(self, name: str, **limits: Any) -> str:
        """Return the hostile text of an input that is one line of UTF-8."""
        return self(name, without="\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0\udc80\ud800", **limits)

    def file_name(self, name: str) -> str:
        """Return a hostile file name."""
        return self(name, without="/\0\udc80\ud800", most=200)

    def _draw_parts(self, without: str) -> tuple[list[str], str, str]:
        draw = self.numbers
        # Leave out secrets and persons whose text needs a character that is not allowed.
        shapes = [
            [shape for shape in listed.values() if not set(without) & set("".join(shape))]
            for listed in (SECRETS, PERSONS)
        ]
        (secret_context, secret), (around, person) = map(draw.choice, shapes)
        acts = [draw.choice(ACTIVE_PARTS) for _ in range(draw.randrange(1, 4))]
        parts = [*acts, hostile_pages.hostile_text(draw), f" {secret_context.format(secret)} "]
        if draw.random() < 0.5:
            parts.append(f" {around.format(person)} ")
        draw.shuffle(parts)
        return parts, secret, person


class PlainTexts(HostileTexts):
    """Draw the word `letters` for each input; its HTML page shows which elements are normal."""

    def __call__(self, name: str, **_limits: Any) -> str:
        """Return the word `letters`."""
        self.marks[name] = "letters"
        return "letters"


def problems_in(out: str, err: str, form: str, texts: HostileTexts, plain: str = "") -> list[str]:
    """List active text, secrets and personal data in a command's output, and reasons why a document is invalid.

    Args:
        out: Standard output of the command, or a file that it wrote.
        err: Standard error of the command.
        form: Output format.
        texts: Hostile texts of the inputs.
        plain: HTML page of the same command with PlainTexts, for the format `html`.
    """
    output = re.sub(r"\s+", " ", out + err)
    problems = [
        f"active text: {action!r}"
        for action in active_parts(out, commands=form == "github") + active_parts(err)
    ]
    problems += [f"a secret: {secret}" for secret in texts.secrets if _leaks(secret, output)]
    if form != "terminal":
        problems += [f"personal data: {person}" for person in texts.persons if _leaks(person, out)]
    if "Traceback (most" in err or "fault of its own" in err:
        problems.append("a fault of its own")
    check = _DOCUMENTS.get(form)
    if check and out:
        try:
            problems += check(out, plain)
        except (ValueError, ET.ParseError) as error:
            problems.append(f"no {form}: {error}")
    return problems


def _leaks(secret: str, output: str) -> bool:
    return any(len(part) > 4 and part in output for part in re.split(r"[\s/]", secret))


def _json(text: str, _plain: str) -> list[str]:
    json.loads(text)
    return []


def _json_lines(text: str, _plain: str) -> list[str]:
    for line in text.splitlines():
        json.loads(line)
    return []


def _junit(text: str, _plain: str) -> list[str]:
    ET.fromstring(text.partition("?>")[2])
    return []


def _html(text: str, plain: str) -> list[str]:
    elements, links = hostile_pages.elements(text)
    usual, leads = hostile_pages.elements(plain)
    problems = [
        f"an element: {element}"
        for element in elements
        if element not in usual and (element[0] in _ACTIVE or _has_active_attribute(element[1]))
    ]
    problems += [f"a comment: {element}" for element in elements - usual if element[0].startswith("<")]
    return problems + [f"a link: {link}" for link in links - leads if not link.startswith("#")]


def _has_active_attribute(names: tuple[str, ...]) -> bool:
    return any(
        name.startswith("on") or name in {"src", "srcdoc", "action", "xlink:href", "http-equiv"}
        for name in names
    )


def _markdown(text: str, _plain: str) -> list[str]:
    from markdown_it import MarkdownIt

    problems = []
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        if block.type == "html_block":
            problems += [f"a tag: {block.content[:80]!r}"] * (block.content not in _OWN_HTML)
        for token in block.children or ():
            if token.type in {"html_inline", "image"}:
                problems.append(f"a tag: {token.content!r}")
            elif token.type == "link_open" and not str(token.attrs["href"]).startswith("https://github.com/"):
                problems.append(f"a link: {token.attrs['href']}")
            elif token.type == "text" and (
                _MENTION.search(token.content) or re.search(r"\w://\w|\bwww\.\w", token.content)
            ):
                problems.append(f"a mention or a link: {token.content[:200]!r}")
    return problems


_DOCUMENTS = {
    "json": _json, "sarif": _json, "jsonl": _json_lines, "junit": _junit, "html": _html, "markdown": _markdown,
}  # fmt: skip
