"""Find the package and module of a class, function, member or argument that an error names without its module.

`find_class` finds a class or function, `find_member` an attribute or argument of one. Such a reference to a name of
another package is a `Use` (see `uses.py`). `find_extended_class` guesses the class that an unknown class extends;
`inherited_use` and `outermost_definition` find the base class that defines a member.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from diagnostics.api_index import query, store
from diagnostics.api_index.packages import EXTENDED_CLASSES, PACKAGES
from diagnostics.api_index.query import Release
from diagnostics.api_index.release_api import ReleaseApi
from diagnostics.api_index.uses import Use

# Packages whose classes others extend.
_EXTENDED = ("trl", "transformers", "vllm", "verl", "accelerate", "peft")
_EXPERIMENTAL = ".experimental."
# Number of underscores in a function's name that hardly any other package has.
_LONG_NAME = 3
_WORD = re.compile(r"[A-Z][a-z0-9]+|[A-Z]+(?![a-z])")


def find_member(
    kind: str,
    owner: str,
    path: tuple[str, ...],
    providers: Collection[str],
    caller: str = "",
    installed: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Use, str] | None:
    """Return (use, package) for the one indexed package whose class or function the error is about, else None.

    If the installed release of exactly one package has the class and lacks the member, it is that package. Otherwise a
    package is a candidate if each of its releases has at most one class or function of that name, apart from
    subclasses, and one of these conditions holds; the only candidate is returned:

    - Some of its releases have the member, and others lack it. In others it may be unknown whether they have an
      attribute: the error shows that the release in use lacks it.
    - All have it, or all lack it; the use is a call; and the package is the caller or exports the class at top level,
      or the name of the function has four words or more.

    Args:
        kind: Kind of the use, as in Use.
        owner: Name of the class or function.
        path: The attribute; or the method, if any, and the argument.
        providers: Packages that others build on; of several candidates, only these are considered.
        caller: The package whose code raised the error; '' if unknown.
        installed: Known releases by package.
    """
    deciding_packages, lacking_packages = [], []
    for package in store.indexed_packages():
        module = _find_module(package, owner, path[0] if len(path) > 1 else "")
        use = Use(kind, module, owner, path)
        having, missing, _ = query.releases_with(package, use) if module else ([], [], [])
        if having and installed.get(package) in missing:
            lacking_packages.append((use, package))
        if module and _is_decided(package, use, is_caller=package == caller):
            deciding_packages.append((use, package))
    if len(lacking_packages) == 1:
        return lacking_packages[0]
    if len(deciding_packages) > 1:
        deciding_packages = [item for item in deciding_packages if item[1] in providers]
    return deciding_packages[0] if len(deciding_packages) == 1 else None


def inherited_use(use: Use, package: str) -> tuple[Use, str]:
    """Return (use, package) for the base class in another package that defines a member; else the use unchanged.

    The fields of TRL's GRPOConfig that transformers' TrainingArguments defines depend on the release of transformers.
    """
    found = query.releases_with(package, use)[0] if len(use.path) == 1 else []
    defining = next(_definitions(use, Release(package, found[-1])), None) if found else None
    return defining if defining and defining[1] != package else (use, package)


def outermost_definition(use: Use, package: str) -> tuple[Use, str]:
    """Return (use, package) for the last of a class's bases that defines the use's method; else the use unchanged."""
    newest = Release(package, query.find_releases(package, "")[0])
    return [(use, package), *(item for item in _definitions(use, newest) if item[1])][-1]


def _definitions(use: Use, release: Release) -> Iterator[tuple[Use, str]]:
    """Yield (use, package) for each class that defines a member or a called method, from the class to its bases."""
    api = query.api_with_companions(release)
    definition = api.find(use.module, use.name)
    for item in api.class_and_bases(definition) if definition else ():
        members = api.own_members(item) if item else {}
        if item and use.path[0] in members:
            owner = query.package_of(item.module.partition(".")[0])
            yield replace(use, module=item.module, name=item.name), owner
        if use.kind == "argument" and len(use.path) == 1 and "__init__" in members:
            return


def find_class(owner: str) -> list[tuple[str, str]]:
    """Return (package, module) of each indexed package with a class or function of that name, if it is unambiguous."""
    return [(name, module) for name in store.indexed_packages() if (module := _find_module(name, owner, ""))]


def find_extended_class(owner: str, member: str) -> tuple[str, str, str] | None:
    """Return (module, class, package) of the class that an unknown class extends, by its name and a member, or None.

    Both names end with the same word, and the rest of the extended class's name is in `owner`: `GRPOTrainer` for
    Qwen2VLGRPOTrainer. The longest such name of a package is meant; else the class that trainers, models, tokenizers or
    processors extend under any name. Without an `owner`, it is the only class with that member. Classes of
    `.experimental.` modules do not count. For an `owner` in the index, only the class under any name is tried.

    Args:
        owner: A class whose members the index does not have; '' for a function.
        member: The attribute or method.
    """
    known = find_class(owner) if owner else []
    # The members of a class in an outlined file are unread.
    if not all(PACKAGES[package].is_outlined(f"{module.replace('.', '/')}.py") for package, module in known):
        return None
    last = (_WORD.findall(owner) or [owner])[-1]
    found: dict[tuple[str, str], str] = {}
    for package in _EXTENDED if not known else ():
        for module, name in store.load(package).find_members(member):
            stem = name.removesuffix(last)
            fits = name.endswith(last) and stem and stem in owner and name != owner
            if (fits or not owner) and _EXPERIMENTAL not in module:
                found.setdefault((name, package), module)
        if owner and found:
            break
    if not found and (
        base := next((name for end, name in EXTENDED_CLASSES.items() if owner.endswith(end)), "")
    ):
        found[base, "transformers"] = ""
    if not found or (not owner and len(found) > 1):
        return None
    name, package = max(found, key=lambda item: len(item[0]))
    module = _find_module(package, name, member)
    return (module, name, package) if module else None


@lru_cache(1024)
def _find_module(package: str, owner: str, method: str) -> str:
    """Return the module from which most releases can import a class or function; '' if there is none.

    The result is '' also if a release has two unrelated classes of that name.

    If a method is named and some of these classes define it, only they are considered.
    """
    index = store.load(package)
    classes = ((module, set(_releases_with_class(index, module, owner))) for module in index.find_name(owner))
    defined = {module: places for module, places in classes if places}
    with_method = [module for module in defined if method and f"{owner}.{method}" in index.packed(module)]
    defined = {module: defined[module] for module in with_method or defined}
    apis = [query.api_of(Release(package, version)) for version in index.releases if defined]
    bases = {
        module: places
        for module, places in defined.items()
        if not _extends_namesake(apis[max(places)], module, owner)
    }
    numbers = [number for places in bases.values() for number in places]
    if not numbers or len(numbers) > len(set(numbers)):
        return ""
    return max(sorted(bases), key=lambda module: sum(bool(item.find(module, owner)) for item in apis))


def _extends_namesake(api: ReleaseApi, module: str, owner: str) -> bool:
    """Return whether a class inherits from a class of the same name."""
    definition = api.find(module, owner)
    classes = api.class_and_bases(definition) if definition else ()
    return any(item and item.name == owner for item in classes if item != definition)


def _releases_with_class(index: store.Package, module: str, owner: str) -> Iterator[int]:
    """Yield the numbers of the releases in which a module defines the class or function."""
    entry = index.packed(module).get(owner, "")
    _chunk, every = index.about["modules"].get(module, ("", ""))
    texts: Mapping[str, str] = entry if isinstance(entry, dict) else {every: entry}
    for spans, text in texts.items():
        if text.lstrip("?").startswith(("class", "def")):
            yield from store.expand_spans(spans, len(index.releases))


def _is_decided(package: str, use: Use, *, is_caller: bool) -> bool:
    """Return whether one of the two conditions of `find_member` holds."""
    found, missing, undecided = query.releases_with(package, use)
    if use.kind == "attribute":
        return bool(found and (missing or undecided))
    if undecided or (found and missing):
        return bool(found and missing and not undecided)
    api = query.api_of(Release(package, query.find_releases(package, "")[0]))
    exported = api.find(query.module_of(package), use.name)
    is_long = use.kind == "argument" and use.name.strip("_").count("_") >= _LONG_NAME
    return bool(found or missing) and (is_caller or is_long or bool(exported and exported.is_class))
