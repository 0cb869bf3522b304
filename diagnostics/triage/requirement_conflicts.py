"""Explain requirements that pip, uv or an exception's message reports as unmet, and find releases that satisfy them.

`explain_conflicts` reads the first 64 KiB of each log, and in them at most 2,000 lines. If these state none and the
failure is not known, it compares the logged releases with the requirements in the packages' metadata. `stated_ranges`
yields the requirements that exceptions and warnings state.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, pairwise, permutations
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from diagnostics.api_index import query
from diagnostics.api_index.packages import PACKAGES as INDEXED
from diagnostics.findings import Certainty, Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install
from diagnostics.frameworks import PACKAGES
from diagnostics.logs.prefixes import parse_line
from diagnostics.logs.tracebacks import Traceback
from diagnostics.triage.calling_code import frames_of, package_of
from diagnostics.triage.line_patterns import fill_pattern, pattern_of
from diagnostics.triage.log_facts import LogFacts
from diagnostics.triage.missing_names import LoggedReleases
from diagnostics.triage.verdict import Diagnosis
from diagnostics.versions import in_range, newest, parse_specifier, parse_version

_CODE = "CMP904"
_NAME = r"(?<![A-Za-z0-9_.-])[A-Za-z0-9][A-Za-z0-9_.-]{0,80}"
# Each operator is matched in one way only: two ways for each of forty take 2**40 steps.
_RANGE = r"(?:(?:[<>!~]=?|={1,3}) ?[A-Za-z0-9_.*+-]{1,40}(?:(?:, ?| and )(?=[<>=!~]))?){0,40}"
_REQUIREMENT = rf"(?P<name>{_NAME}?)(?:\[[\w,.-]{{1,80}}\])? ?(?P<range>{_RANGE})"
_UV_START, _UV_REST = re.compile(r"\s*(?:╰─▶ Because|And because) "), re.compile(r" {6}(?! *And because )")
_UV_MARKER = re.compile(r"\{[^{}]{1,200}\}")
# Time and step of a docker build.
_BUILD_STEP = re.compile(r"(?:#\d+ )?\d+\.\d+ (?=\s|[A-Z])")
# Other packages call this file of transformers, too.
_VERSION_CHECK = "transformers/utils/versions.py"
_WARNED = re.compile(r"(?i)\bplease (?:upgrade|downgrade|install)\b.{1,200}\bfound \d")
_TITLES = {"pytorch": "torch"}
_LOWER_BOUNDS = {">=", ">"}
_NOT_INSTALLED, _NO_MODULE = "none", re.compile(r"No module named '(\w+)")
_KNOWN = pattern_of((*INDEXED, *PACKAGES, *_TITLES))
_PACKAGE = rf"(?<![\w./-])`?(?P<name>{_KNOWN})`?"
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_DEMAND, _FOUND, _RAISED = (re.compile(_TABLE[key]) for key in ("demand", "found", "raised_line"))
_SIDES = {side: re.compile(words) for side, words in _TABLE["sides"].items()}


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of the TOML file."""
    forms = {"NAME": _NAME, "RANGE": _RANGE, "REQUIREMENT": _REQUIREMENT, "KNOWN": _KNOWN}
    return re.compile(fill_pattern(pattern, forms | {"PACKAGE": _PACKAGE}))


_UV, _UV_MISSING, *_PATTERNS = map(_compile, (_TABLE["uv"], _TABLE["uv_missing"], *_TABLE["lines"]))
_SEARCHED, _STATED = ([[*map(_compile, pair)] for pair in _TABLE[key]] for key in ("texts", "raised"))
_REWORDED = [(_compile(item["pattern"]), item["as_pip"]) for item in _TABLE["reworded"]]
_MAX_LINES, _MAX_EVIDENCE, _MAX_SENTENCE, _MAX_FITTING = 2000, 8, 4000, 20
# Checks of a release against a specifier, which take about a microsecond each; known logs need some hundred.
_MAX_CHECKS = 200_000


