"""What the layers make of what programs in cells answer, or fail to."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.compat_table import Compat
from diagnostics.matrix.ask import attempts, in_cell, layers, registry
from diagnostics.matrix.ask.layers import conformance, doctor, logprobs, peer, serve, train
from diagnostics.matrix.ask.registry import ALL, BY_NAME, in_order, load
from diagnostics.matrix.build import environments
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.plan import cells
from diagnostics.matrix.plan.verdicts import Outcome
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.run.board import code_of
from diagnostics.processes import Finished
from diagnostics.findings import CheckResult, Finding, Report, Severity


@pytest.fixture
def place(tmp_path, kit):
    """A workplace with one cell whose environment counts as built."""
    (tmp_path / "matrix.toml").write_text(kit.head + kit.cell("1.0", "1.0", kit.deep))
    return Workplace(
        load(tmp_path / "matrix.toml"),
        Store(tmp_path / "store"),
        environ={"PATH": "/bin", "HF_TOKEN": "secret", "LANG": "C"},
    )


@pytest.fixture
def answers(place, monkeypatch):
    """Asks the scheduler layer, whose program ends as told."""

    def _ask(output, code=0, *, timed_out=False):
        monkeypatch.setattr(environments, "ensure", lambda *_, **__: None)
        monkeypatch.setattr(in_cell, "run", lambda *_, **__: Finished(code, output, 1.0, timed_out))
        return BY_NAME["scheduler"].run_program(place, place.matrix.cells[0])

    return _ask


def document(kit, *attempts, modified=()):
    """What a repro prints."""
    del kit
    upstream = {"distribution": "vllm", "files_checked": 9, "modified": list(modified)}
    codes = {"SCH001": {"outcome": None, "attempts": list(attempts)}}
    return json.dumps(
        {"schema": "grpo-doctor.repro.v1", "versions": {"vllm": "1.0"}, "codes": codes, "upstream": upstream}
    )


@pytest.mark.parametrize(
    ("output", "code", "outcome", "said"),
    [
        ("", 0, Outcome.INFRA_ERROR, "ended with 0 and printed nothing"),
        ("Traceback …", 1, Outcome.INFRA_ERROR, "no JSON document: 'Traceback …'"),
        ('{"schema": "other"}', 0, Outcome.INFRA_ERROR, "answered with 'other' where 'grpo-doctor.repro.v1'"),
        ("[1]", 0, Outcome.INFRA_ERROR, "answered with 'list'"),
        ('{"error": "no such code"}', 2, Outcome.INFRA_ERROR, "could not work: no such code"),
        ("", -11, Outcome.FAIL, "ended by SIGSEGV"),
        ("", -6, Outcome.FAIL, "ended by SIGABRT"),
        ("", -9, Outcome.INFRA_ERROR, "ended by SIGKILL"),
    ],
)
def test_no_answer_is_blamed_on_whom_it_should(answers, output, code, outcome, said):
    """A crash is the cell's; garbage, refusals and a kill from outside are ours or the machine's."""
    answer = answers(output, code)
    assert (answer.outcome, said in answer.summary) == (outcome, True), answer.summary


def test_a_program_out_of_time_is_a_timeout(answers):
    """Whatever it had printed."""
    answer = answers('{"schema": "grpo-doctor.repro.v1"}', -15, timed_out=True)
    assert (answer.outcome, answer.summary) == (Outcome.TIMEOUT, "no answer within 300 s")


def test_a_reproduced_crash_fails_with_its_code_and_place(answers, kit):
    """Codes, file:line, what helped: all in the answer."""
    useless = {**kit.crash, "mitigation": "lock", "outcome": "not_mitigated"}
    answer = answers(document(kit, kit.crash, kit.cured, useless), 1)
    assert (answer.outcome, answer.codes) == (Outcome.FAIL, ("SCH001",))
    assert answer.summary == "SCH001 at vllm/core/scheduler.py:7 (lost_step)"
    assert "SCH001: abort_orphans helped against lost_step" in answer.details
    assert "SCH001: lock did not help against lost_step" in answer.details
    assert "9 Python files of vllm hashed against the wheel's own record, 0 modified" in answer.details
    grid = answer.grids[0]
    assert grid.columns == ("", "lost_step")
    assert grid.rows == (
        ("unmitigated", "✘ happens (scheduler.py:7)"),
        ("abort_orphans", "✔ helps"),
        ("lock", "✘ does not help (scheduler.py:7)"),
    )


@pytest.mark.parametrize(
    ("changes", "outcome", "said"),
    [
        ({"outcome": "not_reproduced"}, Outcome.PASS, "SCH001: not reproduced"),
        ({"outcome": "inapplicable", "detail": "no such scheduler"}, Outcome.NOT_RUN, "no such scheduler"),
        ({"outcome": "error", "detail": "broken"}, Outcome.INFRA_ERROR, "a repro failed itself: broken"),
        ({"outcome": "timeout"}, Outcome.TIMEOUT, "did not end in time"),
        # Without an unmitigated attempt nobody knows whether the crash is there.
        ({"outcome": "mitigated", "mitigation": "x"}, Outcome.INFRA_ERROR, "it tried nothing"),
    ],
)
def test_attempts_make_an_outcome(answers, kit, changes, outcome, said):
    """Not reproduced passes; code that isn't there is not run; a broken or hanging repro is no verdict on the cell."""
    answer = answers(document(kit, {**kit.crash, **changes}))
    assert (answer.outcome, said in answer.summary) == (outcome, True), answer.summary


