"""Explain an error about a missing name: the releases that define it, the packages that use it, and possible changes.

`explain_missing` reads messages about names, attributes, arguments, options and their values, and model types.
`explain_own_class` reads messages about a user's class that extends a class of an indexed package. If the message does
not decide which code was called, the explanation recommends no release.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from packaging.version import Version

from diagnostics.api_index import options, query, store
from diagnostics.api_index.compare import Lookup, condition_holds
from diagnostics.api_index.extract import MODEL_TYPES
from diagnostics.api_index.members import (
    find_class,
    find_extended_class,
    find_member,
    find_namesake,
    inherited_use,
    outermost_definition,
)
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.uses import CONFIGS, Use
from diagnostics.versions import parse_version

_TABLE = tomllib.loads(Path(__file__).with_name("errors.toml").read_text(encoding="utf-8"))
_ERRORS = tuple((re.compile(item["pattern"]), item["kind"]) for item in _TABLE["error"])
# Marks around a name in text that people write.
_QUOTES = str.maketrans("`\u2018\u2019\u201c\u201d", "'''''")
_ADVICE: dict[str, str] = _TABLE["advice"]
_OPTION_ERRORS = tuple((re.compile(item["pattern"]), item["package"]) for item in _TABLE["option_error"])
_CHOICE = re.compile(
    r"(?P<program>trl|vllm|swift|train_ppo_ray|api_server)\b[^:]{0,40}: error: argument (?P<option>[\w-]+)[^:]*:"
    r" invalid choice: '(?P<value>[\w.-]+)'",
    re.IGNORECASE,
)
# Modules with the subcommands of a program.
_SCRIPTS = re.compile(r"\.(?:scripts|cli|commands)\.")
_OPTION = re.compile(r"(?<![\w-])(?P<dashes>--?)(?P<name>[A-Za-z][\w.-]*)")
# The file of the module in an ImportError; Python's own modules and installed packages are in other folders.
_FILE = re.compile(r"' \((?P<file>[^()]+)\)")
_INSTALLED_FOLDER = re.compile(r"[/\\](?:site-packages|dist-packages|python3[\w.]*)[/\\]")
# A class name that hardly any other program has.
_TWO_WORDS = re.compile(r"[A-Z]\w*?[a-z0-9]_?[A-Z]|[A-Z]{2,}[a-z]")
# Errors that name a member of a class.
_MEMBER_ERRORS = {"attribute", "argument", "positional"}
_CALL_REPAIRS = {"without": "Pass it in the call", "positional": "Pass fewer arguments by position"}
_LONGEST = 2000
# No package has a release before it that is worth a sentence.
_FIRST_RELEASE = Version("0.1")
_PROVIDERS = ("vllm", "transformers", "peft", "accelerate", "trl")
_CALLERS = 3


@dataclass(frozen=True)
class Caller:
    """A package that uses the missing name.

    Attributes:
        place: file:line of the use, in the newest release that has it.
        versions: Releases of the package that use the name, oldest first.
    """

    package: str
    place: str
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The releases that define a missing name, the packages that use it, and possible changes.

    Attributes:
        subject: The name as source code would write it.
        provider: The package that should define the name.
        versions: The provider's releases that define the name, fit the override, or lack the model type; oldest first.
        callers: Packages that use the name; only the package of the traceback's last frame, if it is one of them.
        caller: The package of the traceback's last frame; '' if unknown.
        installed: The installed release of the provider; '' if unknown.
        direction: `too old` or `too new` for the installed release; '' if unknown.
        changes: Requirements, each of which is sufficient.
        model_type: The model type that was registered though transformers has it; '' if a name is missing.
        is_decided: False if the index lacks the package's names, or if Python imported a folder without `__init__.py`.
        elsewhere: Advice, such as where to pass the argument instead; '' if there is none.
        import_check: The module whose import shows why a name is missing that the release has; '' if it has not.
        is_conditional: Whether the name is defined under a condition, such as an optional package that is installed.
        local_folder: The folder outside of the installed packages from which the module was imported; '' if none.
        namesake: Another package with a class and method of that name, so that either may be called; '' if none.
        failing: The releases that may raise the error; empty if any without the name may.
        override: The method of the user's own class that overrides the provider's, as Class.method; '' if none.
        call_repair: What to do with the call if no release accepts it.
        subclass: The user's class that, by its name, extends the class of the subject; '' if none.
        is_import: Whether an import of the subject fails.
        is_open: Whether the message does not decide the side at fault; `elsewhere` then says what does.
        is_replaced: Whether the release in use sets the subject in a method that the subclass replaces.
    """

    subject: str
    provider: str
    versions: tuple[str, ...]
    callers: tuple[Caller, ...]
    installed: str = ""
    direction: str = ""
    changes: tuple[str, ...] = ()
    model_type: str = ""
    caller: str = ""
    elsewhere: str = ""
    is_decided: bool = True
    import_check: str = ""
    is_conditional: bool = False
    local_folder: str = ""
    namesake: str = ""
    failing: tuple[str, ...] = ()
    override: str = ""
    call_repair: str = "Remove it from the call"
    subclass: str = ""
    is_import: bool = True
    is_replaced: bool = False
    is_open: bool = False

    @property
    def headline(self) -> str:
        """Sentences that say which releases define the name and whether the installed one is too old or too new."""
        releases = _releases(self.provider)
        if not self.is_decided and not self.caller:
            return f"{self.subject} is not found: Python imports a folder {self.provider} that has no __init__.py."
        if not self.is_decided:
            state = f"{self.provider} {self.installed}".strip()
            verb = "imports" if self.is_import else "reads"
            return f"{self.caller} {verb} {self.subject}, which the {state} in use does not have."
        text = self._releases_sentence(releases)
        if self.local_folder:
            return f"Python imports {self.local_folder}, which is not where packages are installed. {text}"
        if self.is_open:
            return f"{text} The log does not show which side is at fault."
        if self.namesake:
            has_it = f"The installed {self.provider} {self.installed} has it"
            replaced = f"so {self.namesake}'s class of that name was called, which is too old for it."
            open_end = f"{self.namesake} has one of that name, too: not decided which of the two was called."
            return f"{text} {f'{has_it}, {replaced}' if self.installed else open_end}"
        return f"{text}{self._deciding_sentences(releases)}"

    def _deciding_sentences(self, releases: list[str]) -> str:
        """Return sentences on the release in use and the side at fault, with a leading space."""
        note = f" {self.elsewhere}" if self.elsewhere else ""
        if self.is_replaced:
            without = tuple(version for version in releases if version not in self.versions)
            written_for = f"written for one {_describe_spans(without, releases)}"
            return f" {self.subclass} does not set it, so it was {written_for}."
        if self.subclass and not self.changes:
            return note
        text = self._installed_sentence(releases) + self._calling_sentence() + note
        if self.is_conditional:
            return f" It is defined under a condition, such as an installed optional package.{text}"
        return text

    def _releases_sentence(self, releases: list[str]) -> str:
        """Return a sentence on the releases that define the name, or that the override of a method fits."""
        if self.model_type:
            taken = [version for version in releases if version not in self.versions]
            span = f"from {taken[0]} to {taken[-1]}"
            return f"{self.provider} has the model type {self.model_type!r} itself {span}."
        spans = _describe_spans(self.versions, releases)
        if self.override:
            verb = "overrides" if "." in self.override else "replaces"
            return f"{self.override} {verb} {self.subject} and fits {self.provider} {spans}."
        if not self.versions:
            return f"No {self.provider} from {releases[0]} to {releases[-1]} has {self.subject}."
        if len(self.versions) == len(releases):
            return f"Every {self.provider} from {releases[0]} to {releases[-1]} has {self.subject}."
        text = f"{self.provider} has {self.subject} {spans}."
        if not self.subclass:
            return text
        return f"By its name, {self.subclass} extends {self.subject.split('.')[-2]}. {text}"

    def _installed_sentence(self, releases: list[str]) -> str:
        """Return sentences on the release in use, with a leading space; empty if no release has the name."""
        show = f"pip show {self.provider} says which"
        another = f"another {self.provider} is imported"
        hidden = f" So an import inside it failed, an optional package is missing, or {another}."
        if not self.versions:
            return ""
        if self.installed:
            must_change = any(change.startswith(self.provider) for change in self.changes)
            has_it = must_change == bool(self.model_type)
            state = f"is {self.direction}" if self.direction else "has it" if has_it else "does not have it"
            return f" The installed {self.provider} {self.installed} {state}.{hidden if self.import_check else ''}"
        if self.import_check and not self.changes:
            return f"{hidden} Releases before {releases[0]} are not in the index."
        if len(self.versions) == len(releases):
            inside = ", or an import inside it failed" if self.import_check else ""
            return f" So the one in use is older, or is not {self.provider}{inside}: {show}."
        if self.direction == "too old":
            return f" The one in use is older. {show}."
        without = self.failing or tuple(version for version in releases if version not in self.versions)
        is_first = self.versions[0] == releases[0] and not self.override
        is_first &= Version(releases[0]) >= _FIRST_RELEASE
        older = f", or older than {releases[0]}" if self.direction == "too new" and is_first else ""
        side = f" So the one in use is {self.direction}{older}:"
        return f"{side if self.direction else _sides(self.provider, self.versions, without)} {show}."

    def _calling_sentence(self) -> str:
        """Return a sentence on the package whose code uses the name, with a leading space; '' if it is unknown."""
        if self.caller == self.provider and self.versions:
            return ""
        if self.caller == self.provider:
            return (
                f" The call is in {self.provider} itself: a defect of this release, or files of two releases."
            )
        recorded = next((item for item in self.callers if item.package == self.caller), None)
        if recorded is None:
            return f" {self.caller} uses it." if self.caller else ""
        return f" {self.caller} uses it {_describe_spans(recorded.versions, _releases(self.caller))}."

    @property
    def sentences(self) -> str:
        """The headline, and sentences on up to 3 packages that use the name or register the model type."""
        verb = "registers" if self.model_type else "takes"
        callers = (
            f"{item.package} {item.versions[0]} to {item.versions[-1]} {verb} it ({item.place})."
            for item in self.callers[:_CALLERS]
        )
        return " ".join([self.headline, *callers])