@dataclass(frozen=True)
class StatedRequirement:
    """A requirement on a package, and where the log shows it.

    Attributes:
        user: The package and release that requires it; '' if the user or an unknown program does.
        found: The installed release; `none` if the log shows that there is none; '' if it is unknown.
        offered: A sentence on the releases that the installer offers instead; '' if the log does not report them.
    """

    user: str
    name: str
    specifier: SpecifierSet
    found: str
    evidence: Evidence
    offered: str = ""
    is_raised: bool = False
    """Whether an exception's message states it."""
    is_warning: bool = False
    """Whether a line without an exception states it, so that it counts only with another requirement on the package."""

    @property
    def package(self) -> str:
        """The package that requires it; '' if the user or an unknown program does."""
        return self.user.partition(" ")[0]

    @property
    def is_unmet(self) -> bool:
        """Whether the log reports that the installed packages do not satisfy it."""
        is_reported = " requires " in self.evidence.text and " depends on " not in self.evidence.text
        return bool(self.found or self.offered) or self.is_raised or is_reported

    def __str__(self) -> str:
        user = self.user or ("the program" if self.is_raised else "the command")
        text = f"{user} requires {self.name}{self.specifier}"
        if self.offered:
            text = text if self.user else f"{self.name}{self.specifier} is required"
            return f"{text}, but {self.offered}"
        if self.found == _NOT_INSTALLED:
            return f"{text}, which is not installed"
        return f"{text}, found {self.found}" if self.found else text


def explain_conflicts(verdict: Diagnosis) -> Iterator[Finding]:
    """Yield a finding for the requirements that the logs report as not met or not solvable.

    If there are none, and the failure is not known, yield hypotheses from the metadata of the packages in the logs.
    """
    installed = LoggedReleases(verdict)
    found = (requirement for log in verdict.logs for requirement in _read_requirements(log, installed))
    requirements = list(dict.fromkeys(found))
    if verdict.state != "known":
        requirements += [item for log in verdict.logs for item in _missing_packages(log, installed)]
    # Of those that pip lists after an installation, the ones of the training stack matter.
    of_stack = [item for item in requirements if not item.is_unmet or _is_of_stack(item)]
    failed = any(log.failures or log.errors for log in verdict.logs)
    requirements = of_stack if failed else of_stack or requirements
    by_name: dict[str, list[StatedRequirement]] = {}
    for requirement in requirements:
        by_name.setdefault(requirement.name, []).append(requirement)
    # Without an installed release, only two requirements on one package are a conflict.
    conflicts = [items for items in by_name.values() if len(items) > 1 or items[0].is_unmet]
    conflicts = [items for items in conflicts if not all(item.is_warning for item in items)]
    if not conflicts:
        if verdict.state not in {"known", "clean", "empty"}:
            yield from _unmet_requirements(verdict)
        return
    first = conflicts[0][:1] if conflicts[0][0].is_unmet else conflicts[0][:2]
    more = sum(map(len, conflicts)) - len(first)
    title = "; ".join(map(str, first)) + (f"; and {more} more." if more else ".")
    changes, steps, checks = [], [], 0
    for stated in conflicts:
        if step := _step_without_range(stated):
            steps.append(step)
            continue
        items = [*stated, *_broken_requirements(stated, installed)]
        solution, more_checks = _solve(items, _MAX_CHECKS - checks)
        checks += more_checks
        if solution:
            changes.append(solution)
        elif solution is None:
            steps.append(f"Not searched for a release, because of too many requirements: {items[0].name}.")
        else:
            steps.append(_without_solution(items[:_MAX_FITTING]))
    fix = [f"Install releases that fit together: {' '.join(changes)}."] if changes else []
    if fix and len(conflicts) == 1 and first[0].found not in {"", _NOT_INSTALLED}:
        fix.append(_other_side(first[0]))
    # The package index has no builds with a suffix such as +cu121.
    installable = tuple(change for change in changes if "+" not in change)
    yield Finding(
        _CODE,
        title,
        Severity.ERROR,
        Certainty.ESTABLISHED,
        "static",
        " ".join([title, *steps]),
        tuple(item.evidence for items in conflicts for item in items)[:_MAX_EVIDENCE],
        Fix.of(" ".join(filter(None, [*fix, *steps])), *([Install(installable)] if installable else [])),
    )


