"""Answer `versions PACKAGE==VERSION … [PACKAGE]` and `versions --python ENV` by the API index and recorded runs.

The steps for packages: parse the words (`parse_questions`), rank the pairs of releases (`find_answers`), choose
releases that fit together (`choose_set`), let uv resolve them (`resolve`), and print the result (`render`) or return it
as JSON data (`document`). uv reads the package index over the network and installs nothing. For an environment,
`installed_pairs` compares the pairs of its installed releases.
"""

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, permutations
from pathlib import Path
from typing import Any

from packaging.version import Version
from rich.console import Console

from diagnostics import UserError
from diagnostics.api_index import query, store
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.query import Compatibility, Ranking, Release
from diagnostics.cpu_limit import cpu_limit
from diagnostics.fixes import count_of, quote_command, uv_pip
from diagnostics.frameworks import DISPLAY_NAMES
from diagnostics.output.pair_evidence import (
    AT_IMPORT,
    evidence_lines,
    mark_of,
    missing_lines,
    pair_text,
    run_text,
)
from diagnostics.output.redact import mask, truncate
from diagnostics.output.terminal import INDENT, print_command, print_text

SCHEMA = "grpo-doctor.versions-answer.v1"
# Packages for which a release is chosen to go with another package, most restrictive first.
_PROVIDERS = ("vllm", "transformers", "trl", "peft", "accelerate")
# Largest numbers of printed rows that fit, and of rows that do not fit.
_MAX_FITTING, _MAX_UNFIT = 5, 3
_RESOLVE_LIMIT_S, _COLLECT_S = 20, 120
_QUESTION = re.compile(r"([A-Za-z0-9][\w.-]*)(?:==([\w.+!-]+))?")


def parse_questions(words: Sequence[str]) -> list[tuple[str, list[Release]]]:
    """Return the packages of a question, each with its matching releases; the package with the fewest comes first.

    If no word has a version, only the newest release of the first package takes part.

    Raises:
        UserError: A word is malformed, a package is named twice, or the index has no such package or release.
    """
    questions: list[tuple[str, list[Release]]] = []
    for word in words:
        match = _QUESTION.fullmatch(word)
        if not match:
            raise UserError(f"versions {word}: expected PACKAGE or PACKAGE==VERSION")
        package, version = match[1].lower().replace("_", "-"), match[2] or ""
        if not store.load(package).releases:
            known = ", ".join(store.indexed_packages())
            name = DISPLAY_NAMES.get(package, package)
            advice = f"see the requirements.txt and the container image of {name}'s repository"
            other = f"{package} is not in the index; it has {known}"
            in_repository = f"{name} is on no package index; {advice}"
            raise UserError(f"versions {word}: {in_repository if package in DISPLAY_NAMES else other}")
        found = [item.version for item in _all_releases(package)]
        versions = query.find_releases(package, version) if version else found
        if not versions:
            releases = query.find_releases(package, "")
            raise UserError(f"versions {word}: the index has {package} {releases[-1]} to {releases[0]}")
        if package in dict(questions):
            raise UserError(f"versions {word}: {package} is named twice")
        questions.append((package, [Release(package, item) for item in versions]))
    if not any("==" in word for word in words):
        questions[0] = (questions[0][0], questions[0][1][:1])
    return sorted(questions, key=lambda question: len(question[1]))


def find_answers(questions: list[tuple[str, list[Release]]]) -> list[Ranking]:
    """Return the ranked pairs of releases for the packages in a question.

    The first package is paired with each other package. A single package is paired with its dependencies in
    _PROVIDERS, or else with the packages that depend on it and whose uses are recorded. If the first package has
    several releases, the best pair of the first answer decides its release.
    """
    if len(questions) == 1:
        package, releases = questions[0]
        related = [name for name in _PROVIDERS if name != package and _depends(releases[0], name)]
        compared = (name for name in store.indexed_packages() if name in PACKAGES and PACKAGES[name].uses)
        related = related or [name for name in compared if _depends(_all_releases(name)[0], package)]
        questions = questions + [(name, _candidates(releases[0], name)) for name in related or ["vllm"]]
    (first, first_releases), *rest = questions
    answers = []
    for name, candidates in rest:
        forward = _depends(first_releases[0], name) or not _depends(candidates[0], first)
        users, providers = (first_releases, candidates) if forward else (candidates, first_releases)
        answer = query.rank_releases(users, providers)
        if len(first_releases) > 1:
            # The best pair decides the first package's release; other packages are chosen for that release.
            best = answer.pairs[0]
            first_releases = [best.user if forward else best.provider]
            answer.pairs = [pair for pair in answer.pairs if first_releases[0] in {pair.user, pair.provider}]
        answers.append(answer)
    return answers


