"""Layers turn a program's output, exit code, signal or timeout into an answer.

A cell inherits no tokens and no home folder. Each layer comes after the layers that it needs. The layer `contract`
reads the API index.
"""

import importlib.metadata
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from diagnostics.api_index import query, rules
from diagnostics.api_index.compare import MissingUse
from diagnostics.api_index.query import Release
from diagnostics.api_index.uses import Use
from diagnostics.matrix import environments
from diagnostics.matrix.context import Context
from diagnostics.matrix.layers import BY_NAME, LAYERS, cell_run, conformance, contract, doctor, programs
from diagnostics.matrix.store import Store
from diagnostics.matrix.verdicts import Outcome
from diagnostics.process import Completed
from tests.matrix.questions import load_questions


def make_reply(document, excerpt="", folder=Path(), code=0):
    """Return the reply of a program in a cell that printed this document and ended with this exit code."""
    return cell_run.CellRun(Completed(code, "", "", 1.0, False), excerpt, "logs/cell/it", folder, document)


@pytest.fixture
def matrix_context(tmp_path, kit):
    """Return a matrix context with one cell, and user settings that cells must not inherit."""
    text = kit.HEAD + kit.cell_table("1.0", "1.0", kit.CELL_LAYERS)
    matrix, _ = load_questions(tmp_path / "matrix.toml", text)
    environ = {"PATH": "/bin", "HF_TOKEN": "secret", "LANG": "C"}
    return Context(matrix, Store(tmp_path / "store"), environ=environ)


@pytest.fixture
def run_layer(matrix_context, monkeypatch):
    """Return a function that runs the scheduler layer on a program with this output and exit code."""

    def run_scheduler_layer(output, code=0, *, timed_out=False):
        monkeypatch.setattr(environments, "ensure_environment", lambda *_, **__: None)
        monkeypatch.setattr(cell_run, "run", lambda *_, **__: Completed(code, output, "", 1.0, timed_out))
        return BY_NAME["scheduler"].run(matrix_context, matrix_context.matrix.cells[0])

    return run_scheduler_layer


def repro_document(*attempts, modified=(), **mitigations):
    """Return the JSON document that the repro command prints for these attempts."""
    upstream = {"distribution": "vllm", "files_checked": 9, "modified": list(modified)}
    codes = {"SCH001": {"outcome": None, "attempts": list(attempts), "mitigations": mitigations}}
    return json.dumps(
        {"schema": "grpo-doctor.repro.v1", "versions": {"vllm": "1.0"}, "codes": codes, "upstream": upstream}
    )


@pytest.mark.parametrize(
    ("output", "code", "outcome", "message"),
    [
        ("", 0, Outcome.INFRA_ERROR, "ended with 0 and printed nothing"),
        ("Traceback …", 1, Outcome.INFRA_ERROR, "printed 'Traceback …', not a document"),
        ('{"schema": "other"}', 0, Outcome.INFRA_ERROR, "not a document 'grpo-doctor.repro.v1'"),
        ("[1]", 0, Outcome.INFRA_ERROR, "printed '[1]'"),
        ('{"error": "no such code"}', 2, Outcome.INFRA_ERROR, "could not work: no such code"),
        ("", -11, Outcome.FAIL, "ended by SIGSEGV"),
        ("", -6, Outcome.FAIL, "ended by SIGABRT"),
        ("", -9, Outcome.INFRA_ERROR, "ended by SIGKILL"),
    ],
)
def test_missing_document_is_attributed(run_layer, output, code, outcome, message):
    """A crash is a failure of the cell; garbage, refusals and SIGKILL are infrastructure errors."""
    answer = run_layer(output, code)
    assert (answer.outcome, message in answer.summary) == (outcome, True), answer.summary


def test_program_over_its_limit_is_a_timeout(run_layer):
    """A program that exceeds its time limit is a timeout, even if it printed a document."""
    answer = run_layer('{"schema": "grpo-doctor.repro.v1"}', -15, timed_out=True)
    assert (answer.outcome, answer.summary) == (Outcome.TIMEOUT, "no answer within 300 s")