def _other_side(item: StatedRequirement) -> str:
    """Return a sentence on the release of the user that allows the found release; '' if no indexed one does."""
    user, found = item.package or "the program", item.found
    if str(item.specifier) == f">{found}":
        return f"If {user} excludes it, take a newer release of {user}."
    package = canonicalize_name(user)
    releases = (query.Release(package, text) for text in query.find_releases(package, ""))
    pairs = [query.compatibility(it, query.Release(item.name, found)) for it in releases]
    declared = [pair for pair in pairs if query.plain_ranges(pair.user, item.name)]
    in_use, needed = parse_version(item.user.partition(" ")[2]), [one.version for one in item.specifier]
    # A package that must allow a newer release is newer itself.
    is_newer = all(Version(found).release >= Version(text.removesuffix(".*")).release for text in needed)
    allowing = [
        pair
        for pair in declared
        if pair.allowed and (in_use is None or (Version(pair.user.version) > in_use) is is_newer)
    ]
    release = next(
        (f"{user} {pair.user.version}" for pair in allowing if not pair.is_later), f"a release of {user}"
    )
    return f"Or take {release} for {item.name} {found}." if allowing or not declared else ""


def _broken_requirements(
    stated: list[StatedRequirement], installed: Mapping[str, str]
) -> Iterator[StatedRequirement]:
    """Yield the requirements of other logged packages that the found release meets, and a change may break."""
    unmet, users = stated[0], {item.package for item in stated}
    parts = [one for item in stated for one in item.specifier]
    pins = [one.version for one in parts if one.operator == "=="]
    needs_newer = all(one.operator in _LOWER_BOUNDS for one in parts)
    for user, release in installed.items() if unmet.found else ():
        known = {release, Version(release).base_version} & {*query.find_releases(user, "")}
        ranges = (one for item in known for one in query.plain_ranges(query.Release(user, item), unmet.name))
        for specifier in ranges if user not in {unmet.name, *users} else ():
            is_lower_bound = all(one.operator in _LOWER_BOUNDS for one in specifier)
            is_kept = (
                all(in_range(pin, specifier) for pin in pins) if pins else needs_newer and is_lower_bound
            )
            if in_range(unmet.found, specifier) and not is_kept:
                yield StatedRequirement(f"{user} {release}", unmet.name, specifier, "", unmet.evidence)


def stated_ranges(verdict: Diagnosis) -> Iterator[Requirement]:
    """Yield the requirements that exceptions and warnings in the logs state."""
    for log in verdict.logs:
        for item in _read_requirements(log, {}):
            if item.is_raised or item.is_warning or (item.found and not item.user):
                yield Requirement(f"{item.name}{item.specifier}")


def _unmet_requirements(verdict: Diagnosis) -> Iterator[Finding]:
    """Yield a hypothesis for each logged release that the metadata of another logged release excludes."""
    for user, (version, place) in verdict.versions.items():
        for name, ranges in query.requirements_of(query.Release(user, version)).items():
            installed_release, found_place = verdict.versions.get(name, ("", ""))
            needed = SpecifierSet(",".join(str(specifier) for specifier, extra in ranges if not extra))
            if not installed_release or in_range(installed_release, needed):
                continue
            present = Evidence(f"{name} {installed_release}", found_place)
            unmet = StatedRequirement(f"{user} {version}", name, needed, installed_release, present)
            yield Finding(
                _CODE, f"{unmet}.", Severity.WARNING, Certainty.HYPOTHESIS, "declared", f"{unmet}.",
                (present, Evidence(f"{user} {version}", place)),
                Fix.of(f"If this is the cause, install {name}{needed}."),
            )  # fmt: skip


