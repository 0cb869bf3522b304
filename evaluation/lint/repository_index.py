"""Write the options of a framework's releases from its repository, for frameworks that no package index has.

    python -m evaluation.lint.repository_index NAME CHECKOUT

`repositories.toml` says where each framework declares its options: classes (dataclasses, pydantic models, typed
dicts), YAML files, or calls of `add_argument`. CHECKOUT is a clone with tags and history. The file has the options of
each tag and of the last commit, with types, choices and defaults, and the names of options that only commits between
tags have. Nothing of the repository is imported or run.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from packaging.version import Version

from diagnostics.api_index import store
from diagnostics.api_index.build import NOT_BUILT
from diagnostics.lint.readers.hydra import ComposedConfig
from diagnostics.lint.readers.structured import flatten, parse_yaml
from diagnostics.lint.values import Value

TABLE = Path(__file__).with_name("repositories.toml")
SCALARS = {"bool", "int", "float"}
# Names of base classes that declare no options, and of types with any keys.
NEUTRAL = {
    "object", "BaseModel", "BaseSettings", "PydanticBaseSettings", "BaseConfig", "TypedDict", "ABC", "Generic",
    "Protocol", "Enum", "str",
}  # fmt: skip
TABLES = {
    "dict",
    "Dict",
    "Mapping",
    "MutableMapping",
    "DictConfig",
    "OrderedDict",
    "defaultdict",
    "Any",
    "object",
}
# Types of one word.
WORDS = {"Path", "PathLike", "Callable", "Type", "type", "datetime", "timedelta", "Decimal", "dtype", "bytes"}
UNIONS, WRAPPERS = {"Optional", "Union"}, {"NotRequired", "Required", "Final", "Annotated", "ReadOnly"}
_MAX_DEPTH = 12
# Type parameters and aliases of Python 3.12, which an older Python does not parse.
TYPE_PARAMETERS = re.compile(r"(?m)^((?:\s*(?:async )?def|\s*class) \w+)\[[^\]]*\](?=[(:])|^type (?=\w+ =)")


class Repository(msgspec.Struct, forbid_unknown_fields=True):
    """How a framework's repository declares its options.

    Attributes:
        tags: Pattern of the tags that are releases; its group is the release.
        following: Name of the release for the last commit.
        roots: Patterns of `FILE:CLASS` whose fields are options, of YAML files, and of `FILE:add_argument`.
        watched: Folders and files; each commit that changes one is read for further names.
        choices: Option -> the values that other code compares with, where the option's type is only `str`.
        accepted: Options that no class declares, which the parser handles itself.
        opens_extra: Whether a class with `extra="allow"` takes any key without a finding, also a misspelt one.
        examples: Patterns of scripts and YAML files whose flags and keys are known names, too: other code reads them.
        servers: Prefix of options -> `PACKAGE:MODULE:CLASS` in the API index whose fields follow it.
    """

    tags: str
    following: str
    roots: list[str]
    watched: list[str]
    choices: dict[str, list[str]] = {}
    accepted: list[str] = []
    opens_extra: bool = True
    examples: list[str] = []
    servers: dict[str, str] = {}


class Checkout:
    """The files of a repository's commits, read by git."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader: Any = subprocess.Popen(
            ["git", "-C", str(folder), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._modules: dict[str, ast.Module | None] = {}

    def git(self, *words: str) -> str:
        """Return what git prints."""
        command = ["git", "-C", str(self.folder), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def files(self, commit: str) -> dict[str, str]:
        """Return the blobs of a commit's Python and YAML files by path."""
        lines = (line.split(None, 3) for line in self.git("ls-tree", "-r", commit).splitlines())
        return {
            path: blob
            for _, kind, blob, path in lines
            if kind == "blob" and path.endswith((".py", ".yaml", ".sh"))
        }

    def text(self, blob: str) -> str:
        """Return the text of a blob."""
        self._reader.stdin.write(f"{blob}\n".encode())
        self._reader.stdin.flush()
        size = int(self._reader.stdout.readline().split()[2])
        return str(self._reader.stdout.read(size + 1)[:size], "utf-8", "replace")

    def module(self, blob: str) -> ast.Module | None:
        """Return the syntax tree of a blob, which is parsed once; None if it is no Python of this release."""
        if blob not in self._modules:
            text = self.text(blob)
            self._modules[blob] = _parse_module(text) or _parse_module(TYPE_PARAMETERS.sub(r"\1", text))
        return self._modules[blob]

    @cache  # noqa: B019 - one checkout is read
    def names(self, blob: str) -> dict[str, ast.stmt]:
        """Return the top-level definitions and imports of a file by name."""
        tree, names = self.module(blob), {}
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name): node for alias in node.names}
        for node in tree.body if tree else ():
            if isinstance(node, ast.ClassDef):
                names[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                names[ast.unparse(target)] = node
        return names


@dataclass
class Type:
    """What an annotation allows: types by name, values, classes with options, and tables with any keys."""

    names: set[str] = field(default_factory=set)
    values: list[str] = field(default_factory=list)
    classes: list[tuple[str, ast.ClassDef]] = field(default_factory=list)
    is_open: bool = False
    aliases: list[str] = field(default_factory=list)


class State:
    """The options of one commit."""

    def __init__(self, checkout: Checkout, commit: str, settings: Repository) -> None:
        self.checkout, self.settings = checkout, settings
        self.paths = checkout.files(commit)
        self._by_name: dict[str, list[str]] = {}
        for path in self.paths:
            self._by_name.setdefault(path.rpartition("/")[2], []).append(path)
        self.options: dict[str, str] = {}
        for root in settings.roots:
            match = re.fullmatch(r"(.+\\\.py):(\w+)", root)
            pattern, name = match.groups() if match else (root, "")
            for path in filter(re.compile(pattern).fullmatch, self.paths):
                if path.endswith(".yaml"):
                    self._add_yaml(path)
                elif name == "add_argument":
                    self._add_arguments(path)
                else:
                    found = self._find(path, name)
                    if isinstance(found, tuple):
                        self._add_class(found[0], found[1], "", 0)
        if self.options:
            self.options |= dict.fromkeys(settings.accepted, "field")

    def shipped_names(self) -> Iterator[str]:
        """Yield the flags and keys in the examples that the commit ships."""
        for pattern in self.settings.examples:
            for path in filter(re.compile(pattern).fullmatch, self.paths):
                text = self.checkout.text(self.paths[path])
                flags = re.findall(r"(?<![\w-])--([a-z][\w-]+)", text)
                yield from (flag.replace("-", "_") for flag in flags if not path.endswith(".yaml"))
                for tree in parse_yaml(text, path) if path.endswith(".yaml") else ():
                    yield from flatten(tree)

    def _top_level_names(self, path: str) -> dict[str, ast.stmt]:
        return self.checkout.names(self.paths[path])

    def _find(
        self, path: str, name: str, depth: int = 0
    ) -> tuple[str, ast.ClassDef] | tuple[str, ast.expr] | None:
        """Return a class or an alias's expression with its file, also behind imports; None if it is not here."""
        names = self._top_level_names(path)
        node = names.get(name) or names.get("*")
        if isinstance(node, ast.ClassDef):
            return path, node
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return path, node.value
        if not isinstance(node, ast.ImportFrom) or depth > _MAX_DEPTH:
            return None
        module = (node.module or "").replace(".", "/")
        folder = PurePosixPath(path)
        for _ in range(node.level):
            folder = folder.parent
        stem = str(folder / module) if node.level else module
        original = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), name)
        ends = (f"{stem}.py", f"{stem}/__init__.py")
        files = (
            file for end in ends for file in self._by_name.get(end.rpartition("/")[2], ()) if file != path
        )
        fitting = (
            file
            for file in files
            if file in ends or (not node.level and file.endswith(tuple(f"/{end}" for end in ends)))
        )
        return next(filter(None, (self._find(file, original, depth + 1) for file in fitting)), None)

    def _type(self, path: str, node: ast.expr | None, depth: int = 0) -> Type:  # noqa: C901, PLR0911 - a case each
        """Return what an annotation allows."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and depth < _MAX_DEPTH:
            try:
                return self._type(path, ast.parse(node.value, mode="eval").body, depth + 1)
            except SyntaxError:
                return Type(is_open=True)
        if isinstance(node, ast.BinOp):
            return _merge_types(self._type(path, part, depth) for part in (node.left, node.right))
        if isinstance(node, ast.Subscript):
            outer = ast.unparse(node.value).rpartition(".")[2]
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer == "Literal":
                values = [
                    str(part.value)
                    for part in parts
                    if isinstance(part, ast.Constant) and part.value is not None
                ]
                return Type(values=values, names=set() if values else {"None"})
            if outer in UNIONS:
                return _merge_types(self._type(path, part, depth) for part in parts)
            if outer in WRAPPERS:
                return _merge_types([self._type(path, parts[0], depth), Type(aliases=_aliases(parts[1:]))])
            return Type(names={outer}, is_open=outer in TABLES)
        if node is None or isinstance(node, ast.Constant):
            return Type(names={"None"})
        name = ast.unparse(node).rpartition(".")[2]
        if name in SCALARS | {"str", "list", "tuple"}:
            return Type(names={name})
        found = self._find(path, name) if depth < _MAX_DEPTH else None
        if name in TABLES or found is None:
            # A class that is not here may take any keys, or one word.
            return Type(names={name}, is_open=True)
        if not isinstance(found[1], ast.ClassDef):
            return self._type(found[0], found[1], depth + 1)
        if any(ast.unparse(base).endswith("Enum") for base in found[1].bases):
            values = [
                str(item.value.value)
                for item in found[1].body
                if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
            ]
            # OmegaConf takes the names of members, other parsers their values.
            members = [ast.unparse(item.targets[0]) for item in found[1].body if isinstance(item, ast.Assign)]
            return Type(values=list(dict.fromkeys([*values, *members])), names=set() if values else {"enum"})
        return Type(classes=[found])

    def _add_class(self, path: str, owner: ast.ClassDef, prefix: str, depth: int) -> None:
        """Add the fields of a class and of its base classes, and those of the classes of its fields."""
        for base in owner.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            found = self._find(path, name)
            if found is not None and isinstance(found[1], ast.ClassDef):
                self._add_class(found[0], found[1], prefix, depth)
            elif name not in NEUTRAL:
                self.options[f"{prefix}*"] = "open"
        if self.settings.opens_extra and any(
            word.arg == "extra" and "allow" in ast.unparse(word.value) for word in owner.keywords
        ):
            self.options[f"{prefix}*"] = "open"
        fields = {ast.unparse(node.target) for node in owner.body if isinstance(node, ast.AnnAssign)}
        for node in owner.body:
            text = ast.unparse(node) if isinstance(node, ast.Assign | ast.FunctionDef) else ""
            if text.startswith("model_config") and re.search("extra=['\"](allow|ignore)", text):
                self.options[f"{prefix}*"] = "open"
            # A validator that runs before the fields are read may take old names.
            if isinstance(node, ast.FunctionDef) and re.search("mode=['\"]before|pre=True", text):
                inner = (item for part in node.body for item in ast.walk(part))
                words = (item.value for item in inner if isinstance(item, ast.Constant))
                old = [
                    word for word in words if isinstance(word, str) and word.isidentifier() and len(word) > 1
                ]
                for name in set(old) - fields:
                    self.options.setdefault(f"{prefix}{name}", "field")
                    self.options[f"{prefix}{name}.*"] = "open"
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self._add_field(path, node, prefix, depth)

    def _add_field(self, path: str, node: ast.AnnAssign, prefix: str, depth: int) -> None:
        """Add one field of a class."""
        name, annotation = ast.unparse(node.target), ast.unparse(node.annotation)
        if name == "model_config" or annotation.startswith(("ClassVar", "InitVar")):
            return
        kind = self._type(path, node.annotation)
        default, aliases = _default(node.value)
        for option in (f"{prefix}{name}", *(f"{prefix}{alias}" for alias in [*kind.aliases, *aliases])):
            if kind.classes and depth < _MAX_DEPTH:
                self.options[option] = "field"
                for file, owner in kind.classes:
                    self._add_class(file, owner, f"{option}.", depth + 1)
                if kind.is_open:
                    self.options[f"{option}.*"] = "open"
                continue
            self.options[option] = self._entry(option, kind, default)
            if kind.is_open and not kind.names & WORDS:
                self.options[f"{option}.*"] = "open"

    def _entry(self, option: str, kind: Type, default: str) -> str:
        """Return the entry of an option: its type if that is one of SCALARS, its choices and its default."""
        scalars = kind.names - {"None"}
        scalar = "float" if scalars == {"int", "float"} else next(iter(scalars)) if len(scalars) == 1 else ""
        known = f" {scalar}" if scalar in SCALARS and not kind.values and not kind.is_open else ""
        values = kind.values if not scalars and not kind.is_open else []
        values = self.settings.choices.get(option, values)
        listed = f" choices {values}" if values else ""
        old = self.options.get(option, "")
        # The same option in another class of a union, such as the name that decides between them.
        if " choices " in old and " choices " in listed:
            more = ast.literal_eval(old.partition(" choices ")[2].partition(" = ")[0])
            listed = f" choices {list(dict.fromkeys([*more, *values]))}"
        elif (
            old and old.partition(" = ")[0] != f"field{known}{listed}" and option not in self.settings.choices
        ):
            known = listed = ""
        return f"field{known}{listed}{f' = {default}' if default else ''}"

    def _add_yaml(self, path: str) -> None:
        """Add the keys of a YAML config, composed by its defaults list."""
        text, folder = self.checkout.text(self.paths[path]), str(PurePosixPath(path).parent)
        trees = [tree for tree in parse_yaml(text, path) if isinstance(tree, dict)]
        # Without Hydra's groups, a config names at most others that are roots, too.
        if not isinstance(trees[0].pop("defaults", None), list):
            for option, value in flatten(trees[0]).items():
                self._add_key(option, value)
            return
        with tempfile.TemporaryDirectory() as temporary:
            for file, blob in self.paths.items():
                if file.startswith(f"{folder}/") and file.endswith(".yaml"):
                    target = Path(temporary) / file.removeprefix(f"{folder}/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(self.checkout.text(blob), encoding="utf-8")
            Path(temporary, ".git").mkdir()
            composed = ComposedConfig(Path(temporary), PurePosixPath(path).stem, f"{temporary}/any name")
            for option, value in composed.values.items():
                self._add_key(option, value)
        for tree in trees:
            for option in _empty_tables(tree):
                self.options[option] = "field"

    def _add_key(self, option: str, value: Value) -> None:
        """Add a key of a config with its tables; a number in place of another one is fine."""
        for at, char in enumerate(option):
            if char == ".":
                self.options.setdefault(option[:at], "field")
        kind = type(value.data).__name__
        known = " bool" if kind == "bool" else " float" if kind in {"int", "float"} else ""
        default = (
            f" = {value.data!r}" if len(str(value.data)) < 60 and not isinstance(value.data, dict) else ""
        )
        self.options.setdefault(option, f"field{known}{default}")

    def _add_arguments(self, path: str) -> None:
        """Add the options of `add_argument` calls, and of functions that call it with other defaults."""
        tree = self.checkout.module(self.paths[path])
        for node in ast.walk(tree) if tree else ():
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(
                ("add_argument", "reset_arg")
            ):
                continue
            flags = [item.value for item in node.args if isinstance(item, ast.Constant)]
            words = {word.arg: ast.unparse(word.value) for word in node.keywords}
            action = words.get("action", "").strip("'\"")
            kind = "bool" if "store" in action or "BooleanOptional" in action else words.get("type", "")
            known = f" {kind}" if kind in SCALARS and "nargs" not in words else ""
            choices = words.get("choices", "")
            listed = f" choices {choices}" if re.fullmatch(r"[\[(]['\"\w\s,.-]*[\])]", choices) else ""
            default = words.get("default", "")
            for flag in flags:
                if isinstance(flag, str) and flag.startswith("--"):
                    name = flag[2:].replace("-", "_")
                    self.options[name] = f"field{known}{listed}{f' = {default}' if default else ''}"


def _parse_module(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def _empty_tables(tree: object, prefix: str = "") -> Iterator[str]:
    """Yield the keys of tables without keys, which take any."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if value == {}:
            yield f"{prefix}{key}"
        yield from _empty_tables(value, f"{prefix}{key}.")


