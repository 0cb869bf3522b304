"""Build the API index: fetch new releases, extract facts from their source, and write one file per package.

The facts are defined names, uses of other packages, options, and guards (`raise` and `assert` with their conditions).
Sources and extracts are cached in the folder `.api-index/`, so a file that is equal in two releases is stored and
extracted once. An interrupted build continues where it stopped. `build` does this for packages; for one, `fetch`
downloads the releases, and `pack` extracts and writes.
"""

import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from packaging.version import Version

from diagnostics.api_index import archives, store
from diagnostics.api_index.extract import Facts, extract, extract_outline, extract_yaml
from diagnostics.api_index.guards import REGISTERED, Guard, extract_guards
from diagnostics.api_index.options import options_to_index
from diagnostics.api_index.packages import PACKAGES, IndexedPackage
from diagnostics.api_index.uses import Use, collect_uses

CACHE = Path(__file__).resolve().parents[2] / ".api-index"
# Increase the number when `extract`, `uses` or `guards` changes: all sources in the cache are then extracted again.
_NAMES, _USES, _GUARDS = "names.6", "uses.5", "guards.4"
NOT_BUILT = "not built"
# A call of a function that registers names, and the lines of a table or an Enum; then the names in them.
_REGISTERED = (
    r"""(?m)\b({0})\(\s*(?:name=)?\[?((?:\s*["'][\w.-]+["'],?)+)|^(?:class )?({0})\b.*\n((?:(?: .*)?\n)+)"""
)
_NAME, _KEY = r"""["']([\w.-]+)["']""", r"""(?m)^ {4}(?:\w+ = )?["']([\w.-]+)["'](?=:|$)"""
_AT_ONCE = 500
_TABLES = """
create table if not exists releases (version text primary key, record text);
create table if not exists sources (checksum text primary key, data blob);
create table if not exists extracts (
    kind text, path text, checksum text, data blob, primary key (kind, path, checksum)
);
"""


class Cache:
    """The cached releases of one package, with their sources and extracts."""

    def __init__(self, package: str, folder: Path | None = None) -> None:
        folder = folder or CACHE
        folder.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(folder / f"{package}.sqlite", timeout=60)
        self._database.executescript(_TABLES)

    def releases(self) -> dict[str, dict[str, Any]]:
        """Return the record of each cached release: its upload day, metadata, and files with their checksums."""
        rows = self._database.execute("select version, record from releases")
        return {version: json.loads(record) for version, record in rows}

    def checksums(self) -> set[str]:
        """Return the checksums of all cached sources."""
        return {checksum for (checksum,) in self._database.execute("select checksum from sources")}

    def add_release(
        self, version: str, record: Mapping[str, Any], sources: Iterable[tuple[str, str]]
    ) -> None:
        """Store a release's record and its new sources as (checksum, text); nothing if a source cannot be read."""
        packed = ((name, zlib.compress(text.encode("utf-8", "replace"))) for name, text in sources)
        with self._database:
            self._database.executemany("insert or ignore into sources values (?, ?)", packed)
            self._database.execute(
                "insert or replace into releases values (?, ?)", (version, json.dumps(record))
            )

    def source(self, checksum: str) -> str:
        """Return the cached source with a checksum."""
        row = self._database.execute("select data from sources where checksum = ?", (checksum,)).fetchone()
        return zlib.decompress(row[0]).decode("utf-8", "replace")

    def extracts(self, kind: str) -> dict[tuple[str, str], Any]:
        """Return all cached extracts of a kind (`_NAMES`, `_USES` or `_GUARDS`), by (path, checksum)."""
        rows = self._database.execute("select path, checksum, data from extracts where kind = ?", (kind,))
        return {(path, checksum): json.loads(zlib.decompress(data)) for path, checksum, data in rows}

    def add_extracts(self, kind: str, extracts: Iterable[tuple[str, str, Any]]) -> None:
        """Store extracts, given as (path, checksum, extract)."""
        rows = (
            (kind, path, checksum, zlib.compress(json.dumps(data).encode()))
            for path, checksum, data in extracts
        )
        self._database.executemany("insert or replace into extracts values (?, ?, ?, ?)", rows)
        self._database.commit()


