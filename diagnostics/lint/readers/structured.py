"""Parse YAML, JSON and TOML into nested dicts and lists whose leaves are `Value`s with their lines; flatten them.

`parse_documents` parses a text, and `flatten` flattens tables. Text that cannot be parsed raises `UnreadableError`, and
so does text beyond the limits on depth and number of values, so reading takes bounded time and memory. Callers refuse
texts larger than MAX_BYTES. Values under names of secrets are remembered for the process (`redact.remember_secret`), so
that later output masks them. `check_run_count` limits the runs and environment variables of a file for all readers.
"""

import json
from collections.abc import Mapping, Sized
from dataclasses import replace
from typing import Any

import yaml

from diagnostics import safe_io
from diagnostics.lint.values import Place, Value, parse_scalar
from diagnostics.output.redact import remember_secret
from diagnostics.toml_source import Keys, key_lines

# Larger inputs are refused; configs are far below these limits.
MAX_BYTES = 2_000_000
MAX_DEPTH = 48
MAX_NODES = 100_000
# Characters of an option's name with the names of its tables; characters that count as one value.
_MAX_NAME, _NODE_LENGTH = 300, 200
# tomllib takes 20 µs for a key, so at most a second.
_MAX_TOML_KEYS = 50_000

_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Words of YAML 1.1 with their values in PyYAML, which the parser of transformers uses.
_YAML_WORDS = {"yes": True, "on": True, "no": False, "off": False, "": None}

# Maximum number of runs in a file, of a run's options, of the options of all runs of a file, and of environment
# variables that a file sets. Searching the option that an unknown one may mean takes about 0.6 ms.
MAX_RUNS = 500
MAX_RUN_OPTIONS, MAX_OPTIONS = 3000, 20_000
MAX_VARIABLES = 1000


class UnreadableError(ValueError):
    """Raised when a file cannot be parsed; the message is one line for the user."""


class InvalidSyntaxError(UnreadableError):
    """Raised when a text is not of the syntax that its file's name promises, so that no run can use it."""


def check_run_count(runs: Sized, file: str, variables: Sized = ()) -> None:
    """Raise UnreadableError if a file has too many runs, or sets too many environment variables."""
    if len(runs) > MAX_RUNS or len(variables) > MAX_VARIABLES:
        raise UnreadableError(f"{file}: more than {MAX_RUNS} runs, or {MAX_VARIABLES} environment variables")


def parse_documents(text: str, file: str, syntax: str) -> list[Any]:
    """Parse a text of syntax `yaml`, `json` or `toml` into its documents.

    Raises:
        UnreadableError: The text has another syntax, or is too large or too deep for a config.
    """
    if syntax == "yaml":
        return parse_yaml(text, file)
    return [parse_json(text, file) if syntax == "json" else parse_toml(text, file)]


def flatten(tree: Any, prefix: str = "") -> dict[str, Value]:
    """Flatten nested tables to dotted keys; a list becomes one Value.

    Raises:
        UnreadableError: A key is too long, or a list contains no value.
    """
    if not isinstance(tree, dict):
        return {prefix: _join_list(tree).with_key(prefix)} if prefix else {}
    flat: dict[str, Value] = {}
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if len(name) > _MAX_NAME:
            raise UnreadableError(f"an option's name has more than {_MAX_NAME} characters")
        if isinstance(value, dict):
            flat.update(flatten(value, name))
        else:
            flat[name] = _join_list(value).with_key(name)
    return flat


def _join_list(node: Any) -> Value:
    """Turn a list into one Value, at the line of its first leaf."""
    if isinstance(node, Value):
        return node
    leaves: list[Value] = []
    data = _plain_data(node, leaves)
    if not leaves:
        raise UnreadableError("an empty table where a value was expected")
    return Value(data, leaves[0].place, leaves[0].key)


def _plain_data(node: Any, leaves: list[Value]) -> Any:
    """Return a tree of Values as plain data, and add the Values to `leaves`."""
    if isinstance(node, Value):
        leaves.append(node)
        return node.data
    if isinstance(node, dict):
        return {key: _plain_data(value, leaves) for key, value in node.items()}
    return [_plain_data(value, leaves) for value in node]


def parse_yaml(text: str, file: str) -> list[Any]:
    """Parse the documents of a YAML text from the parser's events, so that no tag creates an object.

    Raises:
        UnreadableError: See `parse_documents`.
    """
    builder = _YamlBuilder(file)
    try:
        for event in yaml.parse(text, Loader=_YAML_LOADER):
            builder.add_event(event)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, UnreadableError):
            raise
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or "not YAML"
        raise InvalidSyntaxError(f"{file}:{line}: {problem}") from None
    return builder.documents


