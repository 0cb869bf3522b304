"""What a shell's tokens are to its grammar: where commands and blocks end, which words are plain, what is assigned."""

from __future__ import annotations

import re

from diagnostics.lint.sources.shell_words import Piece, Token

ENDS = {"\n", ";", "&", "&&", "||", "|", "|&", ";;", ";&", ";;&", "(", ")", "(("}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_REDIRECTIONS = {"<", ">", ">>", "<<<", ">&", "<&", ">|", "&>", "&>>"}


def closing(tokens: list[Token], start: int, opening: set[str], closing: str) -> int:
    """Where the block ends that is open; 0 where it doesn't. Words count where a command may begin."""
    depth, begins = 1, True
    for at in range(start, len(tokens)):
        token = tokens[at]
        word = literal(token)
        if begins and word in opening:
            depth += 1
        elif begins and word == closing:
            depth -= 1
            if depth == 0:
                return at
        begins = (token.kind == "operator" and token.text in ENDS) or word in {
            "then",
            "do",
            "else",
            "{",
            "!",
            "time",
        }
    return 0


def shown(tokens: list[Token]) -> str:
    """The tokens as they were written, near enough to tell what a test asks."""
    return " ".join(
        ("" if token.kind == "word" else token.text + " ")
        + "".join(
            f"${piece.text}"
            if piece.kind == "variable"
            else "$#"
            if piece.text == "#" and piece.kind == "unknown"
            else piece.text
            for piece in token.pieces
        )
        for token in tokens
    )


def without_redirections(tokens: list[Token]) -> list[Token]:
    """The words of a command, its assignments with them."""
    kept: list[Token] = []
    skip = False
    for token in tokens:
        if token.kind == "operator":
            skip = token.text in _REDIRECTIONS
        elif skip:
            skip = False
        else:
            kept.append(token)
    return kept


def literal(token: Token) -> str:
    """A word that is plain text, as keywords are; else nothing."""
    if token.kind != "word" or any(piece.kind != "text" or piece.quoted for piece in token.pieces):
        return ""
    return "".join(piece.text for piece in token.pieces)


def assigned(token: Token) -> tuple[str, bool] | None:
    """The name of a variable that a word assigns, and whether to what it holds; None where it assigns none."""
    if not token.pieces or token.pieces[0].kind != "text" or token.pieces[0].quoted:
        return None
    match = _ASSIGNMENT.match(token.pieces[0].text)
    return (match[1], bool(match[2])) if match else None


def after_equals(pieces: list[Piece]) -> list[Piece]:
    """What an assignment assigns."""
    first = pieces[0].text.partition("=")[2]
    return [Piece("text", first), *pieces[1:]]
