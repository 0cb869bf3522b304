"""Which command it is, of which framework, and what its arguments set."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from diagnostics.frameworks import TOP_MODULES
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.dialects.dialect import Recognised, Started
from diagnostics.lint.sources.shell_scope import Word
from diagnostics.lint.sources.shell_words import GIVEN, HOLE, SOFT
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value, scalar
from diagnostics.output.findings import NotJudged

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.lint.sources.shell import Command


_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9_.-]*)(?:=(.*))?$", re.DOTALL)
_NUMBER = re.compile(r"-[0-9.]")
_OVERRIDE = re.compile(r"(~?\+{0,2}(?:[A-Za-z_][\w-]*)(?:[./@][\w-]+)*)=(.*)$", re.DOTALL)
_PROGRAMS_OF_FRAMEWORKS = {program for dialect in DIALECTS.values() for program in dialect.programs}
_LAUNCHERS = {
    "nproc_per_node": "processes_per_node",
    "nproc-per-node": "processes_per_node",
    "num_processes": "processes",
    "num-processes": "processes",
    "num_gpus": "processes",
    "nnodes": "nodes",
    "num_machines": "nodes",
    "num_nodes": "nodes",
    "master_addr": "master_addr",
    "rdzv_endpoint": "rendezvous",
    "rdzv-endpoint": "rendezvous",
    "main_process_ip": "master_addr",
    "master_port": "master_port",
    "master-port": "master_port",
    "main_process_port": "master_port",
    "config_file": "config_file",
    "config-file": "config_file",
    "include": "include",
}
# Of a launcher that starts each process itself: short options that mean something else before another.
_TASKS = {
    "srun": {
        "n": "processes",
        "ntasks": "processes",
        "N": "nodes",
        "nodes": "nodes",
        "ntasks_per_node": "per_node",
    },
    "mpirun": {"np": "processes", "n": "processes"},
    "mpiexec": {"np": "processes", "n": "processes"},
}


def recognise(command: Command) -> Recognised | None:
    """Finds the framework's command among the words, whatever stands before it; None if there is none."""
    words = [word.clean for word in command.words]
    for index, word in enumerate(words):
        started = _started(words, index, word.rpartition("/")[2])
        if started is None:
            continue
        for dialect in DIALECTS.values():
            found = dialect.launched(started)
            if found is not None:
                found.launcher = (0, index)
                return found
    return None


def _started(words: list[str], index: int, base: str) -> Started | None:
    """What a word starts, if it is one that may start something."""
    if base == "-m":
        module = words[index + 1] if index + 1 < len(words) else ""
        if module.startswith(_LAUNCHES):
            return None
        return Started(module=module, rest=tuple(words[index + 2 :]), start=index + 2)
    if base.endswith(".py"):
        return Started(script=words[index], rest=tuple(words[index + 1 :]), start=index + 1)
    if base not in _PROGRAMS_OF_FRAMEWORKS:
        return None
    verb = words[index + 1] if index + 1 < len(words) else ""
    return Started(program=base, verb=verb, rest=tuple(words[index + 2 :]), start=index + 2)


def settings(command: Command, file: str, nested: Callable[[Word], list[Settings]]) -> list[Settings]:
    """What a command sets; a command given as a string to a shell is read as well.

    Args:
        command: Words and environment.
        file: Where it stands.
        nested: Reads a word that is itself a script.
    """
    found = recognise(command) or _started_script(command, file)
    if found is None:
        words = command.words
        inner = [
            words[index + 1]
            for index, word in enumerate(words[:-1])
            if word.clean in {"-c", "-lc"} and any(w.clean.endswith("sh") for w in words[:index])
        ]
        found_inside = [each for word in inner for each in nested(word)]
        for each in found_inside:
            each.environ = {**command.environ, **_given(words, file), **each.environ}
        return found_inside
    made = Settings(found.framework, Place(file, command.line), role=found.role, about=found.about)
    made.exact = found.exact
    for word in command.unread:
        why = "it is sourced before the run, and is not here or not known"
        name = word.clean.replace(HOLE, "...")
        made.gaps.append(NotJudged(name, why, "lint it where that file is", str(Place(file, word.line))))
    made.environ = {**command.environ, **_given(command.words[slice(*found.launcher)], file)}
    made.launch = _launch(command.words[slice(*found.launcher)], file)
    _of_the_job(made)
    for key, text in found.extra.items():
        made.set(key, Value(scalar(text), made.place))
    reader = _flags if found.style == "flags" else _overrides
    reader(command.words[found.start :], file, made)
    if made.framework == "trl" and found.about:
        from diagnostics.lint import scripts

        scripts.join(made, file, module=not found.about.endswith(".py"))
    return [made]


