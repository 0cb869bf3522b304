"""Lint rules report their faulty cases and accept their valid ones; findings quote evidence and name a fix.

The cases are in `diagnostics/lint/rules/cases/`, the examples of declared rules in their tables.
"""

import ast
import random
from pathlib import Path

import pytest

from diagnostics import catalog
from diagnostics.findings import Severity
from diagnostics.fixes import fix_text
from diagnostics.lint import rules
from diagnostics.lint.rules.declared import DECLARED, EXPRESSION, evaluate
from diagnostics.lint.run_plan import VOCABULARY
from tests.case_files import load_yaml
from tests.diagnostics.lint_reports import findings, lint

CASES = {
    name: entries
    for path in sorted((Path(rules.__file__).parent / "cases").glob("*.yaml"))
    for name, entries in load_yaml(path).items()
}
ALL_CASES = [(name, case) for name, entries in CASES.items() for case in entries]
SWIFT = "swift rlhf --rlhf_type grpo --use_vllm true "
TRL = "accelerate launch --num_processes 4 grpo.py --use_vllm true --num_generations 8 "
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray "
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 "


@pytest.mark.parametrize(("name", "case"), ALL_CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(ALL_CASES)])
def test_case_gives_its_declared_finding(name, case):
    """A faulty case gives its finding and a valid one does not; a finding has a place, a value and a fix.

    An error depends on no unknown value.
    """
    releases = {package.replace("-", "_"): release for package, release in case.get("releases", {}).items()}
    all_findings = findings(case["run"], case.get("syntax", "shell"), **releases)
    reported = {f"{finding.severity.word} {finding.code}" for finding in all_findings}
    if case["finds"].startswith("no "):
        assert not any(item.endswith(case["finds"][3:]) for item in reported)
    else:
        assert case["finds"] in reported
    for finding in all_findings:
        assert finding.evidence[0].place.startswith(("run:", "default of"))
        assert " = " in finding.evidence[0].text
        assert finding.detail.endswith((".", "given", ":"))
        assert fix_text(finding.remedy)
        if finding.severity >= Severity.ERROR:
            assert "not known" not in finding.evidence[0].text
            assert finding.certainty != "hypothesis"


def test_every_rule_has_a_faulty_and_a_valid_case():
    """Left out are declared rules and rules without a code."""
    missing = []
    for rule in rules.registered_rules():
        finds = [case["finds"] for case in CASES.get(rule.name, ())]
        if rule.name in {declared.name for declared in DECLARED} or not rule.codes:
            continue
        if not any(item.startswith("no ") for item in finds):
            missing.append(f"{rule.name}: no valid case")
        if all(item.startswith("no ") for item in finds):
            missing.append(f"{rule.name}: no faulty case")
    assert missing == []
    assert set(CASES) <= {rule.name for rule in rules.registered_rules()}


def test_declared_rules_report_their_wrong_examples_only():
    problems = []
    for declared in DECLARED:
        package = declared.package or (declared.frameworks[0] if declared.frameworks else "")
        known = {package.replace("-", "_"): declared.release} if declared.release else {}
        begins = f"{declared.severity} {declared.code} {declared.message.partition('{')[0]}"
        for expected, texts in ((True, declared.wrong), (False, declared.right)):
            if not texts:
                problems.append(f"{declared.name}: no example")
            for text in texts:
                found = findings(text, "python" if text.startswith("from ") else "shell", **known)
                reported = {f"{f.severity.word} {f.code} {f.detail}": f.known_by for f in found}
                levels = {level for item, level in reported.items() if item.startswith(begins)}
                if bool(levels) is not expected or (
                    levels and declared.known_by and levels != {declared.known_by}
                ):
                    problems.append(f"{declared.name}: {reported} in {text}")
    assert problems == []


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("--per_device_train_batch_size 3 --generation_batch_size 12",
         "Set generation_batch_size to a multiple of 24, or num_generations to 4 or 6 or 12."),
        ("--generation_batch_size 12", "a multiple of 8 and of per_device_train_batch_size x processes, or"),
        ("--per_device_train_batch_size 1 --gradient_accumulation_steps 1", "Set gradient_accumulation_steps to 8."),
    ],
)  # fmt: skip
def test_suggested_batch_size_fits_all_constraints(script, expected):
    reported = findings(f"NPROC_PER_NODE=1 {SWIFT}--num_generations 8 {script}", ms_swift="4.6.0")
    [finding] = [item for item in reported if item.code == "CFG101" and "num_generations" in item.detail]
    assert expected in fix_text(finding.remedy)


