"""Look up options of a framework's commands in the API of a release: allowed values, types and defaults.

`options_to_index` lists the names of all options of a release; those of vLLM include its environment variables and the
parameters of `LLM`. `command_options` returns the options of one command in the index. `choices`, `declared_type` and
`declared_default` return what a release declares for an option. `wanted_type` returns the expected type if an option
rejects a value. `guards_of` returns the guards of a module (`raise` and `assert` with their conditions), with its
entries for calls, set attributes and registered names.
"""

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache

import yaml

from diagnostics.api_index import query, store
from diagnostics.api_index.extract import Facts
from diagnostics.api_index.guards import REGISTERED, Guard
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.query import Release
from diagnostics.api_index.release_api import Definition, ReleaseApi, parse_signature

_FLAG_TYPES = {"flag": "bool", "argparse.BooleanOptionalAction": "bool"}
_NEWEST = 1
_UNIONS = {"Optional", "Union"}
# A value that OmegaConf takes from elsewhere, or that must be set.
_REFERENCE = re.compile(r"\$\{|\?\?\?")


def options_to_index(package: str, names: Mapping[str, Facts]) -> dict[str, dict[str, str]]:
    """Return the options of one release as {"options": {name: mark}, "serve": {name: mark}}.

    `serve` has the options of `trl vllm-serve`. All other options are in `options`, also those of vLLM's server.
    The mark is `megatron` for an option that only ms-swift's Megatron commands have, otherwise empty.
    """
    patterns = {"options": PACKAGES[package].declaring, "serve": PACKAGES[package].serving}
    declared: dict[str, dict[str, str]] = {kind: {} for kind in patterns}
    for kind, pattern in patterns.items():
        for module in filter(re.compile(pattern).fullmatch, names):
            mark = "megatron" if module.startswith("swift.megatron") else ""
            for option in _options_of_file(package, module, names[module], names):
                declared[kind][option] = mark and declared[kind].get(option, mark)
    return declared


def _options_of_file(package: str, module: str, facts: Facts, names: Mapping[str, Facts]) -> Iterator[str]:
    """Yield the options that one file declares: fields of dataclasses, argparse options, keys of a config.

    For vLLM, its environment variables and the parameters of `LLM` are options, too.
    """
    if module.endswith(("yaml", "yml")):
        # From 0.5 on verl has a composed copy of its config; the other files then add only names of config groups.
        folder, _, file = module.rpartition("/")
        composed = any(name.startswith(f"{folder}/_generated_") for name in names)
        if composed and not file.startswith("_generated_"):
            yield from (name.removeprefix("group:") for name in facts if name.startswith("group:"))
        else:
            yield from (name for name in facts if not name.startswith("group:"))
        return
    for name, entry in facts.items():
        owner, _, field = name.rpartition(".")
        is_field = entry.startswith("field") and (
            package == "vllm" or facts.get(owner, "").endswith("@dataclass")
        )
        is_field &= owner not in PACKAGES[package].nested_classes
        if name.startswith("--"):
            yield name[2:].replace("-", "_") if package in {"vllm", "accelerate"} else name[2:]
        elif is_field and not field.startswith("_"):
            yield field
        elif package == "vllm" and name.startswith("env:"):
            yield name[4:]
        elif package == "vllm" and name == "LLM.__init__":
            yield from parse_signature(entry).names - {"self"}


def choices(release: Release, option: str) -> tuple[str, ...]:
    """Return all values that an option accepts; empty if the values are not limited or not known.

    For an option that transformers declares, the values of its oldest and newest fitting releases follow, because any
    of its releases may be installed.
    """
    values = _declared_choices(release, option) or registered_names(release, option)
    definition, _entry = _declaration(release, option)
    if not values or definition is None or not definition.module.startswith("transformers."):
        return values
    others = (_declared_choices(release, option, companion) for companion in (-1, _NEWEST))
    return tuple(dict.fromkeys((*values, *(value for choices in others for value in choices))))


@cache
def registered_names(release: Release, option: str) -> tuple[str, ...]:
    """Return the choices that a release registers for an option, or else its choices in packages.toml, if any."""
    settings = PACKAGES.get(release.package)
    if settings is None:
        return ()
    registries = settings.registries.get(option, ())
    modules = _api(release).source.modules() if registries else ()
    matching = filter(re.compile(settings.registering).fullmatch, modules)
    guards = (item for module in matching for item in guards_of(release, module))
    names = (item.message for item in guards if item.exception == REGISTERED and item.function in registries)
    return tuple(dict.fromkeys(names)) or settings.choices.get(option, ())