def explain_missing(
    message: str, installed: Mapping[str, str] | None = None, caller: str = ""
) -> Explanation | None:
    """Explain an exception's message; return None if it is not about a missing name of an indexed package.

    With a `caller`, a name of a package that is not in the index is explained, too, without its releases.

    Args:
        message: Exception type and message, as Python prints them; lines that a terminal wrapped are joined.
        installed: Known releases by package.
        caller: The package whose code raised the exception; '' if unknown.
    """
    installed = installed or {}
    pieces = [line.strip() for line in _normalised_message(message).splitlines()]
    for text in dict.fromkeys(("".join(pieces), " ".join(pieces))):
        if found := (
            _explain_option(text, installed)
            or _explain_choice(text, installed)
            or _explain_shadowed(text)
            or _explain_use(text, installed, caller)
        ):
            return found
        if caller and (found := _explain_undecided(text, installed.get, caller)):
            return found
    # The end of the line may be cut off: either just the quote, or a part of the name, which no release has then.
    completed = _explain_use(f"{''.join(pieces)}'", installed, caller) if message.count("'") % 2 else None
    return completed if completed and completed.versions else None


def _explain_undecided(message: str, installed: Callable[[str, str], str], caller: str) -> Explanation | None:
    """Explain which package lacks a name, if that package is not in the index."""
    kinds = {"name", "module", "attribute"}
    for match in filter(None, (pattern.search(message) for pattern, kind in _ERRORS if kind in kinds)):
        parts = match.groupdict()
        module, names = parts.get("module") or "", [parts.get("name")]
        provider = query.package_of(module.partition(".")[0]) or module.partition(".")[0]
        if parts.get("owner"):
            places = find_class(parts["owner"]) if _TWO_WORDS.search(parts["owner"]) else []
            provider, module = places[0] if len(places) == 1 else ("", "")
            names = [parts["owner"], *names]
        if provider and provider not in {caller, query.module_of(caller), *sys.stdlib_module_names}:
            subject = ".".join(filter(None, (module, *names)))
            return Explanation(
                subject, provider, (), (), installed(provider, ""), caller=caller, is_decided=False,
                is_import="attribute" not in message,
            )  # fmt: skip
    return None


