"""Convert the TOML document of a catalog entry to a record, or refuse it with file, line and key of the mistake.

`parse_issue` converts a known issue, `parse_check` a check code. msgspec checks types, required and unknown keys. The
functions `_*_problems` check names, and rules that connect several keys. The patterns and samples of signatures are
checked by `signatures.check`. Tables that are rearranged first (configs, edits, samples, earlier tracebacks) raise a
TypeError or AttributeError if they have another type; `catalog.load_file` names the file.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from diagnostics.catalog import model
from diagnostics.fixes import Install, edit_without_framework
from diagnostics.toml_source import Keys, TomlSource, close_matches, value_at

SCHEMA = "grpo-doctor.issue.v1"
CHECK_SCHEMA = "grpo-doctor.check.v1"
_REQUIREMENT = r"\A[a-z0-9][a-z0-9-]*(?:\[[a-z0-9,-]+\])?(?:[<>=!~]=?[0-9][^\s;]*)?\Z"
_PLAN_NAME = re.compile(r"[a-z_]+(\.[a-z_]+)*")
# The expected form of a field with a pattern or a set of values.
_FORMS = {
    "kind": f"one of {', '.join(model.KINDS)}", "status": f"one of {', '.join(model.STATUSES)}",
    "role": f"one of {', '.join(model.ROLES)}", "evidence": f"one of {', '.join(model.EVIDENCE)}",
    "since": "a release of this project, as 0.1.0", "versions": "a version specifier, as >=0.6.0,<0.11",
    "looked_to": "a release, as 0.31.0", "aliases": "a text on one line, at most 120 characters",
    "symptoms": "a phrase on one line, at most 120 characters", "install": "requirements, such as numpy<2",
}  # fmt: skip
AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)
Problem = tuple["Keys", str]
Table = dict[str, Any]


class _Edit(model.Record, frozen=True):
    """An edit of a mitigation: an option to set, packages to install, or advice on what not to do."""

    set: str = ""
    install: tuple[Annotated[str, Meta(pattern=_REQUIREMENT)], ...] = ()
    advice: str = ""
    note: str = ""
    versions: model.Versions = ""
    ran: model.Names = ()

    @property
    def text(self) -> str:
        """The edit without its framework: the option, the command or the advice."""
        if self.install:
            return edit_without_framework(Install(self.install, note=self.note))
        return self.set or self.advice


def parse_issue(source: TomlSource, document: Table) -> model.Issue:
    """Return the record of a known issue; raises TomlError with file, line, key and what was expected."""
    _check_head(source, document, SCHEMA)
    entry = {key: value for key, value in document.items() if key != "schema"}
    if "mitigations" in entry:
        tables = _named_tables(source, entry, "mitigations")
        entry["mitigations"] = [_mitigation(source, ("mitigations", name), table) for name, table in tables]
    tables = _named_tables(source, entry, "triggers")
    entry["triggers"] = [_trigger(source, name, table) for name, table in tables]
    if isinstance(entry.get("signature"), dict):
        entry["signature"] = _signature(source, entry["signature"])
    for rule in entry.get("config", ()):
        rule["when"] = list(rule.get("when", {}).items())
    for key in ("cause", "detail"):
        if isinstance(entry.get(key), str):
            entry[key] = entry[key].strip()
    issue = _convert(source, (), entry, model.Issue)
    for keys, expected in _issue_problems(issue):
        raise source.error_at(keys, value_at(document, keys), expected)
    return issue


def parse_check(source: TomlSource, document: Table) -> model.CheckCode:
    """Return the record of a check code; raises TomlError with file, line, key and what was expected."""
    _check_head(source, document, CHECK_SCHEMA)
    entry = {key: value for key, value in document.items() if key != "schema"}
    if isinstance(entry.get("about"), str):
        entry["about"] = " ".join(entry["about"].split())
    check = _convert(source, (), entry, model.CheckCode)
    for keys, expected in _phrase_problems(check):
        raise source.error_at(keys, value_at(document, keys), expected)
    return check


def _check_head(source: TomlSource, document: Table, schema: str) -> None:
    """Raise TomlError for another schema, or a code that is malformed or not the file's name."""
    if document.get("schema") != schema:
        raise source.error_at(("schema",), document.get("schema"), repr(schema))
    code = document.get("code")
    match = model.CODE.fullmatch(code) if isinstance(code, str) else None
    if match is None or match[1] not in model.FAMILIES:
        raise source.error_at(("code",), code, f"a family ({', '.join(model.FAMILIES)}) and three digits")
    if source.path.stem != code:
        raise source.error_at(("code",), code, f"the file's name, {source.path.stem!r}")


def _named_tables(source: TomlSource, entry: Table, key: str) -> Iterator[tuple[str, Table]]:
    """Yield the tables under a key with their names; raise TomlError for anything else under it."""
    tables = entry.get(key, {})
    for name, table in tables.items() if isinstance(tables, dict) else [("", tables)]:
        if not isinstance(table, dict):
            raise source.error_at((key, name) if name else (key,), table, "a table")
        yield name, table


