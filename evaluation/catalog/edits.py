"""Check that the options in the catalog's edits exist in the releases of their framework.

`python -m evaluation.catalog.edits` reads the API index, without a network. It prints each option that no release has,
and each edit whose `versions` contain a release without one of its options. The exit code is 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from diagnostics import catalog
from diagnostics.api_index import store
from diagnostics.api_index.query import FIRST_FOR_GRPO
from diagnostics.api_index.release_api import parse_signature
from diagnostics.fixes import Install
from diagnostics.versions import in_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from diagnostics.catalog.model import Bound

# Packages that define the options of a framework: first the framework itself, whose options decide the `versions` of an
# edit, then its dependencies.
OPTION_SOURCES = {
    "vllm": ("vllm",),
    "trl": ("trl", "transformers", "accelerate", "vllm"),
    "ms-swift": ("ms-swift", "transformers", "vllm"),
    "verl": ("verl", "vllm", "transformers"),
    "openrlhf": ("openrlhf", "vllm", "transformers"),
}
# The argument classes of these frameworks inherit from that of transformers.
INHERITING_FRAMEWORKS = ("trl", "ms-swift")
_FLAG = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]*\w)")
_KEY = re.compile(r"(?<![\w.'\"+-])((?:[a-z][a-z0-9_]*\.)*[a-z][a-z0-9_]{3,})=(?!=)")
_VARIABLE = re.compile(r"\bVLLM_[A-Z0-9_]+\b")
# Options of other programs (up to the next semicolon) and arguments of other function calls are ignored.
_OTHER_PROGRAMS = re.compile(
    r"(?:\b(?:docker|pip|uv|ray(?! status)|verl\.model_merger|sbatch|srun|hf|sysctl|py-spy|torchrun|conda|git|ulimit"
    r"|nvidia-smi|def|EngineCore|Kubernetes)\b)"
    r"[^;]*|--help\b|the FSDP worker's[^;]*"
)
_CALL = re.compile(
    r"(?<![\w.])(?!GRPOConfig|GRPOTrainer|LLM\(|SamplingParams|EngineArgs)[A-Za-z_][\w.]*=?\([^()]*\)"
)


def option_names(text: str) -> list[str]:
    """Return the options that an edit's text names, as the index spells them.

    >>> option_names("vllm serve --max-model-len 4; GRPOConfig(use_vllm=True) under VLLM_USE_V1=0")
    ['max_model_len', 'use_vllm', 'VLLM_USE_V1']
    """
    text = _OTHER_PROGRAMS.sub("", _CALL.sub("", _CALL.sub("", _CALL.sub("", text))))
    flags = [flag.replace("-", "_").removeprefix("no_") for flag in _FLAG.findall(text)]
    return list(dict.fromkeys([*flags, *_KEY.findall(text), *_VARIABLE.findall(text)]))


def build_option_index() -> dict[str, Any]:
    """Return for each package of OPTION_SOURCES its `releases` and `options`.

    An option has the releases that define it, as `first-last;first-`. Options of verl's megatron variant are left out.
    """
    packages = {}
    for name in dict.fromkeys(name for names in OPTION_SOURCES.values() for name in names):
        package = store.load(name)
        assert package.releases, name
        options = {**package.document("options"), **package.document("serve"), **_trainer_arguments(package)}
        spans = {
            option: " ".join(span for span, mark in variants.items() if mark != "megatron")
            for option, packed in options.items()
            for variants in [packed if isinstance(packed, dict) else {"0-": packed}]
        }
        packages[name] = {
            "releases": [
                item for item in package.releases if in_range(item, f">={FIRST_FOR_GRPO.get(name, '0')}")
            ],
            "options": {option: _by_version(package, text) for option, text in sorted(spans.items()) if text},
        }
    return packages


def _trainer_arguments(package: store.Package) -> dict[str, Any]:
    """Return the arguments of TRL's GRPOTrainer, each with the spans of releases that have it."""
    spans: dict[str, dict[str, str]] = {}
    packed = package.packed("trl.trainer.grpo_trainer").get("GRPOTrainer.__init__", {})
    for span, entry in packed.items() if isinstance(packed, dict) else ():
        for name in parse_signature(entry).names - {"self"}:
            spans.setdefault(name, {})[span] = ""
    return spans


def _by_version(package: store.Package, spans: str) -> str:
    bounds = (span.partition("-") for span in spans.split())
    return ";".join(
        f"{package.releases[int(first)]}-{package.releases[int(last)] if last else ''}"
        for first, _, last in bounds
    )


