"""Read one command into `Settings`: the framework that it starts, the launcher's settings, environment and options.

`read_command` recognises a framework by its program, module or script, also behind launchers such as torchrun. If the
options are not read by the framework's own parser, it reads the source of the user's script or module, too. It adds the
settings of the config object that this script creates. A script that is not found counts as TRL's
if its name has "grpo" and it gets `--config FILE.yaml`.

Options are read as flags (`--key value`) or as Hydra overrides (`a.b=c`). An option whose value is unknown is set to
UNKNOWN. An unknown word that may contain more options becomes an entry "not checked". The script in `bash -c SCRIPT` is
passed to the function `read_nested`.
"""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from diagnostics.findings import NotChecked
from diagnostics.frameworks import TOP_LEVEL_PACKAGES, uses_overrides
from diagnostics.lint.dialects import DIALECTS, PROGRAMS, Launch, Start, dialect_of
from diagnostics.lint.project_files import find_script
from diagnostics.lint.readers.shell import Command
from diagnostics.lint.readers.shell_scope import HOLE, SCRIPT_ARGUMENTS, SOFT, Word
from diagnostics.lint.user_scripts import add_script_settings, read_user_script
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value, parse_scalar

_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9_.-]*)(?:=(.*))?$", re.DOTALL)
# Programs whose `-c` is followed by no shell script.
_NO_SHELL = re.compile(r"(?:i?python|perl|ruby|node|[efpz]?grep|echo|printf)[\d.]*")
_NUMBER = re.compile(r"-[0-9.]")
_REMOVED_KEY = re.compile(r"~([A-Za-z_][\w./@-]*)(?:=.*)?", re.DOTALL)
_OVERRIDE = re.compile(r"(\+{0,2}(?:[A-Za-z_][\w-]*)(?:[./@][\w-]+)*)=(.*)$", re.DOTALL)
LAUNCHERS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("launchers.toml").read_text("utf-8"))
_LAUNCHER_MODULES = tuple(LAUNCHERS["modules"])
# Maximum number of words in one command that are considered as its program.
_MAX_PROGRAMS = 20
# Beginnings of modules that are not a user's training script.
_OTHER_MODULES = (*(f"{name}." for name in TOP_LEVEL_PACKAGES), "recipe.", "pip", "pytest")


@dataclass
class FrameworkCommand:
    """The part of a command that starts a framework.

    Attributes:
        framework: Name of the framework.
        way: The matched way to start the framework: role, parser and implied options.
        first_argument: Index of the program's first argument.
        launch_end: Number of words before the program, which belong to the launcher.
        target: The user's script, or a module; empty for a program of the framework.
        is_module: Whether the target is a module.
    """

    framework: str
    way: Start
    first_argument: int
    launch_end: int
    target: str = ""
    is_module: bool = False


def find_framework_command(words: list[str]) -> FrameworkCommand | None:
    """Find a program, module or script of a framework among the words, also behind launchers; None if none is there."""
    launches = (_parse_launch(words, index, word.rpartition("/")[2]) for index, word in enumerate(words))
    started = ((index, *parsed) for index, parsed in enumerate(launches) if parsed is not None)
    for index, launch, start in islice(started, _MAX_PROGRAMS):
        for dialect in DIALECTS.values():
            way = next(filter(launch.matches, dialect.start), None)
            if way is not None:
                has_verb = bool(launch.module and way.verbs and not way.program)
                target = launch.module or launch.script
                return FrameworkCommand(
                    dialect.framework, way, start + has_verb, index, target, bool(launch.module)
                )
    return None