def _merge_types(types: Iterator[Type] | list[Type]) -> Type:
    result = Type()
    for kind in types:
        result.names |= kind.names
        result.values += kind.values
        result.classes += kind.classes
        result.aliases += kind.aliases
        result.is_open |= kind.is_open
    return result


def _aliases(nodes: list[ast.expr]) -> list[str]:
    """Return the other names in calls of `Field`."""
    keywords = [
        word
        for node in nodes
        for item in ast.walk(node)
        if isinstance(item, ast.Call)
        for word in item.keywords
    ]
    values = [word.value for word in keywords if word.arg in {"alias", "validation_alias"}]
    names = (item.value for value in values for item in ast.walk(value) if isinstance(item, ast.Constant))
    return [name for name in names if isinstance(name, str)]


def _default(node: ast.expr | None) -> tuple[str, list[str]]:
    """Return the default of a field, "" if it has none or it is computed, and the field's other names."""
    if node is None:
        return "", []
    if isinstance(node, ast.Call):
        aliases = _aliases([node])
        words = {word.arg: word.value for word in node.keywords}
        first = node.args[0] if node.args and ast.unparse(node.func).endswith("Field") else None
        node = words.get("default", first)
        if node is None:
            return "", aliases
    else:
        aliases = []
    try:
        ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return "", aliases
    text = ast.unparse(node)
    return text if text != "..." and len(text) < 80 else "", aliases


