"""Make the questions of a matrix file and events that answer them, for tests of published and reported results.

A question is a layer to run for a cell. `load_questions` makes questions, and `answer_event` an event.
"""

from pathlib import Path

from diagnostics.matrix.cells import Matrix, load_matrix
from diagnostics.matrix.layers import BY_NAME, LAYERS
from diagnostics.matrix.results import Question
from diagnostics.matrix.store import Event
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome


def load_questions(path: Path, text: str) -> tuple[Matrix, list[Question]]:
    """Write a matrix file; return the matrix and a question for each layer of its cells."""
    path.write_text(text)
    matrix = load_matrix(path, LAYERS)
    questions = [
        Question(cell, BY_NAME[name], (("cell", cell.id), ("layer", name)))
        for cell in matrix.cells
        for name in cell.layers
    ]
    return matrix, questions


def answer_event(question: Question, outcome: str, summary: str, **more: object) -> Event:
    """Return an event with the answer to a question."""
    answer = Answer(Outcome(outcome), summary, EvidenceLevel.EXECUTED, **more)
    time = "2026-01-02T00:00:00Z"
    return Event(question.identity, *question.key, answer, question.inputs, "", time, 1.0, "r")
