"""Read and write the files of the API index; each file is about all releases of one package.

A file has the API names, the requirements, and further documents, such as uses and guards. `docs/api-index.md`
describes the format. The parts of a file are read on first use; a damaged file raises UserError. Release numbers count
from the oldest release, and spans of them are texts such as `0-1 3-`. `load` returns a package's file as a `Package`,
and `write_package` writes one.
"""

import heapq
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import Version

from diagnostics import UserError
from diagnostics.versions import parse_version

FOLDER = Path(__file__).resolve().parents[1] / "data" / "api"
OPTIONS_FOLDER = FOLDER.with_name("options")
OPTIONS_MODULE = "options"
"""Name of the only module of a file in OPTIONS_FOLDER: its names are options, its entries those of fields."""
SCHEMA = "grpo-doctor.api.v1"
_CHUNK = 250_000
_NAME_FILTER, _MEMBER_FILTER = "name-filter.bin", "member-filter.bin"
# A fixed date, so that equal content gives equal bytes.
_DATE = (2026, 1, 1, 0, 0, 0)


def spans_of(numbers: Iterable[int], count: int) -> str:
    """Return release numbers as spans; a span that reaches the newest of `count` releases has no end.

    >>> spans_of([0, 1, 3, 4], 5)
    '0-1 3-'
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(f"{first}-{last if last < count - 1 else ''}" for first, last in spans)


@cache
def _mask(spans: str) -> int:
    """Return the release numbers in the spans as the bits of an integer; it is negative if a span has no end."""
    bounds = (span.partition("-") for span in spans.split())
    return sum((1 << int(last) + 1 if last else 0) - (1 << int(first)) for first, _, last in bounds)


def in_spans(spans: str, number: int) -> bool:
    """Return whether a release number is in one of the spans.

    >>> in_spans("0-1 3-", 2), in_spans("0-1 3-", 7)
    (False, True)
    """
    return bool(_mask(spans) >> number & 1)


def expand_spans(spans: str, count: int) -> list[int]:
    """Return all release numbers in the spans."""
    mask = _mask(spans)
    return [number for number in range(count) if mask >> number & 1]


def pack_values(
    values: Sequence[Mapping[str, Any]], numbers: Sequence[int] = (), count: int = 0
) -> dict[str, Any]:
    """Merge the values of several releases by key: one value if it is equal in all, else {spans: value}.

    >>> pack_values([{"a": "x"}, {"a": "y", "b": "z"}])
    {'a': {'0-0': 'x', '1-': 'y'}, 'b': {'1-': 'z'}}

    Args:
        values: The values of each release.
        numbers: The numbers of these releases, if they are not all releases.
        count: The number of all releases.
    """
    numbers, count = numbers or range(len(values)), count or len(values)
    by_name: dict[str, dict[str, list[int]]] = {}
    for facts, number in zip(values, numbers, strict=True):
        for name, entry in facts.items():
            by_name.setdefault(name, {}).setdefault(entry, []).append(number)
    packed: dict[str, Any] = {}
    for name in sorted(by_name):
        entries = by_name[name]
        (entry, present), *more = entries.items()
        same = not more and present == list(numbers)
        packed[name] = entry if same else {spans_of(places, count): text for text, places in entries.items()}
    return packed


def write_package(
    path: Path, about: Mapping[str, Any], modules: Mapping[str, tuple[str, Any]], **other_documents: Any
) -> None:
    """Write the index file of a package.

    Args:
        path: The file to write.
        about: The document `about` without `modules`: the package's name, its releases, their requirements.
        modules: By module name: the spans of the releases that have it, and its packed names.
        other_documents: Further documents of the file, by name.
    """
    chunks: list[dict[str, Any]] = [{}]
    sizes, places = 0, {}
    for module in sorted(modules):
        spans, names = modules[module]
        if sizes > _CHUNK:
            chunks.append({})
            sizes = 0
        chunks[-1][module] = names
        sizes += len(json.dumps(names))
        places[module] = [len(chunks) - 1, spans]
    documents = {"about": {**about, "modules": places}, **other_documents}
    documents |= {f"names-{number:03}": chunk for number, chunk in enumerate(chunks)}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_LZMA) as archive:
        for name, document in documents.items():
            text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
            data = text.encode(errors="replace")  # a string in the source can have half a character
            archive.writestr(zipfile.ZipInfo(f"{name}.json", _DATE), data, zipfile.ZIP_LZMA)
        all_names = {name for _spans, names in modules.values() for name in names}
        last_parts = {name.rpartition(".")[2] for name in all_names if "." in name}
        top_names = {name for name in all_names if "." not in name}
        for file, listed in ((_NAME_FILTER, top_names), (_MEMBER_FILTER, last_parts)):
            archive.writestr(zipfile.ZipInfo(file, _DATE), name_filter(listed), zipfile.ZIP_STORED)
    temporary.replace(path)


def name_filter(names: Collection[str]) -> bytes:
    """Return a Bloom filter with one hash: if the bit of a name is not set, the name is not in the filter."""
    bits = bytearray(len(names) + 1)
    for name in names:
        place, bit = divmod(_filter_bit(name, bits), 8)
        bits[place] |= 1 << bit
    return bytes(bits)


def _filter_bit(name: str, bits: Sized) -> int:
    return zlib.crc32(name.encode(errors="replace")) % (8 * len(bits))


class Package:
    """The index of all releases of one package; without a file, it has no releases, documents and names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_names: set[str] = set()
        self._texts: dict[str, bytes] = {}
        self._documents: dict[str, Any] = {}
        self.about: dict[str, Any] = {"releases": [], "modules": {}}
        if path.is_file():
            try:
                # In memory: no file stays open.
                self._archive = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
            except (OSError, zipfile.BadZipFile) as error:
                raise self._damaged(error) from error
            self._file_names.update(self._archive.namelist())
            self.about = self.document("about")
            if not self.about:
                raise self._damaged(ValueError("no about.json"))
        self.releases: list[str] = [release["version"] for release in self.about["releases"]]
        self._numbers: dict[str | Version, int] = {
            key: number for number, text in enumerate(self.releases) for key in (text, Version(text))
        }

    def document(self, name: str) -> Any:
        """Return a document of the file by its name; empty if there is none."""
        if name not in self._documents:
            known = f"{name}.json" in self._file_names
            try:
                self._documents[name] = msgspec.json.decode(self._read(f"{name}.json")) if known else {}
            except (ValueError, RecursionError) as error:
                raise self._damaged(error) from error
        return self._documents[name]

    def _read(self, name: str) -> bytes:
        if name not in self._texts:
            try:
                self._texts[name] = self._archive.read(name)
            except (OSError, zipfile.BadZipFile, lzma.LZMAError, EOFError) as error:
                raise self._damaged(error) from error
        return self._texts[name]

    def _damaged(self, error: Exception) -> UserError:
        """Return the error to raise if the file is not one of the index."""
        return UserError(f"{self._path}: not a file of the API index ({error}); install grpo-doctor again")

    def number(self, version: str | Version) -> int | None:
        """Return the position of a release, oldest first, or None; if 1.0+cu129 is not listed, 1.0 is used."""
        if version in self._numbers:
            return self._numbers[version]
        parsed = parse_version(str(version))
        return self._numbers.get(parsed, self._numbers.get(Version(parsed.public))) if parsed else None

    @cached_property
    def folders(self) -> dict[str, int]:
        """For each module and each folder of modules: the releases that have it, as bits of a number."""
        masks: dict[str, int] = {}
        for module, (_chunk, spans) in self.about["modules"].items():
            while module:
                masks[module] = masks.get(module, 0) | _mask(spans)
                module = module.rpartition(".")[0]  # noqa: PLW2901 - the folder is next
        return masks

    @cached_property
    def _modules_by_chunk(self) -> dict[str, list[tuple[int, str]]]:
        """For each file of names, its modules with their positions in the index."""
        chunks: dict[str, list[tuple[int, str]]] = {}
        for position, (module, (chunk, _spans)) in enumerate(self.about["modules"].items()):
            chunks.setdefault(f"names-{chunk:03}.json", []).append((position, module))
        return chunks

    def packed(self, module: str) -> dict[str, Any]:
        """Return the packed names of a module in all releases."""
        entry = self.about["modules"].get(module)
        names: dict[str, Any] = self.document(f"names-{entry[0]:03}")[module] if entry else {}
        return names

    def _modules_with(self, filter_name: str, name: str, key: bytes) -> Iterator[str]:
        """Yield the modules of each chunk whose text contains `key`; none if the filter excludes `name`."""
        if filter_name in self._file_names:
            bits = self._read(filter_name)
            place, bit = divmod(_filter_bit(name, bits), 8)
            if not bits[place] >> bit & 1:
                return
        chunks = [modules for file, modules in self._modules_by_chunk.items() if key in self._read(file)]
        yield from (module for _, module in heapq.merge(*chunks))

    def find_name(self, name: str) -> list[str]:
        """Return the modules that define or import a name in some release."""
        modules = self._modules_with(_NAME_FILTER, name, f"{json.dumps(name)}:".encode())
        return [module for module in modules if name in self.packed(module)]

    def find_members(self, member: str) -> list[tuple[str, str]]:
        """Return (module, class) of the classes that define a member in some release, without nested classes."""
        modules = self._modules_with(_MEMBER_FILTER, member, f'.{member}":'.encode())
        end = f".{member}"
        return [
            (module, name.removesuffix(end))
            for module in modules
            for name in self.packed(module)
            if name.endswith(end) and name.count(".") == 1
        ]

    def metadata(self, field: str, number: int) -> list[str]:
        """Return the requirements (field="requires") or the Python constraint (field="python") of a release."""
        # list() would unpack all twice, for the length.
        return [*iter(UnpackedValues(self.about[field], number))]


