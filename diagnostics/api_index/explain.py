"""Explain an error about a name or a call that a release does not accept: the releases that do, and what to install.

`explain_missing` reads messages about names, attributes, arguments, values of options, and model types (unknown, or
registered twice). `explain_own_class` reads messages about a user's class that extends a class of an indexed package,
or about a function that replaces one of its methods. If the message does not decide which side is at fault, the
explanation has no `changes` (requirements to install), and its advice lists what is possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from diagnostics.api_index import options, query, store
from diagnostics.api_index.callers import Caller, find_callers
from diagnostics.api_index.class_lookup import find_extended_class, outermost_definition
from diagnostics.api_index.error_forms import (
    ADVICE,
    PROGRAMS,
    match_forms,
    normalize_message,
    uses_in,
)
from diagnostics.api_index.name_releases import NameReleases, describe_spans
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.uses import Use

# Errors that name a member of a class.
_MEMBER_ERRORS = {"attribute", "argument", "positional"}
_VLLM_MODELS = "vllm.model_executor.models"
_REMOVAL = "Remove it from the call"
_CALL_REPAIRS = {
    "argument": _REMOVAL, "without": "Pass it in the call", "positional": "Pass fewer arguments by position",
}  # fmt: skip
_CALLERS = 3


class CallingCode(NamedTuple):
    """The code that uses a name, in words, '' if the log does not show it; and whether the log shows its file."""

    text: str = ""
    is_file: bool = False


@dataclass(frozen=True)
class Explanation:
    """The releases that define a missing name or fit an override, the packages that use it, and what to install.

    Attributes:
        subject: The name as source code would write it.
        releases: The releases that define the name or fit the override, and the one in use. If an error is about what a
            release has already (a model type) or sets newly (an attribute), the releases without it.
        headline: Sentences on the releases, and on the side at fault.
        advice: What to do if no release can be recommended.
        direction: `too old` or `too new` for the installed release; '' if unknown.
        changes: Requirements, each of which is sufficient.
        caller: The package of the traceback's last frame; '' if unknown.
        callers: Packages that use the name; only the package of the traceback's last frame, if it is one of them.
        override: The user's method or function in place of the provider's: `Class.method`, `the function NAME`, or ''.
        is_open: Whether the message does not decide which code was called, or which side is at fault.
        is_uncertain: Whether another cause is as likely.
        code: The code that uses the name, in words; '' if the log does not show it.
        engine: The range of vLLM that has a model and allows `changes`, if the log shows no release of vLLM; else ''.
        is_use_shown: Whether the log shows the file that uses the name, or the arguments of the call.
    """

    subject: str
    releases: NameReleases
    headline: str
    advice: str
    direction: str = ""
    changes: tuple[str, ...] = ()
    caller: str = ""
    callers: tuple[Caller, ...] = ()
    override: str = ""
    is_open: bool = False
    is_uncertain: bool = False
    code: str = ""
    is_use_shown: bool = False
    engine: str = ""

    @property
    def provider(self) -> str:
        """The package that should define the name."""
        return self.releases.package

    @property
    def calling_package(self) -> str:
        """The package or program that uses the name; '' if it is unknown or has no releases."""
        named = re.match(r"(?:Probably )?([A-Za-z][\w-]*)(?: \d\S*)?(?: \(|,|$)", self.code)
        return self.caller or (named[1] if named else "")

    @property
    def sentences(self) -> str:
        """The headline, and sentences on up to 3 packages that use the name or register the model type."""
        callers = (f"{it.package} {it.span} {it.verb} it ({it.location})." for it in self.callers[:_CALLERS])
        return " ".join([self.headline, *callers])

    def without_changes(self, headline: str, advice: str) -> Explanation:
        """Return the explanation of an error that another side may have caused, so that no release is recommended."""
        return replace(self, headline=headline, advice=advice, direction="", changes=())

    def with_open_side(self, statement: str, reason: str) -> Explanation:
        """Return the explanation of an error whose message does not show the side at fault; see `ADVICE`."""
        advice = ADVICE[reason].format(provider=self.provider, changes=" or ".join(self.changes))
        headline = f"{statement} The log does not show which side is at fault."
        return replace(self.without_changes(headline, advice), is_open=True, is_uncertain=True)


@dataclass(frozen=True)
class LoggedFacts:
    """The facts of a log that decide which releases and which code an error is about.

    Attributes:
        installed: Known releases by package.
        caller: The package whose code raised the exception; '' if unknown.
        describe_caller: Function that returns the code that uses a missing name. Its arguments are the
            package that lacks the name, and whether the package's own code cannot contain the use.
    """

    installed: Mapping[str, str] = field(default_factory=dict)
    caller: str = ""
    describe_caller: Callable[[str, bool], CallingCode] = lambda *_: CallingCode()


def explain_missing(message: str, log: LoggedFacts) -> Explanation | None:
    """Explain an exception's message about a missing name; return None for other messages, and if nothing is known.

    Args:
        message: Exception type and message, as Python prints them; lines that a terminal wrapped are joined.
        log: The other facts of the log.
    """
    # An import inside it failed, it imports itself, or another folder is imported.
    if "partially initialized module" in message or "(unknown location)" in message:
        return None
    pieces = [line.strip() for line in normalize_message(message).splitlines()]
    for text in dict.fromkeys(("".join(pieces), " ".join(pieces))):
        if explanation := _explain_forms(text, log):
            return explanation
    # The end of the line may be cut off: either just the quote, or a part of the name, which no release has then.
    completed = _explain_forms(f"{''.join(pieces)}'", log) if message.count("'") % 2 else None
    return completed if completed and completed.releases.having else None


def _explain_forms(message: str, log: LoggedFacts) -> Explanation | None:
    """Explain a message by the first form that leads to an explanation; None if no form does."""
    for form, parts in match_forms(message):
        if form.kind == "choice":
            explanation = _explain_choice(parts, log)
        else:
            uses = uses_in(form.kind, parts, log.caller, log.installed)
            explanation = next(filter(None, (_explain_use(*use, message, log) for use in uses)), None)
        if explanation:
            return explanation
    return None


def _general_advice(releases: NameReleases, caller: str = "", repair: str = "") -> str:
    """Return what to do if no release can be recommended; `repair` is the change of the call."""
    if releases.installed in releases.having:
        return ADVICE["check"].format(releases.package)
    if caller in {"", releases.package}:
        if repair == _REMOVAL and not (releases.having or caller):
            return ADVICE["passed_on"].format(releases.package)
        return f"{repair or _REMOVAL}, or take the {releases.package} for which the code was written."
    return ADVICE["pair"].format(caller=caller, provider=releases.package)


def _explain_choice(parts: Mapping[str, str], log: LoggedFacts) -> Explanation | None:
    """Explain an error about an option's value; None for a value that all or no releases accept."""
    package, value, option = PROGRAMS[parts["program"].lower()], parts["value"], parts["option"]
    key = option.lstrip("-").replace("-", "_")
    allowed = {
        item: options.choices(query.Release(package, item), key) for item in store.load(package).releases
    }
    versions = tuple(version for version, values in allowed.items() if value in values)
    # Where the choices are unknown, the value may be allowed.
    failing = tuple(version for version, values in allowed.items() if values and value not in values)
    if not versions or not failing:
        return None
    subject = f"the value {value} of {option}"
    releases = NameReleases(package, versions, log.installed.get(package, ""), failing)
    code, side = log.describe_caller(package, True).text, releases.side_and_ranges
    headline = f"{_statement('choice', subject, releases, code)} {releases.describe_release_in_use()}"
    return Explanation(subject, releases, headline, _general_advice(releases), *side, code=code)