def test_reproduced_crash_fails_with_code_and_location(run_layer, kit):
    """A reproduced crash fails with the codes, file:line and the mitigations that helped."""
    useless = {**kit.CRASH, "mitigation": "lock", "outcome": "not_mitigated"}
    helped = {"helped": ["lost_step"], "did_not_help": []}
    lock = {"helped": [], "did_not_help": ["lost_step"]}
    document = repro_document(kit.CRASH, kit.MITIGATED, useless, abort_orphans=helped, lock=lock)
    answer = run_layer(document, 1)
    assert (answer.outcome, answer.codes) == (Outcome.FAIL, ("SCH001",))
    assert answer.summary == "SCH001 at vllm/core/scheduler.py:7 (lost_step)"
    assert "SCH001: abort_orphans helped against lost_step" in answer.details
    assert "SCH001: lock did not help against lost_step" in answer.details
    assert "9 Python files of vllm hashed against the wheel's own record, 0 modified" in answer.details


@pytest.mark.parametrize(
    ("changes", "outcome", "message"),
    [
        ({"outcome": "not_reproduced"}, Outcome.PASS, "SCH001: not reproduced"),
        ({"outcome": "inapplicable", "detail": "no such scheduler"}, Outcome.NOT_RUN, "no such scheduler"),
        ({"outcome": "error", "detail": "broken"}, Outcome.INFRA_ERROR, "a repro failed itself: broken"),
        ({"outcome": "timeout"}, Outcome.TIMEOUT, "did not end in time"),
        # Without an unmitigated attempt it is unknown whether the crash occurs.
        ({"outcome": "mitigated", "mitigation": "x"}, Outcome.INFRA_ERROR, "it tried nothing"),
    ],
)
def test_outcome_of_attempts(run_layer, kit, changes, outcome, message):
    """A crash that is not reproduced is a pass; a broken or hanging repro gives no verdict on the cell."""
    answer = run_layer(repro_document({**kit.CRASH, **changes}))
    assert (answer.outcome, message in answer.summary) == (outcome, True), answer.summary


def test_modified_upstream_files_give_no_verdict(run_layer, kit):
    """If installed files differ from the wheel, the outcome is an infrastructure error."""
    answer = run_layer(repro_document(kit.CRASH, modified=["vllm/core/scheduler.py"]), 1)
    assert (answer.outcome, answer.codes) == (Outcome.INFRA_ERROR, ())


TRAIN = programs.answer_with_summary(programs.TABLES["train"].summary, programs.training_problem)
TRAINED = {"outcome": "ok", "engine": "vllm", "steps": 2, "reward_first": 0.1, "reward_last": 0.9}
TRAINED |= {"syncs": 2, "syncs_proven": 2, "max_staleness": 1}
SERVER = programs.answer_with_summary("{server}: up, and {protocol} answered")
SERVED = {"server": "vllm serve", "outcome": "ok", "protocol": "/v1/completions", "tokens": 8}
SERVER_ERROR = "ended with 1 before it was up: PackageNotFoundError: No package metadata was found for vllm"
TRL = programs.trl_answer
LOGGED = {"loss": [0.1], "sampling/sampling_logp_difference/mean": [0.001, 0.002]}
STEPS = {"outcome": "ok", "steps": 3, "seconds": 1.5, "moved": 0.01, "logged": LOGGED, "error": None}
MISMATCH = "mean log-prob difference of engine and trainer 2.0e-03, as TRL logs it"
RAISED = {"outcome": "failed", "error": "KeyError: 'x'", "where": "trl/a.py:7 in f"}


