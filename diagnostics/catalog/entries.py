"""The entries themselves: from a table to a frozen record, every key checked and every unknown one refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnostics.catalog import model
from diagnostics.output import wording
from diagnostics.output.remedies import Advice, Install, SetOption
from diagnostics.tables import close_matches

if TYPE_CHECKING:
    from pathlib import Path

    from diagnostics.output.remedies import Edit
    from diagnostics.tables import Table

SCHEMA = "grpo-doctor.issue.v1"
CHECK_SCHEMA = "grpo-doctor.check.v1"
_REQUIREMENT = re.compile(r"[a-z0-9][a-z0-9-]*(?:\[[a-z0-9,-]+\])?(?:[<>=!~]=?[0-9][^\s;]*)?")
_SPECIFIER = re.compile(r"\s*(===|==|!=|<=|>=|<|>|~=)\s*[0-9][0-9A-Za-z.*+!-]*\s*")
_RELEASE = re.compile(r"[0-9]+(\.[0-9]+)*[0-9a-z.]*")
_OURS = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


def _family(path: Path, table: Table) -> str:
    """The code, whose family is known and which is the file's name."""
    code: str = table.take("code", str, required=True)
    match = model.CODE.fullmatch(code)
    if match is None or match[1] not in model.FAMILIES:
        raise table.refuse("code", f"a family ({', '.join(model.FAMILIES)}) and three digits")
    if path.stem != code:
        raise table.refuse("code", f"the file's name, {path.stem!r}")
    return code


def issue_of(path: Path, table: Table) -> model.Issue:
    """An entry of a known issue, every key of it checked."""
    if table.take("schema", str, required=True) != SCHEMA:
        raise table.refuse("schema", repr(SCHEMA))
    code = _family(path, table)
    issue = model.Issue(
        code=code,
        title=table.take("title", str, required=True),
        kind=_one_of(table, "kind", model.KINDS),
        status=_one_of(table, "status", model.STATUSES),
        since=table.take("since", str, required=True),
        components=table.choices("components", model.COMPONENTS, required=True),
        frameworks=table.choices("frameworks", model.FRAMEWORKS, required=True),
        cause=table.take("cause", str, required=True).strip(),
        detail=table.take("detail", str, "").strip(),
        affected=tuple(_affected(item) for item in table.items("affected")),
        signature=_signature(table.table("signature")) if table.has("signature") else None,
        config=tuple(_config(item) for item in table.items("config")),
        mitigations=tuple(_mitigation(name, item) for name, item in table.table("mitigations").tables()),
        references=tuple(_reference(item) for item in table.items("references")),
        triggers=tuple(_trigger(name, item) for name, item in table.table("triggers").tables()),
        hang=tuple(_shape(item) for item in table.items("hang")),
        not_run=table.take("not_run", str, ""),
        audit=table.strings("audit"),
    )
    for key in ("affected", "mitigations", "references"):
        if not getattr(issue, key):
            raise table.refuse(key, "at least one")
    if len(issue.cause.splitlines()) > 5:
        raise table.source.refuse(("cause",), None, "five lines at the most; the rest goes into `detail`")
    if not _OURS.fullmatch(issue.since):
        raise table.refuse("since", "a release of this project, as 0.1.0")
    if issue.signature is None and not (issue.config or issue.hang or issue.audit):
        raise table.source.refuse(
            (), None, "a [signature], a [[config]], a [[hang]] or audit: something it is recognised by"
        )
    table.close()
    return issue


def check_of(path: Path, table: Table) -> model.CheckCode:
    """An entry of a check's own code, every key of it checked."""
    if table.take("schema", str, required=True) != CHECK_SCHEMA:
        raise table.refuse("schema", repr(CHECK_SCHEMA))
    entry = model.CheckCode(
        code=_family(path, table),
        title=table.take("title", str, required=True),
        about=" ".join(table.take("about", str, required=True).split()),
    )
    table.close()
    return entry