def _mitigation(source: TomlSource, keys: Keys, table: Table) -> model.Mitigation:
    """Return a mitigation; its edits are `FRAMEWORK = "option"`, a table, or a list of tables for several releases."""
    edits: list[tuple[str, _Edit]] = []
    for framework, value in table.get("edits", {}).items():
        place: Keys = (*keys, "edits", framework)
        if framework not in model.FRAMEWORKS:
            raise source.error_at(place, value, f"one of {', '.join(model.FRAMEWORKS)}")
        for number, variant in enumerate(value if isinstance(value, list) else [value]):
            location = (*place, number) if isinstance(value, list) else place
            values = {"set": variant} if isinstance(variant, str) else variant
            edit = _convert(source, location, values, _Edit)
            kinds = [key for key in ("set", "install", "advice") if getattr(edit, key)]
            if len(kinds) != 1 or (edit.note and not edit.install):
                expected = "`set`, `install` or `advice`, with `versions`, `ran` or `note`"
                raise source.error_at(location, None, expected)
            if isinstance(value, list) and not edit.versions:
                expected = "the releases that each of several edits is for"
                raise source.error_at((*location, "versions"), None, expected)
            edits.append((framework, edit))
    values = {
        **table,
        "name": keys[-1],
        "edits": [(framework, edit.text) for framework, edit in edits],
        "bounds": [model.Bound(edit.versions, edit.ran) for _, edit in edits],
        "installs": [(framework, edit.install, edit.note) for framework, edit in edits if edit.install],
        "advice": [framework for framework, edit in edits if edit.advice],
    }
    return _convert(source, keys, values, model.Mitigation)


def _trigger(source: TomlSource, name: str, table: Table) -> model.IssueTrigger:
    """Return a trigger; `path` and `function` of each earlier traceback become its frame."""
    earlier = []
    for item in table.get("earlier", ()):
        frame = {key: item[key] for key in ("path", "function") if key in item}
        earlier.append({"frame": frame, **{key: item[key] for key in item.keys() - frame.keys()}})
    values = {"name": name, **table, "earlier": earlier}
    return _convert(source, ("triggers", name), values, model.IssueTrigger)


def _signature(source: TomlSource, table: Table) -> model.Signature:
    """Return a signature with all patterns under `any` and all samples under `samples`."""
    samples = [
        _convert(
            source, ("signature", kind, number), {**sample, "matches": kind == "positive"}, model.LogSample
        )
        for kind in ("positive", "negative")
        for number, sample in enumerate(table.get(kind, ()))
    ]
    rest = {key: value for key, value in table.items() if key not in {"positive", "negative"}}
    patterns = [item for key in ("any", "broad", "late") for item in table.get(key, ())]
    return _convert(source, ("signature",), {**rest, "any": patterns, "samples": samples}, model.Signature)


def _convert(source: TomlSource, keys: Keys, values: Any, kind: type[AnyRecord]) -> AnyRecord:
    """Convert the table at `keys` to a record; raise TomlError with the form that _FORMS gives for the field."""
    record: AnyRecord = source.convert(keys, values, kind, _FORMS)
    return record


def _issue_problems(issue: model.Issue) -> Iterator[Problem]:
    """Yield violations of rules that a type cannot express, as (keys, expected value)."""
    yield from _phrase_problems(issue)
    yield from _unknown_names(("components",), issue.components, model.COMPONENTS)
    yield from _unknown_names(("frameworks",), issue.frameworks, tuple(model.FRAMEWORKS))
    if len(issue.cause.splitlines()) > 5:
        yield ("cause",), "five lines at the most; the rest goes into `detail`"
    if issue.signature is None and not (issue.config or issue.hang or issue.audit):
        yield (), "a [signature], a [[config]], a [[hang]] or audit: something it is recognised by"
    for index, claim in enumerate(issue.affected):
        yield from _claim_problems(("affected", index), claim)
    if issue.signature is not None:
        yield from _signature_problems(issue.signature)
    for index, rule in enumerate(issue.config):
        if not rule.when or not all(_PLAN_NAME.fullmatch(key) for key, _ in rule.when):
            yield ("config", index, "when"), "values of the run plan, such as rollout.mode"
    for mitigation in issue.mitigations:
        yield from _mitigation_problems(("mitigations", mitigation.name), mitigation)


def _phrase_problems(entry: model.Issue | model.CheckCode) -> Iterator[Problem]:
    """Yield search phrases that are duplicates, or that only repeat the title."""
    other_texts = {entry.title.lower()}
    for key, phrases in (("aliases", entry.aliases), ("symptoms", entry.symptoms)):
        for index, phrase in enumerate(phrases):
            if phrase.lower() in other_texts:
                yield (key, index), "another text than the title and the other phrases"
            other_texts.add(phrase.lower())


def _unknown_names(keys: Keys, names: tuple[str, ...], known: tuple[str, ...]) -> Iterator[Problem]:
    for name in names:
        if name not in known:
            yield keys, f"one of {', '.join(known)}; not {name!r}{close_matches(name, known)}"


def _claim_problems(keys: Keys, claim: model.Affected) -> Iterator[Problem]:
    yield from _unknown_names((*keys, "package"), (claim.package,), model.COMPONENTS)
    if bool(claim.versions) == bool(claim.releases):
        yield keys, "either `versions` (a range) or `releases` (a list)"
    if claim.evidence == "executed" and not claim.releases:
        yield (*keys, "versions"), "`releases` instead: an executed claim lists the releases that were run"
    if "<=" in claim.versions:
        yield (*keys, "versions"), "< where the issue ends; the newest release examined is `looked_to`"
    if claim.source_search is not None and claim.evidence != "static":
        yield (*keys, "read"), "`static`: it says what was read in the source of each release"
    if claim.examined_until and ("<" in claim.versions or not claim.versions):
        yield (*keys, "looked_to"), "a range without an end beside it"
    if claim.source_search is not None:
        try:
            re.compile(claim.source_search.pattern)
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
        if not set(bound.tested_triggers) <= tested:
            yield (*keys, "edits"), f"`ran` of {framework} among the triggers of `helps` and `fails`"
    if (mitigation.evidence == "executed") != bool(tested):
        yield (*keys, "evidence"), "`executed` exactly where `helps` or `fails` name what was run"