@pytest.mark.parametrize(
    ("answer_of", "document", "summary"),
    [
        (TRAIN, TRAINED, "2 steps with vllm: reward 0.10 → 0.90; 2 of 2 weight syncs proven; staleness ≤ 1"),
        (SERVER, SERVED, "vllm serve: up, and /v1/completions answered"),
        (TRL, STEPS, f"3 steps in 1.5 s; weights moved by up to 1.0e-02; {MISMATCH}"),
    ],
)
def test_summary_of_a_pass_has_the_values_of_the_document(matrix_context, answer_of, document, summary):
    answer = answer_of(make_reply(document, "the log's end"), matrix_context.matrix.cells[0])
    assert (answer.outcome, answer.summary, answer.signs, answer.excerpt) == (Outcome.PASS, summary, (), "")


@pytest.mark.parametrize(
    ("answer_of", "document", "error"),
    [
        (TRAIN, TRAINED | {"outcome": "error", "error": "the engine\n died"}, "the engine died"),
        (TRAIN, TRAINED | {"steps": 0}, "no step was taken"),
        (TRAIN, TRAINED | {"reward_last": 0.1}, "the reward did not rise: 0.10 to 0.10"),
        (TRAIN, TRAINED | {"reward_first": None}, "the reward did not rise: ? to 0.90"),
        (TRAIN, TRAINED | {"syncs_proven": 1}, "only 1 of 2 weight syncs were proven"),
        (SERVER, {"outcome": "failed", "error": SERVER_ERROR}, SERVER_ERROR),
        (SERVER, {}, "outcome None"),
        (TRL, RAISED, "KeyError: 'x' (trl/a.py:7 in f)"),
        (TRL, {}, "outcome None"),
    ],
)
def test_failed_program_has_its_error_as_sign_and_summary(matrix_context, answer_of, document, error):
    """A training run fails without steps, without a rising reward, and without a proof of every weight sync."""
    answer = answer_of(make_reply(document, "the log's end"), matrix_context.matrix.cells[0])
    actual = (answer.outcome, answer.summary, answer.signs, answer.excerpt)
    assert actual == (Outcome.FAIL, error, (error,), "the log's end")


def test_missing_mode_of_trl_is_not_run(matrix_context):
    document = {"outcome": "not_run", "error": "no such mode"}
    answer = TRL(make_reply(document), matrix_context.matrix.cells[0])
    assert (answer.outcome, answer.summary) == (Outcome.NOT_RUN, "no such mode")


def test_cell_does_not_inherit_user_settings(matrix_context):
    """A cell has no tokens, is offline, and has its own home and a PYTHONPATH of staged copies only."""
    environment = matrix_context.cell_environ(matrix_context.matrix.cells[0])
    assert "secret" not in environment.values()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert Path(environment["HOME"]).is_relative_to(matrix_context.store.folder)
    staged = {item.name for item in Path(environment["PYTHONPATH"]).iterdir()}
    assert staged == {"grpo_core", "repro", "diagnostics"}
    assert [item.name for item in Path(environment["PYTHONPATH"], "diagnostics").rglob("*.py")] == []


OK = {"outcome": "passed", "why": ""}
LACKS = {"outcome": "not applicable", "why": "sleep: it can't"}
WRONG = {"outcome": "failed", "why": "assert 1 < 0"}


@pytest.mark.parametrize(
    ("found", "code", "outcome", "message"),
    [
        ({"a": OK, "b": LACKS}, 0, Outcome.PASS, "1 passed, 1 not applicable"),
        ({"a": OK, "b": WRONG}, 1, Outcome.FAIL, "1 passed, 1 failed; first b (assert 1 < 0)"),
        ({"a": OK}, -11, Outcome.FAIL, "the program was ended by SIGSEGV after these: 1 passed"),
        ({"a": OK}, -9, Outcome.INFRA_ERROR, "the program was ended by SIGKILL after these: 1 passed"),
        ({}, 0, Outcome.INFRA_ERROR, "pytest ended with 0: no test ran"),
        ({"a": LACKS}, 0, Outcome.INFRA_ERROR, "pytest ended with 0: 1 not applicable"),
        ({"a": OK}, 3, Outcome.INFRA_ERROR, "pytest ended with 3: 1 passed"),
    ],
)
def test_conformance_run_needs_a_passed_test(found, code, outcome, message):
    """A run without a passed test, killed by SIGKILL or with exit code 3 of pytest is an infrastructure error.

    A failed test and another signal are failures.
    """
    assert conformance.suite_outcome(found, make_reply(None, code=code)) == (outcome, message)


