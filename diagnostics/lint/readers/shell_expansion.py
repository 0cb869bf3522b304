"""Expand the words of a shell script, given as nodes of tree-sitter's syntax tree, as far as their values are known.

`$X`, `${X:-default}`, arrays, arithmetic, `$(dirname "$0")` and `$(which PROGRAM)` are expanded. The mark HOLE stands
for an unknown part, two of them for an unknown word without options, and SOFT marks a default.
"""

import ast
import operator
import os
import re
from collections.abc import Callable
from pathlib import Path

from tree_sitter import Node

from diagnostics.lint.readers.shell_scope import HOLE, SCRIPT_ARGUMENTS, SOFT, Scope, Word, mark_default
from diagnostics.lint.readers.structured import MAX_NODES, UnreadableError
from diagnostics.output.redact import remember_secret

SCRIPT_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
_MAX_WORD = 200_000
_MAX_DEPTH = 50
_LARGEST = 10**9
_ARITHMETIC_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right), ast.Mod: lambda left, right: left - right * int(left / right),
}  # fmt: skip
_EXPANSIONS = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
_NOT_EXPANDED = {"process_substitution", "brace_expression", "ansi_c_string", "ERROR"}
_OPERATORS = {":-", "-", ":=", "=", ":+", "+", ":?", "?"}
_NAME = re.compile(r"[A-Za-z_]\w*")
# Variables that have one word, such as a path, and no options.
_ONE_WORD = re.compile(r"(?i)(?:^|_)(?:model|ckpt|checkpoint|path|dir|folder|file|name|host|port)$")
_CONTINUATION = re.compile(r"\\\r?\n")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\(["\\$`])')
_ARITHMETIC = re.compile(r"[\d\s()+*/%-]{1,500}")
# The path of a program, of which only the name matters.
_PROGRAM_PATH = re.compile(r"(?:\$\(|`) *(?:which|command -v|type -p) +([A-Za-z][\w.-]*) *[)`]")
# A file of a package, as Python prints it: `os.path.dirname(swift.__file__) + "/cli/rlhf.py"`.
_MODULE_FILE = re.compile(r"python.{1,200}?\b([A-Za-z_]\w*)\.__(?:file|path)__(.*)", re.DOTALL)
_LITERAL = re.compile(r"""["']([\w./-]+)\\?["']""")
# `$(dirname "$0")`, also for a linked script, with a folder above or below, or within `cd ... && pwd`.
_SCRIPT_FOLDER = re.compile(
    r"""[$(`]+(?:(?:cd|realpath|readlink\ -f)\s+(?:--\s+)?"?\$\()?dirname\s+(?:--\s+)?"?
        (?:\$\((?:realpath|readlink\ -f)\s+"?)?\$\{?(0|BASH_SOURCE)(?:\[0\])?\}?"?\)?"?\)?((?:/[\w.-]+)*)"?\s*
        (?:&?>\s*/dev/null\s*)?(?:2>&1\s*)?(?:(?:&&|;)\s*pwd(?:\s+-P)?)?\s*[)"`]*""",
    re.VERBOSE,
)

# Marks in expanded text. KEEP: the text is a word, even if it is empty. A pair of LINE encloses a line number.
KEEP, LINE = "\2", "\3"
# HOLE in a text that is parsed, because tree-sitter stops at HOLE itself: a character for private use.
HOLE_CODE = "\ue000"
_LINE_MARK = re.compile(f"{LINE}(\\d+){LINE}")
# Blanks in quotes, which split no word.
_PROTECT = {" ": "\x0e", "\t": "\x0f", "\n": "\x10"}
_PROTECTED = str.maketrans(_PROTECT)
_RESTORED = str.maketrans({mark: blank for blank, mark in _PROTECT.items()})
# Characters that a script cannot contain, because they are marks here.
MARKS = dict.fromkeys((*range(7), *map(ord, _PROTECT.values())), " ")


def node_text(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode("utf-8", "replace").replace(HOLE_CODE, HOLE)


class Expander:
    """Expands the words of a script with the variables that are known at that point.

    Attributes:
        file: The file whose words are read.
        main: The script that was started, `$0`; `file` may be one that it sources.
        first_line: The file's line on which the text begins.
        scopes: The scopes of nested subshells and branches, the innermost last.
    """

    def __init__(self, file: str, first_line: int = 1) -> None:
        self.file = self.main = file
        self.first_line = first_line
        self.scopes = [Scope()]
        self._produced = 0

    @property
    def scope(self) -> Scope:
        """The innermost scope."""
        return self.scopes[-1]

    def line_of(self, node: Node) -> int:
        """Return the line of the file on which a node begins."""
        return int(node.start_point[0]) + self.first_line

    def count_output(self, size: int) -> None:
        """Count expanded text, to refuse scripts whose variables double with each line.

        Raises:
            UnreadableError: The text is too long.
        """
        self._produced += size
        if size > _MAX_WORD or self._produced > MAX_NODES * 40:
            raise UnreadableError(f"{self.file}: its variables expand without end")

    def expand_words(self, *nodes: Node) -> list[Word]:
        """Expand nodes into words; an unquoted value is split at blanks, and adjacent nodes are one word."""
        parts: list[str] = []
        end = -1
        for node in nodes:
            if node.start_byte != end:
                parts.append(f" {_line_mark(self.line_of(node))}")
            parts.append(self._expand(node))
            end = node.end_byte
        words: list[Word] = []
        line = 0
        for part in re.split(r"[ \t\n]+", "".join(parts)):
            lines = _LINE_MARK.findall(part)
            text = _LINE_MARK.sub("", part)
            if text:
                words.append(Word(_without_marks(text), int(lines[0]) if lines else line))
            line = int(lines[-1]) if lines else line
        self.count_output(sum(len(word.text) + 8 for word in words))
        return words

    def expand_text(self, node: Node) -> str:
        """Expand a node into one text that is not split into words, as an assignment does."""
        return _without_marks(self._expand(node))

    def _expand(self, node: Node, *, quoted: bool = False, splits: bool = False, depth: int = 0) -> str:
        """Expand a node into text with marks.

        Args:
            node: A word, a string, an expansion or a concatenation of these.
            quoted: Whether the node is in double quotes.
            splits: Whether the node is in an unquoted default, whose plain text is split at blanks like any value.
            depth: Depth of nesting in the syntax tree.
        """
        kind, start, end = node.type, node.start_byte, node.end_byte
        if depth > _MAX_DEPTH or kind in _NOT_EXPANDED:
            return HOLE
        if kind in _EXPANSIONS:
            return self._expansion(node, quoted=quoted, depth=depth)
        if kind == "raw_string":
            return _value(node_text(node)[1:-1], quoted=True)
        if kind == "string":
            inner = self._expand_range(node, start + 1, end - 1, quoted=True, depth=depth)
            children = node.named_children
            # "${A[@]}" with an empty array is no word; any other empty string is a word.
            only_child = len(children) == 1 and end - start - 2 == len(children[0].text or b"")
            return inner if inner or only_child else KEEP
        if kind in {"concatenation", "command_name", "binary_expression", "parenthesized_expression"}:
            return self._expand_range(node, start, end, quoted=quoted, splits=splits, depth=depth)
        return _literal(node_text(node), quoted=quoted, splits=splits)

    def _expand_range(
        self, node: Node, start: int, end: int, *, quoted: bool, depth: int, splits: bool = False
    ) -> str:
        """Expand the children of a node in a range of bytes; the text between the children is literal."""
        source, offset = node.text or b"", node.start_byte

        def literal(first: int, last: int) -> str:
            text = source[first - offset : last - offset].decode("utf-8", "replace").replace(HOLE_CODE, HOLE)
            return _literal(text, quoted=quoted, splits=splits) if text else ""

        parts: list[str] = []
        at = start
        for child in node.named_children:
            plain = child.type in {"string_content", "heredoc_content"}
            if child.start_byte < at or child.end_byte > end or plain:
                continue
            parts.append(literal(at, child.start_byte))
            parts.append(self._expand(child, quoted=quoted, splits=splits, depth=depth + 1))
            at = child.end_byte
        return "".join([*parts, literal(at, end)])

    def _expansion(self, node: Node, *, quoted: bool, depth: int) -> str:
        """Expand a variable, an array, a default, arithmetic or a command substitution."""
        if node.type == "command_substitution":
            return _value(self._command_output(node), quoted=quoted)
        if node.type == "arithmetic_expansion":
            return _value(self._arithmetic(node, depth), quoted=quoted)
        name, subscript, operator = "", None, ""
        for child in node.children:
            if child.type in {"variable_name", "special_variable_name"} and not name:
                name = node_text(child)
            elif child.type == "subscript" and not name:
                name, subscript = node_text(child.children[0]), node_text(child)[:-1].partition("[")[2]
            elif child.type not in {"$", "${", "}"}:
                operator = operator or child.type
        if subscript in {"@", "*"} or (name in {"@", "*"} and subscript is None):
            return self._array(name, operator, quoted=quoted, joined=quoted and "*" in {name, subscript})
        if subscript is not None:
            return _value(self._array_item(name, subscript, operator), quoted=quoted)
        if operator in _OPERATORS:
            return self._default(node, name, operator, quoted=quoted, depth=depth)
        return _value(HOLE if operator else self._variable(name), quoted=quoted)

    def _array(self, name: str, operator: str, *, quoted: bool, joined: bool) -> str:
        """Expand all items of an array or, for the operator `#`, their number."""
        name = "@" if name == "*" else name
        words = self.scope.arrays.get(name)
        if operator == "#":
            known = words is not None and not any(word.is_unknown for word in words)
            mark = SOFT if any(SOFT in word.text for word in words or ()) else ""
            return _value(mark + str(len(words or ())) if known else HOLE, quoted=quoted)
        if operator and not (name == "@" and words is None and operator == ":"):
            return HOLE
        if words is None:
            return SCRIPT_ARGUMENTS if name == "@" else HOLE
        if joined:
            return _value(" ".join(word.text for word in words), quoted=True)
        return " ".join(_line_mark(word.line) + _value(word.text, quoted=True) for word in words)

    def _array_item(self, name: str, subscript: str, operator: str) -> str:
        """Return the text of `${NAME[SUBSCRIPT]}`; HOLE if it is not known."""
        if name == "BASH_SOURCE":
            return _absolute(self.file)
        words = self.scope.arrays.get(name)
        if operator or words is None or not subscript.isdecimal() or any(word.is_unknown for word in words):
            return HOLE
        return words[int(subscript)].text if len(subscript) < 5 and int(subscript) < len(words) else ""

    def _variable(self, name: str) -> str:
        text = self.scope.text_of(name)
        if text is None and name in {"0", "BASH_SOURCE"}:
            return _absolute(self.main if name == "0" else self.file)
        return HOLE * (1 + bool(_ONE_WORD.search(name))) if text is None or text == HOLE else text

    def _default(self, node: Node, name: str, operator: str, *, quoted: bool, depth: int) -> str:
        """Expand `${NAME:-default}`, and the same with `=`, `+` or `?`."""
        text = self.scope.text_of(name)
        if operator in {"?", ":?"} or (text is None and name in self.scope.arrays):
            return _value(HOLE if text is None else text, quoted=quoted)
        empty = text is None or (operator.startswith(":") and not text.replace(SOFT, ""))
        alternative = operator.endswith("+")
        if alternative and not empty and HOLE in (text or ""):
            return _value(HOLE, quoted=quoted)
        if empty == alternative:
            return _value(SOFT if alternative else text or "", quoted=quoted)
        start = next(child for child in node.children if child.type == operator).end_byte
        rest = self._expand_range(
            node, start, node.end_byte - 1, quoted=quoted, splits=not quoted, depth=depth
        )
        plain = _without_marks(rest).replace(SOFT, "")
        remember_secret(name, plain)
        if operator.endswith("="):
            self.scope.variables[name] = mark_default(plain)
        return KEEP + SOFT + rest if quoted else _mark_words(rest)

    def _arithmetic(self, node: Node, depth: int) -> str:
        """Evaluate whole-number arithmetic as the shell does; return HOLE if that is not possible."""
        source = self._expand_range(node, node.start_byte + 3, node.end_byte - 2, quoted=True, depth=depth)
        text = _NAME.sub(lambda match: self._variable(match[0]), _without_marks(source))
        try:
            value = _calculate(text.replace(SOFT, ""))
        except (ArithmeticError, SyntaxError, MemoryError, RecursionError):
            return HOLE
        return f"{SOFT if SOFT in text else ''}{value}"

    def _command_output(self, node: Node) -> str:
        """Return the output of a command substitution as far as it is known.

        It is the script's folder, a program's name, or the path of a package's file behind HOLE; else HOLE.
        """
        source = node_text(node)
        if len(source) < 300 and (program := _PROGRAM_PATH.fullmatch(source)):
            return program[1]
        module = _MODULE_FILE.search(source) if len(source) < 300 else None
        path = "/".join(part.strip("/") for part in _LITERAL.findall(module[2])) if module else ""
        if module and path.endswith(".py"):
            return f"{HOLE}/{module[1]}/{path}"
        match = _SCRIPT_FOLDER.fullmatch(source) if len(source) < 300 else None
        script = _absolute(self.main if match[1] == "0" else self.file) if match else HOLE
        if match is None or script == HOLE:
            return HOLE
        return os.path.normpath(str(Path(script).parent) + match[2])


def _calculate(text: str) -> int:
    """Evaluate whole-number arithmetic; division rounds towards zero, as in the shell.

    Raises:
        ArithmeticError, SyntaxError, MemoryError, RecursionError: The text is no such arithmetic.
    """
    if not _ARITHMETIC.fullmatch(text):
        raise SyntaxError(text)
    return _evaluate(ast.parse(text.strip(), mode="eval").body)


def _evaluate(node: ast.expr) -> int:
    """Evaluate a syntax tree of whole-number arithmetic with operands of at most 1e9; for errors see `_calculate`."""
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    function = _ARITHMETIC_OPERATORS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if not isinstance(node, ast.BinOp) or function is None:
        raise SyntaxError(ast.dump(node))
    operands = _evaluate(node.left), _evaluate(node.right)
    if max(map(abs, operands)) > _LARGEST:
        raise OverflowError
    return function(*operands)


def _without_marks(text: str) -> str:
    """Return expanded text without the marks for words and lines; HOLE and SOFT stay."""
    return _LINE_MARK.sub("", text).replace(KEEP, "").translate(_RESTORED)


def _line_mark(line: int) -> str:
    return f"{LINE}{line}{LINE}"


def _value(text: str, *, quoted: bool) -> str:
    """Return a value's text as a part of a word; in quotes, blanks do not split it."""
    if quoted:
        return KEEP + text.translate(_PROTECTED)
    return _mark_words(text.replace(SOFT, "")) if SOFT in text else text


def _mark_words(text: str) -> str:
    """Mark each word of an unquoted text as a default value."""
    return re.sub(r"(?<![^ \t\n])(?=[^ \t\n])", SOFT, text)


def _literal(text: str, *, quoted: bool, splits: bool) -> str:
    """Return plain text without backslashes; an escaped blank does not split the text."""
    text = _CONTINUATION.sub("", text)
    if quoted or not splits:
        escaped = _ESCAPED_IN_QUOTES if quoted else _ESCAPED
        return (KEEP if quoted else "") + escaped.sub(r"\1", text).translate(_PROTECTED)
    return _ESCAPED.sub(lambda match: match[1].translate(_PROTECTED), text)


def _absolute(file: str) -> str:
    """Return the absolute path of a file with a shell script's suffix; HOLE for any other file."""
    path = Path(file)
    return str(path.absolute()) if path.suffix in SCRIPT_SUFFIXES else HOLE