def test_evidence_quotes_the_text_of_the_file():
    """Evidence quotes values of the file; derived values, such as the number of devices, are not quoted."""
    options = "--vllm_server_host 10.0.0.7 --vllm_max_model_len 4096"
    script = f"CUDA_VISIBLE_DEVICES=0 NPROC_PER_NODE=2 {SWIFT}{options}"
    evidence = {item.text for finding in findings(script, ms_swift="3.8.0") for item in finding.evidence}
    assert {"CUDA_VISIBLE_DEVICES = 0", "vllm_server_host = 10.0.0.7"} <= evidence
    assert not {"CUDA_VISIBLE_DEVICES = 1", "vllm_server_host = server"} & evidence


@pytest.mark.parametrize(
    ("script", "code", "option"),
    [
        (VERL + "actor_rollout_ref.rollout.temperature=0", "CFG115", "actor_rollout_ref.rollout.temperature=1.0"),
        (SWIFT + "--temperature 0", "CFG115", "--temperature 1.0"),
        (SWIFT + "--vllm_mode colocate", "CFG105", "or set sleep_level 1 if"),
        ("python3 -m verl.trainer.main worker.rollout.top_p=0.9", "NUM002", "Turn worker.rollout.top_p off"),
        (OPENRLHF + "--vllm.num_engines 8 --train.partial_rollout_enable", "CFG111", "--train.async_enable"),
        (OPENRLHF + "--vllm_num_engines 8 --partial_rollout", "CFG111", "--async_train"),
    ],
)  # fmt: skip
def test_fix_uses_the_options_of_framework_and_command(script, code, option):
    """The fix names OpenRLHF's options with or without dots, as the command does; 0.10.2 introduced the dots."""
    [reported] = [finding for finding in findings(script) if finding.code == code]
    assert option in fix_text(reported.remedy)


def test_evidence_level_is_that_of_the_framework():
    """A repro that ran with TRL gives executed evidence for TRL, and static evidence for ms-swift."""
    sizes = "--per_device_train_batch_size 3 --gradient_accumulation_steps 1 --num_generations 8"
    [trl] = [f for f in findings(TRL + sizes, trl="1.16.0") if f.code == "CFG101"]
    [swift] = [f for f in findings("NPROC_PER_NODE=4 " + SWIFT + sizes) if f.code == "CFG101"]
    assert (trl.known_by, swift.known_by) == ("executed", "static")


def test_missing_values_are_errors_only_with_the_command(tmp_path, monkeypatch, run_command):
    """A missing value (`???`) is an error in a command, and a warning in a config whose command is unknown."""
    monkeypatch.chdir(tmp_path)
    config, command = tmp_path / "c.yaml", tmp_path / "run.sh"
    config.write_text("actor_rollout_ref: {rollout: {name: vllm, n: 8}}\ndata:\n  train_files: ???\n")
    command.write_text("python3 -m verl.trainer.main_ppo --config-path=. --config-name=c\n")
    assert {f.severity for f in lint(config).findings if f.code == "CFG120"} == {Severity.WARNING}
    assert {f.severity for f in lint(command).findings if f.code == "CFG120"} == {Severity.ERROR}
    assert "CFG120" in run_command("lint", command).out


def test_catalog_conditions_use_names_of_the_run_plan():
    used = {name for entry in catalog.load().values() for table in entry.config for name, _ in table.when}
    assert used <= set(VOCABULARY)


def test_texts_of_declared_rules_use_existing_names():
    """A name that does not exist would be printed as True."""
    for declared in DECLARED:
        options = len(declared.enabled) + len(declared.equal) + len(declared.differs)
        names = {"nearest", "run", *declared.values, *(f"{name}_key" for name in declared.values)}
        names |= {f"v{number}" for number in range(options)}
        for match in EXPRESSION.finditer(declared.message + declared.fix):
            used = {
                node.id for node in ast.walk(ast.parse(match[1], mode="eval")) if isinstance(node, ast.Name)
            }
            assert used - {"count", "max", "part"} <= names, declared.name


def test_declared_rules_do_no_arithmetic_on_text():
    """A text times a large number would fill the memory; conditions compare a value with a number first."""

    class Text(str):
        __slots__ = ()

        def __mul__(self, other):
            pytest.fail(f"arithmetic on text in {declared.name}")

        __rmul__ = __mod__ = __mul__

    rng = random.Random(1)
    for declared in DECLARED:
        for text in declared.values if set("*%") & set(declared.where) else ():
            for _ in range(200):
                names = {name: rng.choice((0, 1, 2, 3, 5, 7, 8)) for name in declared.values}
                evaluate(declared.where, names | {text: Text("9"), "run": {"framework": "verl"}})


def test_finding_of_a_check_in_the_source_has_static_evidence():
    """The entry of the code has a reproduced case, but the finding follows from another check of the release."""
    [finding] = findings("trl grpo --use_liger_loss true --delta 1.5", trl="0.18.2")
    assert (finding.code, finding.known_by) == ("CFG111", "static")
    assert "Liger loss does not support two-sided GRPO loss yet" in finding.detail