def test_recipe_adds_a_distribution_name(matrix_context):
    """A recipe can add the metadata of a distribution, so that version checks find it."""
    cell = matrix_context.matrix.cells[0]
    packages = environments.environment_folder(matrix_context, cell) / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    environments._add_extras(
        matrix_context, cell, msgspec.structs.replace(cell.recipe, named="vllm=={vllm}+cpu")
    )
    (distribution,) = importlib.metadata.distributions(path=[str(packages)])
    assert (distribution.name, distribution.version) == ("vllm", "1.0+cpu")


def test_doctor_layer_records_findings():
    """Findings of doctor become signs of a pass; a crashed check fails."""
    finding = {"severity": "error", "code": "CMP902", "title": "known to fail", "detail": "because"}
    checks = [{"check": "a", "outcome": "findings"}, {"check": "b", "outcome": "skipped", "reason": "why"}]
    answer = doctor.doctor_answer({"checks": checks, "findings": [finding]})
    assert (answer.outcome, answer.signs, answer.summary) == (Outcome.PASS, ("error CMP902",), "error CMP902")
    crashed = [{"check": "a", "outcome": "crashed", "reason": "KeyError"}]
    assert doctor.doctor_answer({"checks": crashed, "findings": []}).outcome is Outcome.FAIL


def test_layers_are_ordered_by_requirements():
    """Each layer comes after the layers it needs, and no name occurs twice."""
    names = [layer.name for layer in LAYERS]
    assert len(set(names)) == len(names)
    for position, layer in enumerate(LAYERS):
        assert set(layer.needs) <= set(names[:position]), layer.name


def test_loss_layer_passes_fails_or_is_not_run(matrix_context, monkeypatch):
    """A trainer's loss passes within the bound, fails beyond it, and is not compared if the program cannot run."""
    cell = matrix_context.matrix.cells[0]
    verl = msgspec.structs.replace(cell, id="vllm-1.0+verl-1.0", trainer="verl")
    monkeypatch.setattr(environments, "ensure_environment", lambda *_, **__: None)
    ran = []

    def check(output, log=""):
        def run(command, *, cwd, **_options):
            ran.append((command[1:3], (cwd / "verl_loss.py").is_file()))
            (matrix_context.folder("logs", verl.id) / "loss.log").write_text(log)
            return Completed(0 if output else 1, output, "", 1.0, False)

        monkeypatch.setattr(cell_run, "run", run)
        return BY_NAME["loss"].run(matrix_context, verl)

    close, distant = ({"losses": {"gspo": worst}, "advantages": {"grpo": 0.0}} for worst in (1e-9, 1e-3))
    assert check(json.dumps(close)).outcome is Outcome.PASS
    answer = check(json.dumps(distant))
    assert (answer.outcome, answer.signs) == (Outcome.FAIL, ("losses gspo: 0.001",))
    assert check(json.dumps({**close, "losses": {"gspo": float("nan")}})).outcome is Outcome.FAIL
    answer = check("", "Traceback:\nModuleNotFoundError: No module named 'verl.new'\n")
    assert answer.outcome is Outcome.NOT_RUN
    assert answer.summary == "not compared: ModuleNotFoundError: No module named 'verl.new'"
    assert set(map(str, ran)) == {"(['-m', 'verl_loss'], True)"}


