"""Load the dialects: the `[lint]` table of each framework's TOML file, with its option names, defaults and commands.

DIALECTS has them by framework, in the order in which commands are matched. A dialect that extends another one gets its
names, derived values, classes and loss options. `Launch.matches`, `Dialect.describes_file` and `framework_of_source`
decide whether a command, a config file or a script belongs to a dialect. `Dialect.default` and `Dialect.removal` look
up an option in a release.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from diagnostics.frameworks import FRAMEWORKS, Framework
from diagnostics.versions import in_range

# Longer names match no pattern, because patterns such as `.*a.*b` take quadratic time.
_MAX_PATH = 4096
_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9_.-]*)(?:=|$)")


class Start(Struct, frozen=True, forbid_unknown_fields=True):
    """A way to start a framework: by a program with a verb, a module or a script. Patterns match from the beginning.

    Attributes:
        program: Name of the program.
        verbs: For a program, words of which one must follow it. For a module, the word that must follow it.
        module: Pattern of the module.
        script: Pattern of the script's path.
        not_module: Pattern of modules to which this way does not apply.
        overrides: Beginnings of Hydra keys; the words must set at least one such key.
        flags: Options; the words must contain at least one of them.
        role: Role of the process, as in `Settings`.
        command: The command whose options it takes, as in `Settings`; for the role `other`, the module if it is empty.
        framework_parser: Whether the framework's own parser reads the options.
        extra: Options that this way of starting implies, with their values.
    """

    program: str = ""
    verbs: tuple[str, ...] = ()
    module: str = ""
    script: str = ""
    not_module: str = ""
    overrides: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    role: str = "train"
    command: str = ""
    framework_parser: bool = False
    extra: dict[str, str] = {}


class PlanValue(Struct, frozen=True, forbid_unknown_fields=True):
    """A value of the run plan if no option sets it. Of several entries for one name, the first that applies counts.

    Attributes:
        name: The plan's name.
        option: The option whose default this is; it holds if all options could be read.
        versions: The releases in which it holds.
        source: What it follows from: a name of the plan, or one of the sources of `derivation.read_source`.
        values: Text of the source's value -> value; `*` is any other text. An empty value means: the entry does not
            apply.
        value: The value, whatever the value of the source.
        pattern: A pattern for the source's text. With one group, the value is the word that it matches, or the product
            of the numbers that it matches. With two groups, these are the ends of ranges, and the value is the sum of
            the lengths.
        factors: Sources whose numbers are multiplied.
        when: Source -> the value that it must have; an empty text means that the source is not set.
        replaces: Whether it also replaces a value that an option has set.
        complete: Whether it applies only if all options of the run could be read.
        about: Printed as the location of a value without a source, or of a default.
    """

    name: str
    option: str = ""
    versions: str = ""
    source: str = ""
    values: dict[str, Any] = {}
    value: Any = None
    pattern: str = ""
    factors: tuple[str, ...] = ()
    when: dict[str, Any] = {}
    replaces: bool = False
    complete: bool = False
    about: str = ""


class Removed(Struct, frozen=True, forbid_unknown_fields=True):
    """An option that some releases do not have.

    Attributes:
        option: Name of the option.
        releases: Range of releases that do not have the option.
        instead: The option to use in these releases; or `nothing`, or `nothing: REASON`.
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


class Ineffective(Struct, frozen=True, forbid_unknown_fields=True):
    """Options that have no effect under a condition, `when`, or without another option, `needs`.

    Attributes:
        options: Names of the options; `a*` are all with this beginning.
        when: Source -> the value that it must have, as in `PlanValue`.
        needs: The option that has to be on, or the first one set of `a|b`; `a=b` or `a=b/c` for a value.
        reason: The condition as a clause, such as "use_vllm is off"; empty for one about `needs`.
        fix: The change that gives the options an effect; `{names}` stands for those that the run sets. Empty for one
            about `needs`.
        versions: The releases in which this holds. Of several entries for an option, the first counts.
        code: Code of the finding.
        values: Values that are not reported.
        copied: Values that are not reported in a config file, which may be a copy of the framework's.
    """

    options: tuple[str, ...]
    when: dict[str, Any] = {}
    needs: str = ""
    reason: str = ""
    fix: str = ""
    versions: str = ""
    code: str = "CFG111"
    values: tuple[Any, ...] = ()
    copied: tuple[Any, ...] = ()


