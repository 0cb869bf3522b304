"""Convert the TOML document of an entry to a record, or refuse it with the file, line and key of the mistake.

msgspec checks types, required and unknown keys. The rules that connect several keys are `_issue_problems`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from diagnostics.catalog import model
from diagnostics.fixes import Install, edit_without_framework
from diagnostics.toml_source import Keys, TomlError, TomlSource, close_matches

SCHEMA = "grpo-doctor.issue.v1"
CHECK_SCHEMA = "grpo-doctor.check.v1"
_REQUIREMENT = re.compile(r"[a-z0-9][a-z0-9-]*(?:\[[a-z0-9,-]+\])?(?:[<>=!~]=?[0-9][^\s;]*)?")
_EDIT_KEYS = (
    {"set", "versions", "ran"},
    {"advice", "versions", "ran"},
    {"install", "note", "versions", "ran"},
)
_PLAN_NAME = re.compile(r"[a-z_]+(\.[a-z_]+)*")
# The path of a problem in msgspec's message, such as `$.affected[0].source`.
_LOCATION = re.compile(r"(.*) - at `\$(.*)`\Z", re.DOTALL)
_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(.*)`")
_MISSING_KEY = re.compile(r"Object missing required field `(.*)`")
_TYPES = {
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "int": "a whole number",
}
_CHOICES = {"kind": model.KINDS, "status": model.STATUSES, "role": model.ROLES, "evidence": model.EVIDENCE}
_FORMS = {
    "since": "a release of this project, as 0.1.0", "versions": "a version specifier, as >=0.6.0,<0.11",
    "looked_to": "a release, as 0.31.0", "aliases": "a text on one line, at most 120 characters",
    "symptoms": "a phrase on one line, at most 120 characters",
}  # fmt: skip
Record = TypeVar("Record", model.Issue, model.CheckCode)
Problem = tuple["Keys", str]


def parse_issue(source: TomlSource, document: dict[str, Any]) -> model.Issue:
    """Return the record of a known issue; raises TomlError with file, line, key and what was expected."""
    _check_head(source, document, SCHEMA)
    entry = {key: value for key, value in document.items() if key != "schema"}
    for key in ("mitigations", "triggers"):
        if key in entry:
            entry[key] = _list_named_tables(source, entry[key], key)
    for mitigation in entry.get("mitigations", ()):
        keys: Keys = ("mitigations", mitigation["name"], "edits")
        mitigation.update(_flat_edits(source, keys, mitigation.pop("edits", {})))
    for trigger in entry.get("triggers", ()):
        trigger["earlier"] = [_with_frame(item) for item in trigger.get("earlier", ())]
    if isinstance(entry.get("signature"), dict):
        entry["signature"] = _flat_signature(entry["signature"])
    for rule in entry.get("config", ()):
        rule["when"] = list(rule.get("when", {}).items())
    for key in ("cause", "detail"):
        if isinstance(entry.get(key), str):
            entry[key] = entry[key].strip()
    issue = _convert(source, entry, model.Issue)
    for keys, expected in _issue_problems(issue):
        raise source.refuse(keys, _value_at(document, keys), expected)
    return issue


def parse_check(source: TomlSource, document: dict[str, Any]) -> model.CheckCode:
    """Return the record of a check's own code."""
    _check_head(source, document, CHECK_SCHEMA)
    entry = {key: value for key, value in document.items() if key != "schema"}
    if isinstance(entry.get("about"), str):
        entry["about"] = " ".join(entry["about"].split())
    check = _convert(source, entry, model.CheckCode)
    for keys, expected in _phrase_problems(check):
        raise source.refuse(keys, _value_at(document, keys), expected)
    return check


def _check_head(source: TomlSource, document: dict[str, Any], schema: str) -> None:
    if document.get("schema") != schema:
        raise source.refuse(("schema",), document.get("schema"), repr(schema))
    code = document.get("code")
    match = model.CODE.fullmatch(code) if isinstance(code, str) else None
    if match is None or match[1] not in model.FAMILIES:
        raise source.refuse(("code",), code, f"a family ({', '.join(model.FAMILIES)}) and three digits")
    if source.path.stem != code:
        raise source.refuse(("code",), code, f"the file's name, {source.path.stem!r}")


def _list_named_tables(source: TomlSource, tables: Any, key: str) -> list[dict[str, Any]]:
    """Return named tables as a list of tables with a `name`."""
    if not isinstance(tables, dict):
        raise source.refuse((key,), tables, "a table")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise source.refuse((key, name), table, "a table")
    return [{"name": name, **table} for name, table in tables.items()]