class _YamlBuilder:
    """Builds the trees of YAML documents from parser events, without recursion.

    Each use of an alias counts all nodes to which it refers, so a file that grows exponentially by aliases is refused.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.documents: list[Any] = []
        self.stack: list[tuple[Any, list[Any], str | None]] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.nodes = 0

    def add_event(self, event: Any) -> None:
        """Add one event of the parser."""
        line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event, line), event.anchor, line)
        elif isinstance(event, yaml.AliasEvent):
            node, size = self.anchors.get(event.anchor, (Value(None, Place(self.file, line)), 1))
            self._count(size, line)
            self._add(node, None, line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if len(self.stack) >= MAX_DEPTH:
                raise UnreadableError(f"{self.file}:{line}: nested more than {MAX_DEPTH} levels deep")
            self._count(1, line)
            container: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            self.stack.append((container, [self.nodes, line], event.anchor))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            container, (before, started, *_), anchor = self.stack.pop()
            if anchor:
                self.anchors[anchor] = (container, self.nodes - before + 1)
            self._add(container, None, started, counted=True)

    def _scalar(self, event: Any, line: int) -> Value:
        """Return a plain scalar by `parse_scalar` and the words of YAML 1.1, such as `yes`; a quoted one stays text."""
        place = Place(self.file, line)
        if not event.implicit[0]:
            return Value(event.value, place)
        lowered = event.value.lower()
        return Value(_YAML_WORDS[lowered] if lowered in _YAML_WORDS else parse_scalar(event.value), place)

    def _count(self, size: int, line: int) -> None:
        """Count nodes, and refuse a file that has too many."""
        self.nodes += size
        if self.nodes > MAX_NODES:
            raise UnreadableError(f"{self.file}:{line}: more than {MAX_NODES} values: no config has so many")

    def _add(self, node: Any, anchor: str | None, line: int, *, counted: bool = False) -> None:
        """Add a finished node to its container, or as a document."""
        if not counted and isinstance(node, Value):
            self._count(_size(node), line)
        if anchor:
            self.anchors[anchor] = (node, _size(node))
        if not self.stack:
            self.documents.append(node)
            return
        container, state, _anchor = self.stack[-1]
        if isinstance(container, list):
            container.append(node)
        elif len(state) == 2:
            state.append(node)
        else:
            _put_item(container, state.pop(), node)


def _size(node: Any) -> int:
    """Return how many values a node counts: a long text counts more than once."""
    data = node.data if isinstance(node, Value) else None
    return 1 + len(data) // _NODE_LENGTH if isinstance(data, str) else 1


def _put_item(container: dict[str, Any], key: Any, node: Any) -> None:
    """Set a key of a mapping, and remember a secret; `<<` adds the items of another mapping that are not set."""
    if not isinstance(key, Value):
        return
    if key.data == "<<" and isinstance(node, dict):
        for name, value in node.items():
            container.setdefault(name, value.with_key("<<") if isinstance(value, Value) else value)
        return
    if not isinstance(node, dict):
        remember_secret(str(key.data), _plain_data(node, []))
    old = container.get(str(key.data))
    if isinstance(old, Value) and old.key != "<<" and isinstance(node, Value) and old.data != node.data:
        node = replace(node, replaced=old)
    # An empty list becomes a Value, which has a line.
    container[str(key.data)] = Value([], key.place) if node == [] else node


def parse_json(text: str, file: str) -> Any:
    """Parse JSON with the YAML parser, which records lines; if it refuses the text, all values get line 1.

    Raises:
        UnreadableError: See `parse_documents`.
    """
    try:
        return _parse_json_lines(text, file)
    except UnreadableError:
        # Valid JSON that is no YAML, such as escaped surrogates, is written again on one line.
        try:
            return _parse_json_lines(json.dumps(safe_io.parse_json(text), ensure_ascii=False), file)
        except ValueError as error:
            if isinstance(error, UnreadableError):
                raise
            raise InvalidSyntaxError(f"{file}: not JSON: {error}") from None


def _parse_json_lines(text: str, file: str) -> Any:
    """Parse JSON by the YAML parser; raise UnreadableError if the text is neither an object nor an array."""
    if text.lstrip()[:1] not in {"{", "["}:
        raise InvalidSyntaxError(f"{file}: not JSON: expected a table or a list")
    documents = parse_yaml(text.replace("\t", " "), file)
    return documents[0] if documents else None


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Parse a TOML text; each value has the line of its key, or 0 if that is unknown.

    Raises:
        UnreadableError: See `parse_documents`.
    """
    lines = key_lines(text)
    if len(lines) > _MAX_TOML_KEYS:
        raise UnreadableError(f"{file}: more than {_MAX_TOML_KEYS} keys: no config has so many")
    try:
        document = safe_io.parse_toml(text)
    except ValueError as error:
        raise InvalidSyntaxError(f"{file}: not TOML: {error}") from None
    tree: dict[str, Any] = _toml_values(document, lines, (), file)
    return tree


def _toml_values(node: Any, lines: Mapping[Keys, int], keys: Keys, file: str) -> Any:
    """Return a TOML tree with a `Value` for each leaf."""
    if len(keys) > MAX_DEPTH:
        raise UnreadableError(f"{file}: nested more than {MAX_DEPTH} levels deep")
    if isinstance(node, dict):
        return {name: _toml_values(value, lines, (*keys, name), file) for name, value in node.items()}
    return Value(node, Place(file, lines.get(keys, 0)))
