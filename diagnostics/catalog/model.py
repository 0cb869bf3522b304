"""Define the records of the catalog: known issues with their parts, and check codes.

For an issue, the document that `explain --format json` prints has the attributes of `Issue`, and the keys that
`diagnostics.catalog.documents` adds. `diagnostics.catalog.schema` makes the records from an entry's TOML file, whose
layout is described in docs/catalog.md. A field with `name=...` has that key in the TOML file and in the JSON document.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from diagnostics import frameworks
from diagnostics.fixes import Advice, Edit, Install, SetOption, edit_without_framework

CODE = re.compile(r"([A-Z]{3})[0-9]{3}")
FAMILIES = {
    "SCH": "engine scheduler", "RAY": "Ray", "CMP": "versions and APIs", "CFG": "configuration", "SYN": "weight sync",
    "NUM": "numerics and log-probs", "MEM": "memory, sleep and wake", "NET": "servers, ports and stores",
    "ENG": "engine start and death", "TOK": "tokens and templates", "REW": "rewards",
    "HNG": "processes that wait for each other", "ENV": "this machine",
}  # fmt: skip
KINDS = ("crash", "hang", "silent")
CONFIRMATION = "confirmation"
ROLES = ("root", "cascade", CONFIRMATION)
# by_setting: a setting decides, not the release, so `doctor`, which reads only releases, does not report the issue.
STATUSES = ("active", "by_setting", "retired")
EVIDENCE = ("declared", "static", "executed")
"""Evidence levels, weakest first."""
# Without the reference trainer, which the catalog does not cover.
FRAMEWORKS = {name: shown for name, shown in frameworks.DISPLAY_NAMES.items() if name != "own"}
COMPONENTS = (
    *frameworks.PACKAGES, "accelerate", "bash", "cuda", "deepspeed", "fastapi", "filelock", "flash-attn",
    "huggingface-hub", "math-verify", "numpy", "peft", "prometheus-fastapi-instrumentator", "python", "safetensors",
    "sglang", "triton", "wandb",
)  # fmt: skip
"""Packages an entry can be about."""

Text = Annotated[str, Meta(pattern=r"\S")]
Names = tuple[Text, ...]
Phrases = tuple[Annotated[str, Meta(pattern=r"\A\S[^\n]{0,119}\Z")], ...]
"""Short texts of one line each."""
_VERSION_PART = r"\s*(?:===|==|!=|<=|>=|<|>|~=)\s*[0-9][0-9A-Za-z.*+!-]*\s*"
Versions = Annotated[str, Meta(pattern=rf"\A(?:{_VERSION_PART}(?:,{_VERSION_PART})*)?\Z")]
"""A version range such as `>=0.6.0,<0.11`, or nothing."""
Release = Annotated[str, Meta(pattern=r"\A(?:[0-9]+(?:\.[0-9]+)*[0-9a-z.]*)?\Z")]
Level = Literal["declared", "static", "executed"]


class Record(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A frozen record that refuses unknown keys."""


class SourceSearch(Record, frozen=True):
    """A search in the source code of each release that established the affected releases (run by evaluation/catalog).

    Attributes:
        files: Glob patterns of paths in the wheel, such as vllm/config/*.py.
        pattern: A regular expression that must match in each release of the range and in no other.
    """

    files: Names
    pattern: Text


class Affected(Record, frozen=True):
    """A claim that an issue occurs in some releases of a package.

    Attributes:
        versions: A version range; empty if single releases are listed.
        releases: Single releases, those that were run.
        evidence: One of EVIDENCE.
        source: Source of the claim: a file and line, a thread, or the run.
        examined_until: The newest release examined, for a range without an end.
        needed: Whether the issue occurs only if this package's release is affected, too.
        source_search: The search in source code that established a static claim; None if there is none.
    """

    package: Text
    evidence: Level
    source: Text
    versions: Versions = ""
    releases: Names = ()
    examined_until: Release = field(default="", name="looked_to")
    needed: bool = False
    source_search: SourceSearch | None = field(default=None, name="read")


