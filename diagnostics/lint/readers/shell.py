"""Read the commands of a shell script without running it; words whose value is unknown are marked.

`read_script` returns the commands, `read_nested` those of a word that is a script. tree-sitter parses the script. This
module follows its variables through assignments, defaults, arithmetic, functions and sourced files of the same project.
A value that a branch, a loop, a command's output or the environment decides is unknown. Commands in branches and in
functions that the script does not call are returned, too; those in `$(...)` and in the condition of a loop are not.
`#SBATCH` lines set Slurm's variables. Sourced files that cannot be read, and scripts in here-documents, become entries
"not checked" of the commands.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from diagnostics import safe_io
from diagnostics.cpu_limit import ends_in_time
from diagnostics.findings import NotChecked
from diagnostics.lint.project_files import find_above
from diagnostics.lint.readers.shell_expansion import HOLE_CODE, MARKS, SCRIPT_SUFFIXES, Expander, node_text
from diagnostics.lint.readers.shell_scope import HOLE, SOFT, Scope, Word, slurm_variables
from diagnostics.lint.readers.structured import MAX_BYTES, UnreadableError
from diagnostics.lint.values import Place, Value
from diagnostics.output.redact import remember_secret

_LANGUAGE = tree_sitter.Language(tree_sitter_bash.language())
_MAX_DEPTH = 60
_MAX_NODES = 200_000
# Reading a command takes as long as reading this number of other nodes.
_COMMAND_STEPS = 8
# Maximum number of function calls in a script, and maximum depth of calls and sourced files.
_MAX_CALLS, _MAX_NESTED = 200, 4
# Number of folders above the script in which a sourced file is looked for.
_MAX_PARENTS = 3
_MAX_UNREAD = 20
_MAX_SCRIPT = 200_000
# tree-sitter takes up to 5 minutes for this size, in one call of C: larger scripts than _SMALL_SCRIPT, which take less
# than a second, are parsed in a child process first. A real one of 200 kB takes 0.2 s.
_SMALL_SCRIPT, _PARSE_S = 8000, 1.0
# Variables that launchers, engines and their libraries read from the environment; and what exports all variables.
_ENVIRONMENT = re.compile(
    r"CUDA_VISIBLE_DEVICES|NPROC_PER_NODE|NNODES|NODE_RANK|MASTER_(?:ADDR|PORT)|OMP_NUM_THREADS|TOKENIZERS_PARALLELISM"
    r"|(?:VLLM|NCCL|TORCH_NCCL|GLOO|PYTORCH|HF|SGLANG|RAY)_[A-Z0-9_]{2,60}"
)
_EXPORTS_ALL = re.compile(r"^\s*set\s+-(?:\w*a|o\s+allexport)|\beval\b", re.MULTILINE)
_SHELLS = {"bash", "sh", "zsh", "sbatch", "ssh"}
# Names of sourced files that are not read, because they only activate an environment.
_ACTIVATES = re.compile(
    r"activate|conda|\.bashrc|profile|/opt/|/etc/|setvars|set_env\.sh$|modules?\b|\bvenv|nvm"
)
_OPTION_PLACEHOLDER = re.compile(r"(--[\w.-]{1,80}[ =])<([A-Za-z](?:[\w. -]{0,60}\w)?)>(?=\s|$)")
_PLACEHOLDER = re.compile(r"(?<=[\s=])<([A-Za-z](?:[\w. -]{0,60}\w)?)>(?=\s|$)")
# It runs nothing, and bash drops it; tree-sitter reads on to the end of the line, over the second backtick.
_COMMENT_IN_BACKTICKS = re.compile(r"`[ \t]*#[^`\n]*`")
# tree-sitter takes a process substitution inside backticks for an error.
_BACKTICKS = re.compile(r"`[^`\n]*<\([^`\n]*`")
# A default value over several lines, such as a prompt: tree-sitter takes its quotes and parentheses for syntax.
_LONG_DEFAULT = re.compile(r'"\$\{(\w+):?[-=](?=[^}\n]*\n)(?:[^}"\\]|\\.)*\}"', re.DOTALL)
# It does not accept an operator such as `;` in the text of `${X:+text}`, either.
_OPERATOR_IN_TEXT = re.compile(r"\$\{(\w+):?[-+=][^}\n;|&<>]{0,200}[;|&<>][^}\n]{0,200}\}")


@dataclass
class Command:
    """A simple command.

    Attributes:
        words: Its words after expansion.
        env: The environment variables that the script sets for it.
        line: Its first line in the file.
        not_checked: Sourced files that could not be read, and here-documents that are scripts.
        split: Assignments before it with a blank beside `=`, which set nothing.
        unexported: Variables that programs read from the environment, and that the script assigns before it, but
            neither exports nor mentions elsewhere.
    """

    words: list[Word]
    env: dict[str, Value]
    line: int
    not_checked: tuple[NotChecked, ...] = ()
    split: tuple[Value, ...] = ()
    unexported: tuple[Value, ...] = ()


def read_script(text: str, file: str, first_line: int = 1) -> list[Command]:
    """Return the commands that a script may run.

    Args:
        text: The script.
        file: The file that contains the script.
        first_line: The line of the file on which the script begins.

    Raises:
        UnreadableError: The script is too large, or reading it takes too much work.
    """
    reader = _ScriptReader(file, first_line)
    for name, number, line in slurm_variables(text, first_line):
        reader.scope.variables[name] = f"{SOFT}{number}"
        reader.scope.exported[name] = Value(str(number), Place(file, line), name, soft=True, outside=True)
    return reader.read_text(text.translate(MARKS))


def read_nested(word: Word, file: str) -> list[Command]:
    """Return the commands of a word that is itself a script, as the argument in `bash -c "..."`."""
    return _ScriptReader(file, max(1, word.line)).read_text(word.text)


def parse(text: str, file: str) -> Node:
    """Parse a script; raise UnreadableError if it is larger than the limits, or parsing it takes too long."""
    source = text.replace("\r\n", "\n").replace(HOLE, HOLE_CODE).encode("utf-8", "replace")
    if len(source) > _MAX_SCRIPT:
        raise UnreadableError(f"{file}: larger than {_MAX_SCRIPT // 1000} kB, so it is no script")
    parser = tree_sitter.Parser(_LANGUAGE)
    if len(source) > _SMALL_SCRIPT and not ends_in_time(lambda: parser.parse(source), _PARSE_S):
        raise UnreadableError(f"{file}: parsing it needed more than {_PARSE_S:.0f} s of processor time")
    return parser.parse(source).root_node


class _ScriptReader:
    """Walks over a script's syntax tree, statement by statement, and collects the commands."""

    def __init__(self, file: str, first_line: int = 1) -> None:
        self.expander = Expander(file, first_line)
        self.commands: list[Command] = []
        self.unread_sources: tuple[NotChecked, ...] = ()
        self.heredocs: tuple[NotChecked, ...] = ()
        self.split: tuple[Value, ...] = ()
        self.functions: dict[str, tuple[Node, str, int]] = {}
        self.uncalled: dict[str, None] = {}
        self.calls: list[str] = []
        self.steps = self.depth = self.call_count = self.sourced = 0

    @property
    def scope(self) -> Scope:
        return self.expander.scope

    def read_text(self, text: str) -> list[Command]:
        """Return the commands of a script, including those of functions that it defines and does not call."""
        self._walk(self._parse(text, self.expander.file))
        while self.uncalled:
            name = next(iter(self.uncalled))
            del self.uncalled[name]
            self._walk_in_file(*self.functions[name])
        exports_all = bool(_EXPORTS_ALL.search(text))
        for command in self.commands:
            command.not_checked += self.heredocs
            command.unexported = tuple(
                value
                for value in command.unexported
                if not exports_all and not re.search(rf"\b{value.key}\b(?!=)", text)
            )
        return self.commands

    def _parse(self, text: str, file: str) -> Node:
        """Parse a script into tree-sitter's syntax tree, and count the work; placeholders such as `<model>` are quoted.

        If the parser does not understand the script, a default value over several lines or with an operator is left
        out, so it is unknown.
        """
        self._count(len(text) // 8)
        # To the shell, the template text `--model <your model>` contains two redirects, so it is quoted.
        text = _OPTION_PLACEHOLDER.sub(r"\1'<\2>'", text)
        text = _COMMENT_IN_BACKTICKS.sub("", text)
        tree = parse(text, file)
        misread = (_PLACEHOLDER, _LONG_DEFAULT, _BACKTICKS, _OPERATOR_IN_TEXT)
        if not tree.has_error or not any(pattern.search(text) for pattern in misread):
            return tree
        text = _LONG_DEFAULT.sub(lambda match: f'"${{{match[1]}}}' + "\n" * match[0].count("\n") + '"', text)
        text = _OPERATOR_IN_TEXT.sub(r"${\1}", text)
        return parse(_BACKTICKS.sub("$(:)", _PLACEHOLDER.sub(r"'<\1>'", text)), file)

    def _count(self, steps: int) -> None:
        """Count the work; raise UnreadableError for a script that needs more than `_MAX_NODES` steps."""
        self.steps += steps
        if self.steps > _MAX_NODES:
            reason = f"more than {_MAX_NODES} statements: no script has so many"
            raise UnreadableError(f"{self.expander.file}: {reason}")

    @contextmanager
    def _inner_scope(self) -> Iterator[Scope]:
        """Copy the scope for a subshell, a branch or one command, and drop the copy at the end."""
        self._count(self.scope.size // 8)
        self.expander.scopes.append(self.scope.copy())
        yield self.scope
        self.expander.scopes.pop()

    def _export(self, name: str, value: Value | None) -> None:
        """Export a variable, or remove it if the value is None, and count the work."""
        if self.scope.is_shared:
            self._count(len(self.scope.exported) // 8)
        self.scope.export(name, value)

    def _walk(self, node: Node) -> None:
        """Visit a node by the method for its type, up to the maximum depth."""
        self._count(1)
        if self.depth > _MAX_DEPTH:
            return
        self.depth += 1
        try:
            getattr(self, f"_visit_{node.type}", self._visit_children)(node)
        finally:
            self.depth -= 1

    def _visit_children(self, node: Node) -> None:
        for child in node.named_children:
            self._walk(child)

    def _visit_comment(self, node: Node) -> None:
        pass

    _visit_test_command = _visit_word = _visit_file_redirect = _visit_heredoc_redirect = _visit_comment

    def _visit_list(self, node: Node) -> None:
        """Walk `A && B`; after a test, and after `||`, B may not run."""
        first, second = node.named_children[0], node.named_children[-1]
        self._walk(first)
        operator = node.children[1].type if len(node.children) > 1 else "&&"
        if operator == "||" or first.type == "test_command":
            self._branch(second)
        elif second is not first:
            self._walk(second)

    def _visit_subshell(self, node: Node) -> None:
        with self._inner_scope():
            self._visit_children(node)

    def _branch(self, *nodes: Node) -> None:
        """Walk nodes that may or may not run; variables that they change are unknown afterwards."""
        if len(self.expander.scopes) >= _MAX_DEPTH:
            return
        with self._inner_scope() as branch:
            for node in nodes:
                self._walk(node)
        self.scope.merge_branch(branch)

    def _visit_if_statement(self, node: Node) -> None:
        """Walk the condition, and each clause as a branch."""
        condition, *rest = [child for child in node.named_children if child.type != "comment"]
        self._walk(condition)
        clauses = [child for child in rest if child.type in {"elif_clause", "else_clause"}]
        self._branch(*(child for child in rest if child not in clauses))
        for clause in clauses:
            self._branch(*clause.named_children)

    def _visit_while_statement(self, node: Node) -> None:
        self._branch(*node.named_children[-1:])

    def _visit_c_style_for_statement(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.scope.variables[node_text(child.named_children[0])] = HOLE
        self._visit_while_statement(node)

    def _visit_case_statement(self, node: Node) -> None:
        for item in node.named_children:
            if item.type == "case_item":
                self._branch(*item.named_children[1:])

    def _visit_for_statement(self, node: Node) -> None:
        """Walk a `for` loop: once if it has one known word, else as a branch with an unknown variable."""
        name, *items = [child for child in node.named_children if child.type not in {"comment", "do_group"}]
        bodies = [child for child in node.named_children if child.type == "do_group"]
        words = [word.text for word in self.expander.expand_words(*items)]
        # A loop over a list of one word, such as one node or one seed, runs exactly once.
        once = len(words) == 1 and HOLE not in words[0]
        self.scope.variables[node_text(name)] = words[0] if once else HOLE
        if bodies and once:
            self._walk(bodies[-1])
        elif bodies:
            self._branch(bodies[-1])

    def _visit_function_definition(self, node: Node) -> None:
        """Note a function; its body is walked when it is called, or at the end."""
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[node_text(name)] = (body, self.expander.file, self.expander.first_line)
            self.uncalled[node_text(name)] = None

    def _walk_in_file(self, node: Node, file: str, first_line: int = 1) -> None:
        """Walk a node of the given file; `first_line` is the line of the file on which the node's text begins."""
        before = self.expander.file, self.expander.first_line
        self.expander.file, self.expander.first_line = file, first_line
        self._walk(node)
        self.expander.file, self.expander.first_line = before

    def _call(self, name: str, words: list[Word]) -> None:
        """Walk a function's body with its arguments."""
        self.uncalled.pop(name, None)
        arguments = self.scope.arrays.get("@")
        self.scope.arrays["@"] = words
        self.calls.append(name)
        self.call_count += 1
        self._walk_in_file(*self.functions[name])
        self.calls.pop()
        if arguments is None:
            del self.scope.arrays["@"]
        else:
            self.scope.arrays["@"] = arguments

    def _visit_variable_assignment(self, node: Node, *, exported: bool = False) -> Value | None:
        """Set a variable or an array, and return the variable's value; None for an array."""
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None or target.type != "variable_name":
            return None
        name, appends = node_text(target), any(child.type == "+=" for child in node.children)
        if value is not None and value.type == "array":
            nodes = (item for item in value.named_children if item.type != "comment")
            items = self.expander.expand_words(*nodes)
            before = self.scope.arrays.get(name, []) if appends else []
            self._count(len(before) // 8)
            self.scope.arrays[name] = [*before, *items]
            remember_secret(name, [item.clean for item in items])
            return None
        text = self.expander.expand_text(value) if value is not None else ""
        if appends:
            text = self.scope.variables.get(name, HOLE) + text
        self.expander.count_output(len(text))
        self.scope.variables[name] = text
        result = Word(text, self.expander.line_of(node)).to_value(self.expander.file).with_key(name)
        if exported or name in self.scope.exported:
            self._export(name, result)
        elif _ENVIRONMENT.fullmatch(name):
            self.scope.assigned[name] = result
        return result

    def _visit_declaration_command(self, node: Node) -> None:
        """Process `export`, `declare`, `local` and `readonly`: set variables; `export` and `declare -x` export them."""
        exports = node.children[0].type == "export" or "-x" in node_text(node).split()[1:2]
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._visit_variable_assignment(child, exported=exports)
                continue
            for word in self.expander.expand_words(child) if exports else ():
                text = self.scope.variables.get(word.clean)
                if text is not None:
                    value = Word(text, word.line).to_value(self.expander.file)
                    self._export(word.clean, value.with_key(word.clean))

    def _visit_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            name = node_text(child)
            self.scope.variables.pop(name, None)
            self.scope.arrays.pop(name, None)
            self._export(name, None)

    def _visit_command(self, node: Node, redirects: tuple[Node, ...] = ()) -> None:
        """Add a simple command with its words and environment; apply it instead if it changes shell state."""
        self._count(_COMMAND_STEPS)
        assignments = [child for child in node.named_children if child.type == "variable_assignment"]
        statements = _count_statements(node)
        for statement in assignments[:statements]:
            self._visit_variable_assignment(statement)
        arguments: list[Node] = []
        for child in (*node.named_children, *redirects):
            if child.type == "variable_assignment":
                continue
            if child.type == "file_redirect":
                # Arguments may follow a redirect's file, as in `a > log --x 1`.
                operands = [operand for operand in child.named_children if operand.type != "file_descriptor"]
                arguments += operands[1:]
            elif child.type not in {"comment", "herestring_redirect", "heredoc_redirect"}:
                arguments.append(child)
        words = self.expander.expand_words(*arguments)
        env: dict[str, Value] = {}
        if assignments[statements:]:
            # `A=1 command` sets A only for this command.
            with self._inner_scope() as scope:
                values = map(self._visit_variable_assignment, assignments[statements:])
                env = scope.exported | {value.key: value for value in values if value is not None}
        if not words or self._run_builtin(words):
            return
        self._note_heredoc(words, redirects)
        if not env:
            env, self.scope.is_shared = self.scope.exported, True
        if len(words) > 2 and words[0].clean.isidentifier() and words[1].clean == "=":
            value = words[2].to_value(self.expander.file).with_key(words[0].clean)
            self.split = (*self.split, value)[:_MAX_UNREAD]
        unexported = tuple(value for name, value in self.scope.assigned.items() if name not in env)
        self.commands.append(
            Command(words, env, words[0].line, self.unread_sources, self.split, unexported[:_MAX_UNREAD])
        )

    def _visit_redirected_statement(self, node: Node) -> None:
        """Walk a statement with redirects, and the commands behind its here-documents."""
        body = node.child_by_field_name("body")
        redirects = tuple(child for child in node.named_children if child.type.endswith("_redirect"))
        if body is not None and body.type == "command":
            self._visit_command(body, redirects)
        else:
            self._visit_children(node)
        for redirect in redirects:
            # The here-document's node contains the rest of a pipeline or list: `cat <<EOF | bash`.
            for child in redirect.named_children if redirect.type == "heredoc_redirect" else ():
                if child.type in {"pipeline", "list", "command"}:
                    self._walk(child)

    def _run_builtin(self, words: list[Word]) -> bool:
        """Apply a command that changes shell state (`source`, `shift`, `set --`, a function); return whether it did."""
        name = words[0].clean
        if name in {"source", "."} and len(words) > 1:
            self._source(words[1])
        elif [word.clean for word in words[:2]] == ["set", "--"]:
            self.scope.arrays["@"] = words[2:]
        elif name == "shift" and "@" in self.scope.arrays:
            self.scope.arrays["@"] = [Word(HOLE, words[0].line)]
        elif name in self.functions and name not in self.calls:
            if len(self.calls) >= _MAX_NESTED or self.call_count >= _MAX_CALLS:
                return False
            self._call(name, words[1:])
        else:
            return False
        return True

    def _source(self, word: Word) -> None:
        """Walk over the file of `source FILE` in the script's scope, or note that it could not be read.

        Files that only activate an environment, by their name, are skipped.
        """
        if _ACTIVATES.search(word.clean):
            return
        fits = self.sourced < _MAX_NESTED
        path = find_above(word.clean, self.expander.file, _MAX_PARENTS) if fits else None
        try:
            text = safe_io.read_text(path, MAX_BYTES).translate(MARKS) if path is not None else None
        except OSError:
            text = None
        if path is None or text is None:
            name, place = word.clean.replace(HOLE, "..."), str(Place(self.expander.file, word.line))
            reason = "the script sources this file before the run, and it was not found"
            entry = NotChecked(name, reason, "lint it where that file is", place)
            self.unread_sources = (*self.unread_sources, entry)[:_MAX_UNREAD]
            return
        self.sourced += 1
        self._walk_in_file(self._parse(text, str(path)), str(path))
        self.sourced -= 1

    def _note_heredoc(self, words: list[Word], redirects: tuple[Node, ...]) -> None:
        """Note a here-document that is a script: a shell reads it, or it is written to a script file."""
        heredocs = [redirect for redirect in redirects if redirect.type == "heredoc_redirect"]
        # The redirect to a file may be before or after `<<EOF`.
        files = [*redirects, *(child for heredoc in heredocs for child in heredoc.named_children)]
        # `>&-` closes a stream and names no file.
        named = (file for file in files if file.type == "file_redirect" and file.named_children)
        targets = [node_text(file.named_children[-1]) for file in named]
        names = [word.clean.rpartition("/")[2] for word in words]
        targets += names[1:] if names[0] == "tee" else []
        if heredocs and (_SHELLS & set(names) or any(target.endswith(SCRIPT_SUFFIXES) for target in targets)):
            place = str(Place(self.expander.file, words[0].line))
            entry = NotChecked(
                "a script in a here-document", "lint reads none", "save and lint it as a file", place
            )
            self.heredocs = (*self.heredocs, entry)[:_MAX_UNREAD]


def _count_statements(command: Node) -> int:
    """Return how many of the assignments in a command's node are statements before the command.

    tree-sitter-bash joins `A=1 B=2` to the command on the next line.
    """
    source, offset = command.text or b"", command.start_byte
    statements = 0
    for number, (child, following) in enumerate(pairwise(command.named_children), start=1):
        gap = source[child.end_byte - offset : following.start_byte - offset]
        if child.type == "variable_assignment" and b"\n" in gap.replace(b"\\\n", b""):
            statements = number
    return statements