def fetch(client: httpx.Client, package: IndexedPackage, cache: Cache) -> Iterator[str]:
    """Download the releases that the cache lacks, newest first; yield a line about each, and what was not read."""
    listed = archives.list_releases(client, package.name, since_day=package.since_day, since=package.since)
    known, checksums = cache.releases(), cache.checksums()
    for release in reversed(listed):
        if release.version in known:
            continue
        try:
            archive = archives.open_release(client, release, package.includes)
            record = {
                "day": release.day,
                "python": release.requires_python or archive.metadata.get("python", ""),
                "requires": archive.metadata.get("requires", []),
                "read": release.url.rpartition("/")[2],
                "files": archive.checksums,
            }
            new = {sum_: path for path, sum_ in archive.checksums.items() if sum_ not in checksums}
            sources = ((sum_, archive.read(path)) for sum_, path in new.items())
            cache.add_release(release.version, record, sources)
        except Exception as error:  # noqa: BLE001 - httpx, tarfile and zipfile raise a dozen kinds
            yield f"{package.name} {release.version}: not read: {archives.error_line(error)}"
            continue
        checksums |= new.keys()
        unread = f"; too large to read: {', '.join(archive.too_large)}" if archive.too_large else ""
        yield f"{package.name} {release.version}: {len(archive.checksums)} files, {len(new)} of them new{unread}"


def module_of(path: str) -> tuple[str, bool]:
    """Return the module name of a file, and whether it is a package; a config file keeps its path.

    >>> module_of("trl/trainer/__init__.py"), module_of("verl/trainer/config/a.yaml")
    (('trl.trainer', True), ('verl/trainer/config/a.yaml', False))
    """
    if path.endswith(".yaml"):
        return path, False
    base = path.rpartition(".")[0]
    return base.removesuffix("/__init__").replace("/", "."), base.endswith("/__init__")


def extract_file(package: IndexedPackage, path: str, text: str) -> Facts:
    """Return the names that a file defines; compiled code, and Python that cannot be parsed, may define any name."""
    module, is_package = module_of(path)
    if path.endswith(".yaml"):
        return extract_yaml(text)
    if path.endswith(".so"):
        return {"__getattr__": "dynamic *"}
    if package.is_outlined(path):
        return extract_outline(text)
    try:
        return extract(text, module, is_package=is_package)
    except SyntaxError:
        return {"__getattr__": "dynamic *"}


def extract_uses(package: IndexedPackage, path: str, text: str) -> dict[str, int]:
    """Return a file's uses of other packages: {key of the use: first line}; none if it cannot be parsed."""
    if not path.endswith(".py") or not any(name in text for name in package.uses):
        return {}
    if package.used_kinds == ("registered",) and "AutoConfig.register" not in text:
        return {}
    try:
        uses = collect_uses(text, path, package.uses)
    except SyntaxError:
        return {}
    return {
        use.to_key(): use.line
        for use in sorted(uses, key=lambda use: -use.line)
        if use.kind in (package.used_kinds or {use.kind})
    }


def extract_guard_keys(package: IndexedPackage, path: str, text: str) -> list[str]:
    """Return a file's guards and registered names as texts, if `lint` uses those of its module."""
    module = module_of(path)[0]
    try:
        guards = extract_guards(text) if re.fullmatch(package.guarding, module) else []
    except SyntaxError:
        guards = []
    registries = "|".join(re.escape(name) for names in package.registries.values() for name in names)
    is_registering = re.fullmatch(package.registering, module)
    for match in re.finditer(_REGISTERED.format(registries), text) if is_registering else ():
        registry, name = match[1] or match[3], _NAME if match[1] else _KEY
        names = re.findall(name, match[2] or match[4])
        guards += (Guard(registry, REGISTERED, item, ()) for item in names)
    return [guard.to_key() for guard in guards]


