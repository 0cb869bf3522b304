"""Read a file, standard input or a command line into `Settings`: detect syntax and framework, and follow named files.

A file may have several runs. Followed files are configs, base configs, Hydra configs, and those of DeepSpeed and
accelerate. A missing one becomes an entry "not checked", except a plain argument and a Hydra config that is not
required. Options after the end of a command are noted as `orphaned`. `read_file` and `read_command_line` stop after
5 s of processor time.
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.cpu_limit import CpuLimitError, cpu_limit
from diagnostics.findings import NotChecked
from diagnostics.frameworks import uses_overrides
from diagnostics.lint import command_lines
from diagnostics.lint.dialects import DIALECTS, dialect_of, top_keys
from diagnostics.lint.project_files import SUFFIXES, find_named
from diagnostics.lint.readers import hydra, notebooks, python, shell, structured
from diagnostics.lint.readers.shell_scope import HOLE, Word
from diagnostics.lint.values import Place, Settings, Value

_CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
_MAX_NESTING, _MAX_BASES = 3, 8
# Limit of processor time for one file with the files that it names; large real scripts need below 1 s.
_READ_S = 5.0
# A flag or an override where a command is expected: the command before it ended too early.
_ORPHAN = re.compile(r"--[A-Za-z]|[~+]{0,3}[A-Za-z_][\w-]*(?:\.[\w-]+)+=")


def read_file(path: Path, framework: str = "") -> list[Settings]:
    """Return the settings in a file, or for `-` in standard input; empty if no framework is configured.

    `framework` is assumed for a YAML, JSON or TOML file, and for a command that no framework's parser reads.

    Raises:
        UnreadableError: The file cannot be read; the message names the file, the line if known, and the reason.
    """
    name = "standard input" if path == Path("-") else str(path)
    try:
        if path == Path("-"):
            data = sys.stdin.buffer.read(structured.MAX_BYTES + 1)
            if len(data) > structured.MAX_BYTES:
                too_large = f"{name}: larger than {structured.MAX_BYTES // 1_000_000} MB"
                raise structured.UnreadableError(too_large)
            text = data.decode("utf-8", "replace")
        else:
            text = safe_io.read_text(path, structured.MAX_BYTES).removeprefix("\ufeff")
    except OSError as error:
        raise structured.UnreadableError(f"{name}: cannot be read: {error.strerror or error}") from None
    with _reading_limit(name):
        return read_text(text, name, framework, detect_syntax(path, text))


@contextlib.contextmanager
def _reading_limit(name: str) -> Iterator[None]:
    """Limit the processor time of reading a file; raise UnreadableError if it is exceeded, or recursion is too deep."""
    try:
        with cpu_limit("reading it", _READ_S):
            yield
    except (CpuLimitError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise structured.UnreadableError(f"{name}: {reason}") from None


def detect_syntax(path: Path, text: str) -> str:
    """Return the syntax of a file by its suffix or, if the suffix is unknown, by its text."""
    if path.suffix.lower() in SUFFIXES:
        return SUFFIXES[path.suffix.lower()]
    start = text.lstrip()[:200]
    if start.startswith("#!") and "python" in start.splitlines()[0]:
        return "python"
    return "json" if start.startswith("{") else "shell"


def read_text(text: str, file: str, framework: str = "", syntax: str = "shell") -> list[Settings]:
    """Return the settings in a text; `file` is its name in messages.

    Raises:
        UnreadableError: The text has another syntax, or is too large.
    """
    if syntax == "shell":
        return _follow_all_files(_read_commands(shell.read_script(text, file), file, 0, framework), file)
    if syntax == "notebook":
        python_code, commands = notebooks.split_cells(text, file)
        shell_settings: list[Settings] = []
        for line, script in commands:
            shell_settings += _read_commands(shell.read_script(script, file, line), file, 0, framework)
            structured.check_run_count(shell_settings, file)
        return [*read_text(python_code, file, framework, "python"), *_follow_all_files(shell_settings, file)]
    if syntax == "python":
        return _follow_all_files(python.read_configs(text, file), file)
    trees = structured.parse_documents(text, file, syntax)
    configs = list(filter(None, (read_tree(tree, file, framework, syntax) for tree in trees)))
    structured.check_run_count(configs, file)
    return _follow_all_files(configs, file)


def read_tree(tree: Any, file: str, framework: str = "", syntax: str = "") -> Settings | None:
    """Return the settings of a parsed YAML, JSON or TOML document; None if it has no framework or another method.

    A document of no framework may have a section with options of TRL.
    """
    if not isinstance(tree, dict):
        return None
    framework = framework or detect_framework(tree, syntax)
    if not framework:
        # A section such as `grpo` may be passed to GRPOConfig as it is; two keys that only TRL has are no coincidence.
        parts = (part for part in tree.values() if isinstance(part, dict))
        sections = (part for part in parts if len(top_keys(part) & {*DIALECTS["trl"].file_keys}) > 1)
        settings = read_tree(next(sections, None), file, "trl", syntax)
        return settings and replace(settings, has_unread_options=True)
    dialect = dialect_of(framework)
    settings = Settings(framework, Place(file, 1), role=dialect.file_role)
    settings.framework_parser = bool(syntax) and syntax == dialect.parses_files
    for key, value in structured.flatten(tree).items():
        settings.options[key.replace("-", "_") if dialect.dashes_in_files else key] = value
    # A config of another method does not show which command reads it.
    if settings.options.get("rlhf_type", Value("grpo", settings.place)).data != "grpo":
        return None
    env = tree.get("env")
    for name, value in env.items() if isinstance(env, dict) else ():
        if isinstance(value, Value):
            settings.env[name] = value.with_key(name)
    return settings


def detect_framework(tree: dict[str, Any], syntax: str = "") -> str:
    """Return the framework that a document configures, by its keys: also `deepspeed` or `accelerate`; empty if none."""
    keys = top_keys(tree)
    matching = (dialect for dialect in DIALECTS.values() if dialect.describes_file(tree, keys, syntax))
    nearest = min(matching, key=lambda dialect: dialect.specific, default=None)
    if nearest and not nearest.specific:
        return nearest.framework
    if "zero_optimization" in keys or "train_micro_batch_size_per_gpu" in keys:
        return "deepspeed"
    if {"compute_environment", "distributed_type"} & keys:
        return "accelerate"
    return nearest.framework if nearest else ""


def _read_commands(
    commands: Iterable[shell.Command], file: str, depth: int, framework: str = ""
) -> list[Settings]:
    """Return the settings of commands; a flag in place of a command is noted as an orphaned option of the last one."""

    def read_nested(word: Word) -> list[Settings]:
        inner = shell.read_nested(word, file) if depth < _MAX_NESTING else []
        return _read_commands(inner, file, depth + 1, framework)

    all_settings: list[Settings] = []
    previous: list[Settings] = []
    for command in commands:
        first = command.words[0]
        if previous and _ORPHAN.match(first.clean):
            key, _, value = first.clean.partition("=")
            text = value or " ".join(word.clean for word in command.words[1:])
            value_text = text.replace(HOLE, "...") or True
            previous[-1].orphaned.append(Value(value_text, Place(file, first.line), key.replace(HOLE, "...")))
            continue
        previous = command_lines.read_command(command, file, read_nested, framework)
        all_settings += previous
        structured.check_run_count(all_settings, file)
    return all_settings


def read_command_line(words: list[str]) -> list[Settings]:
    """Return the settings in a command line, as in `lint -- swift rlhf --rlhf_type grpo`.

    Raises:
        UnreadableError: Reading the files that it names takes too long, or there are too many options.
    """
    file = "command line"
    env: dict[str, Value] = {}
    while words and (pair := words[0].partition("="))[1] and pair[0].isidentifier():
        env[pair[0]] = Value(pair[2], Place(file), pair[0])
        words = words[1:]
    commands = [shell.Command([Word(word, 0) for word in words], env, 0)] if words else []
    with _reading_limit(file):
        return _follow_all_files(_read_commands(commands, file, 0), file)


def _follow_all_files(runs: list[Settings], file: str) -> list[Settings]:
    """Add to each run the options of the files that it names, and return the runs.

    Raises:
        UnreadableError: The runs have too many options or environment variables together.
    """
    options = 0
    for settings in runs:
        structured.check_run_count(runs, file, settings.env)
        _follow_files(settings)
        options += len(settings.options)
        if len(settings.options) > structured.MAX_RUN_OPTIONS or options > structured.MAX_OPTIONS:
            reason = f"more than {structured.MAX_RUN_OPTIONS} options in a run, or {structured.MAX_OPTIONS} in all runs"
            raise structured.UnreadableError(f"{file}: {reason}")
    return runs


def _follow_files(settings: Settings) -> None:
    """Add the options of the files that a run names; the run's own options take precedence."""
    dialect = dialect_of(settings.framework)
    for key, prefix in dialect.config_options.items():
        value = settings.options.get(key)
        if value is not None and isinstance(value.data, str):
            _include(settings, value, prefix)
    if dialect.base_key:
        _include_bases(settings, dialect.base_key)
    if uses_overrides(settings.framework):
        hydra.compose_config(settings, required=bool(settings.prefixes) or bool(settings.target))
        hydra.resolve_interpolations(settings.options)
    _follow_launcher_files(settings)