class Frame(Record, frozen=True):
    """A frame of a traceback: the end of its path, and its function."""

    path: Text
    function: Text


class LogSample(Record, frozen=True):
    """A piece of a log, and whether the signature must match it."""

    text: Text
    matches: bool
    about: Text


class Signature(Record, frozen=True):
    """RE2 patterns that recognise an issue in the lines of a log: some of `any`, all of `all`, none of `none`.

    Attributes:
        role: `root`, `cascade` (follows from a root), or `confirmation` (usually harmless; supports another issue).
        any: All patterns of the entry's keys `any`, `broad` and `late`.
        frames: Frames of the faulty code; a match in a traceback with one of them is certain.
        confirms: Codes that a confirmation supports.
        broad: Patterns that other causes print too; without another match they only support a hypothesis.
        late: Patterns that a shell or launcher prints for any process that failed: an earlier failure outranks them.
    """

    role: Literal["root", "cascade", "confirmation"]
    any: Names
    samples: tuple[LogSample, ...]
    all: Names = ()
    none: Names = ()
    frames: tuple[Frame, ...] = ()
    confirms: Names = ()
    broad: Names = ()
    late: Names = ()


class ConfigRule(Record, frozen=True):
    """Values of the run plan that together cause the issue; if `has_own_rule`, a lint rule replaces this comparison."""

    about: Text
    when: tuple[tuple[str, Any], ...]
    has_own_rule: bool = field(default=False, name="by_rule")


class Bound(Record, frozen=True):
    """Releases that have the option names of an edit, and the triggers that exactly this edit was run against."""

    versions: Versions = ""
    tested_triggers: Names = field(default=(), name="ran")


class Mitigation(Record, frozen=True):
    """A named change, its edit for each framework, and its test results.

    Attributes:
        edits: (framework, edit); several for a framework whose option names changed.
        bounds: For each edit, the releases that it is for and the triggers that it was run against.
        installs: (framework, requirements, note) of the edits that install packages.
        searches: Whether the mitigation only searches for the root cause.
        advice: Frameworks whose edit is advice on what not to do.
        helps: Triggers against which the mitigation helped in a recorded run.
        fails: Triggers against which the mitigation did not help in a recorded run.
        when: The case that the mitigation is for, such as `with FSDP2`; empty if it is for each case.
        frames: Parts of `path:function` or of a matching line; such a frame or line shows the case, and this one is
            ranked first.
        settings: Parts of any line of the log, such as an option, that show the case, too.
        compares: Pattern of numbers in a matching line, with the groups `less` and `more`: the case, if they are so.
        recommended: Where users or maintainers recommend the mitigation; empty if no such place is known.
    """

    name: Text
    about: Text
    edits: tuple[tuple[str, Text], ...]
    cost: Text
    evidence: Level
    helps: Names = ()
    fails: Names = ()
    when: str = ""
    frames: Names = ()
    settings: Names = ()
    compares: str = ""
    note: str = ""
    installs: tuple[tuple[str, Names, str], ...] = ()
    advice: Names = ()
    searches: bool = False
    recommended: str = ""
    bounds: tuple[Bound, ...] = ()

    @property
    def description(self) -> str:
        """The case and the change."""
        return f"{self.when}: {self.about}" if self.when else self.about

    def known_edits(self) -> Iterator[tuple[Edit, Bound]]:
        """Yield (edit, bound) for each edit, as an action."""
        bounds = self.bounds or (Bound(),) * len(self.edits)
        for (framework, text), bound in zip(self.edits, bounds, strict=True):
            yield self._action(framework, text), bound

    def actions(self, names: Iterable[str]) -> Iterator[Edit]:
        """Yield the edits for the named frameworks, as actions."""
        for name in dict.fromkeys(names):
            yield from (edit for edit, _ in self.known_edits() if edit.framework == name)

    def by_framework(self) -> dict[str, str]:
        """Return the edits by framework; several edits for a framework name their releases."""
        names = [name for name, _ in self.edits]
        texts: dict[str, list[str]] = {}
        for edit, bound in self.known_edits():
            several = f" ({bound.versions})" if names.count(edit.framework) > 1 else ""
            texts.setdefault(edit.framework, []).append(edit_without_framework(edit) + several)
        return {name: "; ".join(lines) for name, lines in texts.items()}

    def _action(self, framework: str, text: str) -> Edit:
        for name, requirements, note in self.installs:
            install = Install(requirements, note=note, framework=framework)
            if name == framework and text == edit_without_framework(install):
                return install
        return Advice(text, framework) if framework in self.advice else SetOption(framework, text)