def explain_own_class(
    message: str, file: str, caller: str, installed: Mapping[str, str], also_missing: Iterable[str] = ()
) -> Explanation | None:
    """Explain an error about a class that is not in the index by the class that it extends; None if undecided.

    The extended class is in the module of the last frame, or its name is part of the class's name: a
    `Qwen2VLGRPOTrainer` extends `GRPOTrainer`. A function without a class replaces a method of its name (unsloth).

    Args:
        message: Exception type and message.
        file: The file of the traceback's last frame; '' if unknown.
        caller: The package of that file; '' if unknown.
        installed: Known releases by package.
        also_missing: Further attributes that the object lacks.
    """
    text = _normalised_message(message)
    matches = ((pattern.search(text), kind) for pattern, kind in _ERRORS if kind in _MEMBER_ERRORS)
    parts, kind = next(((match.groupdict(), kind) for match, kind in matches if match), ({}, ""))
    owner, method = parts.get("owner") or "", parts.get("method") or ""
    path, member = tuple(filter(None, (method, parts.get("name")))), method or parts.get("name", "")
    if not member or method == "__init__" or (kind != "attribute" and not method):
        return None
    in_file = _class_of_file(owner, method, file)
    extended_class = in_file or find_extended_class(owner, member)
    if extended_class is None:
        return None
    module, name, provider = extended_class
    use = Use(kind, module, name, path)
    if kind == "attribute":
        return _explain_own_attribute(use, provider, owner, caller, installed, also_missing)
    if not in_file:
        use, provider = outermost_definition(use, provider)
    # The releases that make the call define the argument in their own class, those that the subclass fits do not.
    calling, fitting, undecided = query.releases_with(provider, use)
    release = installed.get(provider, "")
    if not calling or not fitting or undecided or release in fitting:
        return None
    direction, changes = _changes(provider, tuple(fitting), release, tuple(calling))
    override, note = f"{owner}.{method}" if owner else f"the function {method}", ""
    if not owner and caller != provider:
        note = _ADVICE["function"].format(provider=provider, changes=" or ".join(changes))
        direction, changes = "", []
    return Explanation(
        f"{use.module}.{use.name}.{method}", provider, tuple(fitting), (), release, direction, tuple(changes),
        failing=tuple(calling), override=override, elsewhere=note, is_open=bool(note),
    )  # fmt: skip


