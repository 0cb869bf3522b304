"""Check whether installed packages use names that the installed release of another package lacks.

The names are those of the releases in the API index; installed source is not read. Model types that both packages
register are reported, too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations

from diagnostics import called_as
from diagnostics.api_index import query, store
from diagnostics.api_index.query import Release
from diagnostics.collect.python_environment import Environment
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, finding
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Fix, join_some, quote_command
from diagnostics.frameworks import TRAINER_PACKAGES

_MAX_EVIDENCE = 4


def indexed_releases(environment: Environment) -> list[Release]:
    """Return the installed releases that the API index has."""
    packages = environment.packages
    names = [name for name in store.indexed_packages() if name in packages]
    releases = [Release(name, packages[name].version) for name in names]
    return [release for release in releases if query.find_releases(release.package, release.version)]


def trainers_of(releases: Iterable[Release]) -> list[Release]:
    """Return the trainers among releases."""
    return [release for release in releases if release.package in TRAINER_PACKAGES]


@check("names of other packages")
def missing_names(case: CheckInput) -> Iterator[Finding]:
    """Report names that one package uses and another lacks, and model types that both register (CMP906).

    A finding is a warning if an import fails, else information.
    """
    releases = indexed_releases(case.environment)
    if len(releases) < 2:
        raise NotApplicableError("fewer than two installed packages are in the API index")
    for user, provider in permutations(releases, 2):
        pair = query.compatibility(user, provider, trainers_of(releases))
        at_import = pair.at_import
        # Uses of TRL's other trainers are no matter of a GRPO run, unless they fail at import.
        called = [item for item in pair.when_called if pair.concerns_grpo(item)]
        if pair.names is None or not (at_import or called):
            continue
        moment = "when a file of it is imported" if at_import else "when a function of it is called"
        missing = [*at_import, *called]
        names = list(dict.fromkeys(item.use.text for item in missing))
        words = ("versions", f"{user.package}=={user.version}", provider.package)
        fix = Fix.of(
            f"Choose releases that fit. `{quote_command((*called_as().split(), *words))}` lists them."
        )
        title = f"{user} uses {join_some(names, 1)}, which {provider} does not have"
        listing = f"{', '.join(names[:_MAX_EVIDENCE])} ({len(names)} of {pair.names.checked} names)"
        detail = f"{user} uses names from {provider.package} that {provider.version} lacks: {listing}."
        clashes = [item for item in missing if item.use.kind == "registered"]
        if clashes:
            title = f"{user} calls {clashes[0].use.text}, and {provider} has that model type itself"
            detail = f"{title}: transformers refuses a second one."
        severity = Severity.WARNING if at_import else Severity.INFO
        evidence = [Evidence(item.why, item.location) for item in dict.fromkeys(missing)][:_MAX_EVIDENCE]
        detail += f" It fails {moment}."
        yield replace(finding("CMP906", severity, evidence, fix, detail, certainty="supported"), title=title)
