"""Which options does each release have? Read in the wheels, written where a test can look without a network.

An edit of the catalogue names options; where its release has them is a matter of fact. `python -m
evaluation.catalog.options` reads the files that declare options in every final release of each package and writes
`diagnostics/data/options.json`: per option the releases from its first to its last.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from packaging.version import Version

from diagnostics.matrix import wheels
from diagnostics.matrix.context import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PUBLISHED = ROOT / "diagnostics" / "data" / "options.json"
SCHEMA = "grpo-doctor.options.v1"


@dataclass(frozen=True)
class Declares:
    """Files and functions in which a package declares options.

    Attributes:
        since: The oldest release that is read.
        files: A pattern for the paths of its files, below what the wheel puts before them.
        functions: Functions and methods whose arguments are options, as well as fields and `add_argument`.
    """

    since: str
    files: str
    functions: tuple[str, ...] = ()


PACKAGES = {
    "trl": Declares(
        "0.14",
        r"trl/trainer/(grpo_config|base_config|model_config|grpo_trainer)\.py|trl/scripts/(grpo|utils|vllm_serve)\.py",
        ("GRPOTrainer.__init__",),
    ),
    "ms-swift": Declares(
        "3.0",
        r"swift/(?!megatron|ray_utils)[\w/]*(args|arguments|args_mixin|arguments_mixin)\.py|swift/[\w/]*mixin\.py",
    ),
    "verl": Declares("0.1", r"verl/trainer/config/(_generated_)?ppo_trainer\.yaml"),
    "openrlhf": Declares("0.5", r"openrlhf/cli/train_ppo_ray\.py"),
    "vllm": Declares(
        "0.6",
        r"vllm/(engine/arg_utils|envs|sampling_params|entrypoints/llm|entrypoints/([\w/]+/)?cli_args)\.py"
        r"|vllm/config(/[\w]+)?\.py",
        ("LLM.__init__",),
    ),
    "transformers": Declares("4.46", r"transformers/training_args\.py"),
    "accelerate": Declares("1.0", r"accelerate/commands/launch\.py"),
}


def releases(package: str, since: str) -> list[str]:
    """The final releases of a package with a wheel, oldest first."""
    uploaded = {Version(version) for version, _day, _python in wheels.uploads(package)}
    selected = sorted(
        version for version in uploaded if not version.is_prerelease and version >= Version(since)
    )
    return [str(version) for version in selected]


def declared(path: str, text: str, functions: Iterable[str] = ()) -> Iterator[str]:
    r"""The names of the options that a file declares.

    >>> sorted(declared("a.py", "class A:\\n    b: int = 1\np.add_argument('--c-d')\n"))
    ['b', 'c_d']
    """
    if path.endswith(".yaml"):
        yield from _keys(yaml.safe_load(text) or {})
        return
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _fields(node)
            yield from _arguments(node, functions)
        elif isinstance(node, ast.Call):
            yield from _flags(node)
        elif isinstance(node, ast.Dict) and path.endswith("envs.py"):
            names = (key.value for key in node.keys if isinstance(key, ast.Constant))
            yield from (name for name in names if isinstance(name, str))


def _keys(value: Any, before: str = "") -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield f"{before}{key}"
        yield from _keys(inner, f"{before}{key}.")


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id


def _arguments(node: ast.ClassDef, functions: Iterable[str]) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and f"{node.name}.{part.name}" in functions:
            yield from (
                argument.arg
                for argument in (*part.args.args, *part.args.kwonlyargs)
                if argument.arg != "self"
            )


def _flags(node: ast.Call) -> Iterator[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if name == "add_argument":
        for word in node.args:
            if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value.startswith("--"):
                yield word.value[2:].replace("-", "_")


def read_options(package: str, cache: Path, say: Any = print) -> dict[str, Any]:
    """The options of every release of a package: name → the spans of releases, as `first-last;first-last`."""
    package_rules = PACKAGES[package]
    order = releases(package, package_rules.since)
    releases_of: dict[str, list[int]] = {}
    for place, release in enumerate(order):
        names = _of_release(package, release, package_rules, cache)
        say(f"{package} {release}: {len(names)} options", file=sys.stderr)
        for name in names:
            releases_of.setdefault(name, []).append(place)
    return {
        "releases": order,
        "options": {name: _spans(releases_of[name], order) for name in sorted(releases_of)},
    }


def _of_release(package: str, release: str, wanted: Declares, cache: Path) -> set[str]:
    wheel = wheels.find_wheel(package, release, cache=cache)
    pattern = re.compile(rf"(?:[\w.-]+\.data/purelib/)?(?:{wanted.files})")
    listed = sorted(wheel.names()) if not wanted.files.endswith("yaml") else []
    if wanted.files.endswith("yaml"):
        # Only Python files are listed; of these two the one that holds everything is read.
        listed = [f"verl/trainer/config/{name}.yaml" for name in ("_generated_ppo_trainer", "ppo_trainer")]
    options: set[str] = set()
    for path in listed:
        if not pattern.fullmatch(path):
            continue
        try:
            text = wheel.read(path)
        except wheels.WheelError as error:
            if not error.absent:
                raise
            continue
        options |= set(declared(path, text, wanted.functions))
        if path.endswith("_generated_ppo_trainer.yaml"):
            break
    return options


def _spans(places: list[int], order: list[str]) -> str:
    """Return the consecutive releases that have an option as spans; a span that reaches the newest is left open.

    >>> _spans([0, 1, 3], ["1.0", "1.1", "1.2", "1.3"])
    '1.0-1.1;1.3-'
    """
    spans: list[list[int]] = []
    for place in places:
        if spans and spans[-1][1] == place - 1:
            spans[-1][1] = place
        else:
            spans.append([place, place])
    bounds = [(order[first], "" if last == len(order) - 1 else order[last]) for first, last in spans]
    return ";".join(f"{first}-{last}" for first, last in bounds)


def main() -> int:
    """Read the packages that are named, else all, and write what was found beside what is known of the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", nargs="*", choices=[*PACKAGES, []], help="only these")
    parser.add_argument("--cache", help="where what was read is kept (default: the store's)")
    options = parser.parse_args()
    cache = Path(options.cache) if options.cache else ROOT / ".matrix" / "wheels"
    known = json.loads(PUBLISHED.read_text()) if PUBLISHED.exists() else {"packages": {}}
    for package in options.package or PACKAGES:
        known["packages"][package] = {
            "read": datetime.datetime.now(datetime.UTC).date().isoformat()
        } | read_options(package, cache)
    document = {"schema": SCHEMA, "packages": known["packages"]}
    PUBLISHED.write_text(json.dumps(document, indent=0, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