def _one_of(table: Table, key: str, allowed: tuple[str, ...]) -> str:
    value: str = table.take(key, str, required=True)
    if value not in allowed:
        raise table.refuse(key, f"one of {', '.join(allowed)}{close_matches(value, allowed)}")
    return value


def _affected(table: Table) -> model.Affected:
    claim = model.Affected(
        package=_one_of(table, "package", model.COMPONENTS),
        versions=table.take("versions", str, ""),
        releases=table.strings("releases"),
        evidence=_one_of(table, "evidence", model.EVIDENCE),
        source=table.take("source", str, required=True),
        looked_to=table.take("looked_to", str, ""),
        needed=table.take("needed", bool, default=False),
        read=_reading(table.table("read")) if table.has("read") else None,
    )
    if bool(claim.versions) == bool(claim.releases):
        raise table.source.refuse(table.keys, None, "either `versions` (a specifier) or `releases` (a list)")
    if claim.evidence == "executed" and not claim.releases:
        raise table.refuse(
            "versions", "`releases` instead: an executed claim lists the releases that were run"
        )
    if claim.versions:
        _specifier(table, claim.versions)
    if "<=" in claim.versions:
        raise table.refuse("versions", "< where the issue ends; how far was looked is `looked_to`")
    if claim.read is not None and claim.evidence != "static":
        raise table.refuse("read", "`static`: it says what was read in the source of each release")
    if claim.looked_to and ("<" in claim.versions or not claim.versions):
        raise table.refuse("looked_to", "a range without an end beside it")
    if claim.looked_to and not _RELEASE.fullmatch(claim.looked_to):
        raise table.refuse("looked_to", "a release, as 0.31.0")
    table.close()
    return claim


def _reading(table: Table) -> model.Reading:
    reading = model.Reading(table.strings("files", required=True), table.take("pattern", str, required=True))
    try:
        re.compile(reading.pattern)
    except re.error as error:
        raise table.refuse("pattern", f"a regular expression ({error})") from None
    table.close()
    return reading


def _specifier(table: Table, versions: str) -> None:
    if not all(_SPECIFIER.fullmatch(part) for part in versions.split(",")):
        raise table.refuse("versions", "a version specifier, as >=0.6.0,<0.11")


def _signature(table: Table) -> model.Signature:
    samples = [_sample(item, matches=True) for item in table.items("positive")]
    samples += [_sample(item, matches=False) for item in table.items("negative")]
    for key, matches in (("positive", True), ("negative", False)):
        if not any(sample.matches is matches for sample in samples):
            raise table.source.refuse((*table.keys, key), None, f"at least one [[signature.{key}]] sample")
    broad, late = table.strings("broad"), table.strings("late")
    signature = model.Signature(
        role=_one_of(table, "role", model.ROLES),
        any=(*table.strings("any", required=not broad and not late), *broad, *late),
        all=table.strings("all"),
        none=table.strings("none"),
        frames=_frames(table),
        samples=tuple(samples),
        confirms=table.strings("confirms"),
        broad=broad,
        late=late,
    )
    if (signature.role == model.CONFIRMATION) != bool(signature.confirms):
        raise table.refuse(
            "confirms", "the codes that it says something for, exactly where `role` is `confirmation`"
        )
    table.close()
    return signature


def _frame(table: Table) -> model.Frame:
    return model.Frame(table.take("path", str, required=True), table.take("function", str, required=True))


def _shape(table: Table) -> model.Shape:
    shape = model.Shape(
        causes=table.strings("causes", required=True),
        culprit=_frames(table, "culprit"),
        waiter=_frames(table, "waiter"),
    )
    table.close()
    return shape


def _frames(table: Table, key: str = "frames") -> tuple[model.Frame, ...]:
    frames = []
    for item in table.items(key):
        frames.append(_frame(item))
        item.close()
    return tuple(frames)


def _trigger(name: str, table: Table) -> model.Occasion:
    earlier = []
    for item in table.items("earlier"):
        earlier.append(model.Earlier(item.take("raised", str, ""), _frame(item)))
        item.close()
    trigger = model.Occasion(
        name=name,
        about=table.take("about", str, required=True),
        versions=table.take("versions", str, ""),
        frames=_frames(table),
        earlier=tuple(earlier),
    )
    if trigger.versions:
        _specifier(table, trigger.versions)
    table.close()
    return trigger


