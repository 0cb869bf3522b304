"""Load the dialects: one TOML file per framework with its option names, defaults and commands.

`names` maps a framework's options to names of the run plan. `defaults` are the values of options that are not set.
`start` lists the commands that start the framework. Values that follow from several options are in `derivation.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from diagnostics.versions import in_range

_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9_.-]*)(?:=|$)")


class Start(Struct, frozen=True, forbid_unknown_fields=True):
    """A way to start a framework: by a program and verb, a module or a script; patterns match from the beginning.

    Attributes:
        program: Name of the program.
        verbs: Words of which one must follow the program, or words that must follow the module.
        module: Pattern of the module.
        script: Pattern of the script's path.
        not_module: Pattern of modules to which this way does not apply.
        overrides: Beginnings of keys, of which the words must set at least one.
        flags: Options, of which the words must contain at least one.
        role: Role of the process: `train` or `serve`.
        framework_parser: Whether the framework's own parser reads the options.
        extra: Options that this way of starting implies.
    """

    program: str = ""
    verbs: tuple[str, ...] = ()
    module: str = ""
    script: str = ""
    not_module: str = ""
    overrides: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    role: str = "train"
    framework_parser: bool = False
    extra: dict[str, str] = {}


class Default(Struct, frozen=True, forbid_unknown_fields=True):
    """Default value of a run plan's name, in the releases of `versions`."""

    name: str
    option: str
    value: Any
    versions: str = ""


class Removed(Struct, frozen=True, forbid_unknown_fields=True):
    """An option that the releases of `releases` do not have.

    Attributes:
        option: Name of the option.
        releases: Range of releases that do not have the option.
        instead: The option to use in these releases, or `nothing`, perhaps with a reason.
        renamed: The option that replaces it with the same meaning and the same values; empty if there is none.
        ignored: Range of releases that accept the option without effect.
    """

    option: str
    releases: str
    instead: str
    renamed: str = ""
    ignored: str = "<0"

    @property
    def advice(self) -> str:
        """The fix in a sentence."""
        nothing, _, reason = self.instead.partition(": ")
        if nothing != "nothing":
            return f"Use {self.instead}."
        return f"Leave it out: {reason}." if reason else "Leave it out."


class Dialect(Struct, frozen=True, forbid_unknown_fields=True):
    """One framework's options, commands and files.

    Attributes:
        framework: Name in `diagnostics.frameworks`, or `own`.
        names: Option -> name in the run plan; of two options for a name, the later counts. `a.b` is also the key `b`
            of an option `a` that is a table, and `!name` is the opposite of the option.
        server_names: The same for the framework's server.
        rank: Order of recognition: frameworks with a program of their own first, those known by options last.
        specific: Rank of the file keys by ambiguity; 0 if no other framework's files have them.
        commands: Pattern for texts that may contain one of the framework's commands.
        style: `flags` or `overrides` (Hydra's `a.b=c`).
        file_keys: Keys of which one shows that a file is the framework's.
        not_file_keys: Keys that show that a file is not the framework's.
        file_sections: Keys or nested keys (`a.b`) of which one shows that a file is the framework's.
        file_role: Role of the files.
        model_options: Options that name the model; a script that sets one of them is complete without arguments.
        local_engine: Options of a local engine, which a server never receives.
        no_server_option: Options among `local_engine` that a server does not have.
        flat_flags: Dotted option -> flat name in older releases.
        short_options: Options with one dash, which the index does not have.
        loss_options: Options of the loss; no rule reads them, so the run plan has no names for them.
    """

    framework: str
    names: dict[str, str] = {}
    server_names: dict[str, str] = {}
    start: tuple[Start, ...] = ()
    defaults: tuple[Default, ...] = ()
    server_defaults: tuple[Default, ...] = ()
    server_mode_defaults: tuple[Default, ...] = ()
    removed: tuple[Removed, ...] = ()
    rank: int = 0
    specific: int = 0
    commands: str = ""
    style: str = "flags"
    file_keys: tuple[str, ...] = ()
    not_file_keys: tuple[str, ...] = ()
    file_sections: tuple[str, ...] = ()
    file_role: str = "train"
    dashes_in_files: bool = False
    includes_files: bool = False
    interpolates: bool = False
    model_options: tuple[str, ...] = ()
    server_command: str = ""
    local_engine: tuple[str, ...] = ()
    no_server_option: tuple[str, ...] = ()
    flat_flags: dict[str, str] = {}
    short_options: tuple[str, ...] = ()
    loss_options: tuple[str, ...] = ()

    def default(self, option: str, release: str) -> object:
        """Return the value of an option that is not set, in a release; `...` if it is not known."""
        entries = (entry for entry in self.defaults if entry.option == option)
        return next((entry.value for entry in entries if in_range(release, entry.versions)), ...)

    def removal(self, option: str, release: str) -> Removed | None:
        """Return the entry for an option that a release does not have; None if there is no entry."""
        entries = (entry for entry in self.removed if entry.option == option)
        return next((entry for entry in entries if in_range(release, entry.releases)), None)

    def describes_file(self, tree: dict[str, Any]) -> bool:
        """Return whether the keys of a structured file are those of this framework."""
        keys = top_keys(tree)
        if set(self.not_file_keys) & keys:
            return False
        flat = {key.split(".")[0] for key in keys} | keys
        for section in self.file_sections:
            outer, _, inner = section.partition(".")
            if outer in flat and (not inner or (isinstance(tree.get(outer), dict) and inner in tree[outer])):
                return True
        return bool(set(self.file_keys) & keys)


@dataclass(frozen=True)
class Launch:
    """A program, module or Python file in a command line, and the words after it."""

    program: str = ""
    module: str = ""
    script: str = ""
    verb: str = ""
    rest: tuple[str, ...] = ()

    def matches(self, start: Start) -> bool:
        """Return whether this launch is the given way to start a framework."""
        if self.program:
            return self.program == start.program and self.verb in start.verbs
        pattern, name = (start.module, self.module) if self.module else (start.script, self.script)
        if not pattern or not re.match(pattern, name):
            return False
        if self.module and start.not_module and re.match(start.not_module, self.module):
            return False
        if start.verbs and not start.program and self.rest[:1] != start.verbs:
            return False
        if start.overrides and not any(word.lstrip("+~").startswith(start.overrides) for word in self.rest):
            return False
        flags = {match[1].replace("-", "_") for word in self.rest if (match := _FLAG.match(word))}
        return not start.flags or bool(flags & set(start.flags))


def top_keys(tree: dict[str, Any]) -> set[str]:
    """Return the keys at the top of a file, with underscores."""
    return {str(key).replace("-", "_") for key in tree}


DIALECTS: dict[str, Dialect] = {
    dialect.framework: dialect
    for dialect in sorted(
        (
            msgspec.toml.decode(path.read_bytes(), type=Dialect)
            for path in sorted(Path(__file__).parent.glob("*.toml"))
        ),
        key=lambda each: each.rank,
    )
}
PROGRAMS = {start.program for dialect in DIALECTS.values() for start in dialect.start if start.program}
