"""From files to settings: which syntax a file has, which framework it speaks, which other files it names."""

from __future__ import annotations

import re
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.frameworks import parser_of
from diagnostics.lint import commands
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.dialects.dialect import keys_of
from diagnostics.lint.sources import hydra, interpolation, shell, wrapped
from diagnostics.lint.sources.shell_scope import Word
from diagnostics.lint.sources.shell_words import HOLE
from diagnostics.lint.sources.tree import MAX_BYTES, UnreadableError, flat
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value
from diagnostics.output.findings import NotJudged

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUFFIXES = {
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".py": "python", ".sh": "shell",
    ".bash": "shell", ".slurm": "shell", ".sbatch": "shell", ".ipynb": "notebook", ".dockerfile": "dockerfile",
    ".mk": "makefile",
}  # fmt: skip
_BY_NAME = {
    "dockerfile": "dockerfile", "containerfile": "dockerfile", "makefile": "makefile", "gnumakefile": "makefile",
    "justfile": "justfile", ".justfile": "justfile",
}  # fmt: skip
_NESTED = 3
# No file holds more scripts, or writes more configs, than this.
MOST_SCRIPTS = 50
# What follows where a command ended too early: a flag, or an override, which no command is called.
_LOST = re.compile(r"--[A-Za-z]|[~+]{0,3}[A-Za-z_][\w-]*(?:\.[\w-]+)+=")
Trees = list[Any]
# `cat > FILE <<EOF`, or the other way round.
_HERE = re.compile(
    r"(?:>[ \t]*(?P<one>[\w./-]{1,300})[ \t]*)?<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w{1,60})['\"]?[ \t]*"
    r"(?:>[ \t]*(?P<two>[\w./-]{1,300}))?[ \t]*\n"
)
# A text in which a command of one of the frameworks may stand.
_COMMANDS = re.compile(
    rf"\b(?:{'|'.join(each.commands for each in DIALECTS.values() if each.commands)}"
    r"|accelerate launch|torchrun|deepspeed)"
)


def read_file(path: Path, framework: str = "") -> list[Settings]:
    """What a file sets; empty where it speaks of none of the frameworks.

    Raises:
        UnreadableError: It can't be read, with the file, the line and why.
    """
    name = str(path)
    if name == "-":
        text = sys.stdin.buffer.read(MAX_BYTES + 1).decode("utf-8", "replace")
        return read_text(text[:MAX_BYTES], "standard input", framework, syntax_of(path, text))
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UnreadableError(f"{name}: larger than {MAX_BYTES // 1_000_000} MB: no config is")
        text = given.text(path, MAX_BYTES).removeprefix("\ufeff")
    except OSError as error:
        raise UnreadableError(f"{name}: cannot be read: {error.strerror or error}") from None
    return read_text(text, name, framework, syntax_of(path, text))


def syntax_of(path: Path, text: str) -> str:
    """The syntax of a file, by its name, or by its first characters where the name says nothing."""
    if path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    if path.name.lower().startswith(tuple(_BY_NAME)):
        return next(syntax for start, syntax in _BY_NAME.items() if path.name.lower().startswith(start))
    start = text.lstrip()[:200]
    if not path.suffix and not start.startswith(("#!", "{")):
        return _guessed(text)
    if start.startswith("#!") and "python" in start.splitlines()[0]:
        return "python"
    return "json" if start.startswith("{") else "shell"


def _guessed(text: str) -> str:
    """The syntax of a text without a name: most of a YAML's lines are keys, and Python imports something."""
    lines = [line for line in text.splitlines()[:400] if line.strip() and not line.lstrip().startswith("#")]
    if any(re.match(r"(?:from [\w.]+ )?import \w", line) for line in lines):
        return "python"
    keys = sum(bool(re.match(r"\s*(?:- )?[\w.-]+:(?:\s|$)|\s*- ", line)) for line in lines)
    return "yaml" if lines and keys > 0.8 * len(lines) else "shell"


def read_text(text: str, file: str, framework: str = "", syntax: str = "shell") -> list[Settings]:
    """What a text sets.

    Raises:
        UnreadableError: It is not what `syntax` says, or beyond what a config is.
    """
    if syntax == "shell":
        return _shell(text, file)
    if syntax in {"makefile", "justfile"}:
        from diagnostics.lint.sources import makefile

        return _shell(makefile.script(text, just=syntax == "justfile"), file)
    if syntax == "dockerfile":
        return _shell(wrapped.dockerfile(text), file)
    if syntax == "notebook":
        python, bash = wrapped.notebook(text, file)
        return [*read_text(python, file, framework, "python"), *_shell(bash, file)]
    if syntax == "python":
        from diagnostics.lint.sources import python_file

        calls = python_file.read(text, file)
        for made in calls:
            _follow(made)
        if "subprocess" in text or "os.system" in text:
            started = islice(python_file.started(text, file, _COMMANDS), MOST_SCRIPTS)
            calls += _of_commands(list(started), file, 0)
        return calls
    trees = _trees(text, file, syntax)
    if syntax == "toml" and not framework and isinstance(trees[0].get("rollout"), dict):
        framework = "own"
    found = [each for tree in trees if (each := of_tree(tree, file, framework))]
    for made in found:
        _follow(made)
    return found or [each for tree in trees for each in _scripts(tree, file)]


