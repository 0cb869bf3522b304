"""Explain an error about a missing name: which releases define it, which packages use it, and the smallest change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from diagnostics.api_index import query, store
from diagnostics.api_index.compare import Lookup, condition_holds
from diagnostics.api_index.extract import MODEL_TYPES
from diagnostics.api_index.members import find_member, find_namesake, inherited_use
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.uses import CONFIGS, Use
from diagnostics.versions import parse_version

_ERRORS = (
    (re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"), "name"),
    (re.compile(r"No module named '(?P<module>\w+\.[\w.]+)'"), "module"),
    (re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'"), "name"),
    (re.compile(r"type object '(?P<owner>\w+)' has no attribute '(?P<name>\w+)'"), "attribute"),
    (re.compile(r"'(?P<owner>[A-Z]\w+)' object has no attribute '(?P<name>\w+)'"), "attribute"),
    (
        re.compile(
            r"(?<![\w.])(?P<owner>\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'"
        ),
        "argument",
    ),
    (
        re.compile(r"(?P<owner>\w+)\.(?P<method>\w+)\(\) got an unexpected keyword argument '(?P<name>\w+)'"),
        "argument",
    ),
    (
        re.compile(
            r"(?:(?P<owner>\w+)\.)?(?P<method>\w+)\(\) takes (?:from \d+ to )?\d+ positional arguments? "
            r"but (?P<name>\d+) (?:was|were) given"
        ),
        "positional",
    ),
    (
        re.compile(
            r"(?:(?P<owner>\w+)\.)?(?P<method>\w+)\(\) missing \d+ required "
            r"(?:positional|keyword-only) arguments?: '(?P<name>\w+)'"
        ),
        "without",
    ),
    (re.compile(r"'(?P<model_type>[\w.-]+)' is already used by a Transformers config"), "registered"),
)
# Errors about options of a command, with the package whose command prints them.
_OPTION_ERRORS = (
    (re.compile(r"\bvllm(?: serve)?: error: unrecognized arguments: (?P<options>-.*)"), "vllm"),
    (re.compile(r"\bremaining_argv: \[(?P<options>.*)"), "ms-swift"),
    (re.compile(r"not used by the HfArgumentParser: \[(?P<options>.*)"), "trl"),
    (re.compile(r"\btrain_ppo_ray\S*: error: unrecognized arguments: (?P<options>-.*)"), "openrlhf"),
)
_OPTION = re.compile(r"(?<![\w-])(?P<dashes>--?)(?P<name>[A-Za-z][\w.-]*)")
# The file of the module in an ImportError; Python's own modules and installed packages are in other folders.
_FILE = re.compile(r"' \((?P<file>[^()]+)\)")
_INSTALLED_FOLDER = re.compile(r"[/\\](?:site-packages|dist-packages|python3[\w.]*)[/\\]")
_CALL_REPAIRS = {"without": "Pass it in the call", "positional": "Pass fewer arguments by position"}
_LONGEST = 2000
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
        versions: The provider's releases that define the name, oldest first.
        callers: Packages that use the name; only the package of the traceback's last frame, if it is one of them.
        caller: The package of the traceback's last frame; '' if unknown.
        installed: The installed release of the provider; '' if unknown.
        direction: `too old` or `too new` for the installed release; '' if unknown.
        changes: Requirements, each of which is sufficient.
        model_type: The model type that was registered though transformers has it; '' if a name is missing.
        is_decided: Whether the index has the names of the module in question.
        elsewhere: How to write the argument or option instead; '' if unknown.
        import_check: The module whose import shows why a name is missing that the release has; '' if it has not.
        is_conditional: Whether the name is defined under a condition, such as an optional package that is installed.
        local_folder: The folder outside of the installed packages from which the module was imported; '' if none.
        namesake: Another package with a class and method of that name, so that either may be called; '' if none.
        failing: The releases that may raise the error; empty if any without the name may.
        override: The method of the user's own class that overrides the provider's, as Class.method; '' if none.
        call_repair: What to do with the call if no release accepts it.
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

    @property
    def headline(self) -> str:
        """Sentences that say which releases define the name and whether the installed one is too old or too new."""
        releases = _releases(self.provider)
        if not self.is_decided and not self.caller:
            return f"{self.subject} is not found: Python imports a folder {self.provider} that has no __init__.py."
        if not self.is_decided:
            state = f"{self.provider} {self.installed}".strip()
            return f"{self.caller} imports {self.subject}, which the {state} in use does not have."
        if self.model_type:
            taken = [version for version in releases if version not in self.versions]
            span = f"from {taken[0]} to {taken[-1]}"
            text = f"{self.provider} has the model type {self.model_type!r} itself {span}."
        elif not self.versions:
            text = f"No {self.provider} from {releases[0]} to {releases[-1]} has {self.subject}."
        elif len(self.versions) == len(releases):
            text = f"Every {self.provider} from {releases[0]} to {releases[-1]} has {self.subject}."
        else:
            text = f"{self.provider} has {self.subject} {_describe_spans(self.versions, releases)}."
        note = f" {self.elsewhere}" if self.elsewhere else ""
        if self.local_folder:
            return f"Python imports {self.local_folder}, which is not where packages are installed. {text}"
        if self.namesake:
            return (
                f"{text} {self.namesake} has one of that name, too: not decided which of the two was called."
            )
        if self.is_conditional:
            text += " It is defined under a condition, such as an installed optional package."
        return text + self._installed_sentence(releases) + self._calling_sentence() + note

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
            return f" Releases before {releases[0]} are not in the index. {show} is in use."
        others = self.failing or tuple(version for version in releases if version not in self.versions)
        side = self.direction or f"one {_describe_spans(others, releases)}"
        is_first = self.versions[0] == releases[0] and not self.override
        older = f", or older than {releases[0]}" if self.direction == "too new" and is_first else ""
        return f" So the one in use is {side}{older}: {show}."

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
        """The headline, and sentences on the packages that use the name or register the model type."""
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

    Args:
        message: Exception type and message, as Python prints them; lines that a terminal wrapped are joined.
        installed: Known releases by package.
        caller: The package whose code raised the exception; '' if unknown.
    """
    installed = installed or {}
    pieces = [line.strip() for line in message[:_LONGEST].splitlines()]
    for text in dict.fromkeys(("".join(pieces), " ".join(pieces))):
        if found := (
            _explain_option(text, installed)
            or _explain_shadowed(text)
            or _explain_use(text, installed, caller)
        ):
            return found
        match = _ERRORS[0][0].search(text)
        module = match["module"] if match else ""
        provider = module.partition(".")[0]
        if match and caller and query.module_of(caller) != provider:
            subject, release = f"{module}.{match['name']}", installed.get(provider, "")
            return Explanation(subject, provider, (), (), release, caller=caller, is_decided=False)
    # The end of the line may be cut off: either just the quote, or a part of the name, which no release has then.
    completed = _explain_use(f"{''.join(pieces)}'", installed, caller) if message.count("'") % 2 else None
    return completed if completed and completed.versions else None