def _normalised_message(message: str) -> str:
    """Return the beginning of a message with straight quotes, and with the underscores of `__init__` restored."""
    return message[:_LONGEST].translate(_QUOTES).replace(".init()", ".__init__()")


def _class_of_file(owner: str, method: str, file: str) -> tuple[str, str, str] | None:
    """Return (module, class, package) of the one class in an installed file that has a method, if it is not `owner`."""
    path = re.split(r"(?:site|dist)-packages/", file.replace("\\", "/"))[-1]
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    provider = query.package_of(module.partition(".")[0])
    index = store.load(provider) if provider and method and owner else None
    if index is None or module not in index.about["modules"]:
        return None
    classes = {
        name for name, _, member in (key.partition(".") for key in index.packed(module)) if member == method
    }
    return (module, classes.pop(), provider) if len(classes) == 1 and owner not in classes else None


def _explain_own_attribute(
    use: Use,
    provider: str,
    owner: str,
    caller: str,
    installed: Mapping[str, str],
    also_missing: Iterable[str],
) -> Explanation | None:
    """Explain an attribute that an instance of a user's class lacks, by the releases whose base class sets it."""
    defining, missing, undecided = query.releases_with(provider, use)
    # The error shows that the release in use lacks it, so it does if its source does not decide that.
    missing = [version for version in _releases(provider) if version in {*missing, *undecided}]
    for name in also_missing:
        index = store.load(provider)
        known = (item.partition(".")[2] for item in index.packed(use.module)) if index else ()
        # A person may write a name from memory.
        names = {name, *get_close_matches(name, known, cutoff=0.8)}
        uses = [replace(use, path=(item,)) for item in names]
        both = [item for item in defining if any(item in query.releases_with(provider, it)[0] for it in uses)]
        missing = [item for item in _releases(provider) if item not in both] if both else missing
        defining = both or defining
    if not defining or not missing:
        return None
    release = installed.get(provider, "")
    # The package's own code reads it: the release in use sets it, in a method that the user's class replaces.
    is_replaced = caller == provider or release in defining
    versions, failing = (missing, defining) if is_replaced else (defining, missing)
    direction, changes = _changes(provider, tuple(versions), release, tuple(failing))
    note = ""
    if not (caller or release) and direction == "too old":
        direction, newer, changes = "", " or ".join(changes), []
        note = (
            f"If the last frame of the traceback is in {provider}, {owner} was written for one without it."
            f" If it is in code of your own, take {newer}."
        )
    return Explanation(
        use.text, provider, tuple(defining), (), release, direction, tuple(changes), caller=caller,
        elsewhere=note, failing=tuple(failing), subclass=owner, is_replaced=is_replaced,
    )  # fmt: skip


def _explain_shadowed(message: str) -> Explanation | None:
    """Explain an import that found another folder instead of a package."""
    match = _ERRORS[0][0].search(message)
    module = match["module"] if match and "(unknown location)" in message else "."
    if not match or "." in module:
        return None
    advice = f"Start Python where no other folder {module} is; if there is none, install the package again."
    return Explanation(f"{module}.{match['name']}", module, (), (), elsewhere=advice, is_decided=False)


def _explain_use(message: str, installed: Mapping[str, str], caller: str) -> Explanation | None:
    """Explain the first use of a message about which the index has facts; None if it has none."""
    for use, provider in _candidates(message, caller):
        defining, missing, undecided = query.releases_with(provider, use)
        versions = tuple(defining)
        if not versions and (undecided or not _is_indexed(provider, use.module)):
            continue
        release = installed.get(provider, "")
        caller = "" if use.kind == "model_type" else caller
        # A use under a condition that a release without the name does not meet is not the one that failed.
        callers = tuple(_callers(provider, use, release or (missing[-1] if missing else "0")))
        callers = tuple(item for item in callers if item.package == caller) or callers
        if not callers and (not (versions or missing) or use.kind == "registered"):
            continue
        if _is_of_another_package(use, provider, versions, caller):
            continue
        subject = use.text
        if use.kind == "without" and not versions:
            versions, subject = _releases_for_incomplete_call(message, use, provider, missing)
        failing = _failing_releases(use, provider, {*missing, *undecided} - {*versions})
        direction, changes = _changes(provider, versions, release, failing)
        if use.kind == "argument" and direction == "too new" and not caller:
            _, changes = _changes(provider, _releases_like_oldest(use, provider, versions), release, failing)
        changes += [
            change for item in callers if (change := _other_caller(item, installed, caller, direction))
        ]
        import_check, is_conditional = "", False
        if use.kind == "name" and versions:
            module, is_own, is_conditional = _definition_module(use, provider, release, versions)
            if release in versions or not (release or missing):
                import_check = module
                changes = changes if is_own and not release and not is_conditional else []
        model_type = use.path[0] if use.kind == "registered" else ""
        elsewhere = "" if versions else _advice_without_release(use, provider, caller)
        explanation = Explanation(
            subject, provider, versions, callers, release, direction, tuple(changes), model_type, caller, elsewhere,
            import_check=import_check, is_conditional=is_conditional, failing=failing,
            call_repair=_CALL_REPAIRS.get(use.kind, Explanation.call_repair),
        )  # fmt: skip
        return _without_unproven_changes(explanation, use, message)
    return None


