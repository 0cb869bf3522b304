"""Generate hostile text for HTML pages, and list the elements and links that HTML parsers find in a page."""

from __future__ import annotations

import importlib.util
import random
from html.parser import HTMLParser

# Text that ends an HTML context, active content, and input that may confuse a parser.
ATOMS = (
    "</script>", "</SCRIPT\t>", "<script>alert(1)</script>", "<!--", "-->", "--!>", "<![CDATA[", "]]>", "<?x ?>",
    "</title>", "</style>", "</textarea>", "</noscript>", "</svg>", "</pre>", "</main>", "</a>", "</td></tr></table>",
    "<svg/onload=alert(1)>", "<img src=x onerror=alert(1)>", "<a href=javascript:alert(1)>", "<base href=//x>",
    "<meta http-equiv=refresh content=0;url=//x>", "<form action=//x>", "<iframe srcdoc='<b>'>",
    "<math><mi//xlink:href=x>",
    "<style>@import '//x';", "<link rel=stylesheet href=//x>", "<template>", "<plaintext>",
    "<animate onbegin=alert(1)>",
    "'", '"', "`", "=", ">", "<", "/", "&", "&#39;", "&quot;", "&lt;", "&#x3c;", "&#60", "&NewLine;", "&apos",
    "\\u003c",
    "' onload='alert(1)", '" onclick="alert(1)', " autofocus onfocus=alert(1) ", "javascript:alert(1)",
    "data:text/html,<b>",
    "java\tscript:", "url(//x)", "expression(1)", "}*{background:url(//x)}", "{{ 7*7 }}", "{% raw %}", "${7*7}",
    "\\", "%3c",
    "\0", "\u2028", "\u2029", "\x85", "\r", "\n", "\t", "\f", "\x1b]0;x\x07", "\u202e", "\u2066", "\u200b", "\ufeff",
    "\ufffe", "\U000e0041", "\uff1c", "\u02c2", "e\u0301", "\U0001f600", " ", "x", "0",
)  # fmt: skip


def hostile_text(rng: random.Random) -> str:
    """Return a random string of HTML, script and URL injection fragments."""
    return "".join(rng.choices(ATOMS, k=rng.randrange(1, 9)))


def harmless(text: str) -> str:
    """Replace every character except whitespace by x."""
    return "".join(letter if letter.isspace() else "x" for letter in text)


class _ElementCollector(HTMLParser):
    """Collect elements with their attribute names, and link targets."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[tuple[str, tuple[str, ...]]] = set()
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add((tag, tuple(sorted({name for name, _ in attrs}))))
        self.targets |= {
            value or "" for name, value in attrs if name in {"href", "src", "action", "xlink:href"}
        }

    def handle_comment(self, data: str) -> None:
        self.elements.add(("<!--", ()))

    def handle_pi(self, data: str) -> None:
        self.elements.add(("<?", ()))

    def unknown_decl(self, data: str) -> None:
        self.elements.add(("<![", ()))


def elements(page: str) -> tuple[set[tuple[str, tuple[str, ...]]], set[str]]:
    """Return the elements with attribute names, and the link targets, found by html.parser and, if installed, lxml."""
    collector = _ElementCollector()
    collector.feed(page)
    collector.close()
    if importlib.util.find_spec("lxml") is not None:
        from lxml import html

        for element in html.document_fromstring(page.encode()).iter():
            name = element.tag if isinstance(element.tag, str) else "<!--"
            collector.elements.add((name, tuple(sorted(element.attrib))))
    return collector.elements, collector.targets