def _of_the_job(made: Settings) -> None:
    """As many tasks as the job has, where `srun` starts the processes itself and says no number."""
    processes, tasks = made.launch.get("processes"), made.environ.get("SLURM_NTASKS")
    launcher = made.launch.get("launcher")
    if launcher is None or launcher.data != "srun" or tasks is None or not str(tasks.data).isdecimal():
        return
    if processes is not None and not processes.known and "processes_per_node" not in made.launch:
        made.launch["processes"] = tasks.but(int(str(tasks.data)))


def _started_script(command: Command, file: str) -> Recognised | None:
    """A script or a module of somebody's own, if what it says itself shows that it trains by GRPO."""
    words = [word.clean for word in command.words]
    for index, word in enumerate(words):
        module = index > 0 and words[index - 1] in {"-m", "--module"} and not word.startswith(_LAUNCHES)
        if not module and not word.endswith(".py"):
            continue
        if module and word.startswith(_OTHERS):
            return None
        from diagnostics.lint import scripts

        path = scripts.find(word, file, module=module)
        if path is None and "grpo" in word.rpartition("/")[2] and _config_named(words[index + 1 :]):
            return Recognised("trl", "train", index + 1, about=word, launcher=(0, index))
        if path is not None and scripts.read(path) is not None:
            return Recognised("trl", "train", index + 1, about=word, launcher=(0, index))
        return None
    return None


def _config_named(words: list[str]) -> bool:
    """Whether a YAML is named as the config, which is how scripts with TRL's own parser are started."""
    return any(
        word == "--config" and follows.endswith((".yaml", ".yml")) for word, follows in pairwise(words)
    )


# Modules that start others, and those of other frameworks.
_LAUNCHES = ("torch.distributed.", "accelerate.", "deepspeed.")
_OTHERS = (
    *(f"{name}." for name in TOP_MODULES),
    "recipe.",
    "pip",
    "pytest",
)


def _given(words: list[Word], file: str) -> dict[str, Value]:
    """Variables that stand before the program: after `env`, or as `-e NAME=VALUE` of a container."""
    found: dict[str, Value] = {}
    after_env = False
    for number, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        given = after_env or (number > 0 and words[number - 1].clean in {"-e", "--env"})
        if equals and given and name.isidentifier():
            found[name] = word.value(file, word.text.partition("=")[2]).named(name)
        elif word.clean.rpartition("/")[2] == "env":
            after_env = True
    return found


def _tasks(words: list[Word], file: str, launcher: str, found: dict[str, Value]) -> None:
    """The processes that `srun` or `mpirun` starts: as the launcher behind it says, if there is one."""
    names = [word.clean.rpartition("/")[2] for word in words]
    behind = next(
        (
            at
            for at, name in enumerate(names)
            if (name in _PROGRAMS and name not in _TASKS) or name.startswith(_LAUNCHES)
        ),
        None,
    )
    if behind is not None:
        found.update(_launch(words[behind:], file))
        return
    made = Settings("launcher", Place(file))
    _flags(words, file, made)
    said = {_TASKS[launcher][key]: value for key, value in made.items.items() if key in _TASKS[launcher]}
    for name, value in said.items():
        # What follows the number is the program.
        first = value.data[0] if isinstance(value.data, list) else value.data
        number = scalar(str(first)) if value.known else UNKNOWN
        found["processes_per_node" if name == "per_node" else name] = value.but(number)
    if "processes" not in found and "processes_per_node" not in found:
        found["processes"] = Value(UNKNOWN, Place(file, words[0].line), f"tasks of {launcher}")


def _launch(words: list[Word], file: str) -> dict[str, Value]:
    launcher = next(
        (w.clean.rpartition("/")[2] for w in words if w.clean.rpartition("/")[2] in _PROGRAMS), ""
    )
    made = Settings("launcher", Place(file))
    _flags(words, file, made)
    found = {
        _LAUNCHERS[key]: value
        for key, value in ((k.replace(".", "_"), v) for k, v in made.items.items())
        if key in _LAUNCHERS and launcher not in _TASKS
    }
    if launcher in _TASKS:
        _tasks(words, file, launcher, found)
    if launcher:
        found["launcher"] = Value(launcher, Place(file, words[0].line), "launcher")
    elif any(w.clean.startswith("torch.distributed.") for w in words):
        found["launcher"] = Value("torchrun", Place(file, words[0].line), "launcher")
    elif any(w.clean.rpartition("/")[2].startswith("python") for w in words):
        found["launcher"] = Value("python", Place(file, words[0].line), "launcher")
    return found