def _failing_releases(use: Use, provider: str, without: set[str]) -> tuple[str, ...]:
    """Return the releases in `without` that can raise the error; for a name in a module, those with the module."""
    releases = (query.Release(provider, version) for version in _releases(provider) if version in without)
    return tuple(
        item.version
        for item in releases
        if use.kind != "name"
        or not use.name
        or ((found := query.surface_of(item)) and found.has_module(use.module))
    )


def _without_unproven_changes(explanation: Explanation, use: Use, message: str) -> Explanation:
    """Remove the recommended changes if the message may be about code other than the provider's installed release."""
    provider = explanation.provider
    release = parse_version(explanation.installed)
    # Packages extend a trainer under its own name, and replace the method that sets an attribute.
    is_extended = (
        use.kind == "attribute" and use.name.endswith("Trainer") and (not release or release.is_prerelease)
    )
    index = store.load(provider) if is_extended and explanation.caller in {"", provider} else None
    entry = index.packed(use.module).get(f"{use.name}.{use.path[0]}") if index else "def"
    is_open = bool(explanation.changes) and "def" not in str(entry)
    local_folder = _local_folder(message, use.module) if use.kind == "name" else ""
    has_it = release is not None and _has(provider, explanation.versions, release)
    is_ambiguous = has_it if release or use.kind == "attribute" else True
    namesake = find_namesake(use, provider) if is_ambiguous else ""
    reason = "attribute" if is_open else "local_folder" if local_folder else "namesake" if namesake else ""
    if not reason:
        return explanation
    if reason == "namesake" and has_it:
        without = (item for item in _releases(provider) if item not in explanation.versions)
        older = [item for item in without if Version(item) < release] if release else []
        changes = f", such as {provider}<={older[-1]}" if older else ""
        advice = _ADVICE["replaced"].format(provider=provider, namesake=namesake, changes=changes)
        return replace(explanation, direction="", changes=(), elsewhere=advice, namesake=namesake)
    advice = _ADVICE[reason].format(
        provider=provider, changes=" or ".join(explanation.changes), module=use.module.partition(".")[0],
        folder=local_folder, namesake=namesake, call=".".join((use.name, *use.path[:1])),
    )  # fmt: skip
    return replace(
        explanation, direction="", changes=(), elsewhere=advice, import_check="",
        local_folder=local_folder, namesake=namesake, is_open=is_open,
    )  # fmt: skip


def _local_folder(message: str, module: str) -> str:
    """Return the folder that a message's module was imported from, if no packages are installed there; else ''."""
    match = _FILE.search(message)
    file = match["file"].replace("\\", "/") if match else ""
    base = file.removesuffix(".py").removesuffix("/__init__")
    if not base.endswith(f"/{module.replace('.', '/')}") or _INSTALLED_FOLDER.search(file) or "..." in file:
        return ""
    return "/".join(base.split("/")[: -module.count(".") or None])


def _releases_for_incomplete_call(
    message: str, use: Use, provider: str, releases: Iterable[str]
) -> tuple[tuple[str, ...], str]:
    """Return the releases that require as many arguments as an incomplete call has, and a text for the subject.

    The release in use requires that number plus the number of missing arguments in the message. No release is returned
    unless exactly one number fits.
    """
    by_count: dict[int, list[str]] = {}
    for version in releases:
        if (required := _required_arguments(use, provider, version)) is not None:
            by_count.setdefault(len(required), []).append(version)
    lacking = re.search(r"missing (\d+) required positional", message)
    fitting = [count for count in by_count if lacking and count + int(lacking[1]) in by_count]
    if len(fitting) != 1:
        return (), use.text
    owner = use.text.partition(" without ")[0]
    return tuple(by_count[fitting[0]]), f"{owner} with only {fitting[0]} required arguments"