def _step_without_range(items: list[StatedRequirement]) -> str:
    """Return what to do about requirements that no range of releases of the package would satisfy; '' for others."""
    first = items[0]
    if unavailable := next((item for item in items if item.offered), None):
        return _without_distribution(unavailable)
    if first.name == "python":
        return f"Use Python {first.specifier}, or take a release of {first.package} for Python {first.found}."
    excludes = all(re.fullmatch("!=[^,]+", str(item.specifier)) for item in items)
    return f"Take a {first.name} that {first.package or 'the program'} supports." if excludes else ""


def _without_distribution(item: StatedRequirement) -> str:
    """Return what to do if a required release does not exist, or has no file for this Python and platform."""
    other_release = _other_release(item, re.findall(r"\d[\w.+]*", item.offered))
    user = item.package or "what requires it"
    change = f"take another release of {user}{f', such as {other_release}' if other_release else ''}."
    if not item.offered.startswith("pip"):
        return change.capitalize()
    other = f"Use a Python version and a platform for which {item.name}{item.specifier} has a file"
    if ".dev" in str(item.specifier):
        other = "Add the package index of this development build (pip --extra-index-url)"
    return f"{other}, or {change}"


def _other_release(item: StatedRequirement, versions: list[str]) -> str:
    """Return the newest release of the requirement's user whose range allows one of the versions; '' if none does."""
    user = canonicalize_name(item.package)
    for release in query.find_releases(user, "") if versions else ():
        plain = query.plain_ranges(query.Release(user, release), item.name)
        if plain and any(all(in_range(text, specifier) for specifier in plain) for text in versions):
            return f"{user} {release}"
    return ""


def _without_solution(items: list[StatedRequirement]) -> str:
    """Return a sentence on requirements that no release satisfies, with a release of one side that fits the others."""
    fitting = []
    for item in items:
        other_ranges = SpecifierSet(",".join(str(other.specifier) for other in items if other is not item))
        versions = [text for text in query.find_releases(item.name, "") if in_range(text, other_ranges)]
        fitting.append(_other_release(item, versions[:_MAX_FITTING]))
    advice = f" {' or '.join(filter(None, fitting))} fits the other side." if any(fitting) else ""
    for needless, user in permutations({item.user: None for item in items if item.user}, 2):
        name, (package, _, release) = needless.partition(" ")[0], user.partition(" ")
        required = [item for item in query.find_releases(package, "") if _requires(package, name, item)]
        if required and release not in required and query.find_releases(package, release):
            advice += _TABLE["needless"].format(name=name, user=package, release=release, last=required[0])
    return f"No release satisfies all: {'; '.join(map(str, items))}.{advice}"


def _is_of_stack(requirement: StatedRequirement) -> bool:
    """Return whether the user, an exception or a package of the training stack states it."""
    user = canonicalize_name(requirement.package)
    uses = INDEXED[user].uses if user in INDEXED else ()
    return not user or requirement.is_raised or user in PACKAGES or bool(uses)


def _requires(user: str, name: str, version: str = "") -> bool:
    """Return whether a release of a package, the newest if none is named, requires another one."""
    releases = (query.Release(user, version) for version in query.find_releases(user, version)[:1])
    return any(query.requirements_of(release).get(canonicalize_name(name)) for release in releases)


