"""Explain errors about missing names with the API index: the releases that have the name, and a change of release.

The name can be that of a module, an import, an attribute, an argument or a model type, for example. Errors about a
user's class that extends an indexed one are explained, too. If the log refuses each change, the finding has advice
without a command. `LoggedReleases` finds the releases in the logs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import takewhile

from packaging.requirements import Requirement

from diagnostics.api_index import query, store
from diagnostics.api_index.error_forms import ADVICE, normalize_message
from diagnostics.api_index.explain import (
    Explanation,
    LoggedFacts,
    explain_missing,
    explain_own_class,
)
from diagnostics.api_index.fitting_releases import fitting_changes
from diagnostics.api_index.packages import CALLERS
from diagnostics.findings import Certainty, Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install
from diagnostics.logs.prefixes import parse_line
from diagnostics.logs.tracebacks import exception_of
from diagnostics.triage import line_patterns
from diagnostics.triage.calling_code import (
    Frames,
    describe_caller,
    frames_of,
    package_of,
    without_wrappers,
)
from diagnostics.triage.log_facts import Hit, LogFacts
from diagnostics.triage.verdict import Diagnosis
from diagnostics.versions import in_range

_CODE = "CMP906"
# Part of the detail of a finding whose change another line of the log refuses.
REFUSED = "but the log shows code that requires"
_MAX_LINES, _MAX_WRAPPED, _SEARCHED_LINES = 20, 3, 2000
# Python before 3.10, and msgspec, print no class; the line that calls it has it.
_NO_CLASS = re.compile(r"(?:(?<![\w.])__init__\(\) got an u|\bU)nexpected keyword argument ('\w+'.*)")
# Parts of messages that a person reports in a sentence.
_MESSAGE = re.compile(line_patterns.MISSING_NAME)
# Python's form of a warning whose message goes on in the next line.
_WARNING = re.compile(r":\d+: \w*Warning: [^\n]*:(?: \[repeated [^\n]*)?\Z")
_PASTED_LINES = 100
# The end of a line may be cut off, inside the module; and Python names only the first module that is missing.
_CUT_MODULE = re.compile(r"(?:import name '\w+' from|No module named) '([\w.]+)'?$")
_FROM = re.compile(r"\s*from ([\w.]+) import ")
# The key of transformers' table of model types, whose KeyError does not say so.
_MODEL_TYPES, _KEY = "transformers/models/auto/configuration_auto.py", re.compile(r"KeyError: '([\w.-]+)'")
# The Python release of a report or of a path.
_PYTHON = re.compile(
    r"(?i)(?:\bpython(?: version)?\s{0,9}[:=]{0,2}\s{0,9}v?|/python(?=3\.\d+/(?:site|dist)-packages))"
    r"(3\.\d{1,2})(?![\d+])"
)
_IMPORT_ERROR = re.compile("cannot import name|No module named|Failed to import")
_CONSTRUCTED = re.compile(r"\b([A-Z]\w*)\(")
# A call with an argument whose name is to be filled in.
_CALL_WITH = r"\b([A-Z]\w{{0,80}})\((?:[^()]|\([^()]{{0,80}}\)){{0,400}}?\b{}="


def explain_missing_names(
    verdict: Diagnosis, required: Callable[[], Iterable[Requirement]] = tuple
) -> Iterator[Finding]:
    """Yield a finding for the first error about a missing name that the API index can explain.

    A proposed release fits the installed ones and the requirements, which `required` reads from the logs.
    """
    installed = LoggedReleases(verdict)
    logs = {log.source: log for log in verdict.logs}
    hits = [*verdict.anchors, *(hit for candidate in verdict.candidates for hit in candidate.hits)]
    hits = hits[:_MAX_LINES]
    if verdict.state != "clean":
        hits += [hit for log in verdict.logs for hit in _missing_name_lines(log)]
    # A title may repeat an error without its traceback.
    for hit in sorted(hits, key=lambda hit: not hit.traceback):
        if explanation := _explain_hit(hit, logs[hit.source], installed):
            yield _finding(_with_fitting_changes(explanation, installed, list(required())), hit)
            return


def _explain_hit(hit: Hit, log: LogFacts, installed: LoggedReleases) -> Explanation | None:
    """Explain a hit with the releases of the log; return None if the API index does not explain it."""
    frames, is_cut = _callers(hit, log)
    describe = partial(describe_caller, hit=hit, log=log, frames=frames, installed=installed)
    explanation = _explain(hit, log, frames, LoggedFacts(installed, describe_caller=describe))
    if explanation and is_cut and not explanation.caller:
        return replace(explanation, headline=f"{explanation.headline} {ADVICE['cut']}")
    return explanation


def _with_fitting_changes(
    explanation: Explanation, installed: LoggedReleases, required: list[Requirement]
) -> Explanation:
    """Return the explanation with changes that fit other packages, or with advice if the log refuses each change."""
    changes = fitting_changes(explanation.changes, installed, explanation.caller, required)
    python = next(iter(installed.pythons)) if len(installed.pythons) == 1 else ""
    first = Requirement(next(iter(changes), "x").partition(" ")[0])
    versions = [item for item in query.find_releases(first.name, "") if in_range(item, first.specifier)]
    ranges = [query.python_range(query.Release(first.name, item)) for item in versions if python]
    if ranges and not any(in_range(python, item) for item in ranges):
        advice = ADVICE["python"].format(changes[0], ranges[-1], python)
        return replace(explanation, changes=(), headline=f"{explanation.headline} {advice}", advice=advice)
    specifiers = [item.specifier for item in required if item.name == explanation.provider]
    bounds = [str(one) for specifier in specifiers for one in specifier if one.operator in {"<", "<=", "=="}]
    if changes or not explanation.changes or not bounds:
        is_narrower = any(" with " not in item for item in {*changes} - {*explanation.changes})
        further = ADVICE["further"] * (not explanation.code)
        narrowed = ADVICE["narrowed"].format(" or ".join(changes), further) * is_narrower
        return replace(explanation, changes=changes, headline=explanation.headline + narrowed)
    advice = ADVICE["refused"].format(explanation.changes[0], REFUSED, explanation.provider, bounds[0])
    return replace(explanation, changes=(), headline=f"{explanation.headline} {advice}", advice=advice)


class LoggedReleases(Mapping[str, str]):
    """Releases by package that the logs list as installed or, if none is listed, that a sentence names.

    For a package that triage does not report, the stored beginning of each log is searched, at most 2,000 lines.
    """

    def __init__(self, verdict: Diagnosis) -> None:
        self._known = {package: version for package, (version, _place) in verdict.versions.items()}
        self._logs = verdict.logs

    def __getitem__(self, package: str) -> str:
        return self._known[package] if package in self._known else self._searched_releases[package]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._searched_releases, **self._known})

    def __len__(self) -> int:
        return len({**self._searched_releases, **self._known})

    @cached_property
    def _lines(self) -> list[str]:
        lines = (map(parse_line, log.lines_from(1, _SEARCHED_LINES)) for log in self._logs)
        return [text for log in lines for text in line_patterns.join_releases([line.text for line in log])]

    @cached_property
    def _searched_releases(self) -> dict[str, str]:
        """Release by package that the first lines list or, if none lists it, a sentence names."""
        return self.written | self._listed_releases

    @cached_property
    def _listed_releases(self) -> dict[str, str]:
        """Release by package, from lines that list installed packages; the first line about a package counts."""
        names = line_patterns.pattern_of(store.indexed_packages())
        return dict(
            reversed([item for line in self._lines for item in line_patterns.installed_versions(line, names)])
        )

    @cached_property
    def pythons(self) -> frozenset[str]:
        """The Python releases, as in `3.12`, that the log shows."""
        lines = [line for line in self._lines if not line_patterns.is_advice(line)]
        return frozenset(_PYTHON.findall("\n".join(lines)))

    @cached_property
    def written(self) -> dict[str, str]:
        """Release by package that only a sentence names, if it is one release; it need not be the one in use."""
        stated = dict.fromkeys(item[:2] for item in self._named_releases if not item[2])
        count = Counter(name for name, _ in stated)
        reported = {*self._known, *self._listed_releases}
        return {name: release for name, release in stated if count[name] == 1 and name not in reported}

    @cached_property
    def _named_releases(self) -> list[tuple[str, str, bool]]:
        """(package, release, whether it is a lower bound) for the releases that sentences name."""
        names = line_patterns.pattern_of(store.indexed_packages())
        return [item for line in self._lines for item in line_patterns.written_versions(line, names)]


def _missing_name_lines(log: LogFacts) -> Iterator[Hit]:
    """Yield messages about missing names in the last lines or a whole short log; the exception's name may be absent."""
    stored = min(_MAX_LINES, log.tail.count(b"\n"))
    first = log.lines - stored + 1 if log.lines > _PASTED_LINES else 1
    for number, raw in enumerate(log.lines_from(first, _PASTED_LINES), first):
        line = parse_line(raw)
        is_message = exception_of(line.text) or _MESSAGE.search(normalize_message(line.text))
        if is_message and not line.is_harmless:
            before = "\n".join(log.lines_from(max(number - 2, 1), min(number - 1, 2)))
            if not _WARNING.search(before):
                yield log.hit(number, line.text, line.rank, before=f"{before}\n{line.prefix}".encode())