def explain_override(message: str, file: str, installed: Mapping[str, str]) -> Explanation | None:
    """Explain a call in an indexed package that a user's subclass refuses; None if it is not decided.

    Args:
        message: Exception type and message. They name the subclass, which is in no package of the index.
        file: The installed file whose code calls the method; one of its classes is taken for the base class.
        installed: Known releases by package.
    """
    matches = (
        (pattern.search(message), kind) for pattern, kind in _ERRORS if kind in {"argument", "positional"}
    )
    parts, kind = next(((match.groupdict(), kind) for match, kind in matches if match), ({}, ""))
    method, path = parts.get("method"), re.split(r"(?:site|dist)-packages/", file.replace("\\", "/"))[-1]
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    provider = query.package_of(module.partition(".")[0])
    index = store.load(provider) if provider and method and parts["owner"] else None
    if index is None or module not in index.about["modules"]:
        return None
    classes = {
        owner for owner, _, name in (key.partition(".") for key in index.packed(module)) if name == method
    }
    if len(classes) != 1 or parts["owner"] in classes:
        return None
    use = Use(kind, module, classes.pop(), (method or "", parts["name"]))
    # The releases that make the call define the argument in their own class, those that the subclass fits do not.
    calling, fitting, undecided = query.releases_with(provider, use)
    release = installed.get(provider, "")
    if not calling or not fitting or undecided or release in fitting:
        return None
    direction, changes = _changes(provider, tuple(fitting), release, tuple(calling))
    override = f"{parts['owner']}.{method}"
    return Explanation(
        f"{use.module}.{use.name}.{method} as {override} overrides it", provider, tuple(fitting), (), release,
        direction, tuple(changes), failing=tuple(calling), override=override,
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
    for use, provider in _candidates(message, caller):
        found, missing, undecided = query.releases_with(provider, use)
        versions = tuple(found)
        if not versions and (undecided or not _is_read(provider, use.module)):
            continue
        release = installed.get(provider, "")
        # A use under a condition that a release without the name does not meet is not the one that failed.
        callers = tuple(_callers(provider, use, release or (missing[-1] if missing else "0")))
        callers = tuple(item for item in callers if item.package == caller) or callers
        if not callers and (not (versions or missing) or use.kind == "registered"):
            continue
        if use.kind == "registered" and len(versions) == len(_releases(provider)):
            continue  # transformers has no such model type: another package registers it twice
        subject = use.text
        if use.kind == "without" and not versions:
            versions, subject = _with_fewer_required(message, use, provider, missing)
        failing = _failing(use, provider, {*missing, *undecided} - {*versions})
        direction, changes = _changes(provider, versions, release, failing)
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
        elsewhere = "" if versions else _other_place(use, provider)
        explanation = Explanation(
            subject, provider, versions, callers, release, direction, tuple(changes), model_type, caller, elsewhere,
            import_check=import_check, is_conditional=is_conditional, failing=failing,
            call_repair=_CALL_REPAIRS.get(use.kind, Explanation.call_repair),
        )  # fmt: skip
        return _without_conclusion(explanation, use, message)
    return None


def _failing(use: Use, provider: str, without: set[str]) -> tuple[str, ...]:
    """Return the releases without a name that can raise the error: if it names a module, those that have the module."""
    releases = (query.Release(provider, version) for version in _releases(provider) if version in without)
    return tuple(
        item.version
        for item in releases
        if use.kind != "name"
        or not use.name
        or ((found := query.surface_of(item)) and found.has_module(use.module))
    )


def _without_conclusion(explanation: Explanation, use: Use, message: str) -> Explanation:
    """Return an explanation that concludes no release if other code than the provider's installed one may be meant."""
    provider = explanation.provider
    local_folder = _local_folder(message, use.module) if use.kind == "name" else ""
    namesake = "" if explanation.installed else find_namesake(use, provider)
    if local_folder:
        advice = (
            f"Start Python where no folder {use.module.partition('.')[0]} shadows the installed package, or rename"
            f" {local_folder}; if it is a checkout of {provider}, check out a release that has the name."
        )
    elif namesake:
        advice = (
            f"Before the call, print({use.name}.{use.path[0]}.__code__.co_filename) shows which of {provider} and"
            f" {namesake} defines it; change the release of that one."
        )
    else:
        return explanation
    return replace(
        explanation, direction="", changes=(), elsewhere=advice, import_check="",
        local_folder=local_folder, namesake=namesake,
    )  # fmt: skip


def _local_folder(message: str, module: str) -> str:
    """Return the folder that a message's module was imported from, if no packages are installed there; else ''."""
    match = _FILE.search(message)
    file = match["file"].replace("\\", "/") if match else ""
    base = file.removesuffix(".py").removesuffix("/__init__")
    if not base.endswith(f"/{module.replace('.', '/')}") or _INSTALLED_FOLDER.search(file) or "..." in file:
        return ""
    return "/".join(base.split("/")[: -module.count(".") or None])


def _with_fewer_required(
    message: str, use: Use, provider: str, releases: Iterable[str]
) -> tuple[tuple[str, ...], str]:
    """Return the releases whose number of required arguments a call meets that lacks some, and words for the name.

    The call has as many arguments as a release requires, less those that the message lists as missing. No release is
    returned if that does not decide it.
    """
    by_count: dict[int, list[str]] = {}
    for version in releases:
        surface = query.surface_with_companions(query.Release(provider, version))
        definition = surface.find(use.module, use.name) if surface else None
        signature = Lookup(surface).signature(use, definition) if surface and definition else None
        if signature:
            by_count.setdefault(len(signature.required), []).append(version)
    lacking = re.search(r"missing (\d+) required positional", message)
    fitting = [count for count in by_count if lacking and count + int(lacking[1]) in by_count]
    if len(fitting) != 1:
        return (), use.text
    owner = use.text.partition(" without ")[0]
    return tuple(by_count[fitting[0]]), f"{owner} with only {fitting[0]} required arguments"


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


def _is_read(provider: str, module: str) -> bool:
    """Return whether the index has the modules of a folder, so that a missing one does not exist."""
    return provider not in PACKAGES or PACKAGES[provider].includes(f"{module.replace('.', '/')}/__init__.py")


def _other_place(use: Use, provider: str) -> str:
    """Return a sentence on what defines a name that no release has: a config class, or older code; '' if unknown."""
    if use.kind == "name":
        return (
            f"Take the {provider} for which the importing code was written: an older one, or a fork."
            f" If it is installed, an import inside {use.module} failed."
        )
    name = f"{use.name.removesuffix('Trainer')}Config"
    if use.kind != "argument" or name == f"{use.name}Config":
        return ""
    found, _, _ = query.releases_with(provider, Use("argument", provider, name, use.path))
    return (
        f"Pass it in {name}, which has it {_describe_spans(tuple(found), _releases(provider))}."
        if found
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
                return Explanation(
                    subject, package, versions, (), release, direction, tuple(changes), elsewhere=note
                )
    return None


def _releases_with_option(package: str, name: str) -> tuple[str, ...]:
    """Return the releases that have an option, without options of Megatron commands only; oldest first."""
    index = store.load(package)
    packed = index.document("options").get(name) if index else None
    if index is None or packed is None:
        return ()
    marks = packed if isinstance(packed, dict) else {"0-": packed}
    count = len(index.releases)
    numbers = {
        number for spans, mark in marks.items() if not mark for number in store.expand_spans(spans, count)
    }
    return tuple(index.releases[number] for number in sorted(numbers))


def _candidates(message: str, caller: str) -> Iterator[tuple[Use, str]]:
    """Yield the uses that a message may refer to, each with the package that should define the name."""
    for pattern, kind in _ERRORS:
        match = pattern.search(message)
        parts = match.groupdict() if match else {}
        if "module" in parts:
            if provider := query.package_of(parts["module"].partition(".")[0]):
                yield Use("name", parts["module"], parts.get("name") or ""), provider
        elif "model_type" in parts:
            yield Use(kind, CONFIGS, MODEL_TYPES, (parts["model_type"],)), "transformers"
        elif parts:
            owner = parts["owner"] or parts["method"]
            method = parts.get("method") if parts["owner"] else ""
            path = tuple(filter(None, (method if method != "__init__" else "", parts["name"])))
            matching_uses = (
                (Use(kind, use.module, use.name, path), name)
                for name in _PROVIDERS
                for _package, _file, use, _spans in _uses_of_all(name, f'"{owner}"')
                if (use.name, use.path, use.kind) == (owner, path, kind)
            )
            member = find_member(kind, owner, path, _PROVIDERS, caller)
            candidates = dict.fromkeys((*matching_uses, *([member] if member else [])))
            yield from dict.fromkeys(inherited_use(*item) for item in candidates)


def _uses_of_all(provider: str, text: str) -> Iterator[tuple[str, str, Use, dict[str, int]]]:
    """Yield the uses of a provider in all packages that contain a text, as (package, file, use, spans)."""
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
    if known in map(Version, versions) or not versions:
        return "", []
    changes = [f"{provider}>={item}" for item in newer[:1]] + [f"{provider}<={item}" for item in older[-1:]]
    if newer and older:
        return "", changes
    return "too old" if newer else "too new", changes


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