def main() -> int:
    """Write the file and print its path."""
    name, checkout = sys.argv[1], Checkout(Path(sys.argv[2]))
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    settings = msgspec.convert(table[name], Repository)
    tags = checkout.git("tag", "--sort=creatordate").split()
    matches = {tag: re.fullmatch(settings.tags, tag) for tag in tags}
    releases = {tag: match[1] for tag, match in matches.items() if match} | {"HEAD": settings.following}
    states = {tag: State(checkout, tag, settings) for tag in releases}
    found = {tag: state.options for tag, state in states.items()}
    found = {tag: options for tag, options in found.items() if options}
    if not found:
        print(NOT_BUILT)
        return 3
    releases = {tag: releases[tag] for tag in sorted(found, key=lambda tag: Version(releases[tag]))}
    facts = [found[tag] for tag in releases]
    seen = {name for state in states.values() for name in state.shipped_names()}
    for prefix, source in settings.servers.items():
        package, module, owner = source.split(":")
        fields = (
            key.removeprefix(f"{owner}.")
            for key in store.load(package).packed(module)
            if key.startswith(f"{owner}.")
        )
        seen |= {f"{prefix}{name}" for name in fields if name[0] != "_"}
    for commit in checkout.git("log", "--format=%H", "HEAD", "--", *settings.watched).split():
        seen |= State(checkout, commit, settings).options.keys()
    for options in facts:
        seen -= options.keys()
    every, count = range(len(facts)), len(facts)
    about = {
        "schema": store.SCHEMA,
        "package": name,
        "modules_read": [name],
        "only_outlined": [],
        "left_out": [],
        "releases": [
            {"version": release, "day": checkout.git("log", "-1", "--format=%as", tag).strip(), "read": tag}
            for tag, release in releases.items()
        ],
        "python": {},
        "requires": {},
    }
    modules = {store.OPTIONS_MODULE: ("0-", store.pack_values(facts, every, count))}
    options = store.pack_values([dict.fromkeys(item, "") for item in facts], every, count)
    path = store.OPTIONS_FOLDER / f"{name}.zip"
    store.write_package(path, about, modules, options=options, seen=sorted(seen))
    print(f"{path}: {count} releases, {len(facts[0])} to {len(facts[-1])} options, {len(seen)} others")
    return 0


if __name__ == "__main__":
    sys.exit(main())