def extract_new(
    package: IndexedPackage, cache: Cache, kind: str, read: Callable[[IndexedPackage, str, str], Any]
) -> dict[tuple[str, str], Any]:
    """Extract the files that have no cached extract; return the extracts of all files of all releases."""
    known = cache.extracts(kind)
    files_read = {pair for record in cache.releases().values() for pair in record["files"].items()}
    ordered = sorted(files_read - known.keys())
    for start in range(0, len(ordered), _AT_ONCE):
        files = ordered[start : start + _AT_ONCE]
        new = [(path, checksum, read(package, path, cache.source(checksum))) for path, checksum in files]
        cache.add_extracts(kind, new)
        known |= {(path, checksum): extracted for path, checksum, extracted in new}
    return known


def _exported_below(names: Mapping[str, Facts], folders: str) -> Facts:
    """Return what all modules below these export, as transformers' `define_import_structure` collects it."""
    starts = tuple(f"{folder}." for folder in folders.removeprefix("import ").split(", ") if folder)
    # Modular files, from which others are generated, do not count.
    modules = (item for item in names if item.startswith(starts) and ".modular_" not in item)
    return {
        name: f"import {module}:{name}"
        for module in modules
        for name in names[module].get("__all__", "").split()[1:]
    }


def expand_stars(names: dict[str, Facts]) -> dict[str, Facts]:
    """Return the modules that import `*` or collect names lazily, with those names added."""
    expanded: dict[str, Facts] = {}

    def exported(module: str) -> Facts:
        facts = expand(module)
        listed = facts.get("__all__", "").split()[1:]
        public = listed or [name for name in facts if name.isidentifier() and not name.startswith("_")]
        return {
            name: entry if entry.startswith("import ") else f"import {module}:{name}"
            for name in public
            if (entry := facts.get(name, "" if not listed else "value").lstrip("?"))
        }

    def expand(module: str) -> Facts:
        if module in expanded or not {"*", "*/"} & names[module].keys():
            return expanded.get(module, names[module])
        facts = expanded[module] = dict(names[module])
        facts = expanded[module] = _exported_below(names, facts.pop("*/", "")) | facts
        outside = []
        for source in filter(None, facts.pop("*", "").removeprefix("import ").split(", ")):
            if source not in names:
                outside.append(source)
                continue
            brought = exported(source)
            for name, entry in brought.items():
                facts.setdefault(name, entry)
            if names[source].get("__getattr__") == "dynamic *" and "__all__" not in names[source]:
                facts["__getattr__"] = "dynamic *"
        if outside:
            facts["*"] = "import " + ", ".join(outside)
        return facts

    for module in names:
        expand(module)
    return expanded


def pack(package: IndexedPackage, cache: Cache, folder: Path) -> Path:
    """Extract the new files in a package's cache, write its index file, and return the path."""
    extracts, records = extract_new(package, cache, _NAMES, extract_file), cache.releases()
    versions = sorted((item for item in records if Version(item) >= Version(package.since)), key=Version)
    history: dict[str, list[tuple[int, Facts]]] = {}
    options: list[dict[str, dict[str, str]]] = []
    for number, version in enumerate(versions):
        files = records[version]["files"].items()
        # A module that is compiled, too, such as pydantic's, is read from its source.
        names = {
            module_of(path)[0]: extracts[path, checksum]
            for path, checksum in sorted(files, key=lambda item: not item[0].endswith(".so"))
        }
        _add_stub_names(package, names)
        options.append(options_to_index(package.name, names))
        for module, facts in (names | expand_stars(names)).items():
            earlier = history.setdefault(module, [])
            same = earlier and earlier[-1][1] == facts
            earlier.append((number, earlier[-1][1] if same else facts))
    count = len(versions)
    modules = {
        module: (
            store.spans_of([number for number, _ in entries], count),
            store.pack_values([facts for _, facts in entries], [number for number, _ in entries], count),
        )
        for module, entries in history.items()
    }
    path = folder / f"{package.name}.zip"
    files = [records[version]["files"] for version in versions]
    documents = _packed_uses(package, cache, files)
    guards = extract_new(package, cache, _GUARDS, extract_guard_keys)
    if packed := _packed_by_file(files, {file: dict.fromkeys(keys, "") for file, keys in guards.items()}):
        documents["guards"] = packed
    for kind in ("options", "serve"):
        documents[kind] = store.pack_values([declared[kind] for declared in options])
    store.write_package(path, _about(package, versions, records), modules, **documents)
    return path