def _sample(table: Table, *, matches: bool) -> model.LogSample:
    sample = model.LogSample(
        table.take("text", str, required=True), matches, table.take("about", str, required=True)
    )
    table.close()
    return sample


def _config(table: Table) -> model.ConfigRule:
    when = table.table("when")
    for key in when.values:
        if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", key):
            raise when.refuse(key, "a key of the run plan, as rollout.mode")
        when.taken.add(key)
    if not when.values:
        raise table.refuse("when", "at least one value of the run plan")
    rule = model.ConfigRule(
        table.take("about", str, required=True),
        tuple(when.values.items()),
        by_rule=table.take("by_rule", bool, default=False),
    )
    table.close()
    return rule


def _mitigation(name: str, table: Table) -> model.Mitigation:
    known = _edits(table.table("edits"))
    edits = [edit for edit, _ in known]
    mitigation = model.Mitigation(
        name=name,
        about=table.take("about", str, required=True),
        edits=tuple((action.framework, wording.plain(action)) for action in edits),
        cost=table.take("cost", str, required=True),
        evidence=_one_of(table, "evidence", model.EVIDENCE),
        helps=table.strings("helps"),
        fails=table.strings("fails"),
        note=table.take("note", str, ""),
        installs=tuple(
            (action.framework, action.requirements, action.note)
            for action in edits
            if isinstance(action, Install)
        ),
        advice=tuple(action.framework for action in edits if isinstance(action, Advice)),
        searches=table.take("searches", bool, default=False),
        bounds=tuple(bound for _, bound in known),
    )
    if not mitigation.edits:
        raise table.refuse("edits", "the change in the words of at least one framework")
    for edit, bound in known:
        if not set(bound.ran) <= {*mitigation.helps, *mitigation.fails}:
            raise table.refuse(
                "edits", f"`ran` of {edit.framework} among the triggers of `helps` and `fails`"
            )
    if (mitigation.evidence == "executed") != bool(mitigation.helps or mitigation.fails):
        raise table.refuse("evidence", "`executed` exactly where `helps` or `fails` name what was run")
    table.close()
    return mitigation


def _edits(table: Table) -> list[tuple[Edit, model.Bound]]:
    """The edits by framework: a text, a table, or one table for each range of releases that has words of its own."""
    found: list[tuple[Edit, model.Bound]] = []
    for framework, value in table.values.items():
        if framework not in model.FRAMEWORKS:
            raise table.refuse(framework, f"one of {', '.join(model.FRAMEWORKS)}")
        if isinstance(value, str):
            found.append((SetOption(framework, table.take(framework, str)), model.Bound()))
            continue
        several = isinstance(value, list)
        for inner in table.items(framework) if several else [table.table(framework)]:
            found.append((_edit(framework, inner), _bound(inner, several=several)))
            inner.close()
    return found


def _edit(framework: str, inner: Table) -> Edit:
    """What to `set`, what to `install`, or as `advice` what had better not be done."""
    if inner.has("set"):
        return SetOption(framework, inner.take("set", str))
    if inner.has("advice"):
        return Advice(inner.take("advice", str), framework)
    requirements = inner.strings("install", required=True)
    if not requirements or not all(map(_REQUIREMENT.fullmatch, requirements)):
        raise inner.refuse("install", "requirements, as numpy<2")
    return Install(requirements, note=inner.take("note", str, ""), framework=framework)


def _bound(inner: Table, *, several: bool) -> model.Bound:
    bound = model.Bound(inner.take("versions", str, ""), inner.strings("ran"))
    if bound.versions:
        _specifier(inner, bound.versions)
    elif several:
        raise inner.refuse("versions", "the releases that each of several edits for one framework is for")
    return bound


def _reference(table: Table) -> model.Reference:
    reference = model.Reference(
        table.take("ref", str, required=True), table.take("about", str, required=True)
    )
    table.close()
    return reference