class EarlierTraceback(Record, frozen=True):
    """A frame of an earlier traceback in the log, and the exception that it raised; an empty `raised` means any."""

    frame: Frame
    raised: str = ""


class IssueTrigger(Record, frozen=True):
    """A trigger: one sequence of events that causes the issue.

    Attributes:
        versions: Releases in which the trigger can happen; empty for all affected releases.
        frames: Frames of the issue's traceback that identify this trigger.
        earlier: Earlier tracebacks in the log that identify this trigger.
    """

    name: Text
    about: Text
    versions: Versions = ""
    frames: tuple[Frame, ...] = ()
    earlier: tuple[EarlierTraceback, ...] = ()


class Reference(Record, frozen=True):
    """A source about the issue: an issue thread, a pull request, a file of a release."""

    ref: Text
    about: Text


class WaitGraphPattern(Record, frozen=True):
    """Pattern of an issue in a wait graph: cause classes, and frames of the blocking process and of a waiting one."""

    causes: Names
    blocking: tuple[Frame, ...] = field(default=(), name="culprit")
    waiting: tuple[Frame, ...] = field(default=(), name="waiter")


class LikelyCause(Record, frozen=True):
    """A likely cause of what a check finds, and the option to change.

    Attributes:
        cause: What is wrong, or what to do.
        option: The option by framework; `any` for all.
        needs: Metric that is 0 in all steps if this is not the cause.
    """

    cause: Text
    option: dict[str, str] = {}
    needs: str = ""


class CheckCode(Record, frozen=True):
    """A check code: the code of a finding that is no known issue.

    Attributes:
        audit: Families of `audit` results that have this code.
        causes: Likely causes, in the order in which to try them.
    """

    code: str
    title: Text
    about: Text
    aliases: Phrases = ()
    symptoms: Phrases = ()
    audit: Names = ()
    causes: tuple[LikelyCause, ...] = ()


class Issue(Record, frozen=True):
    """One known issue.

    Attributes:
        aliases: Earlier titles and other names.
        symptoms: Descriptions in the words and languages of users; `explain WORDS` searches them.
        not_reproduced_because: Reason why the issue was not reproduced; empty if a run is recorded.
        audit: Families of `audit` results that are reported as this issue.
    """

    code: str
    title: Text
    kind: Literal["crash", "hang", "silent"]
    status: Literal["active", "by_setting", "retired"]
    since: Annotated[str, Meta(pattern=r"\A[0-9]+\.[0-9]+\.[0-9]+\Z")]
    components: Annotated[Names, Meta(min_length=1)]
    frameworks: Annotated[Names, Meta(min_length=1)]
    cause: Text
    affected: Annotated[tuple[Affected, ...], Meta(min_length=1)]
    mitigations: Annotated[tuple[Mitigation, ...], Meta(min_length=1)]
    references: Annotated[tuple[Reference, ...], Meta(min_length=1)]
    aliases: Phrases = ()
    symptoms: Phrases = ()
    detail: str = ""
    signature: Signature | None = None
    config: tuple[ConfigRule, ...] = ()
    triggers: tuple[IssueTrigger, ...] = ()
    hang: tuple[WaitGraphPattern, ...] = ()
    not_reproduced_because: str = field(default="", name="not_run")
    audit: Names = ()

    def trigger_names(self) -> tuple[str, ...]:
        """Return the names of all triggers: those of the entry, and those that mitigations were run against."""
        names = [name for entry in self.mitigations for name in (*entry.helps, *entry.fails)]
        return tuple(dict.fromkeys([*(trigger.name for trigger in self.triggers), *names]))