def _explain_use(use: Use, provider: str, message: str, log: LoggedFacts) -> Explanation | None:
    """Explain a use that a message may refer to; None if the index cannot explain it."""
    having, missing, undecided = query.releases_with(provider, use)
    if not having and (undecided or not _is_indexed(provider, use.module)):
        return None
    release = log.installed.get(provider, "")
    caller = "" if use.kind == "model_type" else log.caller
    without = {*missing, *undecided} - {*having}
    releases = NameReleases(provider, tuple(having), release, _failing_releases(use, provider, without))
    # A use under a condition that a release without the name does not meet is not the one that failed.
    in_use = (
        [release] if release else [*releases.failing[-1:], *releases.failing[:1]] or missing[-1:] or ["0"]
    )
    callers = tuple(find_callers(provider, use, in_use[: 1 if releases.is_probably_too_new else 2]))
    callers = tuple(item for item in callers if item.package == caller) or callers
    # If transformers has no such model type, another package registers it twice.
    is_registered_twice = use.kind == "registered" and not (missing and callers)
    # A name that the release in use has, or each release, was not found because an import inside it failed.
    is_in_each = not (release or missing or undecided)
    is_failed_import = use.kind == "name" and (release in having or is_in_each)
    if is_registered_twice or is_failed_import or not (callers or having or missing):
        return None
    # A class of one word may be of any package.
    if not having and not caller and use.kind == "argument" and re.fullmatch("[A-Z][a-z]+", use.name):
        return None
    subject = use.text
    changes = _changes(releases, caller, callers, log.installed)
    is_absent = use.kind == "name" and not having
    note = ADVICE["absent"].format(provider=provider, oldest=releases.indexed[0]) if is_absent else ""
    engine = ("", "")
    if use.kind == "model_type" and not releases.has_installed:
        engine = _engine_releases(use.path[0], releases)
    is_direct = use.kind == "name" or (use.kind == "argument" and len(use.path) == 1)
    is_code = use.kind not in {"registered", "model_type"} and "Model architectures" not in message
    code, is_file = log.describe_caller(provider, is_direct) if is_code else CallingCode()
    name = repr(use.path[0]) if use.kind == "registered" else subject
    statement = _statement(use.kind, name, releases, code)
    parts = (
        statement,
        releases.describe_release_in_use(must_be_missing=use.kind == "registered"),
        _calling_sentence(releases, caller, callers, code),
        note,
        engine[0],
    )
    # The release in the log has the name: the index shows no cause.
    fits = releases.has_installed and use.kind != "registered"
    return Explanation(
        subject, releases, " ".join(filter(None, parts)),
        note or _general_advice(releases, caller, _CALL_REPAIRS.get(use.kind, "")),
        releases.side_and_ranges[0], changes, caller, callers,
        is_uncertain=(not having and not caller) or fits, code=code,
        is_use_shown=is_file or use.kind in {"argument", "positional", "without"},
        engine="" if "vllm" in log.installed else engine[1],
    )  # fmt: skip