def _include(settings: Settings, reference: Value, prefix: str = "") -> None:
    """Add the options of a config that a run names; note a missing config, in which more options may be set."""
    options = _read_options(settings, reference)
    if options is None and reference.key != "@":
        settings.has_unread_options = True
        _report_missing(settings, reference)
    for key, value in (options or {}).items():
        settings.options.setdefault(prefix + key, value.with_key(prefix + key))


def _include_bases(settings: Settings, key: str) -> None:
    """Add the options of the configs that a config extends, also indirectly; the nearest one takes precedence."""
    for _ in range(_MAX_BASES):
        bases = settings.options.pop(key, None)
        if bases is None:
            return
        files = bases.data if isinstance(bases.data, list) else [bases.data]
        if len(files) > _MAX_BASES:
            settings.has_unread_options = True
            _report_missing(settings, replace(bases, data=f"{len(files)} files"))
        for file in reversed(files[-_MAX_BASES:]):
            _include(settings, replace(bases, data=file))


def _follow_launcher_files(settings: Settings) -> None:
    """Read the configs of DeepSpeed and accelerate that a run names."""
    deepspeed = settings.options.get("deepspeed")
    accelerate = settings.launcher.get("config_file") or settings.options.get("accelerate_config")
    for reference in filter(None, (deepspeed, accelerate)):
        if not str(reference.data).lower().endswith(_CONFIG_SUFFIXES):
            continue
        options = _read_options(settings, reference)
        if options is None:
            _report_missing(settings, reference)
        elif reference is deepspeed:
            for key, value in options.items():
                settings.options.setdefault(f"deepspeed.{key}", value.with_key(f"deepspeed.{key}"))
        else:
            share_accelerate_config(options, settings)


