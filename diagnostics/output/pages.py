"""What the pages of all commands have in common: their look, and a frame that loads nothing and runs nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path

LOOK = Path(__file__).with_name("look.css")


def style(own: str) -> str:
    """The look of every page, and behind it what one page has of its own."""
    return f"{LOOK.read_text(encoding='utf-8')}{own}"


def framed(title: str, parts: list[str], own: str) -> str:
    """A page of its parts, which are markup already.

    Args:
        title: In plain letters.
        parts: One below the other; an empty one is left out.
        own: The style of this page alone.
    """
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">""",
            f"<title>{escape(title)}</title><style>{style(own)}</style></head><body><main>",
            *filter(None, parts),
            "</main></body></html>\n",
        )
    )