def _all_releases(package: str) -> list[Release]:
    """Return the indexed releases of a package with which GRPO trainers run, newest first."""
    oldest = query.FIRST_FOR_GRPO.get(package)
    found = query.find_releases(package, "")
    recent = [item for item in found if oldest is None or Version(item) >= oldest]
    return [Release(package, item) for item in recent or found]


def _candidates(user: Release, package: str) -> list[Release]:
    """Return the releases of a package to compare with a user: older ones, too, if it allows only these."""
    recent = _all_releases(package)
    if any(query.compatibility(user, item).allowed is not False for item in recent):
        return recent
    return [Release(package, item) for item in query.find_releases(package, "")]


def _depends(user: Release, provider: str) -> bool:
    return bool(query.uses_of(user, provider) or query.declared_ranges(user, provider))


def installed_pairs(python: Path) -> list[Compatibility]:
    """Return the evidence about pairs of installed, indexed releases where one depends on the other.

    Raises:
        UserError: No package of the environment has its release in the index.
        NoEnvironmentError: The path is no interpreter of an environment.
    """
    from diagnostics.collect import python_environment
    from diagnostics.doctor.checks.missing_names import indexed_releases, trainers_of
    from diagnostics.doctor.target_env import prefix_of

    with cpu_limit("reading the environment", _COLLECT_S):
        indexed = indexed_releases(python_environment.collect(prefix_of(python), os.environ))
    if not indexed:
        raise UserError(f"--python {python}: no package with a release in the index is installed")
    return [
        query.compatibility(user, provider, trainers_of(indexed))
        for user, provider in permutations(indexed, 2)
        if _depends(user, provider.package)
    ]


def choose_set(answers: Sequence[Ranking]) -> list[Release]:
    """Return the releases to install together: of each answer the best pair that fits the releases chosen before.

    A package that they depend on is added if the newest release that they allow is not the one of their published run,
    or else does not fit them.
    """
    chosen: dict[str, Release] = {}
    for answer in answers:
        for pair in answer.pairs:
            sides = {release.package: release for release in (pair.user, pair.provider)}
            differs = any(chosen.get(name, release) != release for name, release in sides.items())
            together = (query.compatibility(*two) for two in permutations((chosen | sides).values(), 2))
            if pair.fits and not differs and not any(other.contradicted for other in together):
                chosen |= sides
                break
    for name in _PROVIDERS:
        if name not in chosen and (pin := _needed_pin(name, list(chosen.values()))):
            chosen[name] = pin
    return list(chosen.values())


def _needed_pin(name: str, chosen: Sequence[Release]) -> Release | None:
    """Return the release of a dependency in the published run of the chosen releases, else the newest that fits them.

    None if it is the newest release that they allow.
    """
    users = [
        item for item in chosen if any(not extra for _, extra in query.requirements_of(item).get(name, ()))
    ]
    allowed = [item for item in _all_releases(name) if all(query.is_in_ranges(user, item) for user in users)]
    fitting = (
        item for item in allowed if not any(query.compatibility(user, item).contradicted for user in users)
    )
    versions = {item.package: item.version for item in chosen}
    ran = query.transformers_of_run(versions.get("trl", ""), versions.get("vllm", ""))
    fixed = Release(name, ran) if name == "transformers" and ran else None
    newest = (fixed or next(fitting, None)) if users else None
    return None if newest == next(iter(allowed), None) else newest


def install_command(releases: Sequence[Release]) -> str:
    """Return the command that installs releases together; a package that needs another build is built from source."""
    prefix = uv_pip("install")
    if built := _built_without_cuda(releases):
        prefix = ("env", f"{built.upper()}_TARGET_DEVICE=empty", *prefix, "--no-binary", built)
    return quote_command((*prefix, *(f"{item.package}=={item.version}" for item in releases)))


def _built_without_cuda(releases: Sequence[Release]) -> str:
    """Return the package to build without CUDA, because another of the releases requires that build; '' if none."""
    names = {item.package for item in releases}
    return next((name for user in names for name in names if query.is_built_for(user, name)), "")


