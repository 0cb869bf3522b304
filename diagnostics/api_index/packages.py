"""Load `packages.toml`: for each indexed package, the releases and files to read, and the code that declares options.

It also selects which uses and guards (`raise` and `assert`) are recorded, and which guards a GRPO run reaches. Further
tables list the files of a release to prefer, names by which `triage` finds the calling code in a log (programs outside
of the index, launchers, files that only pass calls on, folders of generated code), classes that users extend, and
renamed modules of transformers.
"""

import re
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

# Folders that a run does not import.
SKIPPED = re.compile(
    r"(^|/)(tests?|testing|examples?|benchmarks?|docs?|third_party|thirdparty|node_modules|\.github)/"
)


class Component(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a framework that is used only with some options, and makes checks of its own.

    Attributes:
        code: Pattern of `module:function`.
        prefix: The part of the config that the component gets, such as `actor_rollout_ref.rollout.`.
        when: Option -> the value with which the component is used.
        names: Values of other names in its conditions.
    """

    code: str
    prefix: str
    when: dict[str, str]
    names: dict[str, str] = {}


class IndexedPackage(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for reading one package.

    Attributes:
        name: Name on the package index.
        modules: Top-level packages to read.
        since: The oldest indexed release.
        since_day: Releases before this day are not indexed.
        outlined: Folders with model definitions; only top-level classes and functions of their files are read.
        whole: Folders inside outlined ones that are read completely.
        left_out: Folders that are not read at all.
        stubs: Stub files (`.pyi`) of the compiled modules whose names the top-level package has, too.
        configs: Whether its YAML config files are read.
        uses: Other packages whose names it uses; these uses are recorded.
        used_kinds: Kinds of uses that are recorded; empty for all.
        same_release_as: For a plugin: the package that it extends. Each release of the plugin is for the release of
            the same number, without that package's CUDA requirements.
        declaring: Pattern of the modules and config files that declare options; without one, it has no options.
        serving: Pattern of the modules that declare the options of its own server.
        guarding: Pattern of the modules whose guards are recorded: each `raise` and `assert`, for `lint`.
        nested_classes: Dataclasses in such modules whose fields are no options, but keys inside an option.
        choices: Option whose parser accepts any text -> the values that the package's code accepts.
        registering: Pattern of the modules with registries whose names are choices of options.
        registries: Option -> functions, tables and Enums. The names that they register, or their members, are the
            option's choices.
        registry_plugins: Options with which a run may register more names.
        components: Parts whose guards a run reaches with some options.
        starting: Pattern of the functions whose guards a GRPO run reaches: of the main program and of the trainer.
        commands: Command -> what declares its options: modules and files with all options, and `module:Class` with
            options as fields. The command of a GRPO run is "". A command that is not listed is itself a module.
    """

    name: str
    modules: tuple[str, ...]
    since: str = "0"
    since_day: str = "2024-09-01"
    outlined: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    stubs: tuple[str, ...] = ()
    configs: bool = False
    uses: tuple[str, ...] = ()
    used_kinds: tuple[str, ...] = ()
    same_release_as: str = ""
    declaring: str = "(?!)"
    serving: str = "(?!)"
    guarding: str = "(?!)"
    nested_classes: tuple[str, ...] = ()
    choices: dict[str, tuple[str, ...]] = {}
    registering: str = "(?!)"
    registries: dict[str, tuple[str, ...]] = {}
    registry_plugins: tuple[str, ...] = ()
    starting: str = "(?!)"
    components: tuple[Component, ...] = ()
    commands: dict[str, tuple[str, ...]] = {}

    def includes(self, path: str) -> bool:
        """Return whether a file is read: a module (`.py`, `.so`), one of `stubs`, or a YAML config.

        With `configs`, YAML files in folders `config` are read. A file must be in one of `modules`, and not in a
        left-out folder or one of SKIPPED.
        """
        is_other = path in self.stubs or (self.configs and "/config/" in path and path.endswith(".yaml"))
        top = path.removesuffix(".py").partition("/")[0]
        return (
            (path.endswith((".py", ".so")) or is_other)
            and top in self.modules
            and not SKIPPED.search(path)
            and not path.startswith(self.left_out or ("//",))
        )

    def option_sources(self, command: str) -> tuple[str, ...]:
        """Return what declares the options of a command; see `commands`."""
        return self.commands.get(command, (command,) if command else ())

    def is_outlined(self, path: str) -> bool:
        """Return whether only the outline of a file is read."""
        is_whole = path.startswith((*self.whole, *self.stubs) or ("//",)) or path.endswith("/__init__.py")
        return path.startswith(self.outlined or ("//",)) and not is_whole


_TABLE = tomllib.loads(Path(__file__).with_name("packages.toml").read_text(encoding="utf-8"))
PREFERRED_FILES: list[str] = _TABLE["preferred_files"]
CALLERS: dict[str, list[str]] = _TABLE["callers"]
GENERATED_FOLDERS: dict[str, str] = _TABLE["generated_folders"]
EXTENDED_CLASSES: dict[str, str] = _TABLE["extended_classes"]
RENAMED_MODULES: dict[re.Pattern[str], str] = {
    re.compile(old): new for old, new in _TABLE["renamed_modules"].items()
}
PACKAGES = {item.name: item for item in msgspec.convert(_TABLE["package"], list[IndexedPackage])}
