"""Render HTML pages (audit, matrix) from Jinja templates that escape values.

Templates are in `diagnostics/output/templates/*.html.j2`. They extend `page.html.j2`, which includes `look.css` and
forbids scripts and external resources.
"""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
STYLE = Path(__file__).parent / "look.css"


def render_page(template: str, **values: Any) -> str:
    """Return the page of a template with values filled in; a value is escaped unless it is Markup."""
    return str(_environment().get_template(template).render(**values)) + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=select_autoescape(("html", "html.j2")),
    )
    environment.globals["style"] = Markup(STYLE.read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return environment