def _parse_launch(words: list[str], index: int, name: str) -> tuple[Launch, int] | None:
    """Return the launch that begins with the word at `index` and the index of its first argument, or None.

    `name` is the word without its folder.
    """
    following = words[index + 1] if index + 1 < len(words) else ""
    if name in {"-m", "--module"}:
        if following.startswith(_LAUNCHER_MODULES):
            return None
        return Launch(module=following, rest=tuple(words[index + 2 :])), index + 2
    if name.endswith(".py"):
        return Launch(script=words[index], rest=tuple(words[index + 1 :])), index + 1
    if name in PROGRAMS:
        # prime-rl's `rl` has no verb; what follows belongs to its arguments.
        arguments = index + 1 + (not following.startswith(("-", "@")))
        return Launch(program=name, verb=following, rest=tuple(words[arguments:])), arguments
    return None


def _find_user_script(words: list[str], file: str) -> FrameworkCommand | None:
    """Find a user's script or module that trains with a framework, by its source or its name; None if none does."""
    starts = (
        (index, word, before in {"-m", "--module"} and not word.startswith(_LAUNCHER_MODULES))
        for index, (before, word) in enumerate(pairwise(("", *words)))
    )
    index, word, module = next((it for it in starts if it[2] or it[1].endswith(".py")), (0, "", False))
    if not word:
        return None
    path, arguments = find_script(word, file, module=module), words[index + 1 :]
    framework = read_user_script(path).framework if path is not None else ""
    if path is None and "grpo" in word.rpartition("/")[2]:
        # A script that is not found counts if its name has "grpo" and TRL's parser gets a YAML file.
        configs = [value for flag, value in pairwise(arguments) if flag == "--config"]
        framework = "trl" if any(name.endswith((".yaml", ".yml")) for name in configs) else ""
    # A command of a framework with overrides that sets none is a test, for example.
    is_other = (module and word.startswith(_OTHER_MODULES)) or (
        uses_overrides(framework) and not any(map(_OVERRIDE.match, arguments))
    )
    if is_other or not framework:
        return None
    return FrameworkCommand(framework, Start(), index + 1, index, word, module)


def read_command(
    command: Command, file: str, read_nested: Callable[[Word], list[Settings]], framework: str = ""
) -> list[Settings]:
    """Return the settings of a command, or of the commands inside `bash -c`; empty if it starts no framework.

    Args:
        command: Words and environment of the command.
        file: The file that contains the command.
        read_nested: Function that reads a word that is itself a shell script.
        framework: Framework to assume for a run that no parser of a framework reads; empty for none.
    """
    words = [word.clean for word in command.words]
    recognised = find_framework_command(words)
    if recognised is None or not recognised.way.framework_parser:
        by_source = _find_user_script(words, file)
        extended = DIALECTS[by_source.framework].extends if by_source else ""
        recognised = by_source if recognised is None or extended == recognised.framework else recognised
    if recognised is None:
        nested = [settings for word in _shell_arguments(command.words) for settings in read_nested(word)]
        for settings in nested:
            settings.env = {**command.env, **_inline_env(command.words, file), **settings.env}
        return nested
    if framework and not recognised.way.framework_parser:
        recognised.framework = framework
    launch_words = command.words[: recognised.launch_end]
    way, place = recognised.way, Place(file, command.line)
    settings = Settings(recognised.framework, place, role=way.role, target=recognised.target)
    settings.framework_parser = way.framework_parser
    settings.command = way.command or (recognised.target if way.role == "other" else "")
    settings.env = {**command.env, **_inline_env(launch_words, file)}
    settings.launcher = _read_launcher(launch_words, file)
    settings.not_checked += command.not_checked
    settings.split += command.split
    settings.unexported = command.unexported
    for key, text in way.extra.items():
        settings.set(key, Value(parse_scalar(text), place))
    read = _read_overrides if uses_overrides(recognised.framework) else _read_flags
    # A lone @ only announces the name of a config file.
    read([word for word in command.words[recognised.first_argument :] if word.text != "@"], file, settings)
    if DIALECTS[settings.framework].classes and recognised.target and not way.framework_parser:
        add_script_settings(settings, file, module=recognised.is_module)
    return [settings]


