"""Mitigations are ranked by their evidence against the trigger, and one that failed against it is not recommended.

The shipped entries agree with the repros and with the release sweeps, which ran triggers and mitigations in many
releases.
"""

import itertools
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics import called_as, catalog
from diagnostics.catalog.mitigation_ranking import possible_triggers, recommended_fix
from diagnostics.catalog.model import FRAMEWORKS, Bound, Mitigation
from diagnostics.fixes import DOES_NOT_HELP, NOT_TESTED, VERIFIED, first_lines, mitigation_line
from repro.issues import REPROS
from tests.violations import violations

SWEEPS = json.loads((Path(catalog.__file__).parents[1] / "data" / "sweep.json").read_text())["sweeps"]
ISSUES = catalog.load()


def mitigation_of(name, helps=(), fails=(), evidence="executed", frameworks=("vllm",)):
    """Return a mitigation with the remaining fields filled in."""
    edits = tuple((element, f"set {name}") for element in frameworks)
    results = {"helps": tuple(helps), "fails": tuple(fails), "evidence": evidence}
    return Mitigation(name=name, about=f"about {name}", edits=edits, cost="none", **results)


@pytest.fixture
def issue():
    """Return a function that makes an issue with these mitigations, in this order."""
    return lambda *mitigations: replace(ISSUES["SCH001"], triggers=(), mitigations=mitigations)


def names(offers):
    """Return the mitigation of each offer."""
    return [offer.mitigation for offer in offers]


def test_verified_mitigations_come_first_then_by_evidence(issue):
    """First come mitigations verified against the trigger, then against other triggers, then those never run."""
    entry = issue(
        mitigation_of("declared", evidence="declared"),
        mitigation_of("static", evidence="static"),
        mitigation_of("elsewhere", ["b", "c", "d"]),
        mitigation_of("here", ["a"]),
        mitigation_of("here_and_there", ["a", "b"]),
    )
    result = recommended_fix(entry, triggers=["a"])
    assert names(result.offers) == ["here_and_there", "here", "elsewhere", "static", "declared"]
    assert [offer.standing for offer in result.offers] == [VERIFIED] * 2 + [NOT_TESTED] * 3
    assert [offer.untried for offer in result.offers] == [(), (), ("a",), (), ()]


def test_without_a_trigger_most_verified_triggers_win(issue):
    """Without a known trigger, mitigations are ranked by the number of triggers that they help against."""
    entry = issue(
        mitigation_of("one", ["a"]),
        mitigation_of("two", ["a", "b"], ["c"]),
        mitigation_of("all", ["a", "b", "c"]),
    )
    result = recommended_fix(entry)
    assert names(result.offers) == ["all", "two", "one"]
    assert [offer.untried for offer in result.offers] == [(), (), ("b", "c")]


def test_failed_mitigation_is_listed_as_no_help_with_its_run(issue):
    """A mitigation that failed against the trigger, or in each run, is listed as no help, with the command of a run."""
    entry = issue(
        mitigation_of("helps", ["a", "b"]),
        mitigation_of("half", ["b"], ["a"]),
        mitigation_of("never", fails=["b"]),
    )
    result = recommended_fix(entry, triggers=["a"])
    assert names(result.offers) == ["helps"]
    assert names(result.does_not_help) == ["half", "never"]
    assert {offer.standing for offer in result.does_not_help} == {DOES_NOT_HELP}
    runs = [" ".join(offer.run.words) for offer in result.does_not_help]
    command = f"{called_as()} repro run SCH001 --trigger"
    assert runs == [f"{command} a --mitigation half", f"{command} b --mitigation never"]
    assert names(recommended_fix(entry).offers) == ["helps", "half"]


def test_mitigations_with_edits_for_the_users_framework_come_first(issue):
    """Mitigations with edits for the framework come first, then for the engine, then those without either."""
    entry = issue(
        mitigation_of("for_verl", ["a", "b", "c"], frameworks=["verl"]),
        mitigation_of("for_vllm", ["a", "b"]),
        mitigation_of("for_trl", ["a"], frameworks=["trl", "vllm"]),
    )
    result = recommended_fix(entry, triggers=["a"], frameworks=["trl"])
    assert names(result.offers) == ["for_trl", "for_vllm", "for_verl"]
    assert [[edit.framework for edit in offer.edits] for offer in result.offers] == [["trl"], ["vllm"], []]
    assert names(recommended_fix(entry, triggers=["a"]).offers) == ["for_verl", "for_vllm", "for_trl"]


def test_trigger_that_cannot_occur_in_the_release_does_not_count():
    """A mitigation for a trigger that the release does not have is no help; from 0.8.4 on vLLM refuses long prompts."""
    entry = ISSUES["SCH002"]
    assert "overlong_prompt" in possible_triggers(entry, {"vllm": "0.7.3"})
    assert "overlong_prompt" not in possible_triggers(entry, {"vllm": "0.9.0"})
    assert "chunked_prefill_off" in names(recommended_fix(entry, releases={"vllm": "0.7.3"}).offers)
    assert "chunked_prefill_off" in names(recommended_fix(entry, releases={"vllm": "0.9.0"}).does_not_help)
    # This mitigation was verified only with a release that refuses the prompt, unlike 0.7.3.
    result = recommended_fix(entry, triggers=["overlong_prompt"], releases={"vllm": "0.7.3"})
    assert "abort_leftovers" in names(result.does_not_help)


