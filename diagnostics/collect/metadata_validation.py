"""Validate package names, versions and requirements from untrusted metadata, before they are printed or parsed.

Standard library only, because these functions also run on remote hosts, which may not have `packaging`.
`is_package_version` checks a name and a version, `is_safe_to_parse` a requirement, and `is_install_word` one that
becomes a word of a command.
"""

import re

# As in the packaging specifications (names; PEP 440).
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,253}[a-z0-9])?", re.IGNORECASE | re.ASCII)
_VERSION_PATTERN = (
    r"v?(?:\d{1,9}!)?\d{1,19}(?:\.\d{1,19}){0,19}(?:[-_.]?(?:alpha|beta|preview|pre|rc|a|b|c)[-_.]?\d{0,19})?"
    r"(?:-\d{1,19}|[-_.]?(?:post|rev|r)[-_.]?\d{0,19})?(?:[-_.]?dev[-_.]?\d{0,19})?"
    r"(?:\+[a-z0-9]{1,64}(?:[-_.][a-z0-9]{1,64}){0,19})?"
)
_VERSION = re.compile(_VERSION_PATTERN, re.IGNORECASE | re.ASCII)
_RANGE = rf" ?(?:[<>]=?|[=!~]=|===) ?{_VERSION_PATTERN}(?:\.\*)?"
_INSTALL_WORD = re.compile(
    rf"{_NAME.pattern}(?:\[[a-z0-9._, -]{{1,255}}\])?(?:{_RANGE}(?:,{_RANGE}){{0,49}})?", _VERSION.flags
)
# pip takes a word that ends so as the file of that name, if the working folder has one.
_ARCHIVE = re.compile(
    r"\.(?:whl|zip|egg|t[gx]z|tbz2?|tlz|tar(?:\.(?:gz|bz2|xz|lz|lzma|zst))?)(?=\[|$)", _VERSION.flags
)
_MAX_REQUIREMENT = 4096
_ENDLESS_NUMBER = re.compile(r"\d{400}")


def is_package_version(name: str, version: str) -> bool:
    """Return whether a package name and a version are valid by the packaging specifications, and not very long.

    >>> is_package_version("trl", "1.16.0.dev1+g0a1"), is_package_version("trl", "1.16.0';curl x|sh;'")
    (True, False)
    """
    return bool(_NAME.fullmatch(name) and _VERSION.fullmatch(version))


def is_install_word(text: str) -> bool:
    """Return whether an installer reads a text as a package, with a range of PEP 440 versions or without.

    It reads other texts as a folder, a file, an address or an option: pip takes `ray==1/../../tmp/x` as the folder
    /tmp/x, and `ray==1+x.zip` as an archive.

    >>> is_install_word("trl[vllm]>=0.20,!=1.0.*"), is_install_word("torch===2.6.0/../../tmp/x"), is_install_word("-r")
    (True, False, False)
    """
    return _INSTALL_WORD.fullmatch(text) is not None and not _ARCHIVE.search(text)


def is_safe_to_parse(requirement: str) -> bool:
    """Return whether a requirement is safe to parse: `packaging` fails on deep brackets, long numbers and long texts.

    >>> is_safe_to_parse("torch>=2.8.0; python_version < '3.13'"), is_safe_to_parse("torch; " + "(" * 3000)
    (True, False)
    """
    is_simple = len(requirement) <= _MAX_REQUIREMENT and requirement.count("(") <= 50
    return is_simple and not _ENDLESS_NUMBER.search(requirement)