@dataclass(frozen=True)
class Resolution:
    """Whether releases can be installed together (None if that is not known), and the reason."""

    resolves: bool | None
    text: str


def resolve(releases: Sequence[Release]) -> Resolution:
    """Resolve releases with uv, for this Python and from wheels alone, so that no code of a package runs."""
    from diagnostics import process, uv

    if not releases:
        return Resolution(None, "nothing fits")
    if built := _built_without_cuda(releases):
        return Resolution(None, f"{built} is built from source there")
    options = ("--quiet", "--no-config", "--no-header", "--no-annotate", "--only-binary", ":all:")
    try:
        command = [str(uv.find_uv()), "pip", "compile", *options, "--python", sys.executable, "-"]
    except uv.UvMissingError:
        return Resolution(None, "uv is not installed")
    environ = uv.process_environment(os.environ)
    pins = "".join(f"{item.package}=={item.version}\n" for item in releases)
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        done = process.run(command, timeout_s=_RESOLVE_LIMIT_S, env=environ, cwd=Path(folder), stdin=pins)
    if done.timed_out:
        return Resolution(None, f"no answer of the index within {_RESOLVE_LIMIT_S} s")
    if done.code == 0:
        python = ".".join(map(str, sys.version_info[:2]))
        return Resolution(True, f"{len(done.output.splitlines())} packages, Python {python}")
    message = mask(truncate(uv.error_line(done.errors), 600))
    if source := re.search(r"([\w.-]+)(?:==\S+)? ha(?:s|ve) no usable wheels", message):
        message = f"{source[1]} has no wheels; the command builds it, which was not tried"
    return Resolution(False if "No solution found" in done.errors and not source else None, message)


def render(
    console: Console, answers: list[Ranking], chosen: list[Release], resolution: Resolution, *, every: bool
) -> None:
    """Print the releases to install, then each package's releases with their evidence; a few rows unless `every`."""
    parts = [", ".join(map(str, chosen)), *(_misfit(it) for it in answers if it.pairs[0].contradicted)]
    left_out = (it for it in answers if it.best and not {it.user, it.provider} <= {r.package for r in chosen})
    parts += [f"no {answer.provider} fits all of these" for answer in left_out]
    parts += [f"{answer.provider} not checked" for answer in answers if answer.pairs[0].fits is None]
    print_text(console, f"versions: {'; '.join(filter(None, parts))}", "bold")
    if chosen:
        print_command(console, install_command(chosen))
        for (user, text), providers in _run_evidence(answers, chosen).items():
            print_text(console, f"{user} with {', '.join(providers)}: {text}", indent=INDENT)
    pair = answers[0].pairs[0]
    any_release = _all_releases(pair.provider.package) if len(answers) == 1 and pair.contradicted else []
    if any_release and (best := query.rank_releases([pair.user], any_release).best):
        print_text(console, f"Use {best.provider}:")
        print_command(console, install_command([best.user, best.provider]))
    for answer in answers:
        print_text(console, "")
        one_user = len({pair.user for pair in answer.pairs}) == 1
        first = answer.pairs[0]
        package, release = (answer.provider, first.user) if one_user else (answer.user, first.provider)
        print_text(console, f"{package} for {release}", "bold")
        rows = _evidence_rows(answer, one_user=one_user, every=every)
        fitting, unfit = ([row for row in rows if (row[0] == "✘") is wrong] for wrong in (False, True))
        visible = rows if every else [*fitting[:_MAX_FITTING], *unfit[:_MAX_UNFIT]]
        for mark, text, lines in visible:
            print_text(console, f"{mark} {text}")
            for line in lines:
                print_text(console, line, indent=4)
        if len(visible) < len(rows):
            print_text(console, f"{count_of(len(rows) - len(visible), 'more line')} with --all", "dim")
    print_text(console, "")
    print_text(console, "✔ fits  ! installs, but some functions fail  ✘ does not fit  ? not checked", "dim")
    print_text(console, "names are read in source, not run", "dim")
    if chosen:
        results = {True: "uv resolves", False: "uv cannot resolve", None: "not known whether uv resolves"}
        line = f"{results[resolution.resolves]} the command: {resolution.text}"
        print_text(console, line, "dim" if resolution.resolves else "bold")