@cache
def guards_of(release: Release, module: str) -> list[Guard]:
    """Return the guards of a module, and its entries for calls, set attributes and registered names."""
    document, base = store.load(release.package).document("guards"), module.replace(".", "/")
    packed = document.get(f"{base}.py") or document.get(f"{base}/__init__.py") or {}
    return [Guard.from_key(key) for key in store.UnpackedValues(packed, query.release_number(release))]


def _declared_choices(release: Release, option: str, companion: int = 0) -> tuple[str, ...]:
    """Return the declared choices of an option, or those that its annotation allows."""
    definition, entry = _declaration(release, option, companion)
    if definition is None or " choices " in entry:
        return _listed_choices(entry)
    api = _api(release, companion)
    annotation = re.split(r" = | (?:aliases|alias|deprecated) ", entry.removeprefix("field "))[0]
    # vLLM before 0.9 lists the choices where it adds the field's option to the parser.
    added = api.facts(definition.module).get(f"--{option.replace('_', '-')}", "")
    return _annotation_choices(api, definition.module, annotation) or _listed_choices(added)


def _listed_choices(entry: str) -> tuple[str, ...]:
    return _literals(entry.partition(" choices ")[2].partition(" = ")[0])


@cache
def command_options(release: Release) -> frozenset[str]:
    """Return the options of a command, with those of its companions (see `_api`); empty if some are unknown.

    >>> "packing" in command_options(Release("trl", "1.16.0", "sft")), command_options(Release("trl", "1.16.0", "chat"))
    (True, frozenset())
    """
    names: set[str] = set()
    sources = [
        source.partition(":")[::2] for source in PACKAGES[release.package].option_sources(release.command)
    ]
    for companion, (module, name) in itertools.product((0, -1, _NEWEST), sources):
        api = _api(release, companion)
        facts, definition = api.facts(module), api.find(module, name) if name else None
        classes = [*api.class_and_bases(definition)] if definition else []
        if None in classes or any(key.startswith("group:") for key in facts):
            return frozenset()  # a base class, or a part of the config, is not known
        names |= {key.removeprefix("--") for key in facts if not name and (key[:2] == "--" or "/" in module)}
        members = (pair for item in classes if item for pair in api.own_members(item).items())
        names |= {member for member, entry in members if entry.startswith("field ") and member[0] != "_"}
    return frozenset(names)


def is_declared(release: Release, option: str) -> bool:
    """Return whether a release declares an option; an option of verl must be in the config of its main program."""
    return bool(_declaration(release, option)[1])


def wanted_type(release: Release, option: str, data: object) -> str:
    """Return the expected type in words, such as "a whole number", if the option rejects the value; else "".

    >>> release = Release("trl", "1.16.0")
    >>> wanted_type(release, "num_generations", "eight"), wanted_type(release, "beta", 0.04)
    ('a whole number', '')

    Args:
        release: The release that parses the command.
        option: The option's name.
        data: The word, or the number or boolean that it stands for; True if there is no word.
    """
    kind = " ".join(declared_type(release, option))
    if release.package == "verl":
        # Its config has values without types; a number may replace any other number.
        is_number = type(declared_default(release, option)) in {int, float}
        kind = "float" if is_number and isinstance(data, str) and re.fullmatch(r"[\w.%]+", data) else ""
    if kind in _CONVERTERS and not isinstance(data, list):
        convert, words = _CONVERTERS[kind]
        try:
            convert(str(data))
        except (ValueError, KeyError):
            return words
    takes_none = kind == "bool" and release.package == "openrlhf"
    return "no value" if takes_none and not isinstance(data, bool | list) else ""


# As transformers' parser and argparse convert words.
_BOOLEANS = {"yes", "true", "t", "y", "1", "no", "false", "f", "n", "0"}
_CONVERTERS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (lambda text: dict.fromkeys(_BOOLEANS)[text.lower()], "true or false"),
}


def declared_type(release: Release, option: str) -> frozenset[str]:
    """Return the types that an option declares, without None; empty if unknown.

    >>> declared_type(Release("trl", "1.16.0"), "epsilon_high")
    frozenset({'float'})
    """
    definition, entry = _declaration(release, option)
    text = _split_default(entry)[0].partition(" choices ")[0].partition(" ")[2]
    if definition is None:
        return frozenset({_FLAG_TYPES.get(text, text)} - {""})
    return frozenset(map(ast.unparse, _annotation_parts(text))) - {"None"}