def _required_arguments(use: Use, provider: str, version: str) -> set[str] | None:
    """Return the arguments that a release requires in a call; None if its source does not show them."""
    surface = query.surface_with_companions(query.Release(provider, version))
    definition = surface.find(use.module, use.name) if surface else None
    signature = Lookup(surface).signature(use, definition) if surface and definition else None
    return set(signature.required) if signature else None


def _releases_like_oldest(use: Use, provider: str, versions: tuple[str, ...]) -> tuple[str, ...]:
    """Return the releases whose required arguments the oldest one requires, too: the call may be written for it."""
    required = {item: _required_arguments(use, provider, item) or set() for item in versions}
    return tuple(item for item in versions if required[item] <= required[versions[0]])


def _is_of_another_package(use: Use, provider: str, versions: tuple[str, ...], caller: str) -> bool:
    """Return whether a name may belong to a package other than the provider."""
    if use.kind == "registered":
        # transformers has no such model type: another package registers it twice.
        return len(versions) == len(_releases(provider))
    if versions or caller or use.kind != "argument" or not re.fullmatch("[A-Z][a-z]+", use.name):
        return False
    return (
        sum(bool(item and item.find_name(use.name)) for item in map(store.load, store.indexed_packages())) > 1
    )


def _definition_module(
    use: Use, provider: str, installed: str, versions: tuple[str, ...]
) -> tuple[str, bool, bool]:
    """Return the module that a name comes from, whether it is the provider's own, and whether it has a condition."""
    version = installed if installed in versions else versions[-1]
    surface = query.surface_of(query.Release(provider, version))
    definition = surface.find(use.module, use.name) if surface else None
    if surface is None or definition is None:
        return use.module, True, False
    is_conditional = surface.facts(use.module).get(use.name, "").startswith("?")
    # A name for another package's object may be set only if that package is installed.
    value = re.match(r"value = (\w+)\.", definition.entry)
    return (value[1], False, True) if value else (definition.module, True, is_conditional)


def _is_indexed(provider: str, module: str) -> bool:
    """Return whether the index includes a module's folder, so that a missing module does not exist."""
    return provider not in PACKAGES or PACKAGES[provider].includes(f"{module.replace('.', '/')}/__init__.py")


def _advice_without_release(use: Use, provider: str, caller: str) -> str:
    """Return a sentence on what defines a name that no release has: a config class, or older code; '' if unknown."""
    if use.kind == "name" and caller == provider:
        return f"Update the checkout of {provider}, or remove that line."
    if use.kind == "name":
        return (
            f"Take the {provider} for which the importing code was written: an older one, or a fork."
            f" If the {provider} in use has the name, an import inside {use.module} failed."
        )
    name = f"{use.name.removesuffix('Trainer')}Config"
    if use.kind != "argument" or name == f"{use.name}Config":
        return ""
    defining, _, _ = query.releases_with(provider, Use("argument", provider, name, use.path))
    return (
        f"Pass it in {name}, which has it {_describe_spans(tuple(defining), _releases(provider))}."
        if defining
        else ""
    )


def _explain_option(message: str, installed: Mapping[str, str]) -> Explanation | None:
    """Explain a command's error about an option that some releases of its package have."""
    for pattern, package in _OPTION_ERRORS:
        match = pattern.search(message)
        for option in _OPTION.finditer(match["options"]) if match else ():
            versions = _releases_with_option(package, option["name"].replace("-", "_"))
            if versions:
                release, subject = installed.get(package, ""), f"the option --{option['name']}"
                direction, changes = _changes(package, versions, release)
                if option["dashes"] == "-" and direction != "too old":
                    changes = []
                note = "" if changes or option["dashes"] == "--" else "Write it with two dashes."
                if (
                    is_open := package == "ms-swift"
                    and direction == "too new"
                    and bool(changes)
                    and not release
                ):
                    note = _ADVICE["option"].format(provider=package, changes=changes[0])
                    direction, changes = "", []
                return Explanation(
                    subject, package, versions, (), release, direction, tuple(changes), elsewhere=note,
                    is_open=is_open,
                )  # fmt: skip
    return None


def _releases_with_option(package: str, name: str) -> tuple[str, ...]:
    """Return the releases that have an option outside Megatron commands; oldest first."""
    index = store.load(package)
    packed = index.document("options").get(name) if index else None
    if index is None or packed is None:
        return ()
    marks = packed if isinstance(packed, dict) else {"0-": packed}
    count = len(index.releases)
    numbers = {
        number for spans, mark in marks.items() if not mark for number in store.expand_spans(spans, count)
    }
    versions = (index.releases[number] for number in sorted(numbers))
    if package != "vllm":
        return tuple(versions)
    # The names of sampling parameters and environment variables are no options of `vllm serve`.
    surfaces = ((version, query.surface_of(query.Release(package, version))) for version in versions)
    return tuple(
        version for version, surface in surfaces if surface and surface.has_serve_option(f"--{name}")
    )


