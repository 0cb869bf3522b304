"""Ranking of mitigations: verified against this trigger first; one that was tested and failed is never recommended."""

import itertools
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics import catalog
from diagnostics.catalog.mitigation_ranking import possible_triggers as occurring
from diagnostics.catalog.mitigation_ranking import recommended_fix as remedy
from diagnostics.catalog.model import FRAMEWORKS, Bound, Mitigation
from diagnostics.fixes import DOES_NOT_HELP, NOT_TESTED, VERIFIED, mitigation_line
from repro.issues import REPROS
from tests.violations import violations

SWEPT = json.loads((Path(catalog.__file__).parents[1] / "data" / "sweep.json").read_text())["sweeps"]
ISSUES = catalog.load()


def tried(name, helps=(), fails=(), evidence="executed", frameworks=("vllm",)):
    """A mitigation with what does not matter here filled in."""
    edits = tuple((element, f"set {name}") for element in frameworks)
    results = {"helps": tuple(helps), "fails": tuple(fails), "evidence": evidence}
    return Mitigation(name=name, about=f"about {name}", edits=edits, cost="none", **results)


@pytest.fixture
def issue():
    """Make an issue with some mitigations, in this order."""
    return lambda *mitigations: replace(ISSUES["SCH001"], triggers=(), mitigations=mitigations)


def names(offers):
    return [offer.mitigation for offer in offers]


def test_what_was_shown_against_this_trigger_comes_first(issue):
    """Then what was shown against others, then what was never run; by how much of it there is."""
    entry = issue(
        tried("declared", evidence="declared"),
        tried("static", evidence="static"),
        tried("elsewhere", ["b", "c", "d"]),
        tried("here", ["a"]),
        tried("here_and_there", ["a", "b"]),
    )
    result = remedy(entry, triggers=["a"])
    assert names(result.offers) == ["here_and_there", "here", "elsewhere", "static", "declared"]
    assert [offer.standing for offer in result.offers] == [
        VERIFIED,
        VERIFIED,
        NOT_TESTED,
        NOT_TESTED,
        NOT_TESTED,
    ]
    assert [offer.untried for offer in result.offers] == [(), (), ("a",), (), ()]


def test_without_a_trigger_the_most_triggers_count(issue):
    """Each lists the triggers it was not run against."""
    entry = issue(tried("one", ["a"]), tried("two", ["a", "b"], ["c"]), tried("all", ["a", "b", "c"]))
    result = remedy(entry)
    assert names(result.offers) == ["all", "two", "one"]
    assert [offer.untried for offer in result.offers] == [(), (), ("b", "c")]


def test_what_failed_is_never_offered(issue):
    """It is listed with the run that showed it, for this trigger or, if unknown, for any."""
    entry = issue(tried("helps", ["a", "b"]), tried("half", ["b"], ["a"]), tried("never", fails=["b"]))
    result = remedy(entry, triggers=["a"])
    assert names(result.offers) == ["helps"]
    assert names(result.does_not_help) == ["half", "never"]
    assert {offer.standing for offer in result.does_not_help} == {DOES_NOT_HELP}
    assert [offer.run.words[-3:] for offer in result.does_not_help] == [
        ("a", "--mitigation", "half"),
        ("b", "--mitigation", "never"),
    ]
    assert names(remedy(entry).offers) == ["helps", "half"]


def test_the_words_of_the_trainer_at_hand(issue):
    """Equal mitigations: one with edits for the user's framework comes first; one without any comes last."""
    entry = issue(
        tried("of_others", ["a", "b", "c"], frameworks=["verl"]),
        tried("of_the_engine", ["a", "b"]),
        tried("of_the_trainer", ["a"], frameworks=["trl", "vllm"]),
    )
    result = remedy(entry, triggers=["a"], frameworks=["trl"])
    assert names(result.offers) == ["of_the_trainer", "of_the_engine", "of_others"]
    assert [[edit.framework for edit in offer.edits] for offer in result.offers] == [["trl"], ["vllm"], []]
    assert names(remedy(entry, triggers=["a"]).offers) == ["of_others", "of_the_engine", "of_the_trainer"]


def test_a_trigger_that_cannot_occur_in_this_release_does_not_count():
    """From 0.8.4 on vLLM refuses an over-long prompt, so a mitigation for only that trigger does not count."""
    entry = ISSUES["SCH002"]
    assert "overlong_prompt" in occurring(entry, {"vllm": "0.7.3"})
    assert "overlong_prompt" not in occurring(entry, {"vllm": "0.9.0"})
    assert "chunked_prefill_off" in names(remedy(entry, releases={"vllm": "0.7.3"}).offers)
    assert "chunked_prefill_off" in names(remedy(entry, releases={"vllm": "0.9.0"}).does_not_help)
    # Shown after a refusal alone, which 0.7.3 does not make.
    result = remedy(entry, triggers=["overlong_prompt"], releases={"vllm": "0.7.3"})
    assert "abort_leftovers" in names(result.does_not_help)