def _trees(text: str, file: str, syntax: str) -> list[Any]:
    if syntax == "yaml":
        from diagnostics.lint.sources import yaml_file

        return yaml_file.read(text, file)
    if syntax == "json":
        from diagnostics.lint.sources import json_file

        return [json_file.read(text, file)]
    from diagnostics.lint.sources import toml_file

    return [toml_file.read(text, file)]


def of_tree(tree: Any, file: str, framework: str = "") -> Settings | None:
    """Settings of a structured file; None where it is of none of the frameworks."""
    if not isinstance(tree, dict):
        return None
    framework = framework or detect(tree)
    if not framework:
        return None
    made = Settings(framework, Place(file, 1))
    dialect = DIALECTS.get(framework)
    for key, value in flat(tree).items():
        made.items[key.replace("-", "_") if dialect and dialect.underscores else key] = value
    for name, value in (tree.get("env") or {}).items() if isinstance(tree.get("env"), dict) else ():
        if isinstance(value, Value):
            made.environ[name] = value.named(name)
    if framework == "vllm":
        made.role = "serve"
    return made


def detect(tree: dict[str, Any]) -> str:
    """The framework that a structured file speaks to, by its keys; empty if none."""
    own = [dialect for dialect in DIALECTS.values() if dialect.written(tree)]
    for dialect in own:
        if not dialect.general:
            return dialect.framework
    keys = keys_of(tree)
    if "zero_optimization" in keys or "train_micro_batch_size_per_gpu" in keys:
        return "deepspeed"
    if {"compute_environment", "distributed_type"} & keys:
        return "accelerate"
    return min(own, key=lambda each: each.general).framework if own else ""


def _shell(text: str, file: str) -> list[Settings]:
    return _of_commands(shell.commands(text, file), file, 0, _written(text, file))


def _written(text: str, file: str) -> dict[str, Trees]:
    """The YAML and JSON that a script writes by here-documents, by the name it gives them."""
    found: dict[str, Trees] = {}
    for match in islice(_HERE.finditer(text), MOST_SCRIPTS) if "<<" in text else ():
        name = match["one"] or match["two"] or ""
        suffix = Path(name).suffix.lower()
        end = re.compile(rf"^[ \t]*{match['end']}[ \t]*$", re.MULTILINE).search(text, match.end())
        if suffix not in {".yaml", ".yml", ".json"} or end is None:
            continue
        above = text.count("\n", 0, match.end())
        try:
            trees = _trees("\n" * above + text[match.end() : end.start()], file, _SUFFIXES[suffix])
        except UnreadableError:
            continue
        # Without quotes the shell puts in what it knows and this reader doesn't.
        found[name] = trees if match["quote"] else [_unexpanded(tree) for tree in trees]
    return found


def _unexpanded(tree: Any) -> Any:
    if isinstance(tree, Value):
        return tree.but(UNKNOWN) if isinstance(tree.data, str) and "$" in tree.data else tree
    if isinstance(tree, dict):
        return {key: _unexpanded(value) for key, value in tree.items()}
    return [_unexpanded(value) for value in tree]


def _of_commands(
    found: list[shell.Command], file: str, depth: int, written: dict[str, Trees] | None = None
) -> list[Settings]:
    def nested(word: Word) -> list[Settings]:
        inside = shell.nested(word, file) if depth < _NESTED else []
        return _of_commands(inside, file, depth + 1, written)

    made: list[Settings] = []
    before: list[Settings] = []
    for command in found:
        first = command.words[0]
        if before and _LOST.match(first.clean):
            key, _, given = first.clean.partition("=")
            rest = " ".join(word.clean for word in command.words[1:])
            told = (given or rest).replace(HOLE, "...")
            before[-1].lost.append(Value(told or True, Place(file, first.line), key.replace(HOLE, "...")))
            continue
        before = commands.settings(command, file, nested)
        made += before
    for each in made:
        _follow(each, written)
    return made