class Dialect(Struct, frozen=True, forbid_unknown_fields=True):
    """One framework's options, commands and files.

    Attributes:
        framework: Its name in `diagnostics.frameworks`.
        names: Its option -> name of the run plan. Of two options for one name, the later one counts. `a.b` is also the
            key `b` of an option `a` that is a table, and `!name` is the opposite of the option.
        server_names: The same for the options of its rollout server.
        start: The commands that start it.
        defaults: Values of options that are not set.
        server_defaults: The same for its rollout server.
        derived: Values of the plan that follow from others.
        removed: Options that some releases do not have.
        extends: A framework whose names, derived values, classes and loss options hold for this one, too.
        rank: Order in which commands are matched, the lowest first.
        specific: 0 if its file keys are in no other framework's files; else its position among those that share keys.
        source_marks: Patterns that all match the source of a script or module that trains with it.
        classes: Classes of Python scripts whose arguments are its options.
        model_calls: Calls of Python scripts whose arguments are its options, too.
        file_keys: Keys of which one is enough to recognise its files.
        not_file_keys: Keys that its files do not have.
        file_sections: The same as `file_keys` for nested keys, as `outer.inner`.
        file_syntax: The syntax of its files, if only one is possible.
        file_role: The role of a run in its files: `train` or `serve`.
        parses_files: The syntax of files whose unknown keys its own parser refuses; empty for none.
        dashes_in_files: Whether its files may write `-` for `_` in option names.
        config_options: Options that name a config file -> the prefix of that file's keys.
        base_key: Key in a config that names the configs that it extends, relative to its folder.
        model_options: Options that name the model: a script that sets one is complete without its arguments.
        ineffective: Options that have no effect under a condition, such as without `use_vllm`.
        flat_flags: Dotted option -> its flat name in releases before `flat_until`.
        switches: Options that take no value.
        unindexed_options: Options that are in no index, such as those with one dash.
        loss_options: Options of the loss, which a migration compares; the run plan has no names for them.
        unknown_options: What its parser does with an option that it does not know: `refused`, `extended` if it
            refuses it but a script may give a class with more options, `skipped`, or `passed` if other code, whose
            options are not indexed, may read it.
        extending_options: Options that choose another main program, which may have options of its own.
        checks_types: Whether it refuses a value of another type.
        unindexed_targets: Pattern of its modules that belong to a package whose releases are not indexed.
    """

    framework: str
    names: dict[str, str] = {}
    server_names: dict[str, str] = {}
    start: tuple[Start, ...] = ()
    defaults: tuple[PlanValue, ...] = ()
    server_defaults: tuple[PlanValue, ...] = ()
    derived: tuple[PlanValue, ...] = ()
    removed: tuple[Removed, ...] = ()
    extends: str = ""
    rank: int = 0
    specific: int = 0
    source_marks: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    model_calls: tuple[str, ...] = ()
    file_keys: tuple[str, ...] = ()
    not_file_keys: tuple[str, ...] = ()
    file_sections: tuple[str, ...] = ()
    file_syntax: str = ""
    file_role: str = "train"
    parses_files: str = ""
    dashes_in_files: bool = False
    config_options: dict[str, str] = {}
    base_key: str = ""
    model_options: tuple[str, ...] = ()
    ineffective: tuple[Ineffective, ...] = ()
    flat_flags: dict[str, str] = {}
    switches: tuple[str, ...] = ()
    unindexed_options: tuple[str, ...] = ()
    loss_options: tuple[str, ...] = ()
    unknown_options: str = "refused"
    extending_options: tuple[str, ...] = ()
    checks_types: bool = True
    unindexed_targets: str = "(?!)"

    def default(self, option: str, release: str) -> object:
        """Return the default of an option in a release; the object Ellipsis if no entry has it."""
        entries = (entry for entry in (*self.defaults, *self.derived) if entry.option == option)
        return next((entry.value for entry in entries if in_range(release, entry.versions)), ...)

    def removal(self, option: str, release: str) -> Removed | None:
        """Return the entry for an option and a release that does not have it; None if there is none."""
        entries = (entry for entry in self.removed if entry.option == option)
        return next((entry for entry in entries if in_range(release, entry.releases)), None)

    def describes_file(self, tree: dict[str, Any], keys: set[str], syntax: str) -> bool:
        """Return whether a structured file is one of this framework.

        Args:
            tree: Contents of the file.
            keys: The file's `top_keys`.
            syntax: Syntax of the file, such as `yaml`.
        """
        if not keys.isdisjoint(self.not_file_keys) or self.file_syntax not in {"", syntax}:
            return False
        for section in self.file_sections:
            outer, _, inner = section.partition(".")
            if outer in keys and (not inner or (isinstance(tree.get(outer), dict) and inner in tree[outer])):
                return True
        return not keys.isdisjoint(self.file_keys)


