"""Read the option names of all framework releases, and write lint's option index.

    python -m evaluation.lint.option_names FOLDER [PACKAGE...]

FOLDER keeps what was fetched: the few files of each wheel that declare options, as `PACKAGE/RELEASE/...`. What is in
no registry, or has no wheels of its newest releases, is laid there by hand from its repository's tags, in the same way.
Written is one JSON a package: for each name the first and the last release that has it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from packaging.version import Version

from diagnostics.lint.option_index import FOLDER
from diagnostics.matrix import wheels
from evaluation.catalog.options import releases


class Package(NamedTuple):
    """Files and functions in which a package declares its options.

    Attributes:
        first: The oldest release that is read; empty where it is in no registry.
        wanted: The files.
        serves: Those of them that are of its server alone.
    """

    first: str
    wanted: str
    serves: str = ""


PACKAGES = {
    "trl": Package(
        "0.14.0",
        r"trl/trainer/(?:grpo|model|base)_config\.py|trl/scripts/(?:grpo|utils|vllm_serve)\.py"
        r"|trl/experimental/async_grpo/async_grpo_config\.py",
        r"vllm_serve\.py",
    ),
    "transformers": Package("4.46.0", r"(?:src/)?transformers/training_args\.py"),
    "ms-swift": Package(
        "3.2.0",
        r"swift/(?:llm/argument|arguments|trainers|rlhf_trainers|megatron/arguments?|llm/ray|ray)/.*\.py",
    ),
    "verl": Package("0.2.0", r"verl/trainer/config/.*ppo.*\.ya?ml"),
    "openrlhf": Package("0.6.0", r"openrlhf/cli/train_ppo_ray\.py"),
    "easyr1": Package("", r"verl/(?:trainer|workers/.*)config\.py|verl/(?:trainer|workers)/.*config\.py"),
}


def main() -> int:
    """Fetches, reads and writes; returns the exit code."""
    folder = Path(sys.argv[1])
    for package in sys.argv[2:] or PACKAGES:
        fetch(package, folder)
        releases = sorted((path.name for path in (folder / package).iterdir()), key=Version)
        spans: dict[str, dict[str, list[str]]] = {"options": {}, "serve": {}}
        read = []
        for release in releases:
            names = of_release(package, folder / package / release)
            if names["options"]:
                read.append(release)
            for kind, names_of_kind in names.items():
                for name in names_of_kind:
                    spans[kind].setdefault(name, [release, release])[1] = release
        data = {
            "releases": read,
            **{
                kind: dict(sorted(spans_of_kind.items()))
                for kind, spans_of_kind in spans.items()
                if spans_of_kind
            },
        }
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{package}.json").write_text(_compact(data), encoding="utf-8")
        print(f"{package}: {len(spans['options'])} options in {len(read)} releases, {read[0]} to {read[-1]}")
    return 0


def _compact(data: dict[str, Any]) -> str:
    """One option a line, so that a release more is a small change."""
    text = json.dumps(data, indent=1, ensure_ascii=True)
    return re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def fetch(package: str, folder: Path) -> None:
    """Lay the files of every release there that are not there yet."""
    about = PACKAGES[package]
    if not about.first:
        return
    every = releases(package, about.first)
    missing = [release for release in every if not (folder / package / release).exists()]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(partial(_read_release, package, folder), missing))


def _read_release(package: str, folder: Path, release: str) -> None:
    import remotezip

    wheel = wheels.find_wheel(package, release, cache=folder / "cache", environ=os.environ)
    with remotezip.RemoteZip(wheel.address, timeout=60) as archive:
        for info in archive.infolist():
            # Platform wheels have their Python files one folder deeper.
            name = re.sub(r"^[^/]+\.data/(?:pure|plat)lib/", "", info.filename)
            if re.fullmatch(PACKAGES[package].wanted, name):
                path = folder / package / release / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(info))


def of_release(package: str, folder: Path) -> dict[str, set[str]]:
    """The names of a release's options, those of its server apart."""
    about = PACKAGES[package]
    names: dict[str, set[str]] = {"options": set(), "serve": set()}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or not re.fullmatch(about.wanted, name):
            continue
        kind = "serve" if about.serves and re.search(about.serves, name) else "options"
        if path.suffix == ".py":
            names[kind] |= of_python(ast.parse(path.read_text(encoding="utf-8")))
        else:
            names[kind] |= of_yaml(path)
    if package == "easyr1":
        names["options"] = _rooted(folder)
    return names


def of_python(tree: ast.Module) -> set[str]:
    """The fields of dataclasses, and the options that are added to a parser."""
    names = set()
    loops = _loops(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(
            "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            names |= {
                statement.target.id
                for statement in node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            }
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            flags = {flag for argument in node.args for flag in _texts(argument, loops)}
            names |= {flag.lstrip("-") for flag in flags if flag.startswith("--")}
    return {name for name in names if not name.startswith("_")}


def _loops(tree: ast.Module) -> dict[str, set[str]]:
    """The texts that a loop over constants gives a name."""
    loop_texts: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple | ast.List):
            texts = {element.value for element in node.iter.elts if isinstance(element, ast.Constant)}
            loop_texts.setdefault(ast.unparse(node.target), set()).update(map(str, texts))
    return loop_texts


def _texts(argument: ast.expr, loops: dict[str, set[str]]) -> set[str]:
    """A text; or what an f-string is with each value of a loop."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return {argument.value}
    if not isinstance(argument, ast.JoinedStr):
        return set()
    texts = {""}
    for part in argument.values:
        name = ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ""
        ends = {str(part.value)} if isinstance(part, ast.Constant) else loops.get(name, set())
        texts = {text + end for text in texts for end in ends}
    return texts


def of_yaml(path: Path) -> set[str]:
    """The dotted keys of a trainer's whole config; those before 0.5 are whole, later ones have a composed copy."""
    composed = path.name.startswith("_generated_")
    if not composed and any(path.parent.glob("_generated_*")):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        # The groups that its list of defaults names can be chosen by name.
        groups = [default for default in tree.get("defaults", []) if isinstance(default, dict)]
        return {key.split("@")[-1] for group in groups for key in group}
    return _dotted(yaml.safe_load(path.read_text(encoding="utf-8")), "")


def _dotted(tree: Any, prefix: str) -> set[str]:
    if not isinstance(tree, dict):
        return {prefix}
    dotted = {prefix} - {""}
    for key, value in tree.items():
        dotted |= _dotted(value, f"{prefix}.{key}".strip("."))
    return dotted


def _rooted(folder: Path) -> set[str]:
    """EasyR1's options: dataclasses within dataclasses, from PPOConfig down."""
    classes: dict[str, dict[str, str]] = {}
    for path in sorted(folder.rglob("*config.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                fields = [statement for statement in node.body if isinstance(statement, ast.AnnAssign)]
                types = {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}
                bases = [classes.get(ast.unparse(base), {}) for base in node.bases]
                classes[node.name] = {**{k: v for base in bases for k, v in base.items()}, **types}

    def walk(name: str, prefix: str) -> set[str]:
        keys = set()
        for field, kind in classes[name].items():
            key = f"{prefix}.{field}".strip(".")
            keys.add(key)
            if kind in classes:
                keys |= walk(kind, key)
        return keys

    return walk("PPOConfig", "") | {"config"}


if __name__ == "__main__":
    sys.exit(main())