def _flat_edits(source: TomlSource, keys: Keys, edits: dict[str, Any]) -> dict[str, Any]:
    """Return the fields edits, bounds, installs and advice of a mitigation."""
    flat: dict[str, Any] = {"edits": [], "bounds": [], "installs": [], "advice": []}
    for framework, value in edits.items():
        if framework not in model.FRAMEWORKS:
            raise source.refuse((*keys, framework), value, f"one of {', '.join(model.FRAMEWORKS)}")
        variants = value if isinstance(value, list) else [value]
        for place, variant in enumerate(variants):
            location = (*keys, framework, place) if isinstance(value, list) else (*keys, framework)
            table = {"set": variant} if isinstance(variant, str) else variant
            _check_edit(source, location, table, several=isinstance(value, list))
            text = table.get("set") or table.get("advice") or ""
            if "install" in table:
                note = table.get("note", "")
                text = edit_without_framework(Install(tuple(table["install"]), note=note))
                flat["installs"].append((framework, table["install"], note))
            elif "advice" in table:
                flat["advice"].append(framework)
            flat["edits"].append((framework, text))
            flat["bounds"].append({key: table[key] for key in ("versions", "ran") if key in table})
    return flat


def _check_edit(source: TomlSource, keys: Keys, table: Any, *, several: bool) -> None:
    if not isinstance(table, dict) or not any(set(table) <= allowed for allowed in _EDIT_KEYS):
        unknown = (
            sorted(set(table) - {key for keys in _EDIT_KEYS for key in keys})
            if isinstance(table, dict)
            else []
        )
        raise source.refuse(
            (*keys, *unknown[:1]), None, "`set`, `install` or `advice`, with `versions`, `ran` or `note`"
        )
    requirements = table.get("install", ["numpy"] if "set" in table or "advice" in table else [])
    if (
        not isinstance(requirements, list)
        or not requirements
        or not all(map(_REQUIREMENT.fullmatch, requirements))
    ):
        raise source.refuse((*keys, "install"), requirements, "requirements, such as numpy<2")
    if several and not table.get("versions"):
        raise source.refuse((*keys, "versions"), None, "the releases that each of several edits is for")


def _with_frame(earlier: dict[str, Any]) -> dict[str, Any]:
    frame = {key: earlier[key] for key in ("path", "function") if key in earlier}
    return {"frame": frame, **{key: value for key, value in earlier.items() if key not in frame}}


def _flat_signature(signature: dict[str, Any]) -> dict[str, Any]:
    """Return a signature with all patterns under `any` and all samples under `samples`."""
    samples = [
        {**sample, "matches": kind == "positive"}
        for kind in ("positive", "negative")
        for sample in signature.get(kind, ())
    ]
    rest = {key: value for key, value in signature.items() if key not in {"positive", "negative"}}
    patterns = [item for key in ("any", "broad", "late") for item in signature.get(key, ())]
    return {**rest, "any": patterns, "samples": samples}


def _convert(source: TomlSource, entry: dict[str, Any], kind: type[Record]) -> Record:
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        raise _to_toml_error(source, entry, str(error)) from None


def _to_toml_error(source: TomlSource, entry: dict[str, Any], message: str) -> TomlError:
    """Translate a message of msgspec into file, line, key and what was expected."""
    match = _LOCATION.fullmatch(message)
    expected, path = (match[1], match[2]) if match else (message, "")
    parts: list[str | int] = [
        int(part) if part.isdecimal() else part for part in re.findall(r"[\w-]+", path.replace("[...]", ""))
    ]
    keys = _toml_keys(entry, parts)
    if unknown := _UNKNOWN_KEY.match(expected):
        known = _field_names(parts)
        return source.refuse(
            (*keys, unknown[1]), None, f"one of {', '.join(known)}{close_matches(unknown[1], known)}"
        )
    if missing := _MISSING_KEY.match(expected):
        return source.refuse(keys, None, f"the key {missing[1]!r}")
    value = _value_at(entry, tuple(parts))
    field = next((str(part) for part in reversed(parts) if isinstance(part, str)), "")
    return source.refuse(keys, value, _describe_expected(expected, field, value))


def _describe_expected(message: str, field: str, value: Any) -> str:
    """Translate what msgspec expected into words for a contributor."""
    if message.startswith("Invalid enum value"):
        choices = _CHOICES[field]
        return f"one of {', '.join(choices)}{close_matches(str(value), choices)}"
    if "matching regex" in message:
        return _FORMS.get(field, "a string with something in it")
    if "length >=" in message:
        return "at least one"
    kind = re.match(r"Expected `(\w+)", message)
    return _TYPES.get(kind[1], kind[1]) if kind else message


def _toml_keys(entry: dict[str, Any], parts: list[str | int]) -> Keys:
    """Translate a path in the converted entry into keys of the TOML file."""
    keys = list(parts)
    if len(keys) > 1 and keys[0] in {"mitigations", "triggers"} and isinstance(keys[1], int):
        keys[1] = entry[str(keys[0])][keys[1]]["name"]
        if keys[2:3] == ["bounds"]:
            keys[2:] = ["edits"]
    if keys[:2] == ["signature", "samples"] and isinstance(keys[2], int):
        samples = entry["signature"]["samples"]
        kind = "positive" if samples[keys[2]]["matches"] else "negative"
        first = next(
            place for place, item in enumerate(samples) if item["matches"] == samples[keys[2]]["matches"]
        )
        keys[1:3] = [kind, keys[2] - first]
    return tuple(keys)


