"""Check a report against its published schema, with the little of JSON Schema that it uses."""

import json
import re
from pathlib import Path

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report-v1.schema.json").read_text())
_KINDS = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool,
    "null": type(None),
}  # fmt: skip


def problems(report):
    """One line each; none where the report is as published."""
    return list(_check(report, SCHEMA, "report"))


def _check(value, rule, where):
    rule = SCHEMA["$defs"][rule["$ref"].rpartition("/")[2]] if "$ref" in rule else rule
    if ("const" in rule and value != rule["const"]) or ("enum" in rule and value not in rule["enum"]):
        yield f"{where}: {value!r} is none of {rule.get('enum', rule.get('const'))}"
    kinds = [rule["type"]] if isinstance(rule.get("type"), str) else rule.get("type", [])
    if kinds and not any(isinstance(value, _KINDS[kind]) for kind in kinds):
        yield f"{where}: {value!r} is no {kinds}"
    if "pattern" in rule and not re.search(rule["pattern"], value):
        yield f"{where}: {value!r} does not match {rule['pattern']}"
    if isinstance(value, dict):
        yield from (f"{where}: no {key}" for key in rule.get("required", ()) if key not in value)
        known, additional = rule.get("properties", {}), rule.get("additionalProperties", {})
        for key, item in value.items():
            if key not in known and additional is False:
                yield f"{where}: {key} is not published"
            yield from _check(
                item, known.get(key) or (additional if isinstance(additional, dict) else {}), f"{where}.{key}"
            )
    for number, item in enumerate(value if isinstance(value, list) else ()):
        yield from _check(item, rule.get("items", {}), f"{where}[{number}]")