class UnpackedValues(Mapping[str, Any]):
    """The values of one release in packed values; each is unpacked when it is read."""

    def __init__(self, packed: Mapping[str, Any], number: int) -> None:
        self.packed, self._number = packed, number

    def __getitem__(self, name: str) -> Any:
        entry = self.packed[name]
        if not isinstance(entry, dict):
            return entry
        for spans, value in entry.items():
            if in_spans(spans, self._number):
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        for name, entry in self.packed.items():
            if not isinstance(entry, dict) or any(in_spans(spans, self._number) for spans in entry):
                yield name

    def __len__(self) -> int:
        return sum(1 for _name in self)

    def __bool__(self) -> bool:
        """Return whether any release has values; counting those of this release would unpack all."""
        return bool(self.packed)


def load(package: str) -> Package:
    """Return the index of a package; one without releases if the package is not indexed."""
    return _load(FOLDER, package)


def load_options(package: str) -> Package:
    """Return the index with a framework's options: of its repository if that was read, else of its package."""
    return read if (read := _load(OPTIONS_FOLDER, package)).releases else load(package)


@cache
def _load(folder: Path, package: str) -> Package:
    return Package(folder / f"{canonicalize_name(package):.100}.zip")


def clear_cache() -> None:
    """Clear the cache of loaded files, so that changed files are read again; results that `query` caches remain."""
    _load.cache_clear()


def indexed_packages() -> list[str]:
    """Return the names of the packages in the index."""
    return sorted(path.stem for path in FOLDER.glob("*.zip"))