_PROGRAMS = {"torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "ray", "uv"}


def _flags(words: list[Word], file: str, made: Settings) -> None:
    """Reads `--key value`, `--key=value`, `--switch` and `--list a b`."""
    key, line = "", 0
    values: list[Word] = []

    def close() -> None:
        if key:
            made.set(key, _many(values, file, line))

    for word in words:
        match = _FLAG.match(word.text.replace(SOFT, "")) if HOLE not in word.text.partition("=")[0] else None
        if match and not _NUMBER.match(word.clean):
            close()
            key, line = match[1].replace("-", "_"), word.line
            values = []
            if "=" in word.clean:
                values.append(Word(word.text.partition("=")[2], word.line))
        elif key:
            values.append(word)
        elif word.unknown:
            _opened(made, word, file)
        else:
            made.items.setdefault("@", word.value(file).named("@"))
        if word.unknown and key and (len(values) > 1 or word.text == GIVEN):
            _opened(made, word, file)
    close()


def _opened(made: Settings, word: Word, file: str) -> None:
    """Says that options stand there which nobody can read."""
    place = str(Place(file, word.line))
    if word.text == GIVEN:
        made.passes = True
        told = NotJudged(
            '"$@"',
            "judged as the script is without arguments",
            "lint the whole command",
            place,
            decides=False,
        )
    else:
        made.open = True
        told = NotJudged("more options", "they come out of what only a run knows", "write them out", place)
    made.gaps.append(told)


def _many(values: list[Word], file: str, line: int) -> Value:
    # A backslash before a blank at the end of a line makes a word of that blank.
    values = [word for word in values if word.clean.strip()] or values[:1]
    if not values:
        return Value(True, Place(file, line))
    values = [word for word in values if word.text != GIVEN] or values[:1]
    if values[0].text == GIVEN:
        return Value(True, Place(file, line))
    if len(values) == 1 or values[1].text == HOLE:
        value = values[0].value(file)
        return value.but(_data(value.data)) if value.known else value
    data = [_data(word.value(file).data) for word in values]
    return Value(
        UNKNOWN if UNKNOWN in data else data,
        Place(file, line),
        soft=any(SOFT in w.text for w in values),
        outside=any(SOFT in w.text for w in values),
    )


def _data(text: object) -> object:
    if not isinstance(text, str):
        return text
    stripped = text.strip()
    if stripped[:1] == "{" and len(stripped) < 20_000:
        try:
            loaded = json.loads(stripped, parse_int=scalar)
        except (ValueError, RecursionError):
            return text
        return loaded
    return scalar(text)


def _overrides(words: list[Word], file: str, made: Settings) -> None:
    """Reads Hydra's `a.b=c`, `+a.b=c`, `++a.b=c`, and EasyR1's `config=FILE`; `~a.b` removes a key."""
    for number, word in enumerate(words):
        key, equals, _ = word.text.partition("=")
        if not equals or HOLE in key:
            if word.unknown:
                _opened(made, word, file)
            elif match := _FLAG.match(word.clean):
                follows = words[number + 1] if number + 1 < len(words) else word
                made.items[f"--{match[1]}"] = _behind_hole(follows, follows.text, file).named(f"--{match[1]}")
            continue
        match = _OVERRIDE.match(word.text.replace(SOFT, ""))
        if match and match[1].startswith("~"):
            made.items.pop(match[1].lstrip("~"), None)
        elif match:
            value = word.value(file, word.text.partition("=")[2])
            data = _data(_unquoted(value.data)) if value.known else UNKNOWN
            key = match[1].lstrip("+")
            made.set(key, value.but(data))
            made.signs[key] = match[1][: len(match[1]) - len(key)]
        elif flag := _FLAG.match(word.clean):
            value = _behind_hole(word, word.text.partition("=")[2], file)
            made.items[f"--{flag[1]}"] = value.named(f"--{flag[1]}")


def _behind_hole(word: Word, text: str, file: str) -> Value:
    """A path of which the beginning may be unknown, as `$PWD/config`: what comes behind it tells which folder it is."""
    return word.value(file, text.rpartition(HOLE)[2] or text)


def _unquoted(text: object) -> object:
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
