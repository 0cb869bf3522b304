"""What a known issue is: the data of one catalogue entry, checked and frozen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics import frameworks
from diagnostics.output import wording
from diagnostics.output.remedies import Advice, Install, SetOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from diagnostics.output.remedies import Edit

# Of a family and a number.
CODE = re.compile(r"([A-Z]{3})[0-9]{3}")
FAMILIES = {
    "SCH": "engine scheduler",
    "RAY": "Ray",
    "CMP": "versions and APIs",
    "CFG": "configuration",
    "SYN": "weight sync",
    "NUM": "numerics and log-probs",
    "MEM": "memory, sleep and wake",
    "NET": "servers, ports and stores",
    "ENG": "engine start and death",
    "TOK": "tokens and templates",
    "REW": "rewards",
    "HNG": "processes that wait for each other",
    "ENV": "this machine",
}
KINDS = ("crash", "hang", "silent")
CONFIRMATION = "confirmation"
ROLES = ("root", "cascade", CONFIRMATION)
# by_setting: what is set decides, not the release; `doctor`, which sees releases alone, does not bring it up.
STATUSES = ("active", "by_setting", "retired")
# Weakest first.
EVIDENCE = ("declared", "static", "executed")
# Their names in an entry, and as their own people write them.
FRAMEWORKS = frameworks.SHOWN
# What an entry can be about: a name that is not here is a slip of the pen, or is added here.
COMPONENTS = (
    *frameworks.PACKAGES, "accelerate", "bash", "cuda", "deepspeed", "fastapi", "filelock", "flash-attn",
    "huggingface-hub", "math-verify", "numpy", "peft", "prometheus-fastapi-instrumentator", "python", "safetensors",
    "triton", "wandb",
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What was looked for in every release to know a range: see `diagnostics.matrix.sweep.ranges`.

    Attributes:
        files: Patterns for paths in the wheel, as vllm/config/*.py.
        pattern: A regular expression that one of them has in each release of the range, and in none other.
    """

    files: tuple[str, ...]
    pattern: str


@dataclass(frozen=True)
class Affected:
    """A claim that an issue occurs in releases of a package, and how it is known.

    Attributes:
        versions: A version specifier, or an empty string where single releases are listed.
        releases: Single releases; what an executed claim lists.
        evidence: One of EVIDENCE.
        source: Where it was read or what was run.
        looked_to: The newest release that was looked at, where the range has no end of its own; empty where it has.
        needed: Without a release of this package that is held, the issue does not occur, whatever else is installed.
        read: What was looked for in every release on the index; None where single releases were read.
    """

    package: str
    versions: str
    releases: tuple[str, ...]
    evidence: str
    source: str
    looked_to: str = ""
    needed: bool = False
    read: Reading | None = None


@dataclass(frozen=True)
class Frame:
    """A frame of a traceback, by the end of its path and its function."""

    path: str
    function: str


@dataclass(frozen=True)
class LogSample:
    """A piece of a log, re-valued, and whether the signature matches it."""

    text: str
    matches: bool
    about: str


@dataclass(frozen=True)
class Signature:
    """How the issue shows in a log. Patterns are RE2, matched line by line.

    It matches where one of `any` and every one of `all` does, and none of `none`.

    Attributes:
        any: Those of an entry's `any`, `broad` and `late`.
        broad: Those among them that failures of other causes print, too: alone they make a hypothesis and no verdict;
            beside another of `any`, or in a traceback with one of `frames`, they count like any other.
        late: Those among them that a shell or a launcher prints of a process that failed of something else, too: they
            make no verdict where a failure that no entry describes stands before them.
        role: `root`; `cascade`, which follows from a root; `confirmation`, a line that is mostly benign, and that
            says something only beside a failure that it belongs to.
        confirms: Of a confirmation, the codes that it says something for.
    """

    role: str
    any: tuple[str, ...]
    all: tuple[str, ...]
    none: tuple[str, ...]
    frames: tuple[Frame, ...]
    samples: tuple[LogSample, ...]
    confirms: tuple[str, ...] = ()
    broad: tuple[str, ...] = ()
    late: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfigRule:
    """A configuration that walks into the issue: values of the run plan, all of which must hold.

    Attributes:
        by_rule: Whether a rule of `lint` stands in its place, since it can say more than a table.
    """

    about: str
    when: tuple[tuple[str, object], ...]
    by_rule: bool = False