def check_no_failed_mitigation(code):
    """Assert for one issue that offers and failures are complete and agree with the records."""
    entry = ISSUES[code]
    by_name = {record.name: record for record in entry.mitigations}
    for trigger, framework in itertools.product(("", *entry.trigger_names()), ("", *FRAMEWORKS)):
        triggers, frameworks = filter(None, [trigger]), filter(None, [framework])
        result = recommended_fix(entry, triggers=triggers, frameworks=frameworks)
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
    """For every entry, trigger and framework, each mitigation is in one list, and no failed one is offered."""
    assert violations(check_no_failed_mitigation, ISSUES) == []


def sweep_results():
    """Yield (package, code, trigger, mitigation, outcomes) of each result of the release sweeps."""
    for package, result in SWEEPS.items():
        for code, item in result["codes"].items():
            for trigger, mitigations in item["outcomes"].items():
                for mitigation, outcomes in mitigations.items():
                    yield package, code, trigger, mitigation, outcomes


def test_entries_agree_with_the_release_sweeps():
    """A mitigation's `helps` and `fails` have the triggers of the sweeps' outcomes, and share none."""
    observed = 0
    for _, code, trigger, mitigation, outcomes in sweep_results():
        record = {element.name: element for element in ISSUES[code].mitigations}.get(mitigation)
        if record is None:
            continue
        observed += 1
        assert ("mitigated" in outcomes) <= (trigger in record.helps), (code, trigger, mitigation)
        assert ("not_mitigated" in outcomes) <= (trigger in record.fails), (code, trigger, mitigation)
        assert not set(record.helps) & set(record.fails)
    assert observed > 100


def test_trigger_ranges_agree_with_the_release_sweeps():
    """A trigger is possible in a release exactly if the sweep reproduced it, where it reproduced any trigger."""
    for package, code, trigger, mitigation, outcomes in sweep_results():
        if mitigation != "unmitigated" or trigger not in ISSUES[code].trigger_names():
            continue
        anywhere = {
            release
            for outcomes_of_trigger in SWEEPS[package]["codes"][code]["outcomes"].values()
            for release in outcomes_of_trigger["unmitigated"].get("reproduced", ())
        }
        for release in anywhere:
            is_possible = trigger in possible_triggers(ISSUES[code], {package: release})
            assert is_possible == (release in outcomes.get("reproduced", ())), (code, trigger, release)


def check_triggers(code):
    """Assert for one issue that its triggers are triggers of its repro, with the same descriptions."""
    about = {trigger.name: trigger.about for trigger in REPROS[code].triggers}
    assert set(ISSUES[code].trigger_names()) <= set(about)
    assert {element.name: element.about for element in ISSUES[code].triggers}.items() <= about.items()


def test_triggers_of_an_entry_are_triggers_of_its_repro():
    """Each trigger of an entry is a trigger of its repro, with the same description; the repro may have more."""
    assert violations(check_triggers, REPROS) == []


def test_only_edits_for_the_installed_release_are_offered(issue):
    """Only edits for the installed release are offered; if the release is unknown, all are."""
    words = (("trl", "old=1"), ("trl", "new=1"), ("vllm", "always=1"))
    bounds = (Bound(versions="<0.18"), Bound(versions=">=0.18"), Bound())
    record = replace(mitigation_of("a", evidence="static"), edits=words, bounds=bounds)

    def advice(**releases):
        result = recommended_fix(issue(record), frameworks=["trl"], releases=releases)
        return [edit.edit for edit in result.offers[0].edits]

    assert (advice(trl="0.17.0"), advice(trl="1.0.0")) == (["old=1"], ["new=1"])
    assert advice() == advice(trl="main") == ["old=1", "new=1"]


def test_mitigation_verified_with_these_options_comes_before_others(issue):
    """A mitigation verified with these options comes first; the line of another names the packages of its run."""
    entry = issue(
        replace(mitigation_of("other_options", ["a"]), bounds=(Bound(),)),
        replace(mitigation_of("these_options", ["a"]), bounds=(Bound(tested_triggers=("a",)),)),
    )
    result = recommended_fix(entry, triggers=["a"])
    assert names(result.offers) == ["these_options", "other_options"]
    assert [offer.as_run for offer in result.offers] == [True, False]
    first, second = map(mitigation_line, result.offers)
    assert first.endswith("set these_options (verified).")
    assert "other_options (verified with vLLM, ms-swift)" in second


def test_log_that_shows_no_case_gets_each_mitigation_with_its_condition(issue):
    """Each mitigation is printed with its condition; for a setting in the log, only the mitigation that fits it."""
    entry = issue(
        replace(mitigation_of("a", evidence="static"), when="with FSDP2", settings=("fsdp_version: 2",)),
        replace(mitigation_of("b", evidence="static"), when="with DeepSpeed"),
        mitigation_of("c", evidence="static"),
    )
    heading, *lines = first_lines(recommended_fix(entry, logs=["--bf16 true"]))
    assert heading == "it depends on the case:"
    assert [line.partition(": ")[0] for line in lines] == ["- With FSDP2", "- With DeepSpeed", "- Otherwise"]
    (line,) = first_lines(recommended_fix(entry, logs=["fsdp_version: 2"]))
    assert line.endswith("set a (not tested; read in source).")
    assert "With" not in line


@pytest.mark.parametrize(
    ("frame", "first"),
    [
        ("verl/workers/actor/dp_actor.py:update_policy", "smaller_micro_batch"),
        ("vllm/v1/worker/gpu_worker.py:determine_available_memory", "engine_share"),
    ],
)
def test_out_of_memory_frame_decides_which_share_to_reduce(frame, first):
    issue = catalog.find("MEM007")
    assert names(recommended_fix(issue, frameworks=["verl"], failure=[frame]).offers)[0] == first
