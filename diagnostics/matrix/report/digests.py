"""The digests of the generated cells' locks, as the committed file has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnostics.matrix.run.board import Board

# The digests of the generated cells' locks, a line a cell.
GENERATED = "breadth.txt"
_GENERATED_HEAD = """\
# Of each generated cell that has a solution: its date cut and the digest of its lock with the hashes of all files.
# Made by: nox -s lock -- --profile breadth
# A whole lock, resolved again: nox -s lock -- --profile breadth --cells CELL --into DIR
"""


def text(board: Board) -> str:
    """Returns the file: of each cell that has a solution the digest that the store's answer to `resolve` names."""
    lines = []
    for row in board.rows:
        square = row.square("resolve")
        answer = square.event.answer if square and square.event and square.event.finished else None
        for digest, count in answer.told("lock") if answer else ():
            lines.append(f"{row.cell.id}  {row.cell.exclude_newer}  {count} packages  {digest}\n")
    return _GENERATED_HEAD + "".join(lines)
