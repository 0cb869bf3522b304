"""Configure Sphinx for the documentation site; `make_site.py` copies this file next to the pages."""

from __future__ import annotations

from typing import Any

project = "grpo-doctor"
author = "grpo-doctor contributors"
extensions = ["myst_parser"]
root_doc = "README"
html_theme = "furo"
html_title = "grpo-doctor"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["index.html"]
html_copy_source = False
html_show_sphinx = False
# An excerpt of each page found is fetched from the page, which no browser does for a folder on a disk.
html_show_search_summary = False
smartquotes = False  # of two dashes of a command it would make one
myst_heading_anchors = 4
# A code's own page begins with its second heading where it has no first section, and a transcript is no language.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
# Attributes to insert after a piece of markup: scrollable boxes need a tabindex, headings need a level.
_MISSING = {
    "<pre": ' tabindex="0"',
    'class="table-wrapper colwidths-auto docutils container"': ' tabindex="0"',
    'class="caption" role="heading"': ' aria-level="2"',
}


def setup(app: Any) -> None:
    """Register the event handler; called by Sphinx. It runs after the theme's own handler, which builds the sidebar."""
    app.connect("html-page-context", add_accessibility_attributes, priority=900)


def add_accessibility_attributes(
    _app: Any, _name: str, _template: str, context: dict[str, Any], _doctree: Any
) -> None:
    """Make scrollable boxes focusable by keyboard and give captions a heading level, on each page."""
    for part in ("body", "furo_navigation_tree"):
        text = context.get(part)
        if not isinstance(text, str):
            continue
        for before, missing in _MISSING.items():
            text = text.replace(before, before + missing)
        context[part] = text