def test_modified_upstream_files_are_no_evidence(answers, kit):
    """If the installed files aren't the wheel's, nothing is said about the release."""
    answer = answers(document(kit, kit.crash, modified=["vllm/core/scheduler.py"]), 1)
    assert (answer.outcome, answer.codes) == (Outcome.INFRA_ERROR, ())


@pytest.mark.parametrize(
    ("changes", "outcome", "said"),
    [
        (
            {},
            Outcome.PASS,
            "2 steps with vllm: reward 0.10 → 0.90; 2 of 2 weight syncs proven; staleness ≤ 1",
        ),
        ({"outcome": "error", "error": "the engine\n died"}, Outcome.FAIL, "the engine died"),
        ({"steps": 0}, Outcome.FAIL, "no step was taken"),
        ({"reward_last": 0.1}, Outcome.FAIL, "the reward did not rise: 0.10 to 0.10"),
        ({"reward_first": None}, Outcome.FAIL, "the reward did not rise: ? to 0.90"),
        ({"syncs_proven": 1}, Outcome.FAIL, "only 1 of 2 weight syncs were proven"),
    ],
)
def test_a_training_run_counts_only_with_proven_syncs(place, tmp_path, changes, outcome, said):
    """Steps taken and every weight sync proven, or it isn't training."""
    (tmp_path / "metrics.jsonl").write_text(
        "".join(f'{{"reward/mean": {step / 100}}}\n' for step in range(101))
    )
    whole = {
        "outcome": "ok",
        "engine": "vllm",
        "steps": 2,
        "reward_first": 0.1,
        "reward_last": 0.9,
        "syncs": 2,
        "syncs_proven": 2,
        "max_staleness": 1,
        "metrics": "metrics.jsonl",
    }
    answer = train.read(in_cell.Reply({**whole, **changes}, "", "", tmp_path), place.matrix.cells[0])
    assert (answer.outcome, answer.summary) == (outcome, said)
    if outcome is Outcome.PASS:
        assert (len(answer.curve), answer.curve[0], answer.curve[-1]) == (34, 0.01, 0.995)


def test_a_curve_that_cannot_be_read_is_none(tmp_path):
    """No metrics, or torn ones, are no evidence and no error."""
    assert train.rewards(Path("nowhere")) == ()
    (tmp_path / "m").write_text("{")
    assert train.rewards(tmp_path / "m") == ()


def test_a_cell_sees_none_of_the_user_s_settings(place):
    """Scrubbed: no tokens; offline; a home of its own; PYTHONPATH holds staged copies only."""
    environment = place.cell_environ(place.matrix.cells[0])
    assert "secret" not in environment.values()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert Path(environment["HOME"]).is_relative_to(place.store.folder)
    assert {item.name for item in Path(environment["PYTHONPATH"]).iterdir()} == {"grpo_core", "repro"}


OK = {"outcome": "passed", "why": ""}
LACKS = {"outcome": "not applicable", "why": "sleep: it can't"}
WRONG = {"outcome": "failed", "why": "assert 1 < 0"}


