"""Collect what a training script takes from packages in the API index: imported names and keywords of calls.

`collect_script_uses` leaves out what depends on more than the release: names that the script binds in another way, or
changes, keywords in a `try` that handles TypeError, and keywords in a branch of a script that reads signatures. For a
script with unsloth, which replaces the trainers of TRL, it leaves out all keywords.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from diagnostics.api_index import query, store
from diagnostics.api_index.source import dotted_name, parse_source
from diagnostics.api_index.uses import Use, collect_uses

_READS_SIGNATURES = re.compile(r"\b(?:signature|getfullargspec|hasattr|fields|__dataclass_fields__)\b")
_REPLACES = re.compile(r"^\s*(?:import|from) unsloth", re.MULTILINE)


def collect_script_uses(text: str, file: str) -> tuple[Use, ...]:
    """Return the uses of a script; none if it cannot be parsed, or puts modules of its own into `sys.modules`.

    A use of the kind `without` has the keywords of a call without positional and unpacked arguments.
    """
    try:
        tree = parse_source(text)
        uses = collect_uses(text, file, {*map(query.module_of, store.indexed_packages())})
    except SyntaxError:
        return ()
    if "sys.modules[" in text:
        return ()
    nodes = list(ast.walk(tree))
    changed, unsure = _changed_names(nodes), list(_unsure_lines(nodes, text))
    calls = {
        (node.lineno, keyword.arg): node
        for node in nodes
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    }
    found: dict[Use, None] = {}
    for use in uses:
        call = calls.get((use.line, use.path[0])) if use.kind == "argument" and len(use.path) == 1 else None
        if use.kind in {"name", "arm"} or (use.kind == "attribute" and not use.name):
            found[use] = None
        elif call is not None and use.name and (use.module, use.name) not in changed:
            if _REPLACES.search(text) or any(use.line in lines for lines in unsure):
                continue
            found[use] = None
            keywords = tuple(sorted(keyword.arg or "" for keyword in call.keywords))
            if not call.args and "" not in keywords:
                found[replace(use, kind="without", path=keywords)] = None
    return tuple(found)


def _changed_names(nodes: list[ast.AST]) -> set[tuple[str, str]]:
    """Return the imported names, as (module, name), that the script imports from elsewhere, assigns or changes."""
    origins: dict[str, set[tuple[str, str]]] = {}
    stored: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origin = "." * node.level + (node.module or ""), alias.name
                origins.setdefault(alias.asname or alias.name, set()).add(origin)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored.add(node.name)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            stored.add(dotted_name(node).partition(".")[0])
    return {
        origin for name, places in origins.items() if name in stored or len(places) > 1 for origin in places
    }


def _unsure_lines(nodes: list[ast.AST], text: str) -> Iterator[range]:
    """Yield the lines whose calls may not take place, or may fail without harm."""
    reads_signatures = bool(_READS_SIGNATURES.search(text))
    for node in nodes:
        if isinstance(node, ast.Try) and any(
            item.type is None or "Error" in ast.dump(item.type) for item in node.handlers
        ):
            yield range(node.lineno, (node.body[-1].end_lineno or 0) + 1)
        elif isinstance(node, ast.If) and reads_signatures:
            yield range(node.lineno, (node.end_lineno or 0) + 1)