def _solve(requirements: list[StatedRequirement], max_checks: int) -> tuple[str | None, int]:
    """Find a range that satisfies all requirements, or all but the user's own.

    Args:
        requirements: Requirements on one package.
        max_checks: Number of checks of a release against a specifier that may be made.

    Returns:
        The range, '' if there is none or None if `max_checks` are too few to know, and the number of checks.
    """
    name, checks = requirements[0].name, 0
    for items in (requirements, [item for item in requirements if item.user or item.is_raised]):
        ranges = {str(item.specifier): None for item in items if str(item.specifier)}
        combined = SpecifierSet(",".join(ranges))
        if not str(combined) or (len(ranges) == 1 and items is requirements):
            return f"{name}{combined}", checks
        releases = query.find_releases(name, "")
        bounds = [item.version.removesuffix(".*") for item in combined]
        above = [f"{bound}.1" for bound in bounds if not releases and "+" not in bound]
        for version in (*releases, *bounds, *above):
            checks += len(combined)
            if checks > max_checks:
                return None, checks
            if combined.contains(version, prereleases=True):
                return (f"{name}{combined}" if items is requirements else f"{name}=={version}"), checks
    return "", checks


def _read_requirements(log: LogFacts, installed: Mapping[str, str]) -> Iterator[StatedRequirement]:
    """Yield the requirements in the stored first lines of a log, unless the release in the line meets them."""
    failures = {failure.end: failure for failure in log.failures}
    for (number, text), (_, below) in pairwise([*_joined_lines(log), (0, "")]):
        evidence = Evidence(text.strip(), f"{log.source}:{number}")
        pip_text = text.lstrip("`>*-").removeprefix("ERROR: ").replace(" ,!=", ",!=")
        for wording, replacement in _REWORDED:
            pip_text = wording.sub(replacement, pip_text)
        matches = [match for pattern in _PATTERNS if (match := pattern.match(pip_text))]
        searched = (pattern for hint, pattern in _SEARCHED if hint.search(text))
        matches = matches or [match for pattern in searched for match in pattern.finditer(text)]
        is_raised = number in failures or bool(_RAISED.search(text))
        is_warning = not is_raised and bool(_WARNED.search(text))
        if (is_raised or is_warning) and not matches:
            user = _raising_package(failures.get(number), log)
            texts = [text, *([f"{text} {below.strip()}"] if is_raised and text.endswith(".") else [])]
            further = f"{text} {below}"
            stated = (
                it for one in texts for it in _raised_requirements(one, further, user, evidence, installed)
            )
            yield from (replace(item, is_warning=is_warning) for item in islice(stated, 1))
        missing = [(match["name"], match["range"]) for match in _UV_MISSING.finditer(text)]
        for match in matches or (_UV.finditer(text) if " depends on " in text else ()):
            groups = match.groupdict()
            user = (groups.get("user") or "") + (groups.get("extra") or "")
            user = " ".join(filter(None, (user, groups.get("version"))))
            # Other packages call that function of transformers, too, for packages that it does not require.
            if text != pip_text and user == "transformers" and not _requires(user, groups["name"]):
                user = _raising_package(failures.get(number), log)
            specifier = parse_specifier(groups["range"].strip(" ,").replace(" and ", ","))
            name = canonicalize_name(groups.get("name", "python"))
            release = groups.get("found") or (installed.get(name, "") if is_raised else "")
            offered = _describe_offered(groups, (groups.get("name"), groups["range"]) in missing)
            is_absent = " was not found and is required by " in match[0]
            if specifier is not None and (is_absent or not in_range(release, specifier)):
                raised = is_raised or "demand" in groups
                yield StatedRequirement(user, name, specifier, release, evidence, offered, raised)


