"""Format the evidence on whether two releases work together, for `versions` and for doctor's findings.

`pair_text` returns one line, `evidence_lines` yields all lines, and `mark_of` returns the mark in a table.
"""

from collections.abc import Iterator

from diagnostics.api_index.query import Compatibility
from diagnostics.fixes import join_some

AT_IMPORT, WHEN_CALLED = "at import", "when called"
_MAX_NAMES = 2
_RUN_TEXTS = {"ran": "ran on a CPU", "part": "ran in part", "fails": "the table says that it does not work"}


def pair_text(pair: Compatibility) -> str:
    """Return the evidence on a pair of releases and its missing names as one line."""
    return "; ".join([*evidence_lines(pair), *missing_lines(pair)])


def mark_of(pair: Compatibility) -> str:
    """Return ✘ for a contradicted pair, ? if it was not checked, ! if parts of a GRPO run may fail, else ✔."""
    return {False: "✘", None: "?", True: "!" if pair.limits_grpo else "✔"}[pair.fits]


def run_text(pair: Compatibility) -> str:
    """Return whether a pair ran, and the codes of what failed."""
    failed = f"; failed there: {', '.join(pair.run_failures)}" if pair.run_failures else ""
    return f"{_RUN_TEXTS[pair.run]}{failed}" if pair.run else "not run"


def evidence_lines(pair: Compatibility, *, with_names: bool = True) -> Iterator[str]:
    """Yield lines of evidence on a pair of releases: published run, declared ranges, age, conflicts, and names.

    The line on names says that none is missing, or that the index lacks them; `missing_lines` returns missing ones.
    Without `with_names`, it is left out if ranges, a run or a conflict exclude the pair, and conflicts are left out if
    the ranges do.
    """
    if pair.fits is None:
        yield f"not checked: the index has no requirement or code of {pair.user.package} for {pair.provider.package}"
        return
    if pair.run:
        yield run_text(pair)
    if pair.declared:
        word = {
            True: "declared",
            False: "outside the declared range",
            None: "allowed by one extra, not by another",
        }[pair.allowed]
        yield f"{word}: {pair.provider.package}{', '.join(pair.declared)}"
    else:
        yield f"{pair.user.package} declares no range of {pair.provider.package}"
    if pair.is_later:
        yield f"{pair.provider} appeared more than a month later"
    if pair.allowed is False and not with_names:
        return
    yield from (f"conflict: {text}" for text in pair.conflicts)
    if clash := pair.known_failure:
        code = f" ({clash.code})" if clash.code else ""
        yield f"{clash.package}{clash.versions} fails with {clash.companion}{clash.companion_versions}{code}"
    if with_names or not pair.excluded:
        if pair.names is None:
            yield "names: not in the index"
        elif not pair.names.missing:
            yield "no missing names"


def missing_lines(pair: Compatibility, *moments: str, with_names: bool = True) -> list[str]:
    """Return the lines on names that a pair lacks at these moments (AT_IMPORT, WHEN_CALLED; both if none is given).

    A name that both packages register clashes, and is listed as well. Without `with_names`, there are no lines for an
    excluded pair.
    """
    lines: list[str] = []
    for moment in () if pair.excluded and not with_names else moments or (AT_IMPORT, WHEN_CALLED):
        items = pair.at_import if moment == AT_IMPORT else pair.when_called
        clashes = [item for item in items if item.use.kind == "registered"]
        lines += [f"fails {moment}: {item.use.text} ({item.location}): {item.why}" for item in clashes]
        # The first use of each name, because in a dict the last entry of a key wins.
        names = {item.use.text: item.location for item in reversed(items) if item not in clashes}
        texts = [f"{name} ({location})" for name, location in reversed(names.items())]
        files = {item.use.file for item in pair.missing_in_grpo if item in items and moment == WHEN_CALLED}
        serving = files == {"trl/scripts/vllm_serve.py"}
        effect = "`trl vllm-serve` fails: " if serving else "a GRPO run fails: " if files else ""
        if items and all(item.use.file.startswith("trl/experimental/") for item in items):
            effect = "only experimental trainers fail: "
        lines += [f"{effect}missing {moment}: {join_some(texts, _MAX_NAMES)}"] if texts else []
    return lines