@pytest.mark.parametrize(
    ("found", "code", "outcome", "said"),
    [
        ({"a": OK, "b": LACKS}, 0, Outcome.PASS, "1 passed, 1 not applicable"),
        ({"a": OK, "b": WRONG}, 1, Outcome.FAIL, "1 passed, 1 failed; first b (assert 1 < 0)"),
        ({"a": OK}, -11, Outcome.FAIL, "the program was ended by SIGSEGV behind these: 1 passed"),
        ({"a": OK}, -9, Outcome.INFRA_ERROR, "the program was ended by SIGKILL behind these: 1 passed"),
        ({}, 0, Outcome.INFRA_ERROR, "pytest ended with 0: no test ran"),
        ({"a": LACKS}, 0, Outcome.INFRA_ERROR, "pytest ended with 0: 1 not applicable"),
        ({"a": OK}, 3, Outcome.INFRA_ERROR, "pytest ended with 3: 1 passed"),
    ],
)
def test_a_conformance_run_passes_if_something_did_and_nothing_failed(found, code, outcome, said):
    """What a test skipped is no pass, and an end that pytest does not call one is no answer."""
    assert conformance.judge(found, Finished(code, "", 1.0, timed_out=False)) == (outcome, said)


def test_an_environment_gets_the_name_that_its_recipe_adds(place):
    """A distribution of metadata alone, found by whoever asks for its version."""
    cell = place.matrix.cells[0]
    packages = environments.folder(place, cell) / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    environments._add(place, cell, replace(cell.recipe, named="vllm=={vllm}+cpu"))
    (found,) = importlib.metadata.distributions(path=[str(packages)])
    assert (found.name, found.version) == ("vllm", "1.0+cpu")


def test_a_server_that_does_not_start_fails_with_what_it_said_first(place):
    """As a sign, which an expectation can name; one that answered passes."""
    cell = place.matrix.cells[0]
    error = "ended with 1 before it was up: PackageNotFoundError: No package metadata was found for vllm"
    failed = {"server": "trl vllm-serve", "outcome": "failed", "error": error}
    answer = serve.read(in_cell.Reply(failed, "the log's end", "logs/it", Path()), cell)
    assert (answer.outcome, answer.signs) == (Outcome.FAIL, (error,))
    assert (answer.summary, answer.excerpt) == (f"trl vllm-serve: {error}", "the log's end")
    ran = {"server": "vllm serve", "outcome": "ok", "protocol": "/v1/completions", "tokens": 8}
    answer = serve.read(in_cell.Reply(ran, "", "logs/it", Path()), cell)
    assert answer.outcome is Outcome.PASS
    assert answer.summary == "vllm serve: up, and /v1/completions answered with 8 tokens"
    assert serve.read(in_cell.Reply({}, "", "", Path()), cell).outcome is Outcome.FAIL


def test_every_layer_stands_behind_what_it_needs_and_none_is_there_twice():
    """Found by standing in the folder; a layer whose order is wrong is refused by name, with its file."""
    names = [layer.name for layer in ALL]
    assert {"resolve", "contract", "train:async", "repro:NUM001", "doctor"} <= set(names)
    assert in_order(reversed(ALL)) == ALL
    with pytest.raises(ValueError, match=r"engine needs install, import before it: .*layers\.engine"):
        in_order([BY_NAME["engine"]])
    with pytest.raises(ValueError, match="install is there twice"):
        in_order([BY_NAME["install"]] * 2)


NEW = """
from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.plan import cells
from diagnostics.matrix.plan.verdicts import Outcome

def read(reply, cell):
    return in_cell.answer(reply, cell, Outcome.PASS, f"it said {reply.document['word']}")

LAYERS = (in_cell.layer("greeting", 55, "further", "Does it greet?", ("repro.questions.greeting",), "s", read),)
"""


def test_a_layer_is_one_file_that_stands_in_the_folder(tmp_path, monkeypatch, kit):
    """With a line in the matrix file it is asked, in its place; nothing lists it, and what it rests on is found."""
    (tmp_path / "greeting_of_a_test.py").write_text(NEW)
    monkeypatch.setattr(layers, "__path__", [*layers.__path__, str(tmp_path)])
    found = registry.in_order(registry._found())
    names = [layer.name for layer in found]
    assert set(names) - set(BY_NAME) == {"greeting"}
    assert names.index("import") < names.index("greeting") < names.index("scheduler")
    (tmp_path / "matrix.toml").write_text(
        kit.head + kit.cell("1.0", "1.0", ("install", "import", "greeting"))
    )
    matrix = cells.load(tmp_path / "matrix.toml", found)
    assert matrix.cells[0].layers == ("install", "import", "greeting")
    layer = found[names.index("greeting")]
    begin, words = code_of(layer, matrix.layer("greeting"), matrix.cells[0])
    assert "repro.questions.greeting" in begin
    assert list(words) == []