def _missing_packages(log: LogFacts, installed: Mapping[str, str]) -> Iterator[StatedRequirement]:
    """Yield the requirements of indexed packages whose import of a required package failed, because it is missing."""
    for failure in log.failures:
        match, user = _NO_MODULE.match(failure.message), _raising_package(failure, log)
        if match is None or user not in INDEXED or query.package_of(match[1]) == user:
            continue
        module, release = canonicalize_name(match[1]), installed.get(user, "")
        releases = [release] if release else query.find_releases(user, "")
        all_ranges = (query.requirements_of(query.Release(user, item)) for item in releases)
        required = ((name, items) for ranges in all_ranges for name, items in ranges.items())
        for name, items in islice((item for item in required if _module_name(item[0]) == module), 1):
            specifier = min(items, key=lambda item: item[1])[0] if release else SpecifierSet()
            evidence = Evidence(f"{failure.type}: {failure.message}", f"{log.source}:{failure.end}")
            requirer = f"{user} {release}".rstrip()
            yield StatedRequirement(requirer, name, specifier, _NOT_INSTALLED, evidence, is_raised=True)


def _module_name(package: str) -> str:
    return query.module_of(package).replace("_", "-")


def _raising_package(failure: Traceback | None, log: LogFacts) -> str:
    """Return the package of the last frame, without transformers' function for such checks; '' if it is unknown."""
    frames = reversed(frames_of(failure, log) if failure else [])
    return next((package_of(path) for path, _ in frames if not path.endswith(_VERSION_CHECK)), "")


def _joined_lines(log: LogFacts) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of the first lines; a sentence of uv that it wrapped is one text."""
    start, sentence = 0, ""
    for number, raw in enumerate([*log.lines_from(1, _MAX_LINES), ""], 1):
        text = parse_line(raw).text
        text = text[match.end() :] if (match := _BUILD_STEP.match(text)) else text
        if sentence and _UV_REST.match(text) and len(sentence) < _MAX_SENTENCE:
            sentence = f"{sentence} {_UV_MARKER.sub('', text.strip())}"
            continue
        if sentence:
            yield start, _UV_MARKER.sub("", sentence)
        start, sentence = (number, text) if _UV_START.match(text) else (0, "")
        if not sentence:
            yield number, text


def _describe_offered(groups: Mapping[str, str | None], is_missing: bool) -> str:
    """Return in words what an installer offers instead of a required release; '' if the log does not say it."""
    listed = [item for item in (groups.get("offered") or "").split(", ") if item and item != "none"]
    if listed:
        span = listed[0] if len(listed) == 1 else f"{listed[0]} to {listed[-1]}"
        return f"pip offers {span} for this Python and platform"
    if groups.get("offered"):
        return "pip offers no release for this Python and platform"
    return "the package index has no such release" if is_missing else ""


def _raised_requirements(
    text: str, advice: str, user: str, evidence: Evidence, installed: Mapping[str, str]
) -> Iterator[StatedRequirement]:
    """Yield the first requirement on a known package that an exception's message states, unless it is met.

    If the message only names a release that does not fit, words of `advice` say whether a newer one does.
    """
    demand = re.search(r"(?i)\b(?:needs|requires) ", text)  # a release before that is the one in use
    for pattern in (pattern for hint, pattern in _STATED if hint.search(text)):
        match = pattern.search(text, demand.end() if demand else 0) or pattern.search(text)
        if match is None or not ("found" in pattern.groupindex or _DEMAND.search(text)):
            continue
        # A sentence may end after a version.
        groups = {key: (value or "").rstrip(".") for key, value in match.groupdict().items()}
        title = canonicalize_name(groups["name"])
        name = _TITLES.get(title, title)
        stated = groups.get("found") or next(iter(_FOUND.findall(text[match.end() :])), "").rstrip(".")
        release, least = stated or installed.get(name, ""), groups.get("least")
        listed = newest(re.findall(r"\d[\w.]*\d", groups.get("listed", "")))
        stated_range = f">={least}" if least else f"=={listed}" if listed else groups.get("range")
        sides = [side for side, words in _SIDES.items() if words.search(advice)]
        specifier = parse_specifier(stated_range or f"{sides[0] if len(sides) == 1 else '!='}{release}")
        if specifier is None:
            continue
        if name != user and not in_range(release, specifier):
            yield StatedRequirement(user, name, specifier, release, evidence, is_raised=True)
        return
