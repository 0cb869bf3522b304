"""Generate fake secrets and personal data in the contexts where logs and configs show them, to test redaction.

secret_cases.yaml has the shapes and contexts, which follow the issuers' documentation and real program output, not
our redaction patterns. Values are random with a fixed seed: `{r20}` is twenty letters and digits, `{d9}` digits
other than 0, `{h32}` hexadecimal digits, `{b48}` base64, `{u16}` capitals and the digits 2 to 7, `{s40}` letters,
digits, `-` and `_`, and `{w}` a password.
"""

import random
import re
import string
from collections.abc import Iterator

from tests.case_files import read_cases

# Category, secret value, and the text that contains it.
Case = tuple[str, str, str]

KINDS = {
    "r": string.ascii_letters + string.digits,
    "d": "123456789",
    "h": "0123456789abcdef",
    "b": string.ascii_letters + string.digits + "+/",
    "u": string.ascii_uppercase + "234567",
    "s": string.ascii_letters + string.digits + "-_",
}
TABLES = read_cases(__file__, "secret_cases.yaml")
HOSTS = ("db.acme.org", "10.0.0.5", "redis", "localhost:6379", "[2001:db8::1]:5432", "proxy.corp:3128")
JOINS = ("\n", "\\n", "\r\n", "\\\\n", " ", "\n    ", "\n> ", "\n2025-11-22 INFO ")


def split_table(text: str) -> list[str]:
    r"""Split a table at line ends, and at `|` unless a blank follows.

    In an entry, `\|` stands for `|`, and `#` for a line end unless the entry has `#1`.
    """
    forms = [
        form for row in text.strip("\n").splitlines() for form in re.split(r"(?<!\\)\|(?! )", row) if form
    ]
    forms = [form.replace("\\|", "|") for form in forms]
    return [form if "#1" in form else form.replace("#", "\n") for form in forms]


def fill_shape(draw: random.Random, shape: str) -> tuple[str, list[str]]:
    """Replace the placeholders of a shape by random values; return the text and the values."""
    filled: list[str] = []

    def fill_placeholder(match: re.Match[str]) -> str:
        if match[1] == "w":
            value = "".join(draw.sample(string.ascii_letters, 10)) + "42" + draw.choice("!^*_-") + "x"
        else:
            value = "".join(draw.choice(KINDS[match[1]]) for _ in range(int(match[2])))
        filled.append(value)
        return value

    return re.sub(r"\{([rdhbusw])(\d*)\}", fill_placeholder, shape), filled


def secrets() -> Iterator[Case]:
    """Yield the secrets of the tables, each in the contexts of its kind."""
    draw = random.Random(15)
    yield from _issued_secrets(draw)
    yield from _named_secrets(draw)
    yield from _logins_and_keys(draw)


def unquoted_passwords(number: int) -> Iterator[Case]:
    """Yield this many random passwords of 16 printable characters, none a blank or quote, in each unquoted form."""
    draw = random.Random(16)
    alphabet = [char for char in map(chr, range(33, 127)) if char not in "'\"`"]
    for _ in range(number):
        value = "".join(draw.choices(alphabet, k=16))
        for form in split_table(TABLES["unquoted"]):
            yield form, value, form.replace("%", value)


def _issued_secrets(draw: random.Random) -> Iterator[Case]:
    """Yield tokens that are recognised by their shape, and secrets in commands, files, headers and URLs."""
    for shape in TABLES["issued"]:
        for form in split_table(TABLES["plain"]):
            value = fill_shape(draw, shape)[0]
            yield shape, value, form.replace("%", value)
    for table in ("others", "commands", "argument_lists", "files", "headers_and_urls", "reviewed"):
        for shape in split_table(TABLES[table]):
            text, values = fill_shape(draw, shape)
            yield shape, values[-1], text


def _named_secrets(draw: random.Random) -> Iterator[Case]:
    """Yield secrets that are recognised by the name of their variable or header."""
    for name in TABLES["names"]:
        for form in split_table(TABLES["named"]):
            value = fill_shape(draw, draw.choice(["{w}", "a1B{r17}", "{h40}", "abcxyz{d3}q{d2}"]))[0]
            yield name, value, form.replace("@", name).replace("%", value)
    for header in split_table(TABLES["headers"]):
        for form in split_table(TABLES["header_contexts"]):
            value = fill_shape(draw, draw.choice(["a1B{s37}", "a1B{b40}", "{h64}"]))[0]
            name, value_shape = header.split(": ", 1)
            yield header, value, form.replace("@", name).replace("%", value_shape.replace("%", value))


def _logins_and_keys(draw: random.Random) -> Iterator[Case]:
    """Yield passwords in URLs, and lines of PEM private keys."""
    for form in split_table(TABLES["logins"]):
        for host in HOSTS:
            value = fill_shape(draw, "{w}")[0]
            yield "login", value, form.replace("%", f"admin:{value}@{host}")
    for kind in TABLES["keys"]:
        for join in JOINS:
            for end in ([f"-----END {kind}-----"], []):
                lines = [fill_shape(draw, "{b64}")[0] for _ in range(5)]
                yield kind, lines[2], f'key = "{join.join([f"-----BEGIN {kind}-----", *lines, *end])}"\n'


def persons() -> Iterator[Case]:
    """Yield personal data: names, addresses and host names in each context, and those that have their own context."""
    forms = [
        (shape, around)
        for shape in split_table(TABLES["persons"])
        for around in split_table(TABLES["around"])
    ]
    for shape, around in forms + [(shape, "%") for shape in split_table(TABLES["persons_in_context"])]:
        for value in re.findall(r"\{([^{}]+)\}", shape):
            yield shape, value, around.replace("%", re.sub(r"[{}]", "", shape), 1)