def releases_with(known: Mapping[str, Any], name: str) -> list[str]:
    """Return the releases of a package that have an option.

    >>> releases_with({"releases": ["1", "2", "3"], "options": {"a": "1-1;3-"}}, "a")
    ['1', '3']
    """
    order = known["releases"]
    releases: set[str] = set()
    for option in _keys(known, name):
        for span in known["options"][option].split(";"):
            first, _, last = span.partition("-")
            span_range = f">={first},<={last}" if last else f">={first}"
            releases |= {item for item in order if in_range(item, span_range)}
    return [release for release in order if release in releases]


def _keys(known: Mapping[str, Any], name: str) -> list[str]:
    """Return the options that a name means: the option itself, or dotted options that end with the name."""
    if name in known["options"]:
        return [name]
    return [option for option in known["options"] if option.endswith(f".{name}")]


def unknown_options(framework: str, text: str, known: Mapping[str, Any]) -> list[str]:
    """Return the options of an edit that neither its framework nor a dependency has in any release."""
    return [
        name
        for name in option_names(text)
        if framework in OPTION_SOURCES
        and not any(_keys(known[package], name) for package in OPTION_SOURCES[framework])
    ]


def releases_with_options(framework: str, text: str, known: Mapping[str, Any]) -> list[str] | None:
    """Return the framework's releases that have all own options of an edit; None if the edit has none."""
    own_options = known.get(framework)
    names = [name for name in option_names(text) if own_options and _keys(own_options, name)]
    if framework in INHERITING_FRAMEWORKS:
        # Options that every transformers release has are inherited by these frameworks, so they do not limit the range.
        below = known["transformers"]
        names = [name for name in names if releases_with(below, name) != below["releases"]]
    if not own_options or not names:
        return None
    have = [set(releases_with(own_options, name)) for name in names]
    return [release for release in own_options["releases"] if all(release in spans for spans in have)]


def describe_misfit(framework: str, text: str, bound: Bound, known: Mapping[str, Any]) -> str:
    """Return the problem of an edit's bound: releases that lack one of its options, or no known release; else ''."""
    fitting_releases = releases_with_options(framework, text, known)
    if fitting_releases is None:
        return ""
    order = known[framework]["releases"]
    bound_releases = [release for release in order if not bound.versions or in_range(release, bound.versions)]
    unfit = [release for release in bound_releases if release not in fitting_releases]
    if unfit:
        unfit_releases = ", ".join(unfit[:5])
        return (
            f"is for {bound.versions or 'every release'}, and {unfit_releases} lack an option of it:"
            " use { set = ..., versions = ... }"
        )
    return "" if bound_releases else "is for no release that is known"


def propose_range(order: list[str], found: list[str]) -> str:
    """Return the newest unbroken range of the found releases as a specifier; empty for all releases or none.

    >>> propose_range(["1", "2", "3", "4"], ["1", "3"]), propose_range(["1", "2"], ["1", "2"])
    ('>=3,<4', '')
    """
    if not found or found == order:
        return ""
    last = first = order.index(found[-1])
    while first and order[first - 1] in found:
        first -= 1
    low = f">={order[first]}" if first else ""
    high = f"<{order[last + 1]}" if last + 1 < len(order) else ""
    return ",".join(filter(None, [low, high]))


def iterate_edits() -> Iterator[tuple[str, str, str, str, Bound]]:
    """Yield (code, mitigation, framework, text, bound) of each edit of the catalog that does not install a release."""
    for code, entry in catalog.load().items():
        for mitigation in entry.mitigations:
            for (framework, text), (edit, bound) in zip(
                mitigation.edits, mitigation.known_edits(), strict=True
            ):
                if not isinstance(edit, Install):
                    yield code, mitigation.name, framework, text, bound


def main() -> int:
    """Print the edits that disagree with the API index; return 1 if there are any."""
    known, wrong = build_option_index(), 0
    for code, name, framework, text, bound in iterate_edits():
        problems = [
            f"names {option}, which no release has" for option in unknown_options(framework, text, known)
        ]
        problems += filter(None, [describe_misfit(framework, text, bound, known)])
        fitting_releases = releases_with_options(framework, text, known)
        for line in problems:
            wrong += 1
            range_ = (
                propose_range(known[framework]["releases"], fitting_releases)
                if fitting_releases is not None
                else ""
            )
            print(f"{code} {name} {framework}: {line}; found {range_ or '-'}: {text}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