def check_no_failed_mitigation(code):
    entry = ISSUES[code]
    by_name = {record.name: record for record in entry.mitigations}
    for trigger, framework in itertools.product(("", *entry.recorded()), ("", *FRAMEWORKS)):
        result = remedy(entry, triggers=filter(None, [trigger]), frameworks=filter(None, [framework]))
        assert sorted(names((*result.offers, *result.does_not_help))) == sorted(by_name)
        for offer in result.offers:
            record = by_name[offer.mitigation]
            assert trigger not in record.fails
            assert record.helps or record.evidence != "executed"
            if offer.standing == VERIFIED:
                assert trigger in record.helps if trigger else record.helps
        for offer in result.does_not_help:
            assert not trigger or trigger not in by_name[offer.mitigation].helps


def test_no_entry_recommends_a_mitigation_that_failed():
    """For each recorded trigger and for none: every mitigation is in one list, verified only where a run shows it."""
    assert violations(check_no_failed_mitigation, ISSUES) == []


def test_a_run_that_is_told_can_be_repeated():
    """A tested mitigation that does not help is listed with its repro, trigger and mitigation."""
    for code, entry in ISSUES.items():
        for trigger in ("", *entry.recorded()):
            for offer in remedy(entry, triggers=[trigger] if trigger else []).does_not_help:
                *_, option, name, _, mitigation = offer.run.words
                assert (option, mitigation) == ("--trigger", offer.mitigation)
                assert name in {element.name for element in REPROS[code].triggers}


def swept():
    """Yield (package, code, trigger, mitigation, outcomes) of everything that a sweep answered."""
    for package, result in SWEPT.items():
        for code, item in result["codes"].items():
            for trigger, mitigations in item["outcomes"].items():
                for mitigation, outcomes in mitigations.items():
                    yield package, code, trigger, mitigation, outcomes


def test_entries_say_what_the_sweeps_saw():
    """Trigger by trigger: what mitigated is in `helps`, what did not in `fails`, and nothing is in both."""
    observed = 0
    for _, code, trigger, mitigation, outcomes in swept():
        record = {element.name: element for element in ISSUES[code].mitigations}.get(mitigation)
        if record is None:
            continue
        observed += 1
        assert ("mitigated" in outcomes) <= (trigger in record.helps), (code, trigger, mitigation)
        assert ("not_mitigated" in outcomes) <= (trigger in record.fails), (code, trigger, mitigation)
        assert not set(record.helps) & set(record.fails)
    assert observed > 100


def test_triggers_occur_in_the_releases_that_the_sweeps_saw_them_in():
    """An entry's range for a trigger is where it was reproduced, of the releases that have the code at all."""
    for package, code, trigger, mitigation, outcomes in swept():
        if mitigation != "unmitigated" or trigger not in ISSUES[code].recorded():
            continue
        anywhere = {
            release
            for second in SWEPT[package]["codes"][code]["outcomes"].values()
            for release in second["unmitigated"].get("reproduced", ())
        }
        for release in anywhere:
            says = trigger in occurring(ISSUES[code], {package: release})
            assert says == (release in outcomes.get("reproduced", ())), (code, trigger, release)


def check_triggers(code):
    about = {trigger.name: trigger.about for trigger in REPROS[code].triggers}
    assert set(ISSUES[code].recorded()) <= set(about)
    assert {element.name: element.about for element in ISSUES[code].triggers}.items() <= about.items()


def test_triggers_are_those_of_the_repro():
    """Trigger names in entry and repro agree; a described trigger has the repro's description."""
    assert violations(check_triggers, REPROS) == []


def test_words_that_this_release_does_not_have_are_not_offered(issue):
    """Two edits for one framework: only that of the installed release is shown; all if the release is unknown."""
    words = (("trl", "old=1"), ("trl", "new=1"), ("vllm", "always=1"))
    record = replace(
        tried("a"),
        edits=words,
        bounds=(Bound(versions="<0.18"), Bound(versions=">=0.18"), Bound()),
        evidence="static",
    )

    def advice(**releases):
        result = remedy(issue(record), frameworks=["trl"], releases=releases)
        return [edit.edit for edit in result.offers[0].edits]

    assert (advice(trl="0.17.0"), advice(trl="1.0.0")) == (["old=1"], ["new=1"])
    assert advice() == advice(trl="main") == ["old=1", "new=1"]


def test_a_run_in_other_words_is_told_as_that(issue):
    """`verified` only of options that were run; they come before others that help as well."""
    entry = issue(
        replace(tried("other_words", ["a"]), bounds=(Bound(),)),
        replace(tried("these_words", ["a"]), bounds=(Bound(ran=("a",)),)),
    )
    result = remedy(entry, triggers=["a"])
    assert names(result.offers) == ["these_words", "other_words"]
    assert [offer.as_run for offer in result.offers] == [True, False]
    these, second = map(mitigation_line, result.offers)
    assert "(these_words: verified)" in these
    assert "(other_words: verified with another framework's options)" in second


@pytest.mark.parametrize(
    ("frame", "first"),
    [
        (("verl/workers/actor/dp_actor.py", "update_policy"), "smaller_micro_batch"),
        (("vllm/v1/worker/gpu_worker.py", "determine_available_memory"), "engine_share"),
    ],
)
def test_the_frame_that_ran_out_of_memory_decides_what_to_shrink(frame, first):
    issue = catalog.find("MEM007")
    assert names(remedy(issue, frameworks=["verl"], frames=[frame]).offers)[0] == first