def _explain(hit: Hit, log: LogFacts, frames: Frames, facts: LoggedFacts) -> Explanation | None:
    """Explain the message of a hit, with the next lines if a terminal or web form wrapped it; or return None.

    The caller is the package of the innermost frame, of a frame outside of the provider, or of a hint in the line.
    """
    message, end = _message(hit), hit.traceback.end if hit.traceback else hit.line
    above = [line.strip() for line in log.lines_from(max(end - 2, 1), min(end - 1, 2)) if line.strip(" ^~")]
    source = (hit.traceback.source if hit.traceback else "") or "".join(above[-1:])
    message = _complete_message(message, source, log, frames)
    wrapped = [parse_line(line).text for line in log.lines_from(end + 1, _MAX_WRAPPED)]
    wrapped = list(takewhile(str.strip, wrapped))
    file = frames[-1][0] if frames else ""
    facts = replace(facts, caller=package_of(file) if file else "")
    texts = [message, "\n".join([message, *wrapped])]
    if message.count("'") % 2 and wrapped:
        texts.reverse()  # a quoted name goes on in the next line
    explanations = ((text, explain_missing(text, facts)) for text in dict.fromkeys(texts))
    text, explanation = next((item for item in explanations if item[1]), (message, None))
    if explanation is None:
        return explain_own_class(message, facts)
    if explanation.caller == explanation.provider:
        if not explanation.releases.having and "argument" not in message:
            return explanation
        # The frame that called into the provider's own code.
        packages = (package_of(path) for path, _ in reversed(frames))
        outer = next((package for package in packages if package != facts.caller), "")
        outer = outer if outer in store.indexed_packages() else ""
        return explain_missing(message, replace(facts, caller=outer))
    if explanation.caller:
        return explanation
    # The package that the last frame's line imports, or one whose release in the log uses the name.
    imported = re.match(r"\s*(?:from|import) (\w+)", source if hit.traceback else "")
    hints = [query.package_of(imported[1])] if imported else []
    users = {item.package: item.versions for item in explanation.callers}
    if not frames:
        hints += [package for package, versions in users.items() if facts.installed.get(package) in versions]
    called = next((hint for hint in hints if hint in users and hint != explanation.provider), "")
    return explain_missing(text, replace(facts, caller=called)) if called else explanation