def share_accelerate_config(options: Mapping[str, Value], run: Settings) -> None:
    """Copy the numbers of processes and nodes in an accelerate config to a run whose command does not set them."""
    for key, name in (("num_processes", "processes"), ("num_machines", "nodes")):
        if key in options:
            run.launcher.setdefault(name, options[key])


def _report_missing(settings: Settings, reference: Value) -> None:
    """Add an entry "not checked" for a file that was not found or whose name is unknown."""
    name = str(reference.data) if reference.known else reference.key
    unset = "its path is set outside the script"
    reason = "the file was not found in the script's project, or cannot be read" if reference.known else unset
    settings.not_checked.append(NotChecked(name, reason, "lint it where that file is", str(reference.place)))


def _read_options(settings: Settings, reference: Value) -> dict[str, Value] | None:
    """Return the options of a YAML or JSON file that a run names; None if the file cannot be read."""
    path = find_named(str(reference.data), reference.place.file)
    if path is None:
        return None
    status = path.stat()
    trees = _parse_config(path, status.st_mtime_ns, status.st_size)
    if trees is not None:
        settings.files.add(str(path))
    options: dict[str, Value] = {}
    for tree in reversed(trees or []):
        options |= structured.flatten(tree) if isinstance(tree, dict) else {}
    return options if trees else None


@lru_cache(maxsize=100)
def _parse_config(path: Path, _modified: int, _size: int) -> list[Any] | None:
    """Return the documents of a config, None if it cannot be read; many runs may name the same one."""
    suffix = path.suffix.lower()
    try:
        # Another kind of file, or a link to another kind of file, is not read.
        if suffix not in _CONFIG_SUFFIXES or path.resolve().suffix.lower() != suffix:
            return None
        text = safe_io.read_text(path, structured.MAX_BYTES).removeprefix("\ufeff")
        return structured.parse_documents(text, str(path), SUFFIXES[suffix])
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
        return None