def _statement(kind: str, subject: str, releases: NameReleases, code: str) -> str:
    """Return sentences on the code that uses a name, if it is known, and on the releases that satisfy the use."""
    if kind == "registered":
        span = f"from {releases.without[0]} to {releases.without[-1]}"
        return f"{releases.package} has the model type {subject} itself {span}."
    verb = "calls" if kind in {"argument", "positional", "without"} else "uses"
    return f"{code} {verb} {subject}. {releases.statement('it')}" if code else releases.statement(subject)


def _is_indexed(provider: str, module: str) -> bool:
    """Return whether the index includes a module's folder, so that a missing module does not exist."""
    return provider not in PACKAGES or PACKAGES[provider].includes(f"{module.replace('.', '/')}/__init__.py")


def _failing_releases(use: Use, provider: str, without: set[str]) -> tuple[str, ...]:
    """Return the releases in `without` that may raise the error: those with the module or class."""
    owner = "" if use.kind == "name" else use.name
    versions = tuple(item for item in store.load(provider).releases if item in without)
    apis = {version: query.api_of(query.Release(provider, version)) for version in versions if use.name}
    return (
        tuple(
            version
            for version, api in apis.items()
            if (api.find(use.module, owner) if owner else api.has_module(use.module))
        )
        if use.name
        else versions
    )


def _changes(
    releases: NameReleases, caller: str, callers: Iterable[Caller], installed: Mapping[str, str]
) -> tuple[str, ...]:
    """Return alternative requirements: on the provider, or on a package that uses the name."""
    direction, changes = releases.side_and_ranges
    return (*changes, *filter(None, (item.change(installed, caller, direction) for item in callers)))


def _engine_releases(model_type: str, releases: NameReleases) -> tuple[str, str]:
    """Return a sentence on the releases of vLLM that have a model, and the range of those that allow a transformers."""
    vllm, models = store.load("vllm").releases, (model_type, model_type.removesuffix("_moe"))
    found = (query.releases_with("vllm", Use("name", f"{_VLLM_MODELS}.{item}", ""))[0] for item in models)
    having = next(filter(None, found), [])
    providers = [query.Release(releases.package, item) for item in releases.having]
    fitting = [
        it for it in having if any(query.is_in_ranges(query.Release("vllm", it), item) for item in providers)
    ]
    if not fitting:
        return "", ""
    sentence = f"An inference engine needs the model, too: vllm has it {describe_spans(having, vllm)}"
    if fitting != having:
        sentence += f", and allows such a {releases.package} {describe_spans(fitting, vllm)}"
    return f"{sentence}.", f"vllm>={fitting[0]}"


