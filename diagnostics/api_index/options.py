"""The choices of an option in one release, from Literal types, enums and argparse."""

from __future__ import annotations

import ast
import re
from functools import cache

from diagnostics.api_index import query, store
from diagnostics.api_index.query import Release
from diagnostics.api_index.surface import Definition, Surface

# Where the options of a command are declared: fields of a class, or the argparse options of a module.
_CLASSES = {
    "trl": (("trl.trainer.grpo_config", "GRPOConfig"), ("trl.trainer.model_config", "ModelConfig")),
    "ms-swift": (("swift.llm.argument.rlhf_args", "RLHFArguments"), ("swift.arguments", "RLHFArguments")),
    "vllm": (("vllm.engine.arg_utils", "AsyncEngineArgs"), ("vllm.engine.arg_utils", "EngineArgs")),
}
_MODULES = {"openrlhf": ("openrlhf.cli.train_ppo_ray",)}
_COMPANIONS = {"trl": ("transformers",), "ms-swift": ("transformers", "trl")}


def choices(release: Release, option: str) -> tuple[str, ...]:
    """Return all values that an option accepts, () if it accepts others or if that is unknown."""
    surface = _surface(release)
    if surface is None:
        return ()
    for module in _MODULES.get(release.package, ()):
        entry = (surface.source.facts(module) or {}).get(f"--{option}", "")
        if " choices " in entry:
            return _literals(entry.partition(" choices ")[2].partition(" = ")[0])
    for module, name in _CLASSES.get(release.package, ()):
        definition = surface.find(module, name)
        for item in surface.class_and_bases(definition) if definition else ():
            entry = surface.facts(item.module).get(f"{item.name}.{option}", "") if item else ""
            if item and entry.startswith("field "):
                return _field_choices(surface, item, entry)
    return ()


@cache
def _surface(release: Release) -> Surface | None:
    companions = [
        Release(name, versions[0])
        for name in _COMPANIONS.get(release.package, ())
        if (versions := query.find_releases(name, ""))
    ]
    return query.surface_of(release, *companions) if store.load(release.package) else None


def _field_choices(surface: Surface, definition: Definition, entry: str) -> tuple[str, ...]:
    """Return the choices of a field: those of its metadata, of its Literal, or of the Enum that its type names."""
    if " choices " in entry:
        return _literals(entry.partition(" choices ")[2].partition(" = ")[0])
    annotation = re.split(r" = | (?:aliases|alias|deprecated) ", entry.removeprefix("field "))[0]
    return _annotation_choices(surface, definition.module, annotation)


def _annotation_choices(surface: Surface, module: str, annotation: str, depth: int = 0) -> tuple[str, ...]:
    """Return the choices of an annotation; `Literal[…] | str` accepts any value."""
    try:
        node: ast.expr = ast.parse(annotation.strip("'\""), mode="eval").body
    except SyntaxError:
        return ()
    values: list[str] = []
    for part in _alternatives(node):
        text = ast.unparse(part)
        if text == "None":
            continue
        if isinstance(part, ast.Subscript) and text.partition("[")[0].rpartition(".")[2] == "Literal":
            values += _literals(f"[{ast.unparse(part.slice)}]")
            continue
        target = surface.find(module, text) if text.isidentifier() and depth < 3 else None
        if target is None or not target.entry.startswith("value "):
            return ()
        inner = _annotation_choices(
            surface, target.module, target.entry.removeprefix("value ").lstrip("= "), depth + 1
        )
        if not inner:
            return ()
        values += inner
    return tuple(dict.fromkeys(values))


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """Return the parts of `A | B`, `Optional[A]` and `Union[A, B]`."""
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] in {
        "Optional",
        "Union",
    }:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return [item for part in parts for item in _alternatives(part)]
    return [node]


def _literals(text: str) -> tuple[str, ...]:
    """Return the constants of a list or tuple as text; () if it was cut off or computed."""
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(map(str, values)) if isinstance(values, list | tuple) else (str(values),)