def _shell_arguments(words: list[Word]) -> list[Word]:
    """Return the words with scripts: SCRIPT in `bash -c SCRIPT`, `submit -c SCRIPT` or `sbatch --wrap=SCRIPT`."""
    wrapped = [word for word in words if word.clean.startswith("--wrap=")]
    scripts = [Word(word.text.partition("=")[2], word.line) for word in wrapped]
    is_shell = True
    for word, following in pairwise(words):
        name = word.clean.rpartition("/")[2]
        if is_shell and name in {"-c", "-lc", "--wrap"}:
            scripts.append(following)
        is_shell = name.endswith("sh") or (is_shell and not _NO_SHELL.fullmatch(name))
    return scripts


def _inline_env(words: list[Word], file: str) -> dict[str, Value]:
    """Return the variables in the words before the program: after `env`, or as a container's `-e NAME=VALUE`."""
    env: dict[str, Value] = {}
    after_env = False
    for number, word in enumerate(words):
        name, equals, text = word.text.partition("=")
        if equals and name.isidentifier() and (after_env or words[number - 1].clean in {"-e", "--env"}):
            env[name] = word.to_value(file, text).with_key(name)
        elif word.clean.rpartition("/")[2] == "env":
            after_env = True
    return env


def _read_launcher(words: list[Word], file: str) -> dict[str, Value]:
    """Return the settings in the words of the launcher, which are before the program."""
    names = [word.clean.rpartition("/")[2] for word in words]
    name = next((program for program in names if program in LAUNCHERS["programs"]), "")
    if not name and any(program.startswith("torch.distributed.") for program in names):
        name = "torchrun"
    settings = Settings("launcher", Place(file))
    _read_flags(words, file, settings)
    launcher = {
        LAUNCHERS["settings"][key]: value
        for key, value in settings.options.items()
        if key in LAUNCHERS["settings"]
    }
    if not name and (
        name := next((program for program in names if program in LAUNCHERS["task_programs"]), "")
    ):
        launcher["processes"] = Value(UNKNOWN, Place(file, words[0].line), f"tasks of {name}")
    if not name and any(program.startswith("python") for program in names):
        name = "python"
    if name:
        launcher["launcher"] = Value(name, Place(file, words[0].line), "launcher")
    return launcher


def _read_flags(words: list[Word], file: str, settings: Settings) -> None:
    """Read `--key value`, `--key=value`, `--switch` and `--list a b`; the first other word is the option `@`."""
    key, line = "", 0
    switches = dialect_of(settings.framework).switches
    values: list[Word] = []
    for word in words:
        readable = HOLE not in word.text.partition("=")[0]
        match = _FLAG.match(word.clean) if readable and not _NUMBER.match(word.clean) else None
        if match:
            if key:
                settings.set(key, _combine(values, file, line), notes_repeated=True)
            key, line = match[1].replace("-", "_"), word.line
            values = [Word(word.text.partition("=")[2], word.line)] if "=" in word.clean else []
        elif key in switches and word.is_unknown:
            settings.set(key, Value(True, Place(file, line)))
            key = ""
            _report_unread(settings, word, file)
        elif key:
            values.append(word)
        elif word.is_unknown:
            _report_unread(settings, word, file)
        else:
            settings.options.setdefault("@", word.to_value(file).with_key("@"))
        if word.is_unknown and key and (len(values) > 1 or word.text == SCRIPT_ARGUMENTS):
            _report_unread(settings, word, file)
    if key:
        settings.set(key, _combine(values, file, line), notes_repeated=True)


def _report_unread(settings: Settings, word: Word, file: str) -> None:
    """Add an entry "not checked" for options that an unknown word may contain."""
    place = str(Place(file, word.line))
    if word.text == SCRIPT_ARGUMENTS:
        settings.forwards_arguments = True
        reason = "they are not known, and the run was checked without them"
        entry = NotChecked(
            'arguments of the script ("$@")', reason, "lint the whole command", place, decides=False
        )
    else:
        settings.has_unread_options = True
        reason = "a variable, a branch or a command gives more options, and lint does not know them"
        entry = NotChecked("more options", reason, "write them out", place)
    settings.not_checked.append(entry)


