"""Repeated attempts: which outcomes count as different, the printed table, and the exit code."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from repro import render
from repro.__main__ import exit_code
from repro.base import Attempt, AttemptOutcome

COMMAND = "import sys; from repro.__main__ import main; sys.exit(main(sys.argv[1:], registry='toys'))"
BARE = Attempt("t", None, AttemptOutcome.REPRODUCED, where="vllm/a.py:3", function="f", as_recorded=True)


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        ({"seconds": 9.0, "detail": "another port"}, False),
        ({"outcome": AttemptOutcome.TIMEOUT}, True),
        ({"where": "vllm/a.py:4"}, True),
        ({"tokens": 7}, True),
    ],
)
def test_what_must_be_the_same_each_time(other, apart):
    """Outcome, place and counts; not the seconds, and not the words with their ports."""
    assert render.differs([BARE, BARE, replace(BARE, **other)]) is apart


@pytest.mark.parametrize(
    ("attempts", "code"),
    [
        ([BARE, BARE], 0),
        ([BARE, replace(BARE, where="vllm/a.py:4")], 1),
        ([BARE, replace(BARE, outcome=AttemptOutcome.TIMEOUT, as_recorded=None)], 1),
        ([replace(BARE, as_recorded=False)] * 2, 1),
        ([replace(BARE, outcome=AttemptOutcome.ERROR, as_recorded=None)] * 2, 3),
    ],
)
def test_one_that_differs_is_a_finding_and_no_answer_at_all_is_unfinished(attempts, code):
    """A silent timeout among good ones is a difference; never an answer is exit code 3."""
    assert exit_code({"X": attempts}) == code


def test_the_table_counts_each_pair_and_tells_what_the_others_were():
    """The table counts outcomes per pair; if they differ, it lists the other outcomes with their messages."""
    helped = [replace(BARE, mitigation="m", outcome=AttemptOutcome.MITIGATED)] * 2
    lost = replace(BARE, outcome=AttemptOutcome.NOT_REPRODUCED, detail="nothing happened")
    lines = render.repeat_lines({"X": [BARE, lost, BARE, *helped]}, None, 12.3)
    assert "    as it is                    2 of 3 reproduced, 1 of 3 not_reproduced  << differs" in lines
    assert "        1: not_reproduced; vllm/a.py:3 in f; nothing happened" in lines
    assert "    with m                      2 of 2 mitigated" in lines
    assert lines[0] == "5 attempts in 12 s; pairs that differ from time to time: 1"


def test_each_attempt_is_made_as_often_as_asked(toys):
    """Each runs in a separate process, for every pair; the document has the counts."""
    command = [
        sys.executable,
        "-c",
        COMMAND,
        "repeat",
        "TOY001",
        "--trigger",
        "silent",
        "--times",
        "3",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    pairs = json.loads(done.stdout)["codes"]["TOY001"]
    assert done.returncode == 1  # one of the toys is on record as helping, and does not
    assert {pair["mitigation"]: pair["outcomes"] for pair in pairs} == {
        None: {"reproduced": 3},
        "helps": {"mitigated": 3},
        "useless": {"not_mitigated": 3},
        "senseless": {"inapplicable": 3},
    }
    assert not any(pair["differs"] for pair in pairs)
