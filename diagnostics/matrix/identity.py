"""Compute the identity of a question (a layer to run for a cell): a digest of its inputs.

`question_identity` computes it. One input is a digest of the project's source files, by `SourceDigests`; comments and
docstrings of Python files do not change it. A stored answer is valid as long as its identity stays the same.
Expectations, time limits of layers and local paths are not part of it.
"""

import ast
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Folders of `repro` whose modules do not depend on each other.
_SEPARATE = frozenset({"issues", "cell_programs", "fuzz"})
# A module, and the data that it reads.
_ENDINGS = (".py", ".toml", ".json")


def question_identity(inputs: Mapping[str, str]) -> str:
    """Return the identity of a question with these inputs."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


@dataclass
class SourceDigests:
    """Computes digests of our own source files."""

    folders: Mapping[str, Path]
    """Top-level package -> the folder that contains it."""
    _combined: dict[tuple[str, ...], str] = field(default_factory=dict)

    def digest(self, names: Iterable[str]) -> str:
        """Return the digest of these modules and packages, over their file names and contents.

        A package outside `repro` includes all files below its folder. A name in `repro` includes its own file, and all
        files of `repro` outside the folders in _SEPARATE. Another name without a file adds nothing.
        """
        key = tuple(names)
        if key not in self._combined:
            digests: dict[str, str] = {}
            for name in key:
                folder = self.folders[name.partition(".")[0]]
                for path in self._files(folder, name):
                    digest = _content_digest(path.read_bytes(), is_python=path.suffix == ".py")
                    digests[path.relative_to(folder).as_posix()] = digest
            text = "".join(f"{name}\0{digest}\0" for name, digest in sorted(digests.items()))
            self._combined[key] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._combined[key]

    def _files(self, folder: Path, name: str) -> Iterator[Path]:
        """Yield the files of a module (with its TOML or JSON file) or package; for `repro` also its shared files."""
        base = folder.joinpath(*name.split("."))
        yield from (path for ending in _ENDINGS if (path := base.with_suffix(ending)).is_file())
        top = name.partition(".")[0]
        if base.is_dir() or top == "repro":
            for path in sorted((folder / "repro" if top == "repro" else base).rglob("*")):
                separate = top == "repro" and not _SEPARATE.isdisjoint(path.relative_to(folder).parts[:-1])
                if path.is_file() and "__pycache__" not in path.parts and not separate:
                    yield path


@functools.lru_cache(1024)
def _content_digest(data: bytes, *, is_python: bool) -> str:
    """Return the digest of a Python file's syntax tree, or of another file's content."""
    text = syntax_tree_text(data.decode()).encode() if is_python else data
    return hashlib.sha256(text).hexdigest()[:16]


def syntax_tree_text(text: str) -> str:
    """Return the syntax tree of a Python text, without docstrings, as text; the text itself if it has syntax errors.

    >>> syntax_tree_text('x = 1  # why') == syntax_tree_text("x=1")
    True
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
            del node.body[0]  # type: ignore[attr-defined]
    return ast.dump(tree)
