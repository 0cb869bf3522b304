"""Python source as its syntax tree: the config objects that it makes. Nothing is imported or executed."""

from __future__ import annotations

import ast
import re
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

from diagnostics.lint.sources import shell
from diagnostics.lint.sources.shell_scope import Word
from diagnostics.lint.sources.shell_words import HOLE
from diagnostics.lint.sources.tree import MAX_DEPTH, MAX_NODES, UnreadableError
from diagnostics.lint.values import UNKNOWN, Place, Settings, Value
from diagnostics.output.findings import NotJudged

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIGS = {"GRPOConfig": "trl", "AsyncGRPOConfig": "trl"}


def read(text: str, file: str) -> list[Settings]:
    """The config objects of a Python file, one Settings each.

    Raises:
        UnreadableError: It is no Python, or nested deeper than code is.
    """
    if not any(name in text for name in _CONFIGS):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        return _Finder(file).find(tree)
    except SyntaxError as error:
        raise UnreadableError(f"{file}:{error.lineno or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"{file}: not Python, or nested too deep") from None


_STARTERS = {"run", "Popen", "call", "check_call", "check_output", "system"}


def started(text: str, file: str, wanted: re.Pattern[str]) -> Iterator[shell.Command]:
    """The commands that a Python file starts, where they stand in it as a list of texts or as one text.

    Args:
        text: The source.
        file: Its name.
        wanted: What a command has to have in it to be of interest.
    """
    if not wanted.search(text) and not re.search(r"['\"](?:swift|trl|vllm|accelerate)['\"]", text):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    if len(nodes) >= MAX_NODES * 5:
        return
    lists = _lists(nodes)
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _STARTERS and node.args:
            yield from _command(node.args[0], file, lists)


def _lists(nodes: list[ast.AST]) -> dict[str, ast.List]:
    """The lists that names stand for, with what is added to them; one that is made twice is not known."""
    made: dict[str, ast.List] = {}
    twice: set[str] = set()
    added: list[tuple[str, ast.expr]] = []
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(node.value, ast.List):
                twice.update({target.id} & set(made))
                made[target.id] = node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            added.append((node.target.id, node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and node.func.attr in {"extend", "append"} and node.args:
                added.append((owner.id, node.args[0]))
    for name, value in added:
        if name in made:
            # What a branch may add is not known, only that options may stand there.
            more = ast.copy_location(ast.Starred(value=value, ctx=ast.Load()), value)
            made[name] = ast.copy_location(
                ast.List(elts=[*made[name].elts, more], ctx=ast.Load()), made[name]
            )
    return {name: value for name, value in made.items() if name not in twice}


def _command(node: ast.expr, file: str, lists: dict[str, ast.List]) -> list[shell.Command]:
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "join" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Name):
        node = lists.get(node.id, node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return shell.commands(node.value, file, node.lineno)
    if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
        return []
    words = [Word(_word(item), item.lineno) for item in node.elts]
    return [shell.Command(words, {}, node.lineno)]


def _word(node: ast.expr) -> str:
    """A word of a command; what is put into it when it runs is a hole."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable":
        return "python"
    return str(node.value) if isinstance(node, ast.Constant) else HOLE


class _Finder:
    def __init__(self, file: str) -> None:
        self.file = file
        # Dicts that a name stands for, each item with its line; one that a branch changes is not known.
        self.dicts: dict[str, dict[str, Value] | None] = {}
        self.names = dict(_CONFIGS)
        self.environ: dict[str, Value] = {}
        self.constants: dict[str, Any] = {}
        self.made: dict[str, Settings] = {}
        self.found: list[Settings] = []
        self.calls: set[int] = set()
        self.arguments: dict[str, Value] = {}
        # Whether a config of that name is somebody's own, with options of its own.
        self.own = False

    def find(self, tree: ast.Module) -> list[Settings]:
        """Goes over the statements in their order; each function sees the module's constants."""
        # One walk, breadth first: it is what costs most here.
        nodes = list(islice(ast.walk(tree), MAX_NODES * 5 + 1))
        if len(nodes) > MAX_NODES * 5:
            raise UnreadableError(f"{self.file}: more than {MAX_NODES * 5} nodes: no script has them")
        self._aliases(nodes)
        self._constants(tree.body)
        self._arguments(nodes)
        self._changed(nodes)
        self._walk(nodes)
        for made in self.found:
            made.environ = {**self.environ, **made.environ}
        return self.found

    def _aliases(self, nodes: list[ast.AST]) -> None:
        """`from trl import GRPOConfig as C`."""
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                for name in node.names:
                    if name.name in _CONFIGS:
                        self.names[name.asname or name.name] = _CONFIGS[name.name]
                        self.own = self.own or (node.module or "").split(".")[0] != "trl" or node.level > 0

    def _changed(self, nodes: list[ast.AST]) -> None:
        """Dicts that a branch, a loop or a method changes: nobody knows from here what is in them."""
        plain: set[int] = set()
        for node in nodes:
            if isinstance(node, ast.Module | ast.FunctionDef):
                plain.update(map(id, node.body))
        for node in nodes:
            if isinstance(node, ast.Assign) and id(node) not in plain:
                for target in node.targets:
                    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                        self.dicts[target.value.id] = None
                    elif isinstance(target, ast.Name) and isinstance(node.value, ast.Dict | ast.Call):
                        self.dicts[target.id] = None
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if isinstance(owner, ast.Name) and node.func.attr in {"update", "pop", "setdefault", "clear"}:
                    self.dicts[owner.id] = None

    def _constants(self, body: list[ast.stmt]) -> None:
        """Names that are assigned once, to something that can be read."""
        for statement in body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self._constant_of(target.id, statement.value)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._constant_of(ast.unparse(statement.target), statement.value)

    def _constant_of(self, name: str, value: ast.expr) -> None:
        self.constants[name] = UNKNOWN if name in self.constants else self._value(value)

    def _walk(self, nodes: list[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._constants(node.body)
            elif isinstance(node, ast.Assign):
                self._assignment(node)
            elif (
                isinstance(node, ast.AnnAssign)
                and node.value is not None
                and isinstance(node.target, ast.Name)
            ):
                self._named(node.target.id, node.value)
            elif isinstance(node, ast.Call):
                self._call(node, "")

    def _assignment(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name):
            self._named(target.id, node.value)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            made = self.made.get(target.value.id)
            if made is not None:
                made.set(target.attr, Value(self._value(node.value), self._place(node)))
        elif isinstance(target, ast.Subscript):
            key = self._value(target.slice)
            if not isinstance(key, str):
                return
            if ast.unparse(target.value) == "os.environ":
                self.environ[key] = Value(self._value(node.value), self._place(node), key)
            elif (
                isinstance(target.value, ast.Name) and (known := self.dicts.get(target.value.id)) is not None
            ):
                known[key] = Value(self._value(node.value), self._place(node), key)

    def _named(self, name: str, value: ast.expr) -> None:
        """A name is given a value: a config, or a dict that becomes one."""
        items = self._items(value)
        if items is not None:
            # One that is changed elsewhere stays unknown.
            if name not in self.dicts or self.dicts[name] is not None:
                self.dicts[name] = items
        elif isinstance(value, ast.Call):
            self._call(value, name)

    def _items(self, node: ast.expr) -> dict[str, Value] | None:
        """The items of `{...}` or `dict(...)` with their lines; None where it is something else, or not all known."""
        if isinstance(node, ast.Dict):
            pairs = [
                (self._value(key) if key else UNKNOWN, value)
                for key, value in zip(node.keys, node.values, strict=True)
            ]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "dict"
            and not node.args
        ):
            pairs = [(keyword.arg or UNKNOWN, keyword.value) for keyword in node.keywords]
        else:
            return None
        named = [(key, value) for key, value in pairs if isinstance(key, str)]
        if len(named) < len(pairs):
            return None
        return {key: Value(self._value(value), self._place(value), key) for key, value in named}

    def _setdefault(self, node: ast.Call) -> None:
        """`os.environ.setdefault`: what it says unless the environment of the run says something else."""
        if len(node.args) == 2 and ast.unparse(node.func) == "os.environ.setdefault":
            key = self._value(node.args[0])
            if isinstance(key, str):
                value = Value(self._value(node.args[1]), self._place(node), key, soft=True, outside=True)
                self.environ.setdefault(key, value)

    def _call(self, node: ast.Call, name: str) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if called == "setdefault":
            self._setdefault(node)
        if called not in self.names or id(node) in self.calls:
            return
        self.calls.add(id(node))
        made = Settings(self.names[called], self._place(node), about=called, exact=not self.own)
        self._keywords(node, made)
        made.open = made.open or bool(node.args)
        self.found.append(made)
        if name:
            self.made[name] = made

    def _keywords(self, node: ast.Call, made: Settings) -> None:
        for keyword in node.keywords:
            value = self._value(keyword.value)
            named = keyword.value.id if isinstance(keyword.value, ast.Name) else ""
            items = self.dicts.get(named) if named else self._items(keyword.value)
            if keyword.arg is not None:
                made.set(keyword.arg, self._handed(keyword, made) or Value(value, self._place(keyword)))
            elif items is not None:
                for key, item in items.items():
                    made.set(key, item)
            elif isinstance(value, dict) and named not in self.dicts:
                for key, item in value.items():
                    made.set(str(key), Value(item, self._place(keyword)))
            else:
                made.open = True
                why = "what is in it is decided when it runs"
                told = NotJudged(f"**{ast.unparse(keyword.value)[:40]}", why, "", str(self._place(keyword)))
                made.gaps.append(told)

    def _handed(self, keyword: ast.keyword, made: Settings) -> Value | None:
        """The default of the script's own option, where a keyword hands one on: another run may say another."""
        node = keyword.value
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or keyword.arg is None:
            return None
        made.handed[keyword.arg] = node.attr
        return self.arguments.get(node.attr)

    def _arguments(self, nodes: list[ast.AST]) -> None:
        """Defaults of the script's own parser: of `add_argument`, and of the fields of a dataclass."""
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                flags = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
                name = next((flag.lstrip("-") for flag in flags if flag.startswith("--")), "")
                default = next((each.value for each in node.keywords if each.arg == "default"), None)
                self._argument(name.replace("-", "_"), default)
            elif isinstance(node, ast.ClassDef) and node.decorator_list:
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        self._argument(each.target.id, each.value)

    def _argument(self, name: str, default: ast.expr | None) -> None:
        if isinstance(default, ast.Call):
            default = next((each.value for each in default.keywords if each.arg == "default"), None)
        if name and default is not None:
            data = self._value(default)
            twice = name in self.arguments
            place = self._place(default)
            self.arguments[name] = Value(UNKNOWN if twice else data, place, name, soft=True, outside=True)

    def _place(self, node: Any) -> Place:
        return Place(self.file, node.lineno)

    def _value(self, node: ast.expr, depth: int = 0) -> Any:  # noqa: PLR0911 - one line a case
        if depth > MAX_DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return _constant(node.value)
        if isinstance(node, ast.Name):
            return self.constants.get(node.id, UNKNOWN)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, depth + 1) for item in node.elts]
        if isinstance(node, ast.Dict):
            return self._dict(node, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, depth + 1)
            return -value if isinstance(value, int | float) and not isinstance(value, bool) else UNKNOWN
        if isinstance(node, ast.BinOp):
            return self._sum(node, depth)
        return UNKNOWN

    def _dict(self, node: ast.Dict, depth: int) -> Any:
        keys = [self._value(key, depth + 1) if key else UNKNOWN for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            return UNKNOWN
        return dict(zip(keys, (self._value(value, depth + 1) for value in node.values), strict=True))

    def _sum(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self._value(node.left, depth + 1), self._value(node.right, depth + 1)
        if not all(isinstance(v, int | float) and abs(v) < 10**12 for v in (left, right)):
            return UNKNOWN
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        return UNKNOWN


def _constant(value: Any) -> Any:
    """A literal that a setting can be; a number larger than any setting is not known."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 10**18 else UNKNOWN
    return value if isinstance(value, str | float | bool | None) else UNKNOWN
