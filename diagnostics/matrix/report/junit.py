"""The board as JUnit XML, for CI systems: one suite a cell, one case a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from diagnostics.matrix.plan.verdicts import Verdict
from diagnostics.matrix.report import words

if TYPE_CHECKING:
    from diagnostics.matrix.run.board import Board, Row, Square

_ERRORS = frozenset({Verdict.INFRA_ERROR, Verdict.TIMEOUT})
_OPEN = frozenset({Verdict.NOT_RUN, Verdict.NOT_JUDGED})


def render(board: Board, generated: str) -> str:
    """Returns the document.

    Only a pass is a case without a mark. A time-out or a fault of the machine is an error; a verdict that nobody
    expected is a failure; what failed as expected, was not run or not judged is skipped, with the reason.
    """
    root = ET.Element("testsuites", name="grpo-doctor matrix", timestamp=generated)
    for row in board.rows:
        root.append(_suite(row))
    for kind in ("tests", "failures", "errors", "skipped"):
        root.set(kind, str(sum(int(suite.get(kind, "0")) for suite in root)))
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(row: Row) -> ET.Element:
    cases = [_case(square) for square in row.squares]
    suite = ET.Element("testsuite", name=row.cell.id, tests=str(len(cases)))
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(sum(case.find(tag) is not None for case in cases)))
    suite.extend(cases)
    return suite


def _case(square: Square) -> ET.Element:
    question, judged = square.question, square.judged
    seconds = square.event.seconds if square.event else 0.0
    case = ET.Element("testcase", classname=question.cell.id, name=question.layer.name, time=f"{seconds:.2f}")
    if judged.verdict is Verdict.PASS:
        return case
    message = _plain(
        f"{words.word(judged)}: {square.summary}" + (f" ({judged.remark})" if judged.remark else "")
    )
    if judged.verdict in _ERRORS:
        tag = "error"
    else:
        tag = "skipped" if judged.expected or judged.verdict in _OPEN else "failure"
    mark = ET.SubElement(case, tag, message=message)
    answer = square.event.answer if square.event else None
    if answer is not None:
        mark.text = _plain("\n".join([*answer.details, answer.excerpt, question.command]))
    return case


def _plain(text: str) -> str:
    """Leaves out the control characters that XML has no way to write."""
    return "".join(item if item >= " " or item in "\t\n" else "�" for item in text)
