"""Match error messages with the patterns of `errors.toml`, and find the names that a message says a package lacks.

A form (`ErrorForm`) is a pattern for messages of one kind. `match_forms` yields the forms of a message. For a form that
is not about an option's value, `uses_in` yields the names (modules, classes, members, arguments, …) as
`Use` objects, each with the package that should define it. `ADVICE` has texts for explanations, and `PROGRAMS` the
package of a command.
"""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnostics.api_index import query, store
from diagnostics.api_index.callers import recorded_uses
from diagnostics.api_index.class_lookup import find_class, find_member, inherited_use
from diagnostics.api_index.extract import MODEL_TYPES
from diagnostics.api_index.uses import MODEL_CONFIGS, Use

_TABLE = tomllib.loads(Path(__file__).with_name("errors.toml").read_text(encoding="utf-8"))
ADVICE: dict[str, str] = _TABLE["advice"]
PROGRAMS: dict[str, str] = _TABLE["programs"]
# Marks around a name in text that people write.
_QUOTES = str.maketrans("`\u2018\u2019\u201c\u201d", "'''''")
_LONGEST = 2000
_PROVIDERS = ("vllm", "transformers", "peft", "accelerate", "trl")


@dataclass(frozen=True)
class ErrorForm:
    """A form of error messages; `errors.toml` explains its kind."""

    kind: str
    pattern: re.Pattern[str]


_FORMS = [ErrorForm(**item | {"pattern": re.compile(item["pattern"])}) for item in _TABLE["error"]]


def normalize_message(message: str) -> str:
    """Return the beginning of a message with straight quotes, and with the underscores of `__init__` restored."""
    return message[:_LONGEST].translate(_QUOTES).replace(".init()", ".__init__()")


def match_forms(message: str, kinds: Collection[str] = ()) -> Iterator[tuple[ErrorForm, dict[str, str]]]:
    """Yield each form, or each of some kinds, that a message has, with the parts of the message."""
    for form in _FORMS:
        if (not kinds or form.kind in kinds) and (match := form.pattern.search(message)):
            yield form, match.groupdict(default="")


def uses_in(
    kind: str, parts: Mapping[str, str], caller: str, installed: Mapping[str, str]
) -> Iterator[tuple[Use, str]]:
    """Yield the uses that a message may refer to, each with the package that should define the name."""
    if kind == "architecture":
        for module in store.load("vllm").find_name(parts["name"]):
            if ".models." in module:
                yield Use("name", module, parts["name"]), "vllm"
    elif "module" in parts:
        module = parts["module"] or "transformers"
        if provider := query.package_of(module.partition(".")[0]):
            yield Use("name", module, parts.get("name", "")), provider
    elif "model_type" in parts:
        yield Use(kind, MODEL_CONFIGS, MODEL_TYPES, (parts["model_type"],)), "transformers"
    else:
        owner, method = parts["owner"], parts.get("method", "")
        path = (method, parts["name"]) if owner and method not in {"", "__init__"} else (parts["name"],)
        yield from _member_uses(kind, owner or method, path, caller, installed)


def _member_uses(
    kind: str, owner: str, path: tuple[str, ...], caller: str, installed: Mapping[str, str]
) -> Iterator[tuple[Use, str]]:
    """Yield the uses of a member or a call of a class or function whose module the message does not name."""
    candidates = [
        (Use(kind, use.module, use.name, path), name)
        for name in _PROVIDERS
        if store.load(name).find_name(owner)
        for _package, _file, use, _spans in recorded_uses(name, f'"{owner}"')
        if (use.name, use.path, use.kind) == (owner, path, kind)
    ]
    if member := find_member(kind, owner, path, _PROVIDERS, caller, installed):
        candidates.append(member)
    yield from dict.fromkeys(inherited_use(*item) for item in dict.fromkeys(candidates))
    places = find_class(owner) if kind == "attribute" and not candidates else []
    class_uses = [(Use(kind, module, owner, path), package) for package, module in places]
    # The class of one package has it from a base class of another one, whose release decides.
    yield from (item for use in class_uses if (item := inherited_use(*use)) != use)