def _run_evidence(
    answers: Sequence[Ranking], chosen: Sequence[Release]
) -> dict[tuple[Release, str], list[str]]:
    """Return the providers of the chosen pairs by user and by what their runs showed, which may be "not run"."""
    pairs: dict[tuple[Release, str], list[str]] = {}
    for pair in (pair for answer in answers for pair in answer.pairs):
        if {pair.user, pair.provider} <= {*chosen}:
            pairs.setdefault((pair.user, run_text(pair)), []).append(str(pair.provider))
    return pairs


def _misfit(answer: Ranking) -> str:
    """Return that no release fits, with the release that it should fit; of one pair, that the pair does not fit."""
    best, users = answer.pairs[0], {pair.user for pair in answer.pairs}
    package, release = (answer.provider, best.user) if len(users) == 1 else (answer.user, best.provider)
    return f"no {package} fits {release}" if answer.pairs[1:] else f"{best.provider} does not fit {release}"


def render_installed(console: Console, pairs: Sequence[Compatibility]) -> None:
    """Print the pairs of installed releases that do not fit or lack names; if there are none, print all pairs."""
    notable = [pair for pair in pairs if not pair.fits or pair.limits_grpo]
    fitting = [pair for pair in pairs if pair.fits]
    text = f"{len(fitting)} of {len(pairs)} pairs of installed packages fit"
    if partly := sum(pair.limits_grpo for pair in fitting):
        text += f"; {partly} lack names that only some functions call"
    print_text(console, f"versions: {text}", "bold")
    for pair in notable or pairs:
        print_text(console, mask(f"{mark_of(pair)} {pair.user} with {pair.provider}: {pair_text(pair)}"))


def _evidence_rows(answer: Ranking, *, one_user: bool, every: bool) -> list[tuple[str, str, list[str]]]:
    """Return mark, text and lines on missing names for each group of successive releases, the best first.

    A group has the same evidence; without `every`, names that are missing when a function is called may differ.
    """
    with_names = every or answer.best is None
    # Names that only functions call differ a little from release to release: the row shows those of the newest.
    moments = () if every else (AT_IMPORT,)

    def varying(pair: Compatibility) -> Release:
        return pair.provider if one_user else pair.user

    def key(item: tuple[int, Compatibility]) -> tuple[object, ...]:
        # The pairs are sorted from the newest: position plus release number is equal for successive releases.
        place, pair = item
        same = missing_lines(pair, *moments, with_names=with_names)
        number = place + query.release_number(varying(pair))
        return number, mark_of(pair), *evidence_lines(pair, with_names=with_names), *same

    rows = []
    for _key, group in groupby(enumerate(answer.pairs), key=key):
        pairs = [pair for _place, pair in group]
        first, last = varying(pairs[-1]).version, varying(pairs[0]).version
        label = ("" if one_user else f"{answer.user} ") + (last if first == last else f"{first} to {last}")
        newest, *older = (missing_lines(pair, with_names=with_names) for pair in pairs)
        which = "" if all(lines == newest for lines in older) else f"in {last}: "
        evidence = "; ".join(evidence_lines(pairs[0], with_names=with_names))
        rows.append((mark_of(pairs[0]), f"{label}: {evidence}", [which + line for line in newest]))
    return rows


def pair_document(pair: Compatibility) -> dict[str, Any]:
    """Return a pair as JSON data."""
    return {
        "user": {"package": pair.user.package, "version": pair.user.version},
        "provider": {"package": pair.provider.package, "version": pair.provider.version},
        "fits": pair.fits,
        "run": pair.run or None,
        "declared": list(pair.declared),
        "allowed": pair.allowed,
        "conflicts": list(pair.conflicts),
        "names_checked": pair.names.checked if pair.names else None,
        "missing": [
            {"name": item.use.text, "why": item.why, "at": item.location, "moment": moment}
            for items, moment in ((pair.at_import, "import"), (pair.when_called, "call"))
            for item in items
        ],
    }


def document(answers: Sequence[Ranking], chosen: Sequence[Release], resolution: Resolution) -> dict[str, Any]:
    """Return the answers as JSON data."""
    return {
        "schema": SCHEMA,
        "install": install_command(chosen) if chosen else None,
        "resolution": {"resolves": resolution.resolves, "text": resolution.text} if chosen else None,
        "take": {item.package: item.version for item in chosen},
        "pairs": [pair_document(pair) for answer in answers for pair in answer.pairs],
    }