@lru_cache(4096)
def declared_default(release: Release, option: str) -> object:
    """Return the declared default of an option; `...` if there is none, or if it is computed at run time.

    >>> declared_default(Release("trl", "1.16.0"), "beta"), declared_default(Release("trl", "1.16.0"), "seeds")
    (0.0, Ellipsis)
    """
    definition, entry = _declaration(release, option)
    for _depth in range(3):
        text = _split_default(entry)[1]
        if release.package == "verl" and text and not _REFERENCE.search(text):
            if text == "None":  # the index has Python's form of a value
                return None
            try:
                value = yaml.safe_load(text)
            except yaml.YAMLError:
                return ...  # the index cuts long texts
            # YAML 1.1 parses `1e-6` as a string.
            return float(value) if isinstance(value, str) and re.fullmatch(r"\d+e-?\d+", value) else value
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
        # vLLM's arguments take their defaults from the fields of its config classes.
        owner, _, field = text.partition(".")
        api = _api(release)
        target = api.find(definition.module, owner) if definition and field else None
        if target is None or not target.is_class:
            break
        definition, entry = target, api.facts(target.module).get(f"{target.name}.{field}", "")
    return ...


def _split_default(entry: str) -> tuple[str, str]:
    """Split an entry into what precedes its default, and the default."""
    head, _, default = entry.partition(" | attr ")[0].partition(" = ")
    return head, default


@lru_cache(4096)
def _declaration(release: Release, option: str, companion: int = 0) -> tuple[Definition | None, str]:
    """Return (class, entry) of an option; the class is None for argparse and YAML, the entry "" if not declared."""
    index = store.load_options(release.package)
    number = index.number(release.version)
    if packed := index.packed(store.OPTIONS_MODULE):
        return None, "" if number is None else store.UnpackedValues(packed, number).get(option, "")
    if release.package not in PACKAGES:
        return None, ""
    api = _api(release, companion)
    for source in PACKAGES[release.package].option_sources(release.command):
        module, _, name = source.partition(":")
        if not name:
            facts = api.facts(module)
            if entry := facts.get(f"--{option}") or facts.get(option, ""):
                return None, entry.lstrip("?")
        definition = api.find(module, name) if name else None
        for item in api.class_and_bases(definition) if definition else ():
            entry = api.facts(item.module).get(f"{item.name}.{option}", "") if item else ""
            if item and entry.startswith("field "):
                return item, entry
    return None, ""


@cache
def _api(release: Release, companion: int = 0) -> ReleaseApi:
    """Return the API of a release, with the newest companions of its time, the oldest (-1) or the newest (1).

    Companions are releases of the packages whose classes this package's classes extend (`query.companions_of`).
    """
    release = replace(release, command="")
    companions = query.companions_of(release, companion) if companion else query.contemporaries_of(release)
    return query.api_of(release, *companions)


def _annotation_choices(api: ReleaseApi, module: str, annotation: str, depth: int = 0) -> tuple[str, ...]:
    """Return the choices that an annotation allows; `Literal[…] | str` allows any value."""
    values: list[str] = []
    parts = [part for part in _annotation_parts(annotation) if ast.unparse(part) != "None"]
    # transformers' parser converts `Enum | str` to the Enum.
    if len(parts) == 2 and ast.unparse(parts[1]) == "str":
        return tuple(enum_members(api, module, ast.unparse(parts[0])).values())
    for part in parts:
        text = ast.unparse(part)
        if isinstance(part, ast.Subscript) and text.partition("[")[0].rpartition(".")[2] == "Literal":
            values += _literals(ast.unparse(part.slice))
            continue
        target = api.find(module, text) if text.isidentifier() and depth < 3 else None
        if target is None or not target.entry.startswith("value "):
            return ()
        alias = target.entry.removeprefix("value ").lstrip("= ")
        inner = _annotation_choices(api, target.module, alias, depth + 1)
        if not inner:
            return ()
        values += inner
    return tuple(dict.fromkeys(values))


def enum_members(api: ReleaseApi, module: str, name: str) -> dict[str, str]:
    """Return the members of an Enum with their values, if these are texts; empty if the name is not an Enum."""
    definition = api.find(module, name)
    if definition is None or not re.match(r"class .*Enum", definition.entry):
        return {}
    members = api.own_members(definition).items()
    return {
        member: _literals(entry.removeprefix("value "))[0]
        for member, entry in members
        if entry.startswith("value '")
    }


def _annotation_parts(text: str) -> list[ast.expr]:
    """Return the alternatives of an annotation; none if its text cannot be parsed, because the index cuts long ones."""
    try:
        return _alternatives(ast.parse(text.strip("'\""), mode="eval").body)
    except SyntaxError:
        return []


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """Return the parts of `A | B`, `Optional[A]` and `Union[A, B]`."""
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] in _UNIONS:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return [item for part in parts for item in _alternatives(part)]
    return [node]


def _literals(text: str) -> tuple[str, ...]:
    """Return the constants of a list or tuple, or one constant, as strings; empty if truncated or computed."""
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(map(str, values)) if isinstance(values, list | tuple) else (str(values),)