def _calling_sentence(
    releases: NameReleases, caller: str, callers: Iterable[Caller] = (), code: str = ""
) -> str:
    """Return a sentence on the package whose code uses the name; '' if it is unknown."""
    if caller == releases.package:
        defect = f"The call is in {caller} itself: a defect of this release, or files of two releases."
        return "" if releases.having else defect
    recorded = next((item for item in callers if item.package == caller), None)
    if recorded is None:
        return f"{caller} uses this name." if caller and not code else ""
    verb = "uses this name" if recorded.verb == Caller.verb else f"{recorded.verb} it"
    return f"{caller} {verb} {describe_spans(recorded.versions, store.load(caller).releases)}."


def explain_own_class(message: str, log: LoggedFacts) -> Explanation | None:
    """Explain an error about a class that is not in the index by the class that it extends; None if undecided.

    The extended class's name is part of the class's name: a `Qwen2VLGRPOTrainer` extends `GRPOTrainer`. A function
    without a class replaces a method of its name (unsloth).
    """
    form, parts = next(match_forms(normalize_message(message), _MEMBER_ERRORS), (None, {}))
    owner, method, name = (parts.get(part, "") for part in ("owner", "method", "name"))
    if form is None or method == "__init__" or (form.kind != "attribute" and not method):
        return None
    extended_class = find_extended_class(owner, method or name)
    if extended_class is None:
        return None
    module, class_name, provider = extended_class
    use = Use(form.kind, module, class_name, tuple(filter(None, (method, name))))
    if form.kind == "attribute":
        return _explain_own_attribute(use, provider, owner, log)
    return _explain_override(*outermost_definition(use, provider), owner, log)


def _explain_override(use: Use, provider: str, owner: str, log: LoggedFacts) -> Explanation | None:
    """Explain a call of a user's method or function that replaces a method of an indexed class; None if undecided."""
    method = use.path[0]
    # The releases that make the call define the argument in their own class, those that the subclass fits do not.
    calling, fitting, undecided = query.releases_with(provider, use)
    release = log.installed.get(provider, "")
    if not calling or not fitting or undecided or release in fitting:
        return None
    releases = NameReleases(provider, tuple(fitting), release, tuple(calling))
    subject = f"{use.module}.{use.name}.{method}"
    override = f"{owner}.{method}" if owner else f"the function {method}"
    fit = f"{subject} and fits {provider} {describe_spans(fitting, releases.indexed)}"
    statement = f"{override} {'overrides' if owner else 'replaces'} {fit}."
    in_use = releases.describe_release_in_use(is_own=True)
    advice = _general_advice(releases)
    explanation = Explanation(
        subject, releases, f"{statement} {in_use}", advice, *releases.side_and_ranges, override=override
    )
    is_open = not owner and log.caller != provider
    return explanation.with_open_side(statement, "function") if is_open else explanation


def _explain_own_attribute(use: Use, provider: str, owner: str, log: LoggedFacts) -> Explanation | None:
    """Explain an attribute that a user's object lacks, by the releases whose base class sets it; None if undecided."""
    defining, missing, undecided = query.releases_with(provider, use)
    # The error shows that the release in use lacks it, so it does if its source does not decide that.
    without = _failing_releases(use, provider, {*missing, *undecided})
    if not defining or not without:
        return None
    releases = NameReleases(provider, tuple(defining), log.installed.get(provider, ""), without)
    caller, advice = log.caller, _general_advice(releases, log.caller)
    statement = f"By its name, {owner} extends {use.name}. {releases.statement(use.text)}"
    if caller == provider or releases.installed in defining:
        # The package's own code reads it: the release in use sets it, in a method that the user's class replaces.
        older = describe_spans(without, releases.indexed)
        headline = f"{statement} {owner} does not set it, so it was written for one {older}."
        replaced = NameReleases(provider, without, releases.installed, releases.having)
        return Explanation(use.text, replaced, headline, advice, *replaced.side_and_ranges, caller)
    direction, changes = releases.side_and_ranges
    if not (caller or releases.installed) and direction == "too old":
        advice = ADVICE["own_attribute"].format(provider=provider, owner=owner, changes=" or ".join(changes))
        return Explanation(use.text, releases, f"{statement} {advice}", advice)
    headline = (
        f"{statement} {releases.describe_release_in_use()} {_calling_sentence(releases, caller)}".rstrip()
    )
    return Explanation(use.text, releases, headline, advice, direction, changes, caller)
