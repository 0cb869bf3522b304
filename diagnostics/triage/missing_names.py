"""Explain errors about missing names with the API index: the releases that have the name, and the smallest change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diagnostics.api_index import query, store
from diagnostics.api_index.explain import Explanation, explain_missing
from diagnostics.findings import Certainty, Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install
from diagnostics.logs.prefixes import clean
from diagnostics.triage.model import Hit
from diagnostics.triage.verdict import Diagnosis

_CODE = "CMP906"
_MAX_LINES, _MAX_WRAPPED = 20, 3


def explain_missing_names(verdict: Diagnosis) -> Iterator[Finding]:
    """Yield a finding for the first error in the logs about a missing name of an indexed package."""
    installed = {package: version for package, (version, _place) in verdict.versions.items()}
    logs = {log.source: log for log in verdict.logs}
    hits = [*verdict.anchors, *(hit for candidate in verdict.candidates for hit in candidate.hits)]
    for hit in hits[:_MAX_LINES]:
        message = f"{hit.traceback.type}: {hit.traceback.message}" if hit.traceback else hit.text
        end = hit.traceback.end if hit.traceback else hit.line
        # A terminal or a web form may have wrapped the message.
        log = logs.get(hit.source)
        wrapped = [clean(line).text for line in log.lines_from(end + 1, _MAX_WRAPPED)] if log else []
        caller = package_of(hit.traceback.frames[-1][0]) if hit.traceback and hit.traceback.frames else ""
        texts = (message, "\n".join([message, *wrapped]))
        explanations = (explain_missing(text, installed, caller) for text in dict.fromkeys(texts))
        explanation = next(filter(None, explanations), None)
        if explanation and explanation.caller == explanation.provider and not _is_written_in(hit, message):
            explanation = explain_missing(message, installed)
        if explanation:
            yield _finding(explanation, hit)
            return


def _is_written_in(hit: Hit, message: str) -> bool:
    """Return whether the last frame's line itself has the argument that a message names.

    vLLM's `LLM` passes the caller's keywords on to `EngineArgs`, so that frame is in vLLM and the mistake is not.
    """
    name = re.search(r"argument '(\w+)'", message)
    return bool(name and hit.traceback and name[1] in hit.traceback.source)


def package_of(path: str) -> str:
    """Return the package that a file belongs to; '' if its path does not show that.

    >>> package_of("/opt/env/site-packages/trl/import_utils.py"), package_of("/src/verl/verl/protocol.py")
    ('trl', 'verl')
    """
    packages = {query.module_of(name): name for name in store.indexed_packages()}
    path = path.replace("\\", "/")
    for mark in ("site-packages/", "dist-packages/"):
        if mark in path:
            module = path.rpartition(mark)[2].partition("/")[0]
            return packages.get(module, module)
    parts = path.removesuffix(".py").split("/")
    for start in range(len(parts) - 2, 0, -1):
        index = store.load(packages.get(parts[start], ""))
        # A folder of the user may have the same name.
        if index and ".".join(parts[start:]) in index.about["modules"]:
            return packages[parts[start]]
    return ""


def _finding(explanation: Explanation, hit: Hit) -> Finding:
    certain = bool(explanation.direction and explanation.installed)
    evidence = [Evidence(hit.text, hit.location)]
    evidence += [
        Evidence(f"{item.package} uses {explanation.subject}", item.place) for item in explanation.callers
    ]
    if explanation.changes:
        text = " or ".join(explanation.changes)
        packages = {explanation.provider, *(item.package for item in explanation.callers)}
        if explanation.caller and explanation.caller not in packages:
            text += f"; or take another release of {explanation.caller}"
        of_provider = [change for change in explanation.changes if change.startswith(explanation.provider)]
        # Of several ranges the log does not show which one is meant.
        commands = [Install(explanation.changes[:1])] if len(of_provider) < 2 else []
        fix = Fix.of(f"Change one release: {text}.", *commands)
    elif explanation.elsewhere:
        fix = Fix.of(explanation.elsewhere)
    elif explanation.installed in explanation.versions:
        fix = Fix.of(
            f"By the index this release fits: check which {explanation.provider} the process imports."
        )
    elif explanation.caller in {"", explanation.provider}:
        fix = Fix.of(
            f"Remove it from the call, or take the {explanation.provider} for which the code was written."
        )
    else:
        fix = Fix.of(
            f"Take a {explanation.caller} and a {explanation.provider} that were made for each other:"
            f" pip show {explanation.caller} lists its requirements."
        )
    return Finding(
        _CODE,
        explanation.headline,
        Severity.ERROR,
        Certainty.ESTABLISHED if certain else Certainty.SUPPORTED,
        "static",
        explanation.sentences,
        tuple(evidence),
        fix,
    )
