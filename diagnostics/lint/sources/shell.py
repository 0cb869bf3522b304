"""A shell script as the commands it would run, with what is known of their words. Nothing is run.

Variables are followed through assignments, defaults and arithmetic. What depends on a branch, a loop, a command's
output or the outside is not known, and stays so through every word that it goes into.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from diagnostics import given
from diagnostics.lint.sources import slurm
from diagnostics.lint.sources.shell_expansion import SCRIPTS, Expansion
from diagnostics.lint.sources.shell_scope import Scope, Word
from diagnostics.lint.sources.shell_tokens import (
    ENDS,
    after_equals,
    assigned,
    closing,
    literal,
    shown,
    without_redirections,
)
from diagnostics.lint.sources.shell_words import HOLE, SOFT, Lexer, Token
from diagnostics.lint.sources.tree import MAX_BYTES
from diagnostics.lint.values import Place, Value

_DECLARING = {"export", "declare", "local", "readonly", "typeset"}
_OPENING = {"if", "while", "until", "for", "case", "select"}
_MAX_DEPTH = 60
# So many words a loop goes over, and so many bodies of loops and functions are read, one by one.
_MOST_ROUNDS, _MOST_BODIES = 8, 200
# So many tokens are gone over in search of the ends of blocks, nested ones again and again.
_MOST_SEARCHED = 300_000
# A test that is false, and a loop without a round, where the script is given nothing.
_ON_ARGUMENTS = re.compile(
    r"\$\{?#\}?[\"']?\s*(?:-gt|-ge\s+[1-9]|>|!=|-ne\s+0|$)|\bgetopts\b|-n\s+\$[1-9]|\$[1-9]\s+={1,2}\s+[^\s\]]"
)
_NUMBERS = tuple(map(str, range(1, 10)))
_SHELLS = {"bash", "sh", "zsh", "sbatch", "ssh"}
_MAX_SOURCED = 4
_MAX_AROUND = 6
_ACTIVATES = re.compile(
    r"activate|conda|\.bashrc|profile|/opt/|/etc/|setvars|set_env\.sh$|modules?\b|\bvenv|nvm"
)


@dataclass
class Command:
    """A simple command: its words, and the variables that are set for it or exported before it."""

    words: list[Word]
    environ: dict[str, Value]
    line: int
    # Files that were sourced before it and could not be read.
    unread: tuple[Word, ...] = ()


def commands(text: str, file: str, first_line: int = 1) -> list[Command]:
    """Reads a script into its commands.

    Args:
        text: The script.
        file: Where it stands.
        first_line: Its first line there.

    Raises:
        UnreadableError: It is larger than a script is.
    """
    marked = text.translate(dict.fromkeys(range(7), " "))
    reader = _ShellReader(file)
    for each in slurm.asked(text, first_line):
        place = Place(file, each.line)
        reader.scope.variables[each.name] = f"{SOFT}{each.number}"
        reader.scope.exported[each.name] = Value(str(each.number), place, each.name, soft=True, outside=True)
    return reader.read(Lexer(marked, file, first_line).tokens())


def nested(word: Word, file: str) -> list[Command]:
    """The commands of a word that is itself a script, as in `bash -c "..."`."""
    return _ShellReader(file).read(Lexer(word.text, file, max(1, word.line - word.text.count("\n"))).tokens())


class _ShellReader:
    def __init__(self, file: str) -> None:
        self.known = Expansion(file)
        self.found: list[Command] = []
        self.blocks: list[str] = []
        self.unread: list[Word] = []
        self.depth = 0
        # Functions by name, the lines of those never called, and how many bodies were read.
        self.functions: dict[str, list[Token]] = {}
        self.uncalled: dict[str, list[Token]] = {}
        self.bodies = 0
        self.searched = 0
        # How many loops are gone over, one within another.
        self.around = 0
        # The functions that are being read, and how many blocks were open when they were called.
        self.inside: list[tuple[str, int]] = []
        # Of each block that is open: whether it runs only where the script is given arguments.
        self.unasked: list[bool] = []

    @property
    def scope(self) -> Scope:
        return self.known.scope

    def read(self, tokens: list[Token]) -> list[Command]:
        """Reads a script: its commands, and those of functions that it defines and does not call."""
        self._walk(tokens)
        while self.uncalled:
            name = next(iter(self.uncalled))
            self._walk(self.uncalled.pop(name))
        return self.found

    def _walk(self, tokens: list[Token]) -> None:
        """Walks over the tokens, command by command."""
        start = 0
        while start < len(tokens):
            token = tokens[start]
            if token.kind == "operator" and token.text in ENDS:
                if token.text in {";;", ";&", ";;&"} and self._inside("case"):
                    self._close_branch()
                    start = self._pattern(tokens, start + 1)
                else:
                    start += 1
                continue
            end = start
            while end < len(tokens) and not (
                tokens[end].kind == "operator" and tokens[end].text in ENDS and tokens[end].text != "(("
            ):
                end += 1
            start = self._statement(tokens, start, max(end, start + 1))

    def _inside(self, block: str) -> bool:
        return bool(self.blocks) and self.blocks[-1] == block

    def _statement(self, tokens: list[Token], start: int, end: int) -> int:
        """Reads one statement; returns where the next begins."""
        word = literal(tokens[start])
        if body := self._function(tokens, start):
            name = literal(tokens[start + 1]) if word == "function" else word
            self.functions[name] = self.uncalled[name] = tokens[body[0] : body[1]]
            return body[1] + 1
        if word in _OPENING:
            return self._open(word, tokens, start, end)
        if word in {"then", "do", "else", "elif"}:
            if word in {"else", "elif"}:
                self._close_branch()
                self.unasked[-1:] = [False] * len(self.unasked[-1:])
            if word != "elif":
                self._open_branch()
            return start + 1
        if word in {"fi", "done", "esac"}:
            self._close_branch()
            if self.blocks:
                self.blocks.pop()
                self.unasked.pop()
            return start + 1
        if word in {"!", "time", "{", "}"}:
            return start + 1
        self._command(tokens[start:end])
        return end

    def _open(self, word: str, tokens: list[Token], start: int, end: int) -> int:
        if word == "for" and end > start + 1:
            done = self._rounds(tokens, start, end)
            if done:
                return done
            self.scope.variables[literal(tokens[start + 1])] = HOLE
        self.blocks.append(word)
        self.unasked.append(self._on_arguments(word, tokens[start:end]))
        if word == "for" and end > start + 1:
            return end
        if word == "case":
            return self._pattern(tokens, end)
        return start + 1

    def _function(self, tokens: list[Token], start: int) -> tuple[int, int] | None:
        """The body of `NAME() { ... }` or `function NAME { ... }`: where it begins and ends; None where it is none."""
        at = start + 1 if literal(tokens[start]) == "function" else start
        if at >= len(tokens) or not literal(tokens[at]):
            return None
        brackets = [token.text for token in tokens[at + 1 : at + 3]] == ["(", ")"]
        if not brackets and at == start:
            return None
        at += 3 if brackets else 1
        while at < len(tokens) and tokens[at].text == "\n":
            at += 1
        if at >= len(tokens) or literal(tokens[at]) != "{":
            return None
        end = self._closing(tokens, at + 1, {"{"}, "}")
        return (at + 1, end) if end else None

    def _closing(self, tokens: list[Token], start: int, opening: set[str], word: str) -> int:
        """Where a block ends; 0 where it doesn't, or where too much was gone over already to look for it."""
        if self.searched > _MOST_SEARCHED:
            return 0
        end = closing(tokens, start, opening, word)
        self.searched += (end or len(tokens)) - start
        return end

    def _on_arguments(self, word: str, tokens: list[Token]) -> bool:
        """Tells whether a loop or a branch runs only where the script itself is given something."""
        if "@" in self.scope.arrays:
            return False
        if word == "for":
            over = [
                piece for token in tokens[3:] for piece in token.pieces if piece.kind != "text" or piece.text
            ]
            return (len(tokens) == 2 and bool(literal(tokens[1]))) or [
                piece.kind + piece.text for piece in over
            ] == ["array@"]
        return word in {"while", "if"} and bool(_ON_ARGUMENTS.search(shown(tokens)))

    def _rounds(self, tokens: list[Token], start: int, end: int) -> int:
        """Reads the body of `for NAME in WORDS` once for each, where they are known; returns where it ends, or 0."""
        if end < start + 4 or literal(tokens[start + 2]) != "in" or self.bodies >= _MOST_BODIES:
            return 0
        if self.around >= _MAX_AROUND:
            return 0
        words = [word for token in tokens[start + 3 : end] for word in self.known.words(token)]
        first = next((at for at in range(end, min(end + 4, len(tokens))) if literal(tokens[at]) == "do"), 0)
        last = self._closing(tokens, first + 1, {"for", "while", "until", "select"}, "done") if first else 0
        if not last or not 1 <= len(words) <= _MOST_ROUNDS or any(HOLE in word.text for word in words):
            return 0
        # What is read again counts as what is searched: a long body in many rounds is read as one that may be.
        self.searched += (last - first) * len(words)
        if self.searched > _MOST_SEARCHED:
            return 0
        self.around += 1
        for word in words:
            self.bodies += 1
            self.scope.variables[literal(tokens[start + 1])] = word.text
            self._walk(tokens[first + 1 : last])
        self.around -= 1
        return last + 1

    def _call(self, name: str, words: list[Word]) -> None:
        """Reads a function's body with what it is given."""
        self.uncalled.pop(name, None)
        before = {number: self.scope.variables.get(number) for number in _NUMBERS}
        arguments = self.scope.arrays.get("@")
        self._bind(words)
        self.inside.append((name, len(self.blocks)))
        self.bodies += 1
        self.searched += len(self.functions[name])
        try:
            self._walk(self.functions[name])
        finally:
            self.inside.pop()
            self._bind(arguments)
            for number, text in before.items():
                if text is not None:
                    self.scope.variables[number] = text

    def _bind(self, words: list[Word] | None) -> None:
        """Makes these the arguments, `$1` and `"$@"`; None for those of the script itself, which nobody knows."""
        for number in _NUMBERS:
            self.scope.variables.pop(number, None)
        self.scope.arrays.pop("@", None)
        if words is not None:
            self.scope.arrays["@"] = list(words)
            sure = True
            for number in _NUMBERS:
                word = words[int(number) - 1] if int(number) <= len(words) else None
                sure = sure and (word is None or not word.unknown)
                self.scope.variables[number] = HOLE if not sure else word.text if word else ""

    def _shift(self, words: list[Word]) -> None:
        """`shift`, and `set -- ...`, which give the arguments other places."""
        mine = self.scope.arrays.get("@")
        if words[0].clean == "set":
            names = [word.clean for word in words]
            self._bind(words[names.index("--") + 1 :])
        elif mine is not None:
            number = words[1].clean if len(words) > 1 else "1"
            branched = len(self.blocks) > (self.inside[-1][1] if self.inside else 0)
            known = number.isdecimal() and not branched and not any(word.unknown for word in mine)
            self._bind(mine[int(number) :] if known else [Word(HOLE, words[0].line)])

    def _pattern(self, tokens: list[Token], start: int) -> int:
        """Goes over the pattern of a case's branch, up to and with its bracket."""
        for position in range(start, len(tokens)):
            if literal(tokens[position]) == "esac":
                return position
            if tokens[position].kind == "operator" and tokens[position].text == ")":
                self._open_branch()
                return position + 1
        return len(tokens)

    def _open_branch(self) -> None:
        if len(self.known.scopes) < _MAX_DEPTH:
            self.known.wrote(0, counted=len(self.scope.variables) + len(self.scope.arrays))
            self.known.scopes.append(self.scope.copy())

    def _close_branch(self) -> None:
        if len(self.known.scopes) > 1:
            branch = self.known.scopes.pop()
            if any(self.unasked):
                self.scope.merge_unasked(branch)
            else:
                self.scope.merge(branch)

    def _command(self, tokens: list[Token]) -> None:
        """Reads one simple command: assignments before it, words, redirections left out."""
        environ: dict[str, Value] = {}
        words: list[Word] = []
        exporting = False
        for token in without_redirections(tokens):
            if token.kind == "array":
                self._set_array(token)
                continue
            name = assigned(token)
            if name and not words:
                self._assign(name, token, environ, exported=exporting)
                continue
            expanded = self.known.words(token)
            if not words and expanded and expanded[0].clean in _DECLARING:
                exporting = exporting or expanded[0].clean == "export"
            elif exporting and not words:
                self._export(expanded)
            else:
                words += expanded
        if words and self._of_the_shell(words):
            return
        self._here(tokens, words)
        if words:
            environ = {**self.scope.exported, **environ}
            self.found.append(Command(words, environ, words[0].line, tuple(self.unread)))
            return
        for variable, value in environ.items():
            if variable in self.scope.exported:
                self.scope.exported[variable] = value

    def _of_the_shell(self, words: list[Word]) -> bool:
        """Reads a command that changes what is known: a file that is sourced, a function; tells whether it is one."""
        name = words[0].clean
        if name in {"source", "."} and len(words) > 1:
            self._source(words[1])
        elif name == "shift" or [word.clean for word in words[:2]] == ["set", "--"]:
            self._shift(words)
        elif name == "unset":
            for word in words[1:]:
                for held in (self.scope.variables, self.scope.arrays, self.scope.exported):
                    held.pop(word.clean, None)
        elif name in self.functions and self._may_call(name):
            self._call(name, words[1:])
        else:
            return False
        return True

    def _may_call(self, name: str) -> bool:
        return (
            all(name != each for each, _ in self.inside)
            and len(self.inside) < _MAX_SOURCED
            and self.bodies < _MOST_BODIES
            and self.searched <= _MOST_SEARCHED
        )

    def _here(self, tokens: list[Token], words: list[Word]) -> None:
        """A script that stands in a here-document: given to a shell, or written to a file."""
        here = next((token.here for token in tokens if token.here), None)
        if here is None or not words or self.depth >= _MAX_SOURCED:
            return
        names = [word.clean.rpartition("/")[2] for word in words]
        files = [literal(tokens[at + 1]) for at in range(len(tokens) - 1) if tokens[at].text in {">", ">|"}]
        targets = [*files, *(names[1:] if names[0] == "tee" else ())]
        if not (_SHELLS & set(names) or any(target.endswith(SCRIPTS) for target in targets)):
            return
        reader = _ShellReader(self.known.file)
        reader.known.main, reader.depth = self.known.main, self.depth + 1
        reader.scope.exported.update(self.scope.exported)
        for name, value in self.scope.exported.items():
            reader.scope.variables[name] = self.scope.variables.get(
                name, HOLE if not value.known else str(value.data)
            )
        text = here.text if here.quoted else self.known.filled(here)
        for each in slurm.asked(text, here.line):
            reader.scope.variables[each.name] = f"{SOFT}{each.number}"
        self.found += reader.read(Lexer(text, self.known.file, here.line).tokens())

    def _source(self, word: Word) -> None:
        """`source FILE`: its variables are the script's own; an environment made active sets none of a run's."""
        if _ACTIVATES.search(word.clean):
            return
        path = _beside(word.clean, self.known.file)
        if path is None or self.depth >= _MAX_SOURCED:
            self.unread.append(word)
            return
        try:
            text = given.text(path, MAX_BYTES).translate(dict.fromkeys(range(7), " "))
        except OSError:  # something that is no file of a script's size: not read, as one that is not there
            self.unread.append(word)
            return
        mine, self.known.file, self.depth = self.known.file, str(path), self.depth + 1
        try:
            self._walk(Lexer(text, str(path)).tokens())
        finally:
            self.known.file, self.depth = mine, self.depth - 1

    def _export(self, words: list[Word]) -> None:
        """`export NAME` of a variable that has a value."""
        for word in words:
            text = self.scope.variables.get(word.clean)
            if text is not None:
                value = Word(text, word.line).value(self.known.file)
                self.scope.exported[word.clean] = value.named(word.clean)

    def _set_array(self, token: Token) -> None:
        items = [word for item in token.items for word in self.known.words(item)]
        before = self.scope.arrays.get(token.text, []) if token.append else []
        self.scope.arrays[token.text] = before + items
        self.known.wrote(sum(len(word.text) + 8 for word in items))

    def _assign(
        self, name: tuple[str, bool], token: Token, environ: dict[str, Value], *, exported: bool
    ) -> None:
        text = self.known.assigned(after_equals(token.pieces))
        if name[1]:
            text = self.scope.variables.get(name[0], HOLE) + text
        self.known.wrote(len(text))
        self.scope.variables[name[0]] = text
        value = Word(text, token.line).value(self.known.file).named(name[0])
        environ[name[0]] = value
        if exported:
            self.scope.exported[name[0]] = value


def _beside(name: str, file: str) -> Path | None:
    """A file that a script names, from its own folder or one above."""
    if HOLE in name or len(name) > 300:
        return None
    start = Path(file).absolute().parent
    for folder in (start, *list(start.parents)[:3]):
        try:
            path = folder / name
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                return path
        except (OSError, ValueError):
            return None
    return None
