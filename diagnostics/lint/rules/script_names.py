"""Rule about Python scripts: the releases of the run have the names that the script imports, and take its arguments.

Packages whose release is unknown, and those of which the project has its own copy, are not compared.
"""

import difflib
from collections.abc import Iterator
from dataclasses import replace

from packaging.version import Version

from diagnostics.api_index import query, store
from diagnostics.api_index.compare import Lookup, MissingUse, compare
from diagnostics.api_index.name_releases import describe_spans
from diagnostics.api_index.query import Release
from diagnostics.api_index.uses import Use
from diagnostics.findings import Severity
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Place, Value

# Maximum number of parameters that a fix lists.
_MAX_LISTED = 14


@rule("CMP906", check="options", role="any")
def names_of_the_script_exist(plan: RunPlan) -> Iterator[Problem]:
    """The releases of the run have what the script imports from them, and their functions take its arguments."""
    for package, version in plan.versions.known.items():
        release = Release(package, str(version))
        if package in plan.versions.copies or query.release_number(release) < 0:
            continue
        for item in _missing_in(release, _uses_of(plan, query.module_of(package))):
            used = item.use
            having, lacking, _ = query.releases_with(
                package, Use(used.kind, used.module, used.name, used.path)
            )
            spans = describe_spans(having, store.load(package).releases) if having else ""
            # The index lacks some folders of packages.
            is_indexed = spans or used.kind != "name" or (_fix(used, release) and "no module" not in item.why)
            if release.version not in lacking or not is_indexed:
                continue
            optional = any(text.startswith("set:") for text in used.conditions)
            yield Problem(
                f"{release}: {item.why}{f'; it exists {spans}' if spans and used.kind != 'without' else ''}.",
                [Value(used.text, Place(used.file, used.line), "import" if used.kind == "name" else "use")],
                fix=_fix(used, release) or f"Change the line, or take another release of {package}.",
                severity=Severity.WARNING if optional else Severity.ERROR,
            )


def _uses_of(plan: RunPlan, module: str) -> list[Use]:
    """Return the script's uses of a package, without the arguments of the config classes, which are options."""
    return [
        use
        for use in plan.settings.uses
        if use.kind == "arm"
        or (
            use.module.partition(".")[0] == module
            and (use.kind == "name" or use.name not in DIALECTS[plan.framework].classes)
        )
    ]


def _missing_in(release: Release, uses: list[Use]) -> list[MissingUse]:
    """Return the uses that a release does not satisfy, with the oldest and the newest packages that it may extend."""
    results = []
    for place in (-1, 0) if uses else ():
        api = query.api_of(release, *query.companions_of(release, place))
        lookup, expanded = Lookup(api), list[Use]()
        for use in uses:
            definition = api.find(use.module, use.name) if use.kind == "without" else None
            signature = lookup.signature(replace(use, path=()), definition) if definition else None
            absent = sorted(signature.required - {*use.path}) if signature else ()
            paths = [use.path] if use.kind != "without" else [(name,) for name in absent]
            expanded += [replace(use, path=path) for path in paths]
        results.append(
            compare(expanded, api, {query.module_of(release.package): Version(release.version)}).missing
        )
    return [item for item in results[0] if item in results[1]] if results else []


def _fix(use: Use, release: Release) -> str:
    """Return how to change a use: another module, name or parameter of the release; empty if none is known."""
    api, package = query.api_with_companions(release), release.package
    if use.kind == "without":
        return f"Give {use.path[0]} a value."
    name = use.path[-1] if use.path else use.name
    if use.kind == "name":
        modules = [module for module in store.load(package).find_name(name) if api.find(module, name)]
        if modules:
            return f"Import it from {min(modules, key=len)}."
    names = [name for name in Lookup(api).names_beside(use) if "." not in name]
    if similar := difflib.get_close_matches(name, names, 1, 0.8):
        return f"Write {similar[0]}."
    if use.kind != "argument":
        return ""
    config = Use("argument", use.module, f"{use.name.removesuffix('Trainer')}Config", use.path)
    if api.find(config.module, config.name) and not Lookup(api).problem(config):
        return f"Pass it to {config.name}."
    others = (
        f"; the parameters are {', '.join(sorted({*names} - {'self'}))}" if len(names) <= _MAX_LISTED else ""
    )
    return f"Leave it out{others}."