def _add_stub_names(package: IndexedPackage, names: dict[str, Facts]) -> None:
    """Replace the dynamic names of the top-level package by the names in the stubs of its compiled modules."""
    stubs = {module_of(path)[0]: names.get(module_of(path)[0], {}) for path in package.stubs}
    if not any(stubs.values()):
        return
    facts = names[package.modules[0]]
    stars = [item for item in facts.get("*", "").removeprefix("import ").split(", ") if item not in stubs]
    for module, stub in stubs.items():
        facts = {name: "value" for name, entry in stub.items() if not entry.startswith("import ")} | facts
        names[module] = {"__getattr__": "dynamic *"}
    getter = facts.get("__getattr__", "dynamic").replace(" *", "")
    names[package.modules[0]] = facts | {"__getattr__": getter, "*": f"import {', '.join(stars)}"}


def _packed_uses(package: IndexedPackage, cache: Cache, releases: list[dict[str, str]]) -> dict[str, Any]:
    """Return the documents `uses-PACKAGE`: for each file, the key of each use and its line."""
    extracts, documents = extract_new(package, cache, _USES, extract_uses) if package.uses else {}, {}
    for provider in package.uses:
        # A `try` arm without a use counts for every package.
        by_provider = {
            file: {key: line for key, line in uses.items() if _provider_of(key) in {"", provider}}
            for file, uses in extracts.items()
        }
        packed = _packed_by_file(releases, by_provider)
        documents[f"uses-{provider}"] = {
            file: keys for file, keys in packed.items() if any(map(_provider_of, keys))
        }
    return documents


def _packed_by_file(
    releases: list[dict[str, str]], values: Mapping[tuple[str, str], dict[str, Any]]
) -> dict[str, Any]:
    """Return the packed values of each file that has any; `values` has them by path and checksum."""
    by_file: dict[str, list[dict[str, Any]]] = {}
    for number, files in enumerate(releases):
        for path, checksum in files.items():
            if found := values[path, checksum]:
                by_file.setdefault(path, [{} for _ in releases])[number] = found
    return {path: store.pack_values(every) for path, every in by_file.items()}


def _provider_of(key: str) -> str:
    """Return the package whose name a use needs; empty for an arm of a `try` without a use."""
    use = Use.from_key(key, "", 0)
    module = use.module.partition(".")[0] or "vllm"  # its routes and options have no module
    return "" if use.kind == "arm" else module


def _about(
    package: IndexedPackage, versions: list[str], records: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the document `about`: package, settings, releases, and packed requirements."""
    ordered = [records[version] for version in versions]
    return {
        "schema": store.SCHEMA,
        "package": package.name,
        "modules_read": list(package.modules),
        "only_outlined": list(package.outlined),
        "left_out": list(package.left_out),
        "releases": [
            {"version": version, "day": record["day"], "read": record["read"]}
            for version, record in zip(versions, ordered, strict=True)
        ],
        "python": store.pack_values([{record["python"]: ""} for record in ordered]),
        "requires": store.pack_values([dict.fromkeys(record["requires"], "") for record in ordered]),
    }


def build(names: Iterable[str], *, offline: bool = False) -> Iterator[str]:
    """Fetch new releases of packages, extract them and write the files of the index; yield a line about each step.

    A package that cannot be read keeps its file, and the next one is built.
    """
    with archives.connect() as client:
        for name in names:
            try:
                cache = Cache(name)
                if not offline:
                    yield from fetch(client, PACKAGES[name], cache)
                if cache.releases():
                    path = pack(PACKAGES[name], cache, store.FOLDER)
                    yield f"{path.name}: {path.stat().st_size / 1000:.0f} kB"
            except Exception as error:  # noqa: BLE001 - a listing, a database or a source of any form
                yield f"{name}: {NOT_BUILT}: {archives.error_line(error)}"