def _explain_choice(message: str, installed: Mapping[str, str]) -> Explanation | None:
    """Explain a command's error about a subcommand or a value of an option that some of its releases accept."""
    match = _CHOICE.search(message)
    package = _TABLE["programs"].get(match["program"].lower()) if match else None
    index = store.load(package) if package else None
    if not match or not package or index is None:
        return None
    option, value = match["option"].lstrip("-").replace("-", "_"), match["value"]
    end = f".{value.replace('-', '_')}"
    scripts = [
        module for module in index.about["modules"] if _SCRIPTS.search(module) and module.endswith(end)
    ]
    if scripts:
        defining = {
            version for item in scripts for version in query.releases_with(package, Use("name", item, ""))[0]
        }
        versions, failing = [version for version in index.releases if version in defining], []
        subject = f"the command {value}"
    else:
        allowed = {item: options.choices(query.Release(package, item), option) for item in index.releases}
        versions = [version for version, values in allowed.items() if value in values]
        # Where the choices are unknown, the value may be allowed.
        failing = [version for version, values in allowed.items() if values and value not in values]
        subject = f"the value {value} of {match['option']}"
        if not versions or not failing:
            return None
    release = installed.get(package, "")
    direction, changes = _changes(package, tuple(versions), release, tuple(failing))
    return Explanation(
        subject, package, tuple(versions), (), release, direction, tuple(changes), failing=tuple(failing)
    )


def _candidates(message: str, caller: str) -> Iterator[tuple[Use, str]]:
    """Yield the uses that a message may refer to, each with the package that should define the name."""
    for pattern, kind in _ERRORS:
        match = pattern.search(message)
        parts = match.groupdict() if match else {}
        if "architecture" in parts:
            index = store.load("vllm")
            for module in index.find_name(parts["architecture"]) if index else ():
                if ".models." in module:
                    yield Use("name", module, parts["architecture"]), "vllm"
        elif "module" in parts:
            module = parts["module"] or "transformers"
            if provider := query.package_of(module.partition(".")[0]):
                yield Use("name", module, parts.get("name") or ""), provider
        elif "model_type" in parts:
            yield Use(kind, CONFIGS, MODEL_TYPES, (parts["model_type"],)), "transformers"
        elif parts:
            owner = parts["owner"] or parts["method"]
            method = parts.get("method") if parts["owner"] else ""
            path = tuple(filter(None, (method if method != "__init__" else "", parts["name"])))
            matching_uses = (
                (Use(kind, use.module, use.name, path), name)
                for name in _PROVIDERS
                if (index := store.load(name)) and index.find_name(owner)
                for _package, _file, use, _spans in _uses_of_all(name, f'"{owner}"')
                if (use.name, use.path, use.kind) == (owner, path, kind)
            )
            member = find_member(kind, owner, path, _PROVIDERS, caller)
            candidates = dict.fromkeys((*matching_uses, *([member] if member else [])))
            yield from dict.fromkeys(inherited_use(*item) for item in candidates)
            places = find_class(owner) if kind == "attribute" and not candidates else []
            class_uses = [(Use(kind, module, owner, path), package) for package, module in places]
            # The class of one package has it from a base class of another one, whose release decides.
            yield from (item for use in class_uses if (item := inherited_use(*use)) != use)


def _uses_of_all(provider: str, text: str) -> Iterator[tuple[str, str, Use, dict[str, int]]]:
    """Yield each recorded use of a provider whose key contains a text, as (package, file, use, spans)."""
    for package in store.indexed_packages():
        index = store.load(package)
        documents = index.document(f"uses-{provider}") if index else {}
        for file, packed in documents.items():
            for key, lines in packed.items():
                if text in key:
                    spans = lines if isinstance(lines, dict) else {"0-": lines}
                    yield package, file, Use.from_key(key, file, 0), spans


def _callers(provider: str, target: Use, installed: str) -> Iterator[Caller]:
    """Yield the packages that use a name without an alternative, with the newest place of the use."""
    by_package: dict[str, dict[int, str]] = {}
    version = parse_version(installed)
    versions = {query.module_of(provider): version} if version else {}
    text = f'"{target.name}"' if target.name else f'"{target.module}'
    for package, file, use, lines in _uses_of_all(provider, text):
        reached = all(condition_holds(item, versions) is not False for item in use.conditions)
        if not _is_same_use(use, target) or not reached or use.choice:
            continue
        index = store.load(package)
        count = len(index.releases) if index else 0
        for spans, line in lines.items():
            for number in store.expand_spans(spans, count):
                by_package.setdefault(package, {})[number] = f"{file}:{line}"
    for package, places in by_package.items():
        numbers = sorted(places)
        yield Caller(package, places[numbers[-1]], tuple(_releases(package)[number] for number in numbers))


