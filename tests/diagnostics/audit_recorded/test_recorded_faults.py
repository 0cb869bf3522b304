"""Each fault put into samples and files of a real run is named, in every format that shows it, and nothing else is."""

from __future__ import annotations

import shutil

import pytest

from diagnostics.audit.model import CLEAN, FAULT
from diagnostics.audit.recorded import audit_run
from diagnostics.catalog import loader
from diagnostics.output.audits import wording
from tests.diagnostics.audit_recorded import faults, runs
from tests.diagnostics.programs import fuzz_left, fuzz_readers


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of our own trainer, with every step recorded."""
    return runs.own(tmp_path_factory.mktemp("own"), 0, 10, "--model.layers=2")


@pytest.fixture(scope="module")
def rows(run):
    return runs.with_trainer(runs.rows_of(run))


def named(audit):
    return {answer.family for answer in audit.answers if answer.outcome == FAULT}


def test_a_run_of_ours_is_clean(run):
    """Nothing is wrong with it, and what decides was asked."""
    audit = audit_run(run)
    assert named(audit) == set()
    assert audit.outcome == CLEAN
    assert {"data", "advantages", "samples", "ends", "rewards", "masks", "moved", "metrics"} <= {
        answer.family for answer in audit.of(CLEAN)
    }


@pytest.mark.parametrize("form", sorted(runs.WRITERS))
def test_the_same_samples_in_other_formats_are_clean(rows, tmp_path, form):
    """Whichever trainer writes them."""
    audit = audit_run(runs.WRITERS[form](rows, tmp_path / form))
    assert (named(audit), audit.outcome) == (set(), CLEAN)


@pytest.mark.parametrize(
    ("fault", "form"),
    [(fault, form) for fault in faults.ROWS for form in fault.formats],
    ids=lambda value: value if isinstance(value, str) else value.name.replace(" ", "-"),
)
def test_a_fault_in_samples_is_named(rows, tmp_path, fault, form):
    """By its family and nothing beside it, with a code of the catalogue that claims the family, and a sentence."""
    audit = audit_run(runs.WRITERS[form](fault.put(rows, 1), tmp_path / form))
    assert fault.family in named(audit)
    beside = named(audit) - {fault.family}
    # Completions that are all the same have no spread, and all advantages of 0 need no spread to be 0.
    assert beside <= {"rewards/no_spread", "rewards/constant"}
    (answer,) = {each.family: each for each in audit.answers if each.family == fault.family}.values()
    assert answer.code in loader.load()
    assert wording.sentence({**vars(answer), "outcome": FAULT})


@pytest.mark.parametrize(
    ("name", "family", "put"), faults.FILES, ids=[each[0].replace(" ", "-") for each in faults.FILES]
)
def test_a_fault_in_files_is_named(run, tmp_path, name, family, put):
    """Metrics and weights of the run's own folder."""
    del name
    folder = shutil.copytree(run, tmp_path / "run")
    put(folder, 1)
    assert family in named(audit_run(folder))


@pytest.mark.parametrize("form", runs.TOKENS)
def test_tokens_of_certainty_are_neither_prompts_nor_tools(rows, tmp_path, form):
    """A cut that leaves one id makes a log-prob of 0, which is also what stands where nothing was sampled."""

    def certain(row, number):
        held, sure = row.tokens, range(row.tokens.prompt, row.tokens.prompt + (5 if number % 2 else 0))
        streams = {
            name: tuple(near if place in sure else each for place, each in enumerate(stream))
            for name, stream, near in (("engine", held.engine, 0.0), ("trainer", held.trainer, -0.1))
        }
        return runs.having(row, **streams)

    audit = audit_run(runs.WRITERS[form]([certain(row, place) for place, row in enumerate(rows)], tmp_path))
    assert not {family for family in named(audit) if family.startswith("masks")}


def test_a_law_of_two_streams_says_that_it_tells_one(rows, tmp_path):
    """Another beside it would not show: the answer says to ask again, and not that there is none."""
    (fault,) = (each for each in faults.ROWS if each.family == "streams/shifted")
    (told,) = (each for each in audit_run(runs.as_prime(fault.put(rows, 1), tmp_path)).of(FAULT))
    assert "one_law" in {fact.name for fact in told.facts}


def test_every_family_has_words_and_a_code():
    """What the questions can answer is known to the report; what the catalogue claims can be answered."""
    claimed = {family for issue in loader.load().values() for family in issue.audit}
    assert claimed <= set(wording.FAULTS) | set(wording.CLASSES)


def test_damaged_and_hostile_runs_are_answered_or_refused():
    """A few of the cases of `python -m tests.diagnostics.programs.fuzz_left`, which is run with many."""
    _outcomes, _slowest, wrong = fuzz_readers.run(fuzz_left.run_left, 8, 0)
    assert not wrong, "\n".join(text for _case, text in wrong)