def test_every_code_with_a_repro_is_a_layer():
    """Listed nowhere but by the files of the repros."""
    repros = {layer.name for layer in ALL if layer.name.startswith("repro:")}
    assert repros == {f"repro:{code}" for code in attempts.MODULES}
    assert {"SCH001", "NUM001", "CMP003"} <= set(attempts.MODULES)


def test_steps_of_the_cell_s_own_trainer_pass_and_what_it_raised_is_a_sign(place):
    """With its place; a mode that TRL doesn't have is not run."""
    cell = place.matrix.cells[0]
    logged = {"loss": [0.1], "sampling/sampling_logp_difference/mean": [0.001, 0.002]}
    whole = {"outcome": "ok", "steps": 3, "seconds": 1.5, "moved": 0.01, "logged": logged, "error": None}
    answer = peer.read(in_cell.Reply(whole, "", "logs/it", Path()), cell)
    assert answer.outcome is Outcome.PASS
    assert answer.summary == (
        "3 steps in 1.5 s; weights moved by up to 1.0e-02; "
        "engine and trainer apart by 2.0e-03 in the mean, as TRL logs it"
    )
    failed = {"outcome": "failed", "error": "KeyError: 'x'", "where": "trl/a.py:7 in f"}
    answer = peer.read(in_cell.Reply(failed, "the end", "logs/it", Path()), cell)
    assert (answer.outcome, answer.signs) == (Outcome.FAIL, ("KeyError: 'x' (trl/a.py:7 in f)",))
    answer = peer.read(in_cell.Reply({"outcome": "not_run", "error": "no such mode"}, "", "", Path()), cell)
    assert (answer.outcome, answer.summary) == (Outcome.NOT_RUN, "no such mode")
    assert peer.read(in_cell.Reply({}, "", "", Path()), cell).outcome is Outcome.FAIL


def test_log_probs_are_told_with_their_bound(place):
    """Largest and mean difference; beyond the bound it failed."""
    cell = place.matrix.cells[0]
    found = {"tokens": 9, "dtype": "float32", "bound": 1e-4, "max_difference": 2e-6, "mean_difference": 1e-7}
    answer = logprobs.read(in_cell.Reply({**found, "outcome": "ok"}, "", "", Path()), cell)
    assert (
        answer.summary == "9 tokens in float32: apart by 2.0e-06 at most, 1.0e-07 in the mean (bound 1e-04)"
    )
    wrong = {**found, "outcome": "failed", "error": "apart by up to 3.0e-01, more than 0.0001"}
    answer = logprobs.read(in_cell.Reply(wrong, "", "", Path()), cell)
    assert (answer.outcome, answer.summary) == (Outcome.FAIL, wrong["error"])


def known(verdict, evidence):
    """One layer of a published cell."""
    return {"verdict": verdict, "evidence": evidence}


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [
        ({"import": known("fail", "executed")}, "partial"),
        ({"import": known("fail", "executed"), "contract": known("expected_fail", "static")}, "fail"),
        ({"import": known("pass", "executed"), "resolve": known("unresolvable", "static")}, "unresolvable"),
    ],
)
def test_doctor_is_asked_without_what_was_run_in_the_cell(layers, verdict):
    """Source and metadata stay; another cell's runs stay too."""
    one = {"id": "one", "verdict": "pass", "layers": layers}
    other = {"id": "other", "verdict": "fail", "layers": {"import": known("fail", "executed")}}
    left = doctor.withheld(Compat(cells=(one, other)), "one").cells
    assert (left[0]["verdict"], "import" in left[0]["layers"]) == (verdict, False)
    assert left[1] is other


def test_doctor_s_findings_are_signs_and_a_crashed_check_is_no_answer():
    """By when it was asked, severity and code; whether it is right is not judged here."""
    finding = Finding("CMP902", "known to fail", Severity.ERROR, "established", "executed", "because")
    report = Report(
        "doctor", {}, (CheckResult("a", "findings", "", (finding,)), CheckResult("b", "skipped", "why"))
    )
    answer = doctor.read({doctor.WITHHELD: Report("doctor", {}, ()), doctor.TOLD: report})
    assert (answer.outcome, answer.signs) == (Outcome.PASS, ("with error CMP902",))
    assert answer.summary == "not knowing the runs of this cell: nothing; knowing them: error CMP902"
    crashed = Report("doctor", {}, (CheckResult("a", "crashed", "KeyError"),))
    assert doctor.read({doctor.TOLD: crashed}).outcome is Outcome.FAIL
