"""Which of our own files an answer rests on: what is imported to make it, computed from the files themselves.

Followed are imports, wherever they stand, modules that are started or imported by a name in a string, and data files
that a module names and that lie beside it. Not followed is what only a type checker imports. Where the arguments of a
program choose among alternatives (`probe` and not `train`), what stands for another alternative is left out. A change
of a comment or a docstring is no change: see `source.py`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.matrix.records.naming import ALTERNATIVES, WORDS, Link, named
from diagnostics.matrix.records.source import without_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

# They list all repros and do no more: which of them run is said by their codes.
_LISTS = frozenset({"repro.registry", "repro.issues"})
# They say what an answer rests on, and make none.
_ASIDE = frozenset(f"diagnostics.matrix.records.{name}" for name in ("closure", "naming", "source"))


@dataclass(frozen=True)
class File:
    """What one file comes to: its digest, and what it names."""

    digest: str
    links: tuple[Link, ...] = ()
    strings: frozenset[str] = frozenset()
    table: Mapping[str, str] = field(default_factory=dict)
    """Key -> module, where what is imported is looked up in a table by a key that others give."""


@dataclass
class Code:
    """Our own code as it is now; each file is read once."""

    places: Mapping[str, Path]
    """Top package -> the folder that holds it."""
    _files: dict[Path, File] = field(default_factory=dict)
    _modules: dict[str, tuple[str, Path | None]] = field(default_factory=dict)
    _beside: dict[Path, dict[str, Path]] = field(default_factory=dict)
    _found: dict[tuple[frozenset[str], frozenset[str]], dict[str, Path]] = field(default_factory=dict)

    def digest(self, modules: Iterable[str], words: Iterable[str] = ()) -> str:
        """Returns the digest of all that these modules rest on; names count as well as contents."""
        files = sorted(self.files(modules, words).items())
        return _short("".join(f"{name}\0{self._file(path, name).digest}\0" for name, path in files).encode())

    def files(self, modules: Iterable[str], words: Iterable[str] = ()) -> dict[str, Path]:
        """Returns the files on which these modules rest: name below the project -> path.

        Args:
            modules: Where to begin; a package that is started counts with its `__main__`.
            words: Of the command line; those that are no alternatives are of no matter.
        """
        begin, chosen = frozenset(modules), frozenset(words) & WORDS
        while (begin, chosen) not in self._found:
            found, further = self._walk(begin, chosen)
            if further <= chosen:
                self._found[begin, chosen] = found
                break
            chosen |= further  # a program that is started in turn has a command line of its own
        return self._found[begin, chosen]

    def _walk(self, begin: frozenset[str], chosen: frozenset[str]) -> tuple[dict[str, Path], set[str]]:
        found: dict[str, Path] = {}
        further: set[str] = set()
        due = [name for module in sorted(begin) for name in (module, f"{module}.__main__")]
        while due:
            module = due.pop()
            name, path = self._module(module)
            if not name or path is None or name in found or module in _ASIDE:
                continue
            found[name] = path
            due += [module.rpartition(".")[0]]  # importing a module runs the packages around it
            if module in _LISTS:
                continue
            file = self._file(path, name)
            if path not in self._beside:
                self._beside[path] = self._data(module, path, file.strings)
            found |= self._beside[path]
            for link in file.links:
                if not all(_followed(words, chosen) for words in link.only):
                    continue
                further |= {link.chooses} - {""}
                due += self._named(link.module, chosen)
        return found, further

    def _named(self, module: str, chosen: frozenset[str]) -> Iterator[str]:
        """Yields the modules of a link; of those that begin so, the ones that are not called as what isn't chosen."""
        if "#" in module:
            holder, _, key = module.partition("#")
            name, path = self._module(holder)
            table = self._file(path, name).table if path else {}
            yield from [table[key]] if key in table else table.values()
            return
        if not module.endswith("*"):
            yield module
            return
        package, _, start = module[:-1].rpartition(".")
        place = self.places[package.partition(".")[0]] / package.replace(".", "/")
        for path in sorted(place.glob(f"{start}*.py")):
            if _followed({path.stem}, chosen):
                yield f"{package}.{path.stem}"

    def _module(self, module: str) -> tuple[str, Path | None]:
        """Returns name and path of a module's file; ('', None) if it isn't one of ours."""
        if module not in self._modules:
            place = self.places.get(module.partition(".")[0])
            names = [module.replace(".", "/") + ending for ending in (".py", "/__init__.py") if place]
            paths = ((name, place / name) for name in names if place)
            self._modules[module] = next((found for found in paths if found[1].is_file()), ("", None))
        return self._modules[module]

    def _file(self, path: Path, name: str) -> File:
        if path not in self._files:
            self._files[path] = _read(path.read_bytes(), name, frozenset(self.places))
        return self._files[path]

    def _data(self, module: str, path: Path, strings: frozenset[str]) -> dict[str, Path]:
        """Returns the files that a module names and that lie beside it, in a folder it names, or at that path."""
        place = self.places[module.partition(".")[0]]
        folders = [path.parent, *(path.parent / text for text in strings if (path.parent / text).is_dir())]
        files = [folder / text for folder in folders for text in strings if (folder / text).is_file()]
        files += [place / text for text in strings if "/" in text and (place / text).is_file()]
        for folder in folders[1:]:
            if not (folder / "__init__.py").exists():
                files += [item for item in folder.rglob("*") if item.is_file() and item.suffix != ".pyc"]
        return {item.relative_to(place).as_posix(): item for item in files}


@functools.cache
def _read(data: bytes, name: str, packages: frozenset[str]) -> File:
    """What a file of that content and name comes to: most are the same from one look to the next."""
    try:
        tree = ast.parse(data) if name.endswith(".py") else None
    except (SyntaxError, ValueError):
        tree = None  # whatever it is, a change of it is a change
    if tree is None:
        return File(_short(data))
    links, strings, table = named(tree, name, packages)
    return File(_short(without_words(data.decode(), tree).encode()), links, strings, table)


def _followed(words: Iterable[str], chosen: frozenset[str]) -> bool:
    """Tells whether one of these alternatives may run: it is chosen, or nothing chooses among them."""
    return any(
        word in chosen or not any(word in choice and choice & chosen for choice in ALTERNATIVES)
        for word in words
    )


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