def _field_names(parts: list[str | int]) -> list[str]:
    """Return the allowed keys of the table at a path."""
    tables: dict[str, type[msgspec.Struct]] = {
        "affected": model.Affected, "read": model.Reading, "signature": model.Signature, "frames": model.Frame,
        "samples": model.LogSample, "config": model.ConfigRule, "mitigations": model.Mitigation,
        "triggers": model.Occasion, "references": model.Reference, "hang": model.Shape,
    }  # fmt: skip
    last = next((str(part) for part in reversed(parts) if isinstance(part, str)), "")
    names = list(tables.get(last, model.Issue).__struct_fields__)
    return [*names, "positive", "negative"] if last == "signature" else names


def _value_at(document: Any, keys: Keys) -> Any:
    for key in keys:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return None if isinstance(document, dict | list) else document


def _issue_problems(issue: model.Issue) -> Iterator[Problem]:
    """Yield violations of rules that connect several keys: (keys, expected value)."""
    yield from _phrase_problems(issue)
    yield from _unknown_names("components", issue.components, model.COMPONENTS)
    yield from _unknown_names("frameworks", issue.frameworks, tuple(model.FRAMEWORKS))
    if len(issue.cause.splitlines()) > 5:
        yield ("cause",), "five lines at the most; the rest goes into `detail`"
    if issue.signature is None and not (issue.config or issue.hang or issue.audit):
        yield (), "a [signature], a [[config]], a [[hang]] or audit: something it is recognised by"
    for place, claim in enumerate(issue.affected):
        yield from _claim_problems(("affected", place), claim)
    if issue.signature is not None:
        yield from _signature_problems(issue.signature)
    for place, rule in enumerate(issue.config):
        if not rule.when or not all(_PLAN_NAME.fullmatch(key) for key, _ in rule.when):
            yield ("config", place, "when"), "values of the run plan, such as rollout.mode"
    for mitigation in issue.mitigations:
        yield from _mitigation_problems(("mitigations", mitigation.name), mitigation)


def _phrase_problems(entry: model.Issue | model.CheckCode) -> Iterator[Problem]:
    """Yield search phrases that are duplicates, or that only repeat the title."""
    other_texts = {entry.title.lower()}
    for key, phrases in (("aliases", entry.aliases), ("symptoms", entry.symptoms)):
        for place, phrase in enumerate(phrases):
            if phrase.lower() in other_texts:
                yield (key, place), "another text than the title and the other phrases"
            other_texts.add(phrase.lower())


def _unknown_names(key: str, names: tuple[str, ...], known: tuple[str, ...]) -> Iterator[Problem]:
    for name in names:
        if name not in known:
            yield (key,), f"each of {', '.join(known)}; not {name!r}{close_matches(name, known)}"


def _claim_problems(keys: Keys, claim: model.Affected) -> Iterator[Problem]:
    if claim.package not in model.COMPONENTS:
        yield (
            (*keys, "package"),
            f"one of {', '.join(model.COMPONENTS)}{close_matches(claim.package, model.COMPONENTS)}",
        )
    if bool(claim.versions) == bool(claim.releases):
        yield keys, "either `versions` (a range) or `releases` (a list)"
    if claim.evidence == "executed" and not claim.releases:
        yield (*keys, "versions"), "`releases` instead: an executed claim lists the releases that were run"
    if "<=" in claim.versions:
        yield (*keys, "versions"), "< where the issue ends; the newest release examined is `looked_to`"
    if claim.read is not None and claim.evidence != "static":
        yield (*keys, "read"), "`static`: it says what was read in the source of each release"
    if claim.looked_to and ("<" in claim.versions or not claim.versions):
        yield (*keys, "looked_to"), "a range without an end beside it"
    if claim.read is not None:
        try:
            re.compile(claim.read.pattern)
        except re.error as error:
            yield (*keys, "read", "pattern"), f"a regular expression ({error})"


def _signature_problems(signature: model.Signature) -> Iterator[Problem]:
    if not signature.any:
        yield ("signature",), "the key 'any': a list of strings"
    for key, matches in (("positive", True), ("negative", False)):
        if not any(sample.matches is matches for sample in signature.samples):
            yield ("signature", key), f"at least one [[signature.{key}]] sample"
    if (signature.role == model.CONFIRMATION) != bool(signature.confirms):
        yield ("signature", "confirms"), "the codes that it supports, exactly where `role` is `confirmation`"
    if len(set(signature.any)) != len(signature.any):
        yield ("signature", "any"), "each pattern once"


def _mitigation_problems(keys: Keys, mitigation: model.Mitigation) -> Iterator[Problem]:
    if not mitigation.edits:
        yield (*keys, "edits"), "the edit for at least one framework"
    tested = {*mitigation.helps, *mitigation.fails}
    for (framework, _), bound in zip(mitigation.edits, mitigation.bounds, strict=True):
        if not set(bound.ran) <= tested:
            yield (*keys, "edits"), f"`ran` of {framework} among the triggers of `helps` and `fails`"
    if (mitigation.evidence == "executed") != bool(tested):
        yield (*keys, "evidence"), "`executed` exactly where `helps` or `fails` name what was run"
