"""Render reports, catalog entries and other documents as Markdown: Jinja templates redact and escape values.

`render` renders a report, `issue_page` a catalog entry, `render_template` any template. Templates are in
`diagnostics/output/templates/*.md.j2`. In a template `{{ value }}` is redacted and escaped, so that it becomes no
markup, mention or link. `{{ text | prose }}`, for our own texts, is not redacted and keeps code between backticks.
`{{ text | code_block }}` is a redacted fenced block.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from diagnostics.findings import EVIDENCE_LEVELS, Report
from diagnostics.fixes import commands_of, fix_lines, one_line
from diagnostics.frameworks import DISPLAY_NAMES
from diagnostics.output.issue_text import claim_text, edits_of
from diagnostics.output.redact import redact

TEMPLATES = Path(__file__).parent / "templates"


def render(report: Report) -> str:
    """Return a report as one Markdown document."""
    template = report.extra.template if report.extra else "report.md.j2"
    return render_template(template, report=report)


def issue_page(document: Mapping[str, Any]) -> str:
    """Return the documentation page of a known issue or check code.

    Args:
        document: The entry, as `explain --format json` prints it.
    """
    mitigations = {mitigation["name"]: mitigation for mitigation in document["mitigations"]}
    return render_template("issue.md.j2", document=document, mitigations=mitigations)


def render_template(name: str, **values: Any) -> str:
    """Return a Markdown template filled with values; a value is redacted and escaped unless it is Markup."""
    text = _environment().get_template(name).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - output for Markdown is escaped by `_finalize`
    )
    environment.filters.update(code_block=code_block, fenced=fenced, prose=prose, verbatim=Markup)
    environment.filters.update(one_line=one_line, fix_lines=fix_lines)
    environment.globals.update(commands_of=commands_of, edits_of=edits_of, claim_text=claim_text)
    environment.globals.update(DISPLAY_NAMES=DISPLAY_NAMES, EVIDENCE_LEVELS=EVIDENCE_LEVELS)
    return environment


def _finalize(value: Any) -> Any:
    return value if isinstance(value, Markup) else escape(str(value))


def escape(text: str) -> str:
    """Redact a text and escape it, so that nothing in it becomes markup, a mention or a link, on one line."""
    # `&` is escaped because an entity could become an @. The first character of a line could start a heading or a list.
    escaped = re.sub(r"([\\`*_{}\[\]<>|~&$]|^\s*[#+=-])", r"\\\1", redact(text).replace("\n", " "))
    # GitHub turns a bare URL into a link, and a link to an issue notifies everybody who follows that issue.
    return re.sub(
        r"([@#]|\b(?i:GH-))(?=\w)|(:)(?=//)|((?<![A-Za-z0-9])www)(?=\.)", "\\1\\2\\3\u200b", escaped
    )


def prose(text: str) -> Markup:
    """Escape a text from our own files without redaction; what is between backticks stays code."""
    # Every second piece is code.
    pieces = re.split(r"(`[^`\n]+`)", one_line(text))
    pieces[::2] = [re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", piece) for piece in pieces[::2]]
    return Markup("".join(pieces))  # noqa: S704 - escaped here


def code_block(text: str, language: str = "") -> Markup:
    """Redact a text and return it as a fenced block."""
    return fenced(redact(text).strip("\n"), language)


def fenced(text: str, language: str = "text") -> Markup:
    """Return a fenced block; the fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{text}\n{fence}")  # noqa: S704 - a fence longer than any in the text