def test_contract_of_another_trainer_comes_from_the_index(matrix_context):
    """A name missing at import fails the layer; names that only functions use give `not checked`."""
    cell = matrix_context.matrix.cells[0]
    outcomes = {}
    for version, vllm in (("0.5.0", "0.8.5"), ("0.9.1", "0.24.0"), ("0.7.1", "0.8.5"), ("99.0", "0.8.5")):
        verl = msgspec.structs.replace(cell, trainer="verl", version=version, vllm=vllm)
        answer = BY_NAME["contract"].run(matrix_context, verl)
        outcomes[version] = answer.outcome
        assert all(name in answer.summary for _kind, name, _moment in answer.facts)
    assert outcomes == {
        "0.5.0": Outcome.PASS,
        "0.9.1": Outcome.NOT_CHECKED,
        "0.7.1": Outcome.FAIL,
        "99.0": Outcome.NOT_RUN,
    }


@pytest.mark.parametrize(
    ("trl", "vllm", "outcome", "fact"),
    [
        ("0.24.0", "0.10.2", Outcome.PASS, None),
        ("0.23.1", "0.12.0", Outcome.FAIL, ("vllm.sampling_params.GuidedDecodingParams", "at import")),
        ("0.14.0", "0.8.5", Outcome.FAIL, ("vllm.LLM.llm_engine.model_executor", "when called")),
        ("1.15.0", "0.20.2", Outcome.FAIL, ("/start_weight_update", "when called")),
        ("99.0", "0.8.5", Outcome.NOT_RUN, None),
    ],
)
def test_contract_of_trl_fails_if_grpo_needs_what_is_missing(trl, vllm, outcome, fact):
    """A name, behaviour or route that a GRPO run needs fails the layer; the last release is not in the index."""
    answer = contract.compare_releases(Release("trl", trl), Release("vllm", vllm))
    assert answer.outcome is outcome
    if fact:
        assert ("missing", *fact) in answer.facts
        assert fact[0] in answer.summary
    else:
        assert answer.facts == ()


def test_contract_of_trl_ignores_what_not_every_grpo_run_needs():
    """A name that only an option needs, and routes for images, are in the details."""
    details = contract.compare_releases(Release("trl", "0.26.2"), Release("vllm", "0.11.0")).details
    assert any(line.startswith("missing, but not used by every GRPO run: vllm.") for line in details)
    answer = contract.compare_releases(Release("trl", "1.13.0"), Release("vllm", "0.30.0"))
    assert answer.outcome is Outcome.PASS
    assert [line for line in answer.details if line.startswith("breaks") and "prompts with images" in line]


def test_contract_of_trl_is_open_if_its_source_does_not_decide(monkeypatch):
    """A rule without a case for this vLLM, a path without a rule, and an unknown condition give `not checked`."""
    known, engine = rules.project_rules(), Release("vllm", "0.11.0")
    comparison = query.compare_names(Release("trl", "0.26.2"), engine)
    without_cases = tuple(msgspec.structs.replace(rule, cases=()) for rule in known.rule)
    unsure = MissingUse(Use("name", "vllm", "Maybe", file="trl/trainer/grpo_trainer.py"), "no Maybe in vllm")
    for changed, uses, subject, needed in (
        (without_cases, [], "vllm.LLM.llm_engine.model_config", "this vLLM read"),
        ((), [], "vllm.LLM.llm_engine.model_config.max_model_len", "followed as far as "),
        (known.rule, [unsure], "vllm.Maybe", "the condition"),
    ):
        monkeypatch.setattr(
            rules, "project_rules", lambda rule=changed: msgspec.structs.replace(known, rule=rule)
        )
        monkeypatch.setattr(
            query, "compare_names", lambda *_, unsure=uses, **__: replace(comparison, unsure=unsure)
        )
        answer = contract.compare_releases(Release("trl", "0.26.2"), engine)
        assert answer.outcome is Outcome.NOT_CHECKED
        assert "not checked: vllm." in answer.summary
        assert any(subject in line and needed in line for line in answer.signs)
        assert ("undecided", subject) in [item[:2] for item in answer.facts]