def _complete_message(message: str, source: str, log: LogFacts, frames: Frames) -> str:
    """Return a message with what the log shows besides: the called class, a model type, or the whole module.

    The line `source` has the call.
    """
    if match := _NO_CLASS.search(message):
        text = "\n".join(log.lines_from(1, _SEARCHED_LINES))
        calls = _CONSTRUCTED.findall(source), re.findall(_CALL_WITH.format(match[1].split("'")[1]), text)
        if owner := next((names.pop() for names in map(set, calls) if len(names) == 1), ""):
            return f"{message[: match.start()]}{owner}() got an unexpected keyword argument {match[1]}"
    if frames and frames[-1][0].endswith(_MODEL_TYPES) and (key := _KEY.match(message)):
        return f"The checkpoint has model type '{key[1]}' but Transformers does not recognize it"
    module, cut = _FROM.match(source), _CUT_MODULE.search(message)
    if cut and module and module[1].startswith(cut[1]):
        return f"{message[: cut.start(1)]}{module[1]}'"
    return message


def _message(hit: Hit) -> str:
    return f"{hit.traceback.type}: {hit.traceback.message}" if hit.traceback else hit.text


def _callers(hit: Hit, log: LogFacts) -> tuple[list[tuple[str, str]], bool]:
    """Return the frames of a hit without those at the end that only pass a call or an access on to other code.

    A lazy import hides the importing frame, so such a hit has no frames. Neither has one whose last frames are cut off,
    which the second value says.
    """
    frames = frames_of(hit.traceback, log) if hit.traceback else []
    callers = without_wrappers(frames)
    is_import = _IMPORT_ERROR.search(_message(hit))
    is_cut = _is_cut(hit, callers)
    return [] if (is_import and len(callers) < len(frames)) or is_cut else callers, is_cut