def _combine(values: list[Word], file: str, line: int) -> Value:
    """Combine the words after a flag: True for none, a list for several, the first if the second is unknown."""
    # A backslash before a blank at the end of a line makes a word of the blank.
    values = [word for word in values if word.clean.strip()] or values[:1]
    values = [word for word in values if word.text != SCRIPT_ARGUMENTS]
    if not values:
        return Value(True, Place(file, line))
    if len(values) == 1 or values[1].text == HOLE:
        value = values[0].to_value(file)
        data = _parse(value.data) if value.known else UNKNOWN
        # A number such as 1.28e5 is shown as it is written.
        written = value.data if isinstance(data, float) else UNKNOWN
        return Value(data, value.place, "", value.soft, value.outside, written) if value.known else value
    data = [_parse(word.to_value(file).data) for word in values]
    soft = any(SOFT in word.text for word in values)
    return Value(UNKNOWN if UNKNOWN in data else data, Place(file, line), soft=soft, outside=soft)


def _parse(text: object) -> object:
    """Parse a text as JSON if it begins with a brace, else as a scalar; return invalid JSON and other types as is."""
    if not isinstance(text, str):
        return text
    stripped = text.strip()
    if stripped[:1] == "{" and len(stripped) < 20_000:
        try:
            parsed: object = json.loads(stripped, parse_int=parse_scalar)
        except (ValueError, RecursionError):
            return text
        return parsed
    return parse_scalar(text)


def _read_overrides(words: list[Word], file: str, settings: Settings) -> None:
    """Read Hydra's `a.b=c`, `+a.b=c`, `++a.b=c`, and EasyR1's `config=FILE`; `~a.b` and `~a.b=c` remove a key.

    Flags such as `--config-name` are options whose key begins with `--`.
    """
    for number, word in enumerate(words):
        key, equals, text = word.text.partition("=")
        flag = _FLAG.match(word.clean)
        if removed := _REMOVED_KEY.fullmatch(word.clean):
            settings.options.pop(removed[1], None)
            settings.prefixes[removed[1]] = "~"
            continue
        before = words[number - 1] if number else word
        if equals and not key and number:  # `a =b` or `a = b`
            value_word = (words[number : number + 1] if text else words[number + 1 : number + 2] or [word])[0]
            split = value_word.to_value(file, text or value_word.text).with_key(before.clean)
            settings.split.append(split)
            settings.set(before.clean.lstrip("+"), split)
            continue
        if not equals or HOLE in key:
            if HOLE not in before.text + word.text and before.text[1:].endswith("=") and not flag:
                # Hydra takes `a=` and `b` for two overrides, and refuses the second.
                settings.split.append(word.to_value(file).with_key(before.clean[:-1]))
                settings.set(before.clean[:-1].lstrip("+"), word.to_value(file))
            elif word.is_unknown:
                _report_unread(settings, word, file)
            elif flag:
                value = words[number + 1] if number + 1 < len(words) else word
                settings.set(f"--{flag[1].replace('_', '-')}", _known_tail(value, value.text, file))
            continue
        match = _OVERRIDE.match(word.clean)
        if match:
            value_read = word.to_value(file, text)
            data = _parse(_unquote(value_read.data)) if value_read.known else UNKNOWN
            key = match[1].lstrip("+")
            override = Value(data, value_read.place, key, value_read.soft, value_read.outside)
            settings.set(key, override, notes_repeated=True)
            settings.prefixes[key] = match[1][: len(match[1]) - len(key)]
        elif flag:
            settings.set(f"--{flag[1].replace('_', '-')}", _known_tail(word, text, file))


def _known_tail(word: Word, text: str, file: str) -> Value:
    """Return the known end of a path such as `$PWD/config`, whose beginning is unknown."""
    return word.to_value(file, text.rpartition(HOLE)[2] or text)


def _unquote(text: object) -> object:
    """Return a text without the quotes around it."""
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