@dataclass(frozen=True)
class Launch:
    """A program, a module or a Python file in a command line, with its verb and the following words."""

    program: str = ""
    module: str = ""
    script: str = ""
    verb: str = ""
    rest: tuple[str, ...] = ()

    def matches(self, start: Start) -> bool:
        """Return whether this launch starts a framework in the way that `start` describes."""
        if self.program:
            return self.program == start.program and self.verb in start.verbs
        pattern, name = (start.module, self.module) if self.module else (start.script, self.script)
        if not pattern or len(name) > _MAX_PATH or not re.match(pattern, name):
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
    """Return the top-level keys of a file, with `_` for `-`, and the first parts of dotted keys."""
    keys = {str(key).replace("-", "_") for key in tree}
    return keys | {key.partition(".")[0] for key in keys}


def _load(framework: Framework) -> Dialect:
    """Return a framework's dialect, merged with the one that it extends; `flat_flags` become entries of `removed`."""
    table = {"framework": framework.name, **framework.lint}
    base = FRAMEWORKS[table["extends"]].lint if table.get("extends") else {}
    for key in base.keys() & {"names", "derived", "classes", "loss_options"}:
        extended = base[key]
        if isinstance(extended, dict):
            table[key] = extended | table.get(key, {})
        else:
            table[key] = [*table.get(key, ()), *extended]
    flat_until, removed = table.pop("flat_until", ""), list(table.get("removed", ()))
    for dotted, flat in table.get("flat_flags", {}).items():
        removed += [
            {"option": flat, "releases": f">={flat_until}", "instead": f"--{dotted}", "renamed": dotted},
            {"option": dotted, "releases": f"<{flat_until}", "instead": f"--{flat}", "renamed": flat},
        ]
    return msgspec.convert(table | {"removed": removed}, Dialect)


DIALECTS: dict[str, Dialect] = {
    dialect.framework: dialect
    for dialect in sorted(map(_load, FRAMEWORKS.values()), key=lambda each: each.rank)
}
PROGRAMS = {start.program for dialect in DIALECTS.values() for start in dialect.start if start.program}


def dialect_of(framework: str) -> Dialect:
    """Return a framework's dialect; an empty one for another name, such as `launcher`, `accelerate` or `deepspeed`."""
    return DIALECTS.get(framework, Dialect(framework))


def framework_of_source(source: str) -> str:
    """Return the framework with which a script trains, by its source; empty if none."""
    for name, dialect in DIALECTS.items():
        if dialect.source_marks and all(re.search(mark, source) for mark in dialect.source_marks):
            return name
    return ""