def _is_cut(hit: Hit, callers: Frames) -> bool:
    """Return whether a traceback lacks the frame that failed: it is cut off, or a launcher raised it again.

    The line of a failed import has `import` or the name, unless it is the last of several lines, or in a box of rich.
    """
    traceback = hit.traceback
    if not traceback or " is already used by " in _message(hit):  # transformers itself raises it
        return False
    if not callers or traceback.is_cut:
        return traceback.is_cut
    source = traceback.source.strip()
    if _IMPORT_ERROR.search(_message(hit)):
        names = [*re.findall(r"'(\w+)'", _message(hit))[:1], "import"]
        is_call = not traceback.boxed and re.search(r"\w\(|=|^return\b", source)
        return bool(is_call) and not any(name in source for name in names)
    return source.startswith("raise ") and package_of(callers[-1][0]) in CALLERS["launchers"]


def _finding(explanation: Explanation, hit: Hit) -> Finding:
    """Return the explanation as a finding, with its uses as evidence and a certainty by what is known."""
    certainty = Certainty.HYPOTHESIS if explanation.is_uncertain else Certainty.SUPPORTED
    is_guess = explanation.code.startswith("Probably") or ADVICE["further"] in explanation.headline
    if explanation.direction and explanation.releases.installed and not is_guess:
        certainty = Certainty.ESTABLISHED
    # Without a file that uses the name, the indexed packages that use it are likely.
    is_known = explanation.caller or explanation.is_open or explanation.is_use_shown
    title = explanation.headline if is_known else explanation.sentences
    evidence = [Evidence(hit.quoted, hit.location)]
    evidence += [
        Evidence(f"{item.package} uses {explanation.subject}", item.location) for item in explanation.callers
    ]
    return Finding(
        _CODE,
        title,
        Severity.ERROR,
        certainty,
        "static",
        explanation.sentences,
        tuple(evidence),
        _fix(explanation),
    )


def _fix(explanation: Explanation) -> Fix:
    """Return the change of one release, as a command if one range is possible; else advice."""
    caller, provider = explanation.calling_package, explanation.provider
    if not explanation.changes:
        return Fix.of(explanation.advice)
    text = " or ".join(explanation.changes)
    of_provider = [change for change in explanation.changes if change.startswith(provider)]
    # Of several ranges the log does not show which one is meant.
    text += f", with {explanation.engine} if vLLM is installed" if explanation.engine else ""
    is_one = len(of_provider) < 2 and " with " not in text and not explanation.is_uncertain
    commands = [Install(explanation.changes[:1])] if is_one else []
    if explanation.override:
        text += f"; or let {explanation.override} accept what {provider} passes"
    elif len(of_provider) == len(explanation.changes) and caller != provider:
        side = {"too new": "a newer", "too old": "an older"}.get(explanation.direction, "another")
        text += f"; or take {side} release of {caller or 'the calling code'}"
    if explanation.advice in explanation.headline:
        return Fix.of(f"{explanation.advice} Or change one release: {text}.")
    return Fix.of(f"Change one release: {text}.", *commands)