@dataclass(frozen=True)
class Bound:
    """How far an edit's words go: in which releases of its framework they exist, and what was run in these very words.

    Attributes:
        versions: Releases that have every option the words name; empty where nothing in them depends on a release.
        ran: Triggers against which these words were run; what the mitigation as such was run against may be more.
    """

    versions: str = ""
    ran: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mitigation:
    """A named change, in each framework's words, and what a run showed of it.

    Attributes:
        edits: (framework, what to change there), as text; a framework whose words changed has one for each range.
        bounds: Of each edit, in the same order, the releases it is for and what was run in its words.
        installs: (framework, requirements, what more there is to say) where the edit is nothing but an installation.
        searches: Whether it looks for the root and changes nothing.
        advice: Frameworks whose edit tells what not to do: to read, and no change.
        cost: What it costs.
        evidence: One of EVIDENCE.
        helps: Triggers of the repro against which it helped; with evidence `executed` only.
        fails: Triggers against which it did not.
        note: Where it helps and where not, in words.
    """

    name: str
    about: str
    edits: tuple[tuple[str, str], ...]
    cost: str
    evidence: str
    helps: tuple[str, ...]
    fails: tuple[str, ...]
    note: str
    installs: tuple[tuple[str, tuple[str, ...], str], ...] = ()
    advice: tuple[str, ...] = ()
    searches: bool = False
    bounds: tuple[Bound, ...] = ()

    def known_edits(self) -> Iterator[tuple[Edit, Bound]]:
        """The edits as actions, each with its bound."""
        bounds = self.bounds or (Bound(),) * len(self.edits)
        for (framework, text), bound in zip(self.edits, bounds, strict=True):
            yield self._action(framework, text), bound

    def actions(self, names: Iterable[str]) -> Iterator[Edit]:
        """The edits for frameworks as actions, of those that have one."""
        for name in dict.fromkeys(names):
            yield from (edit for edit, _ in self.known_edits() if edit.framework == name)

    def by_framework(self) -> dict[str, str]:
        """What to change, by framework; where its words changed, those for each range of releases."""
        told: dict[str, str] = {}
        for (framework, text), bound in zip(
            self.edits, self.bounds or (Bound(),) * len(self.edits), strict=True
        ):
            several = [name for name, _ in self.edits].count(framework) > 1
            line = f"{text} ({bound.versions})" if several else text
            told[framework] = f"{told[framework]}; {line}" if framework in told else line
        return told

    def action(self, framework: str) -> Edit | None:
        """The first edit for a framework as an action; None where there is none."""
        return next(self.actions([framework]), None)

    def _action(self, framework: str, text: str) -> Edit:
        for name, requirements, note in self.installs:
            made = Install(requirements, note=note, framework=framework)
            if name == framework and text == wording.plain(made):
                return made
        return Advice(text, framework) if framework in self.advice else SetOption(framework, text)


@dataclass(frozen=True)
class Earlier:
    """A traceback that stands in a log before that of the issue.

    Attributes:
        raised: What its exception is called; empty where that does not matter.
        frame: One of its frames.
    """

    raised: str
    frame: Frame


@dataclass(frozen=True)
class Occasion:
    """A trigger: one of the ways in which an issue comes about, by the name that `helps` and `fails` call it.

    Attributes:
        about: The events, in a line.
        versions: The releases of the package the issue is in where it can happen so; empty where in all.
        frames: By any of these a log shows in the issue's own traceback that it was this way.
        earlier: Or by any of these before it.
    """

    name: str
    about: str
    versions: str
    frames: tuple[Frame, ...]
    earlier: tuple[Earlier, ...]


@dataclass(frozen=True)
class Reference:
    """An issue thread, a pull request, a file of a release."""

    ref: str
    about: str


@dataclass(frozen=True)
class Shape:
    """How the issue shows in a graph of who waits for whom; what `hang` recognises it by.

    Attributes:
        causes: Classes of the end of the chain, of which it is one.
        culprit: Frames of which whoever is at the end has one; none asked for where empty.
        waiter: Frames of which one of those that wait has one.
    """

    causes: tuple[str, ...]
    culprit: tuple[Frame, ...] = ()
    waiter: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class CheckCode:
    """A code of a check's own: what a finding under it says, where that is no known failure."""

    code: str
    title: str
    about: str


@dataclass(frozen=True)
class Issue:
    """One known issue.

    Attributes:
        not_run: Why no run of it is on record; empty where one is.
        audit: Families of `audit`'s answers that are this issue.
    """

    code: str
    title: str
    kind: str
    status: str
    since: str
    components: tuple[str, ...]
    frameworks: tuple[str, ...]
    cause: str
    detail: str
    affected: tuple[Affected, ...]
    signature: Signature | None
    config: tuple[ConfigRule, ...]
    mitigations: tuple[Mitigation, ...]
    references: tuple[Reference, ...]
    triggers: tuple[Occasion, ...] = ()
    hang: tuple[Shape, ...] = ()
    not_run: str = ""
    audit: tuple[str, ...] = ()

    def executed(self) -> bool:
        """Whether a run of it is on record: of the failure, or of what helps."""
        known = [claim.evidence for claim in self.affected] + [one.evidence for one in self.mitigations]
        return EVIDENCE[-1] in known

    def recorded(self) -> tuple[str, ...]:
        """The triggers that any mitigation was run against, each once."""
        told = [name for one in self.mitigations for name in (*one.helps, *one.fails)]
        return tuple(dict.fromkeys([*(trigger.name for trigger in self.triggers), *told]))