def _is_same_use(use: Use, target: Use) -> bool:
    if not target.name:
        return f"{use.module}.".startswith(f"{target.module}.")
    same_name = (use.module, use.name) == (target.module, target.name)
    return same_name and use.path[: len(target.path)] == target.path


def _describe_spans(versions: tuple[str, ...], releases: list[str]) -> str:
    """Return in words which of a package's releases are meant.

    >>> _describe_spans(("1", "2", "4"), ["1", "2", "3", "4"])
    'from 1 to 2 and from 4 on'
    """
    return " and ".join(
        f"in {first}" if first == last else f"from {first} to {last}" if last else f"from {first} on"
        for first, last in _spans(versions, releases)
    )


def _spans(versions: tuple[str, ...], releases: list[str]) -> list[tuple[str, str]]:
    """Return the first and last release of each span of releases; '' if the span reaches the newest release."""
    spans = store.spans_of([releases.index(version) for version in versions], len(releases)).split()
    bounds = (span.partition("-") for span in spans)
    return [(releases[int(first)], releases[int(last)] if last else "") for first, _, last in bounds]


def _releases(package: str) -> list[str]:
    index = store.load(package)
    return index.releases if index else []


def _changes(
    provider: str, versions: tuple[str, ...], installed: str, failing: tuple[str, ...] = ()
) -> tuple[str, list[str]]:
    """Return whether the installed release is too old or too new, and the nearest ranges that define the name.

    If the installed release is unknown, it is one of `failing`; or any without the name, if that is empty.
    """
    known = parse_version(installed)
    if known is None and versions:
        direction, ranges = _ranges(provider, versions)
        if failing and Version(failing[0]) > Version(versions[-1]):
            direction = "too new"
        return direction, ranges
    if known is None:
        return "", []
    newer = [version for version in versions if Version(version) > known]
    older = [version for version in versions if Version(version) < known]
    if not versions or _has(provider, versions, known):
        return "", []
    changes = [f"{provider}>={item}" for item in newer[:1]] + [f"{provider}<={item}" for item in older[-1:]]
    if newer and older:
        return "", changes
    return "too old" if newer else "too new", changes


def _has(provider: str, versions: Iterable[str], release: Version) -> bool:
    """Return whether a release is one of `versions`, or a build between two neighbours in the index that both are."""
    known, releases = {Version(item) for item in versions}, [*map(Version, _releases(provider))]
    older, newer = [it for it in releases if it < release][-1:], [it for it in releases if it > release][:1]
    return release in known or (bool(older) and release not in releases and {*older, *newer} <= known)


def _sides(provider: str, versions: tuple[str, ...], others: tuple[str, ...]) -> str:
    """Return a sentence for each span of releases without the name, with the nearest releases that have it."""
    releases, text = _releases(provider), ""
    spans = _spans(others, releases)
    for first, last in spans:
        older = [item for item in versions if Version(item) < Version(first)][-1:]
        newer = [item for item in versions if last and Version(item) > Version(last)][:1]
        changes = [f"{provider}<={item}" for item in older] + [f"{provider}>={item}" for item in newer]
        span = f"from {first} on" if not last else first if first == last else f"from {first} to {last}"
        if len(spans) == 1:
            return f" So the one in use is {span}:"
        text += f" If the one in use is {span}, take {' or '.join(changes)}."
    return text


def _ranges(provider: str, versions: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return the direction if all releases without the name are on one side, and the ranges with it, newest first.

    >>> _ranges("trl", ("0.14.0", "0.15.0"))
    ('too new', ['trl>=0.14.0,<=0.15.0'])
    """
    releases = _releases(provider)
    spans = _spans(versions, releases)
    ranges = [
        f"{provider}=={first}" if first == last else f"{provider}>={first}{f',<={last}' if last else ''}"
        for first, last in reversed(spans)
    ]
    if len(spans) > 1 or (versions[0] != releases[0] and spans[0][1]):
        return "", ranges
    return "too new" if spans[0][1] else "too old", ranges


def _other_caller(item: Caller, installed: Mapping[str, str], caller: str, direction: str) -> str:
    """Return a requirement on a caller so that it does not use the name; '' if none is known to be needed.

    The caller needs it if its installed release, or its code in the traceback, uses the name. If the provider is too
    old, an older caller is meant, otherwise a newer one.
    """
    releases = _releases(item.package)
    first, last = (releases.index(version) for version in (item.versions[0], item.versions[-1]))
    if installed.get(item.package) not in item.versions and item.package != caller:
        return ""
    if direction == "too old":
        return f"{item.package}<={releases[first - 1]}" if first else ""
    return f"{item.package}>={releases[last + 1]}" if item.versions[-1] != releases[-1] else ""