def read_command(words: list[str]) -> list[Settings]:
    """What a command line sets, as in `lint -- swift rlhf --rlhf_type grpo`."""
    file = "command line"
    environ: dict[str, Value] = {}
    while words and (pair := words[0].partition("="))[1] and pair[0].isidentifier():
        environ[pair[0]] = Value(pair[2], Place(file), pair[0])
        words = words[1:]
    command = shell.Command([Word(word, 0) for word in words], environ, 0)
    return _of_commands([command], file, 0)


def _follow(made: Settings, written: dict[str, Trees] | None = None) -> None:
    """Reads the files that a command names, under what the command itself sets.

    Args:
        made: What the command sets; what the files set is added.
        written: Files that the same script writes.
    """
    dialect = DIALECTS.get(made.framework)
    if dialect and dialect.includes:
        for key in ("config", "--config", "@"):
            value = made.items.get(key)
            if value is not None and isinstance(value.data, str):
                _include(made, value, written or {})
    if parser_of(made.framework) in {"hydra", "omegaconf"}:
        hydra.compose(made, needed=bool(made.signs) or bool(made.about))
    if dialect and dialect.interpolates:
        interpolation.resolve(made.items)
    _launch_files(made)


def _launch_files(made: Settings) -> None:
    """Reads DeepSpeed's file and accelerate's."""
    for named in (
        made.items.get("deepspeed"),
        made.launch.get("config_file"),
        made.items.get("accelerate_config"),
    ):
        if named is not None and _is_config(named) and not _other(named):
            _missing(made, named)
    for key, item in _named_file(made.items.get("deepspeed")).items():
        made.items.setdefault(f"deepspeed.{key}", item.named(f"deepspeed.{key}"))
    launcher = made.launch.get("config_file") or made.items.get("accelerate_config")
    for key, item in _named_file(launcher).items():
        name = {"num_processes": "processes", "num_machines": "nodes"}.get(key)
        if name:
            made.launch.setdefault(name, item)


def _is_config(named: Value) -> bool:
    return isinstance(named.data, str) and Path(named.data).suffix.lower() in {".yaml", ".yml", ".json"}


def _missing(made: Settings, named: Value) -> None:
    """Says that a file which the run names was not read."""
    name = str(named.data) if named.known else named.key
    why = (
        "it is not here, or cannot be read"
        if named.known
        else "which file it is is set outside of what was read"
    )
    made.gaps.append(NotJudged(name, why, "lint it where that file is", str(named.place)))


def _named_file(named: Value | None) -> dict[str, Value]:
    """What stands in a file that is named, under dotted keys; nothing where there is none."""
    if named is None or not isinstance(named.data, str):
        return {}
    return {key: item for tree in _other(named) if isinstance(tree, dict) for key, item in flat(tree).items()}


def _scripts(tree: Any, file: str) -> list[Settings]:
    """What the commands set that stand as text in a structured file, as in a job of Kubernetes or of a CI."""
    found = _of_commands(list(wrapped.containers(tree)), file, 0)
    if found:
        return found
    texts = (value for value in _texts(tree) if _COMMANDS.search(str(value.data)))
    for value in islice(texts, MOST_SCRIPTS):
        text = str(value.data)
        # A block begins on the line after its key.
        first = value.place.line + ("\n" in text)
        found += _of_commands(shell.commands(text, file, first), file, 0)
    return found


def _texts(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        if isinstance(tree.data, str):
            yield tree
        return
    for child in tree.values() if isinstance(tree, dict) else tree:
        yield from _texts(child)


def _include(made: Settings, named: Value, written: dict[str, Trees]) -> None:
    trees = written.get(str(named.data)) or _other(named)
    if not trees:
        if named.key != "@":
            made.open = True
            _missing(made, named)
        return
    for tree in trees:
        for key, item in flat(tree).items() if isinstance(tree, dict) else ():
            made.items.setdefault(key, item)


def _other(named: Value) -> list[Any]:
    """The trees of a file that another one names, looked for beside it and in the folders above."""
    suffix = Path(named.data).suffix.lower()
    if suffix not in {".yaml", ".yml", ".json"} or len(named.data) > 500:
        return []
    start = Path(named.place.file)
    folders = [Path(), *list(start.absolute().parents)[:5]]
    for folder in folders:
        path = folder / named.data
        try:
            if not path.is_file() or path.stat().st_size > MAX_BYTES:
                continue
            if path.is_symlink() and path.resolve().suffix.lower() != suffix:
                return []  # a link that makes a config of what is none
            text = given.text(path, MAX_BYTES).removeprefix("\ufeff")
            return _trees(text, str(path), _SUFFIXES[suffix])
        except (OSError, ValueError, RuntimeError):  # a circle of links, in older Pythons
            return []
    return []
